"""Invalid responses of Docker: the error names the call, and nothing is changed."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from services.executor.adapters.docker_daemon import DockerDaemon
from services.executor.adapters.docker_scaling import Container, DockerAway, DockerRefused

ID = "0123456789ab" * 5 + "0123"
LINE = {
    "Id": ID,
    "Names": ["/shop-tm-1"],
    "State": "running",
    "Labels": {
        "com.docker.compose.project": "shop",
        "com.docker.compose.service": "tm",
        "com.docker.compose.container-number": "1",
        "com.docker.compose.oneoff": "False",
    },
}
ONE = Container(ID, "shop-tm-1", 1, "running")


class Hostile:
    """A Docker whose responses a test sets, by the path's end without its version; `asked` lists its requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"/version": (200, {"ApiVersion": "1.41"})}
        self.request_sent: list[tuple[str, str]] = []
        hostile = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                path = self.path.split("?")[0]
                hostile.request_sent.append((self.command, path))
                found = [answer for end, answer in hostile.answers.items() if path.endswith(end)]
                status, body = found[0] if found else (404, {"message": "no such thing"})
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the base class finds them by name

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.server.server_address[1]}"

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[Hostile]:
    hostile = Hostile()
    yield hostile
    hostile.end()


@pytest.fixture
def hostile(server: Hostile) -> Hostile:
    server.answers = {"/version": (200, {"ApiVersion": "1.41"})}
    server.request_sent.clear()
    return server


@pytest.fixture
def daemon(hostile: Hostile) -> Iterator[DockerDaemon]:
    daemon = DockerDaemon(hostile.url, 2)
    yield daemon
    daemon.close()


@pytest.mark.parametrize(
    ("answer", "expected_text"),
    [
        ((200, b"{not json"), "GET /containers/json"),
        ((200, {"a": 1}), "GET /containers/json: the answer"),
        ((200, [{**LINE, "Labels": 7}]), "0.Labels"),
        ((200, [{"Id": ID}]), "0.Names"),
        ((500, {"message": "boom"}), "500 boom"),
        ((502, b"<html>proxy</html>"), "502"),
    ],
)
def test_an_invalid_response_is_an_outage(
    hostile: Hostile, daemon: DockerDaemon, answer: tuple[int, Any], expected_text: str
) -> None:
    """The state of the containers is unknown."""
    hostile.answers["/containers/json"] = answer
    with pytest.raises(DockerAway, match=expected_text):
        daemon.containers("shop", "tm")


def test_foreign_containers_are_left_out(hostile: Hostile, daemon: DockerDaemon) -> None:
    """Containers of other services, one-off ones and those without a number, even if Docker lists them."""
    labels = LINE["Labels"]
    assert isinstance(labels, dict)
    strangers = [
        {**LINE, "Labels": {}},
        {**LINE, "Labels": {**labels, "com.docker.compose.project": "payroll"}},
        {**LINE, "Labels": {**labels, "com.docker.compose.oneoff": "True"}},
        {**LINE, "Labels": {**labels, "com.docker.compose.container-number": "-1"}},
        {**LINE, "State": "removing"},
    ]
    hostile.answers["/containers/json"] = (200, [*strangers, LINE])
    assert daemon.containers("shop", "tm") == [ONE]


def test_a_container_without_compose_s_labels_is_not_copied(hostile: Hostile, daemon: DockerDaemon) -> None:
    """The id may belong to another container by now."""
    hostile.answers[f"/containers/{ID}/json"] = (
        200,
        {"Id": ID, "Name": "/x", "Image": "sha256:1", "Config": {"Image": "x", "Labels": {}}, "HostConfig": {}},
    )
    with pytest.raises(DockerRefused, match="not compose's"):
        daemon.copy(ONE, 2)
    assert [path for method, path in hostile.request_sent if method == "POST"] == []


def test_a_process_that_cannot_be_started_is_refused(hostile: Hostile, daemon: DockerDaemon) -> None:
    """Docker reports an occupied port with a 500; a repeated request would fail, too."""
    hostile.answers["/start"] = (500, {"message": "port is already allocated"})
    with pytest.raises(DockerRefused, match="port is already allocated"):
        daemon.start(ONE)


def test_a_missing_daemon_is_an_outage() -> None:
    """The next call connects again."""
    daemon = DockerDaemon("tcp://127.0.0.1:1", 1)
    for _ in range(2):
        with pytest.raises(DockerAway, match="GET /containers/json"):
            daemon.containers("shop", "tm")
