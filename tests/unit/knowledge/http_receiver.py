"""A receiver of notifications: a real HTTP server on loopback that answers as it is told."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Self

Answer = tuple[int, dict[str, str]]
ACCEPTED: Answer = (204, {})


@dataclass(frozen=True)
class Received:
    """A request."""

    path: str
    headers: dict[str, str]
    body: Any


class HttpReceiver:
    """Answers each request as `answer` says, after `gate` is open; keeps all that it got."""

    def __init__(self, answer: Callable[[int], Answer] = lambda _: ACCEPTED) -> None:
        """`answer` gets the number of earlier requests."""
        self.received: list[Received] = []
        self.gate = Event()
        self.gate.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:  # the sender gave up before
                    return
                number = len(receiver.received)
                headers = {name.lower(): text for name, text in self.headers.items()}
                receiver.received.append(Received(self.path, headers, json.loads(body)))
                receiver.gate.wait(30)
                status, sent = answer(number)
                self.send_response(status)
                for name, text in sent.items():
                    self.send_header(name, text)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing: the tests read what was received."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook/s3cret"

    @property
    def bodies(self) -> list[Any]:
        return [each.body for each in self.received]

    def ids(self) -> list[str]:
        """Return the ids of the CloudEvents, in the order in which they came."""
        return [str(body["id"]) for body in self.bodies]

    def kinds(self) -> list[str]:
        return [str(body["data"]["kind"]) for body in self.bodies]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
