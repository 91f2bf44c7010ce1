"""The listener: limits, problem documents, documentation, and TLS."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, SecretStr
from structlog.testing import capture_logs

from testbed.kubernetes_access import Authority, Certificate
from tests.unit.runtime.test_settings import Settings
from weir_runtime import probe
from weir_runtime.access import Caller, Problem, Tokens, requires
from weir_runtime.files import follow
from weir_runtime.http import ListenerTls, PortInUse, application, listen, serve
from weir_runtime.http_client import async_client
from weir_runtime.loop import Stop

ADA, BOB = "adas-long-token-1", "bobs-long-token-2"


class Loaf(BaseModel):
    grams: int = Field(gt=0)


def oven(tokens: Tokens | None = None, **limits: float) -> FastAPI:
    app = application("Oven", "Bakes.", tokens, **limits)  # type: ignore[arg-type]

    @app.get("/who")
    async def who(caller: Annotated[Caller, Depends(requires("read"))]) -> str:
        return caller.name

    @app.post("/loaves")
    async def bake(loaf: Loaf, caller: Annotated[Caller, Depends(requires("write"))]) -> dict[str, object]:
        return {"grams": loaf.grams, "who": caller.name}

    @app.get("/conflict")
    async def conflict() -> None:
        raise Problem(409, "another writer was first", errors=[("version", "is 3, not 2")], extra={"current": 3})

    @app.get("/odd/{name}")
    async def odd(name: str) -> None:
        raise Problem(404, f"there is no {name}", errors=[(name, f"is {name}")])

    @app.get("/bug")
    async def bug() -> None:
        raise RuntimeError("the password is hunter2")

    @app.get("/slow")
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for part in (b"a", b"b", b"c"):
                yield part
                await asyncio.sleep(0.03)

        return StreamingResponse(parts())

    return app


def client(app: FastAPI, token: str | None = None) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://oven", headers=headers)


def guarded() -> FastAPI:
    return oven(Tokens({ADA: Caller("ada", frozenset({"write"})), BOB: Caller("bob", frozenset({"read"}))}))


# -- who may -------------------------------------------------------------------------------------------------------


async def test_without_tokens_everybody_is_local() -> None:
    """On loopback, a developer's machine."""
    async with client(oven()) as http:
        assert (await http.get("/who")).json() == "local"
        assert (await http.post("/loaves", json={"grams": 500})).json() == {"grams": 500, "who": "local"}


async def test_a_token_has_a_name_and_a_role() -> None:
    """Write includes read; read alone does not include write."""
    async with client(guarded(), ADA) as http:
        assert (await http.get("/who")).json() == "ada"
        assert (await http.post("/loaves", json={"grams": 500})).json()["who"] == "ada"
    async with client(guarded(), BOB) as http:
        assert (await http.get("/who")).json() == "bob"
        refused = await http.post("/loaves", json={"grams": 500})
    assert refused.status_code == 403
    assert refused.json()["detail"] == "bob has no token of the role write"


async def test_a_process_with_tokens_accepts_its_own_requests() -> None:
    """By a token of its own, next to the others; without tokens there is none to be asked for."""
    own = Caller("weir", frozenset({"write"}))
    tokens = Tokens({ADA: Caller("ada", frozenset({"write"}))}).with_own(BOB, own)
    async with client(oven(tokens), BOB) as http:
        assert (await http.get("/who")).json() == "weir"
    async with client(oven(tokens), ADA) as http:
        assert (await http.get("/who")).json() == "ada"
    assert not Tokens({}).with_own(BOB, own).required


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer ", "Bearer nobodys-long-token", f"Basic {ADA}", ADA])
async def test_an_unknown_caller_gets_401(header: str | None) -> None:
    """401 with the scheme, as a problem document; the same whether the token is missing or wrong."""
    async with client(guarded()) as http:
        answer = await http.get("/who", headers={"Authorization": header} if header else {})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 401


async def test_the_documentation_offers_the_token() -> None:
    """The interactive page has a button for it."""
    schema = guarded().openapi()
    assert schema["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert schema["paths"]["/who"]["get"]["security"] == [{"HTTPBearer": []}]


# -- errors --------------------------------------------------------------------------------------------------------


async def test_a_wrong_field_is_named() -> None:
    """In the sentence for people and in the list for programs."""
    async with client(oven()) as http:
        answer = await http.post("/loaves", json={"grams": -1})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"] == [{"field": "body.grams", "message": "must be greater than 0"}]
    assert "body.grams" in answer.json()["detail"]


async def test_a_name_with_control_characters_is_answered_escaped() -> None:
    """It ends in terminals and logs, on one line, and not at any length."""
    async with client(oven()) as http:
        answer = await http.get("/odd/a%1B%5B31m%0Ab")
        long = await http.get("/odd/" + "x" * 50_000)
    escaped = r"a\x1b[31m\nb"
    assert answer.json()["detail"] == f"there is no {escaped}"
    assert answer.json()["errors"] == [{"field": escaped, "message": f"is {escaped}"}]
    assert len(long.content) < 30_000


async def test_every_error_is_a_problem_document() -> None:
    """Unknown paths, wrong methods, broken JSON, and those a service raises itself."""
    async with client(oven()) as http:
        answers = {
            404: await http.get("/nowhere"),
            405: await http.delete("/who"),
            422: await http.post("/loaves", content=b"{", headers={"content-type": "application/json"}),
            409: await http.get("/conflict"),
        }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
        assert answer.json()["detail"]
    assert answers[409].json()["errors"] == [{"field": "version", "message": "is 3, not 2"}]
    assert answers[409].json()["current"] == 3


async def test_a_bug_shows_nothing_of_the_inside() -> None:
    """The reason is in the log; the answer has none of it."""
    with capture_logs() as lines:
        async with client(oven()) as http:
            answer = await http.get("/bug")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert "RuntimeError" not in answer.text
    assert [(line["event"], line["path"]) for line in lines] == [("request-failed", "/bug")]


# -- how much and how long -----------------------------------------------------------------------------------------


async def test_too_large_a_body_is_refused() -> None:
    """Announced in its header, or streamed without one."""

    async def streamed() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async with client(oven(body_bytes=1000)) as http:
        announced = await http.post("/loaves", content=b" " * 1001)
        unannounced = await http.post("/loaves", content=streamed(), headers={"content-type": "application/json"})
        small = await http.post("/loaves", json={"grams": 500})
    for answer in (announced, unannounced):
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"] == "the body has more than 1000 bytes"
    assert small.status_code == 200


async def test_a_body_of_too_many_elements_is_refused() -> None:
    """600 kB of `[],` take 20 MB when they are parsed: they are refused as they arrive."""
    async with client(oven()) as http:
        answer = await http.post("/loaves", content=b"[" + b"[]," * 200_000 + b"[]]")
    assert answer.status_code == 413
    assert answer.json()["detail"] == "the body has more than 200000 elements"


async def test_no_byte_of_a_body_is_read_without_a_token() -> None:
    """The caller is known by the head alone, also at an address that does not exist and for the documentation."""
    read = 0

    async def receive() -> dict[str, object]:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": b"{", "more_body": True}

    for method, path in [("POST", "/loaves"), ("POST", "/nowhere"), ("GET", "/docs"), ("GET", "/openapi.json")]:
        sent: list[dict[str, object]] = []

        async def send(message: dict[str, object], sent: list[dict[str, object]] = sent) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "state": {}}
        await guarded()(scope, receive, send)  # type: ignore[arg-type]
        assert (path, sent[0]["status"], read) == (path, 401, 0)


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
async def test_probes_need_no_token(path: str) -> None:
    """The kubelet and a container's health check have none."""
    app = guarded()

    @app.get(path)
    async def probed() -> str:
        return "ok"

    async with client(app) as http:
        assert (await http.get(path)).status_code == 200
        assert (await http.get(f"{path}/../who")).status_code == 401
        assert (await http.get("/healthy")).status_code == 401


async def test_open_bodies_share_one_budget() -> None:
    """Callers that each stay below the limit of a body, and never end it, do not fill the memory together: further
    large bodies are refused until theirs end, small ones and other requests are served."""
    release, open_bodies = asyncio.Event(), asyncio.Semaphore(0)

    async def unfinished() -> AsyncIterator[bytes]:
        yield b"[" + b"1," * 150_000
        open_bodies.release()
        await release.wait()
        yield b"1]"

    json_type = {"content-type": "application/json"}
    async with client(oven()) as http:
        async with asyncio.TaskGroup() as group:
            holding = [
                group.create_task(http.post("/loaves", content=unfinished(), headers=json_type)) for _ in range(4)
            ]
            for _ in holding:
                await open_bodies.acquire()
            refused = await http.post("/loaves", content=b"[" + b"1," * 150_000 + b"1]", headers=json_type)
            served = await http.post("/loaves", json={"grams": 500})
            release.set()
        after = await http.post("/loaves", content=b"[" + b"1," * 150_000 + b"1]", headers=json_type)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["detail"] == "too many large bodies are open at once: try again"
    assert served.status_code == 200
    assert [done.result().status_code for done in holding] == [422] * 4
    assert after.status_code == 422  # read, and no loaf


async def test_an_answer_that_does_not_begin_is_given_up() -> None:
    """A request does not hold a connection for ever."""
    async with client(oven(answer_seconds=0.02)) as http:
        answer = await http.get("/slow")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "no answer within 0.02 s"


async def test_a_stream_may_last() -> None:
    """Once it has begun, only its own end ends it."""
    async with client(oven(answer_seconds=0.04)) as http:
        assert (await http.get("/stream")).text == "abc"


# -- a real listener -----------------------------------------------------------------------------------------------


async def test_a_port_in_use_is_one_sentence() -> None:
    """It names the address and the reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse, match=r"cannot listen on 127\.0\.0\.1:\d+ \(Address already in use\)$"):
            listen("127.0.0.1", taken.getsockname()[1])


async def test_an_address_that_is_not_ours_is_one_sentence() -> None:
    """A name that resolves to nothing here."""
    with pytest.raises(PortInUse, match=r"cannot listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0)


async def test_a_client_of_a_peer_carries_the_token_and_ends_with_the_server() -> None:
    """Served on a real socket, inside the service's own loop, until the stop."""
    stop = Stop()
    bound = listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    serving = asyncio.create_task(serve(guarded(), bound, stop))
    async with async_client(f"http://127.0.0.1:{port}", SecretStr(ADA)) as http:
        assert (await http.get("/who")).json() == "ada"
        stop.request("enough")
        await asyncio.wait_for(serving, 10.0)
        with pytest.raises(httpx.TransportError):
            await http.get("/who")


async def test_a_stream_does_not_hold_up_the_end() -> None:
    """A client reads the events while the service is stopped."""
    app = oven()

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"tick\n"
                await asyncio.sleep(0.01)

        return StreamingResponse(parts())

    stop = Stop()
    bound = listen("127.0.0.1", 0)
    serving = asyncio.create_task(serve(app, bound, stop))
    async with (
        async_client(f"http://127.0.0.1:{bound.getsockname()[1]}") as http,
        http.stream("GET", "/endless") as answer,
    ):
        async for line in answer.aiter_lines():
            assert line == "tick"
            break
        stop.request("enough")
        await asyncio.wait_for(serving, 8.0)


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.create()
    return made


def installed(issued: Certificate, folder: Path) -> Certificate:
    """Put a certificate where the listener reads it."""
    there = Certificate(folder / "tls.crt", folder / "tls.key")
    there.certificate.write_bytes(issued.certificate.read_bytes())
    there.key.write_bytes(issued.key.read_bytes())
    return there


async def common_name(port: int, authority: Authority) -> str:
    """Return the name in the certificate that a new connection gets, verified by the authority."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(dict(pair for part in subject for pair in part)["commonName"])


@needs_openssl
async def test_a_renewed_certificate_is_used_by_new_connections(authority: Authority, tmp_path: Path) -> None:
    """cert-manager replaces the files of a running service. Half a replacement keeps the present certificate, with one
    line in the log."""
    first, second = (authority.issue(name, names=["DNS:localhost"]) for name in ("first", "second"))
    files = installed(first, tmp_path)
    tls, stop = ListenerTls(files.certificate, files.key), Stop()
    bound = listen("127.0.0.1", 0)
    port = int(bound.getsockname()[1])
    serving = asyncio.create_task(serve(application("Oven", "Bakes."), bound, stop, tls=tls))
    assert await common_name(port, authority) == "first"

    files.certificate.write_bytes(second.certificate.read_bytes())  # its key is not there yet
    renewing = Stop()
    with capture_logs() as lines:
        kept = asyncio.create_task(follow([tls.files], renewing, check_seconds=0.01))
        async with asyncio.timeout(10.0):
            while not lines:  # noqa: ASYNC110 - log lines have no event
                await asyncio.sleep(0.01)
        assert lines[0]["event"] == "file-unusable"
        assert await common_name(port, authority) == "first"
        installed(second, tmp_path)
        async with asyncio.timeout(10.0):
            # Between its two files the replacement may be read in half once more.
            while lines[-1]["event"] != "file-read":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        renewing.request("enough")
        await kept
    assert await common_name(port, authority) == "second"
    stop.request("enough")
    await asyncio.wait_for(serving, 10.0)


@needs_openssl
async def test_the_health_check_of_a_container_finds_a_listener_with_tls(authority: Authority, tmp_path: Path) -> None:
    """It asks its own listener, whose certificate has another name than loopback's."""
    files = installed(authority.issue("knowledge", names=["DNS:knowledge.weir.svc"]), tmp_path)
    stop, bound = Stop(), listen("127.0.0.1", 0)
    app = application("Oven", "Bakes.")

    @app.get("/health/ready")
    async def ready() -> None: ...

    serving = asyncio.create_task(serve(app, bound, stop, tls=ListenerTls(files.certificate, files.key)))
    port = int(bound.getsockname()[1])
    assert await asyncio.to_thread(probe.ask, "127.0.0.1", port, tls=True) == ""
    assert "no answer" in await asyncio.to_thread(probe.ask, "127.0.0.1", port)
    stop.request("enough")
    await asyncio.wait_for(serving, 10.0)


@needs_openssl
def test_unusable_files_end_the_start_with_the_setting(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file, a key of another certificate, and one file without the other."""
    first, second = authority.issue("first"), authority.issue("second")
    monkeypatch.setenv("WEIR_HTTP_CERTIFICATE_FILE", str(first.certificate))
    for key, reason in ((tmp_path / "missing", "No such file"), (second.key, "KEY_VALUES_MISMATCH")):
        monkeypatch.setenv("WEIR_HTTP_KEY_FILE", str(key))
        with pytest.raises(ValueError, match=f"WEIR_HTTP_KEY_FILE: cannot be used together: .*{reason}"):
            Settings()
    monkeypatch.delenv("WEIR_HTTP_KEY_FILE")
    with pytest.raises(ValueError, match="belong together"):
        Settings()
