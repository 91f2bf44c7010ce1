"""Requests as a browser sends them for a page of another site, on real listeners of loopback that demand no token."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvicorn
from fastapi import FastAPI

from tests.unit.knowledge.builders import APP, document
from tests.unit.workloads.memory_output import MemoryOutput
from weir_replay.trace import LoadTrace, Step
from weir_runtime.http import application, listen, serve
from weir_runtime.loop import Stop
from weir_runtime.origins import SameOrigin
from weir_runtime.service import run_service
from weir_runtime.settings import ServiceSettings
from weir_sdk.testing import request, running
from workloads.loadgen.__main__ import control_server
from workloads.loadgen.generator import Generator
from workloads.loadgen.load import Load

from .http_apis import knowledge
from .test_other_servers import careful

PAUSE = f"POST /v1/policies/{APP}/pause"
PUT = f"PUT /v1/policies/{APP}"
POLICY = json.dumps(document())
FORM = "Content-Type: application/x-www-form-urlencoded"
JSON = "Content-Type: application/json"
EVIL = "Origin: http://evil.example"


async def answered(port: int, first: str, *headers: str, body: str = "", host: str | None = None) -> tuple[int, str]:
    """The status and the body of one raw request; `host` is the `Host` header, by default the listener's address."""
    reader, out = await asyncio.open_connection("127.0.0.1", port)
    lines = [
        f"{first} HTTP/1.1",
        f"Host: {host or f'127.0.0.1:{port}'}",
        *headers,
        f"Content-Length: {len(body.encode())}",
    ]
    out.write("\r\n".join([*lines, "Connection: close", "", body]).encode())
    async with asyncio.timeout(10):
        received = await reader.read()
    out.transport.abort()
    head, _, rest = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest.decode()


@asynccontextmanager
async def listening(app: FastAPI, *allowed_hosts: str, address: str = "127.0.0.1") -> AsyncIterator[int]:
    stop, bound = Stop(), listen(address, 0)
    serving = asyncio.create_task(serve(app, bound, stop, allowed_hosts=allowed_hosts))
    try:
        yield bound.getsockname()[1]
    finally:
        stop.request("the test is over")
        await asyncio.wait_for(serving, 10.0)


@pytest.fixture
def api() -> FastAPI:
    """Made before the test's loop runs."""
    return knowledge()


async def mode(port: int) -> str:
    status, body = await answered(port, f"GET /v1/policies/{APP}")
    assert status == 200
    return str(json.loads(body)["spec"].get("mode", "advise"))


FOREIGN: dict[str, tuple[int, str, list[str], str, str | None]] = {
    "a form": (415, PAUSE, [FORM], "", None),
    "a form of another site": (403, PAUSE, [FORM, EVIL, "Sec-Fetch-Site: cross-site"], "", None),
    "a form of a page without an origin": (403, PAUSE, [FORM, "Origin: null"], "", None),
    "a form with files": (415, PAUSE, ["Content-Type: multipart/form-data; boundary=x"], "", None),
    "a form of plain text": (415, PUT, ["Content-Type: text/plain"], POLICY, None),
    "a script without a body": (403, PAUSE, [EVIL], "", None),
    "a page on another port": (403, PAUSE, ["Origin: http://127.0.0.1:3000", "Sec-Fetch-Site: same-site"], "", None),
    "a browser that sends only the site": (403, PAUSE, ["Sec-Fetch-Site: cross-site"], "", None),
    "a site that resolves to loopback": (421, PUT, [JSON], POLICY, "evil.example"),
    "the same, reading": (421, f"GET /v1/policies/{APP}", [], "", "evil.example:8080"),
    "the same, as its own origin": (421, PUT, [JSON, EVIL, "Sec-Fetch-Site: same-origin"], POLICY, "evil.example"),
    "a name that begins like an address": (421, PUT, [JSON], POLICY, "127.0.0.1.evil.example"),
    "an address of another machine": (421, PUT, [JSON], POLICY, "192.0.2.1"),
    "a host of nonsense": (421, PUT, [JSON], POLICY, "localhost@evil.example"),
    "a question for permission": (403, "OPTIONS /v1/policies", [EVIL], "", None),
    "a feed for a page": (403, "GET /v1/events", ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: empty"], "", None),
    "a feed in a frame": (403, "GET /v1/events", ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: iframe"], "", None),
}


async def test_a_page_of_another_site_changes_and_reads_nothing(api: FastAPI) -> None:
    """Each is refused with a sentence, and the policy stays as it is."""
    async with listening(api) as port:
        for name, (status, first, headers, body, host) in FOREIGN.items():
            answer_status, text = await answered(port, first, *headers, body=body, host=host)
            assert answer_status == status, (name, text)
            problem = json.loads(text)
            assert problem["status"] == status
            assert 20 < len(problem["detail"]) <= 160, problem
        assert await mode(port) == "advise"


OWN: dict[str, tuple[str, list[str], str, str | None]] = {
    "a client without a body": (PAUSE, [], "", None),
    "JSON": (PUT, ["Content-Type: application/json; charset=utf-8"], POLICY, None),
    "YAML": (PUT, ["Content-Type: application/x-yaml"], POLICY, None),
    "text of YAML": (PUT, ["Content-Type: text/yaml"], POLICY, None),
    "a type of JSON": (PUT, ["Content-Type: application/merge-patch+json"], POLICY, None),
    "no type": (PUT, [], POLICY, None),
    "localhost": (PUT, [JSON], POLICY, "LOCALHOST:8080"),
    "IPv6": (PUT, [JSON], POLICY, "[::1]:8080"),
    "its own page": (
        PUT,
        [JSON, "Origin: http://localhost:8080", "Sec-Fetch-Site: same-origin"],
        POLICY,
        "localhost:8080",
    ),
    "its own page behind TLS": (PUT, [JSON, "Origin: https://localhost"], POLICY, "localhost"),
    "an address typed in": (f"GET /v1/policies/{APP}", ["Sec-Fetch-Site: none"], "", None),
    "a link": (f"GET /v1/policies/{APP}", ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: document"], "", None),
}


async def test_clients_and_its_own_pages_are_answered(api: FastAPI) -> None:
    """Those that are no browser, and the interactive documentation."""
    async with listening(api) as port:
        for name, (first, headers, body, host) in OWN.items():
            status, text = await answered(port, first, *headers, body=body, host=host)
            assert status == 200, (name, text)


async def test_a_listener_has_the_names_it_was_given() -> None:
    """As containers call one another; every address where it listens on all of them, as a collector of metrics does."""
    app = application("Oven", "Bakes.")
    app.add_api_route("/", lambda: "warm")
    async with listening(app, "Knowledge", address="0.0.0.0") as port:
        for host in ("knowledge:8080", "knowledge", "172.18.0.7:8080", "[fd00::7]:8080", "localhost"):
            assert (await answered(port, "GET /", host=host))[0] == 200, host
        for host in ("planner:8093", "knowledge.evil.example", "172.18.0.7.evil.example"):
            status, text = await answered(port, "GET /", host=host)
            assert status == 421
            assert "add it to WEIR_ALLOWED_HOSTS" in text


async def test_a_service_takes_the_names_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the variable to the listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    monkeypatch.setenv("WEIR_ALLOWED_HOSTS", "knowledge,weir.example")
    found: dict[str, int] = {}

    async def ask(stop: Stop) -> None:
        for host in ("weir.example", "knowledge", "evil.example"):
            found[host] = (await answered(port, "GET /", host=host))[0]
        stop.request("asked")

    app = application("Oven", "Bakes.")
    app.add_api_route("/", lambda: "warm")
    assert await run_service("oven", ServiceSettings(http_port=port), app=app, tasks={"ask": ask}) == 0
    assert found == {"weir.example": 200, "knowledge": 200, "evil.example": 421}


@contextmanager
def load_generator() -> Iterator[int]:
    """Its control API as it is served."""
    generator = Generator(Load(LoadTrace(Step(), 2400)), MemoryOutput(), now_seconds=0.0)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(128)
        server: uvicorn.Server = control_server(generator)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10.0)


@contextmanager
def planner() -> Iterator[int]:
    """A user's planner as the SDK serves it."""
    with running(careful) as url:
        yield int(url.rpartition(":")[2])


@pytest.mark.parametrize(
    ("make", "first", "body"),
    [(load_generator, "PUT /load", '{"rate": 1}'), (planner, "POST /plan", request().model_dump_json(by_alias=True))],
)
async def test_the_other_listeners_refuse_the_same(make: Callable[[], Iterator[int]], first: str, body: str) -> None:
    """Listeners on loopback that are none of the loop's services."""
    with make() as port:  # type: ignore[attr-defined]
        foreign: list[tuple[int, Awaitable[tuple[int, str]]]] = [
            (421, answered(port, first, JSON, body=body, host="evil.example")),
            (403, answered(port, first, JSON, EVIL, body=body)),
            (403, answered(port, first, JSON, "Sec-Fetch-Site: cross-site", body=body)),
            (415, answered(port, first, "Content-Type: text/plain", body=body)),
        ]
        for status, exchange in foreign:
            answer_status, text = await exchange
            assert answer_status == status, text
            assert len(json.loads(text)["detail"]) <= 160
        for host in (f"127.0.0.1:{port}", "localhost", "[::1]:80"):
            answer_status, text = await answered(port, first, JSON, body=body, host=host)
            assert answer_status == 200, text


async def test_what_is_no_request_passes() -> None:
    """The start and the end of an application."""
    scopes = []

    async def app(scope: object, _receive: object, _send: object) -> None:
        scopes.append(scope)

    await SameOrigin(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert scopes == [{"type": "lifespan"}]
