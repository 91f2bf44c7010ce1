"""External planners that are slow, down or reply with nonsense: a hold with the reason is returned in time."""

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.unit.planner.build import APP, NOON, SOURCE, SPACE, WORK, policy, request, scale
from tests.unit.planner.plugin import LOOPBACK, Plugin, Received, answer, good, json_answer
from weir_contracts import Observation, PlanReply
from weir_planner.adapters.http import Credentials, PlannerClient
from weir_planner.core.breaker import FAILURES_TO_OPEN, FIRST_PAUSE_SECONDS
from weir_planner.remote import Remote
from weir_planner.telemetry import PlannerFailed
from weir_runtime.clock import FakeClock
from weir_runtime.reach import Allowed

WHOLE = {SOURCE: 1, WORK: 3}


@pytest.fixture
async def client() -> AsyncIterator[PlannerClient]:
    made = PlannerClient(LOOPBACK, reply_bytes=20_000)
    yield made
    await made.close()


@pytest.fixture
def remote(client: PlannerClient) -> Remote:
    return Remote(client, FakeClock(NOON))


async def reply_of(remote: Remote, plugin: Plugin, seconds: float = 5.0, **registered: Any) -> PlanReply:
    return await remote.ask(request(), plugin.registered(**registered), seconds)


async def test_a_good_planner_decides(remote: Remote) -> None:
    """It gets the request in the contract's form; the reply carries its memory."""
    async with Plugin() as plugin:
        reply = await reply_of(remote, plugin)
    assert (reply.kind, reply.parallelism, reply.memory) == ("scale", {SOURCE: 2, WORK: 3}, {"turn": 1})
    [question] = plugin.received
    assert (question.method, question.path) == ("POST", "/plan")
    assert question.headers["content-type"] == "application/json"
    assert question.headers["host"] == f"127.0.0.1:{plugin.port}"
    assert question.json == json.loads(request().model_dump_json())


def reply_with(**changes: Any) -> bytes:
    return json_answer({"kind": "scale", "parallelism": WHOLE, "code": "more", "sentence": "more", **changes})


HUGE = "x" * 30_000
BAD: dict[str, tuple[bytes, str, str]] = {
    "no JSON": (answer("nonsense"), "planner-failed", "not JSON"),
    "nothing": (answer(""), "planner-failed", "not JSON"),
    "half a character": (answer(b'{"kind": "\xff"}'), "planner-failed", "not JSON"),
    "another type": (answer("<html>", content_type="text/html"), "planner-failed", "content type text/html"),
    "JSON under another name": (
        answer(scale(WHOLE).model_dump_json(), content_type="text/plain"),
        "planner-failed",
        "content type text/plain",
    ),
    "a list": (json_answer([1, 2]), "invalid-reply", "no PlanReply"),
    "a part of the topology": (reply_with(parallelism={WORK: 3}), "invalid-reply", f"misses {SOURCE}"),
    "an unknown operator": (reply_with(parallelism={**WHOLE, "magic": 1}), "invalid-reply", "unknown operator magic"),
    "zero": (reply_with(parallelism={**WHOLE, WORK: 0}), "invalid-reply", f"parallelism.{WORK}"),
    "negative": (reply_with(parallelism={**WHOLE, WORK: -1}), "invalid-reply", f"parallelism.{WORK}"),
    "half a subtask": (reply_with(parallelism={**WHOLE, WORK: 2.5}), "invalid-reply", f"parallelism.{WORK}"),
    "text for a number": (reply_with(parallelism={**WHOLE, WORK: "3"}), "invalid-reply", f"parallelism.{WORK}"),
    "yes for a number": (reply_with(parallelism={**WHOLE, WORK: True}), "invalid-reply", f"parallelism.{WORK}"),
    "a million subtasks": (reply_with(parallelism={**WHOLE, WORK: 10**6}), "invalid-reply", f"parallelism.{WORK}"),
    "no vector": (reply_with(parallelism=None), "invalid-reply", "a scale reply names one"),
    "no reason": (reply_with(sentence=""), "invalid-reply", "sentence"),
    "NaN": (
        answer('{"kind": "hold", "code": "a", "sentence": "b", "evidence": {"rate": NaN}}'),
        "planner-failed",
        "NaN",
    ),
    "too large a number": (
        answer('{"kind": "hold", "code": "a", "sentence": "b", "evidence": {"rate": 1e999}}'),
        "planner-failed",
        "infinity",
    ),
    "much memory": (reply_with(memory={"all": HUGE[:17_000]}), "invalid-reply", "memory"),
    "Weir's own code": (reply_with(code="planner-timeout"), "invalid-reply", "Weir's own"),
    "deep": (answer("[" * 70 + "]" * 70), "planner-failed", "levels"),
    "very deep": (answer("[" * 5_000 + "]" * 5_000), "planner-failed", "JSON"),
    "a deep memory": (
        answer('{"kind": "hold", "code": "a", "sentence": "b", "memory": ' + '{"a":' * 70 + "1" + "}" * 71),
        "planner-failed",
        "levels",
    ),
    "large": (answer(json.dumps(HUGE)), "planner-failed", "more than 20000 bytes"),
    "large and unannounced": (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + HUGE.encode(),
        "planner-failed",
        "more than 20000 bytes",
    ),
    "a redirect": (answer("", 307, "application/json", "Location: /plan"), "planner-failed", "a redirect"),
    "its own fault": (json_answer({"detail": "no such model"}, 500), "planner-failed", "answered 500: no such model"),
    "a refusal": (
        json_answer({"message": "no such parameter"}, 422),
        "planner-failed",
        "answered 422: no such parameter",
    ),
    "a page": (answer("<h1>secret inside</h1>", 404, "text/html"), "planner-failed", "answered 404"),
    "another success": (json_answer({}, 204), "planner-failed", "answered 204"),
    "compressed": (answer("{}", 200, "application/json", "Content-Encoding: gzip"), "planner-failed", "compressed"),
    "no HTTP": (b"SSH-2.0-somebody\r\n\r\n", "planner-failed", "could not be called"),
    "a long head": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000, "planner-failed", "could not be called"),
    "a lie about its length": (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n{}",
        "planner-failed",
        "more than 20000 bytes",
    ),
}


@pytest.mark.parametrize("what", list(BAD))
async def test_nonsense_is_refused_with_its_reason(remote: Remote, what: str) -> None:
    """An explained hold; the next reply is read normally."""
    response, code, reason = BAD[what]

    async def once(_received: Received) -> bytes:
        plugin.respond = good
        plugin.writer.write(response)
        await plugin.writer.drain()
        plugin.writer.close()
        return b""

    async with Plugin(once) as plugin:
        reply = await reply_of(remote, plugin)
        assert (reply.kind, reply.code) == ("hold", code)
        assert reason in reply.sentence
        assert "planner mine" in reply.sentence
        assert "secret inside" not in reply.sentence
        assert (await reply_of(remote, plugin)).kind == "scale"


@pytest.mark.parametrize("how", ["silent", "dripping body", "dripping head"])
async def test_a_slow_planner_is_cut_off_at_its_timeout(remote: Remote, how: str) -> None:
    """Silence or a slow trickle of bytes: the deadline covers the complete exchange."""

    async def drip(_received: Received) -> bytes:
        if how == "silent":
            await asyncio.Event().wait()
        if how == "dripping body":
            plugin.writer.write(answer(scale(WHOLE).model_dump_json())[:-200])
        while True:
            plugin.writer.write(b"H" if how == "dripping head" else b" ")
            await plugin.writer.drain()
            await asyncio.sleep(0.01)

    async with Plugin(drip) as plugin:
        reply = await asyncio.wait_for(reply_of(remote, plugin, 0.2), 5)
    assert (reply.kind, reply.code) == ("hold", "planner-timeout")
    assert "within 0.2 s" in reply.sentence


async def test_a_refused_connection(remote: Remote) -> None:
    """Reported at once."""
    async with Plugin() as plugin:
        registration = plugin.registered()
    reply = await remote.ask(request(), registration, 5.0)
    assert (reply.kind, reply.code) == ("hold", "planner-failed")


async def test_each_request_has_its_own_connection(remote: Remote) -> None:
    """No request is lost on a connection that the planner closes, and each address is checked."""
    async with Plugin() as plugin:
        for _ in range(3):
            assert (await reply_of(remote, plugin)).kind == "scale"
        assert plugin.connections == 3


async def test_failures_in_a_row_open_the_circuit(client: PlannerClient) -> None:
    """A later probe closes it; the API shows both states."""
    clock = FakeClock(NOON)
    remote = Remote(client, clock)
    async with Plugin(lambda _: json_answer({"detail": "ill"}, 503)) as plugin:
        registration = plugin.registered()
        for _ in range(FAILURES_TO_OPEN):
            await reply_of(remote, plugin)
        held = await reply_of(remote, plugin)
        assert len(plugin.received) == FAILURES_TO_OPEN
        assert held.code == "planner-failed"
        assert "not called for another 10 s after 5 failures in a row, the last: answered 503: ill" in held.sentence
        breaker = remote.breaker(registration)
        assert (breaker["state"], breaker["failures_in_a_row"], breaker["last_failure"]) == (
            "open",
            5,
            "answered 503: ill",
        )
        plugin.respond = good
        clock.advance(FIRST_PAUSE_SECONDS)
        assert remote.breaker(registration)["state"] == "half-open"
        assert (await reply_of(remote, plugin)).kind == "scale"
        assert remote.breaker(registration)["state"] == "closed"
        # A new registration does not inherit the circuit.
        plugin.respond = lambda _: json_answer({}, 500)
        for _ in range(FAILURES_TO_OPEN):
            await reply_of(remote, plugin)
        plugin.respond = good
        assert (await reply_of(remote, plugin)).kind == "hold"
        assert (await reply_of(remote, plugin, version=2)).kind == "scale"


async def test_failures_outside_the_loop_open_no_circuit_in_it(remote: Remote) -> None:
    """A shadow with too little time fails repeatedly: the loop still calls the same planner, and no metric shows
    an open circuit."""
    apart = remote.apart()
    async with Plugin(lambda _: json_answer({"detail": "ill"}, 503)) as plugin:
        for _ in range(FAILURES_TO_OPEN):
            await reply_of(apart, plugin, name="shadowed")
        assert apart.breaker(plugin.registered("shadowed"))["state"] == "open"
        assert REGISTRY.get_sample_value("weir_planner_circuit_open", {"planner": "shadowed"}) is None
        plugin.respond = good
        assert (await reply_of(remote, plugin, name="shadowed")).kind == "scale"


async def test_one_policys_short_timeout_blocks_no_other(remote: Remote) -> None:
    """The planner takes 0.2 s and was called five times with a timeout of 50 ms."""

    async def slowly(_: Received) -> Any:
        await asyncio.sleep(0.2)
        return good(_)

    async with Plugin(slowly) as plugin:
        for _ in range(FAILURES_TO_OPEN):
            assert (await reply_of(remote, plugin, 0.05)).code == "planner-timeout"
        assert "not called for another" in (await reply_of(remote, plugin, 0.05)).sentence
        assert (await reply_of(remote, plugin, 10.0)).kind == "scale"


async def test_a_refusal_of_one_request_does_not_open_the_circuit(remote: Remote) -> None:
    """One policy's parameters are wrong; other applications still get plans."""
    async with Plugin(lambda _: json_answer({"detail": "no such parameter"}, 422)) as plugin:
        for _ in range(3 * FAILURES_TO_OPEN):
            await reply_of(remote, plugin)
        plugin.respond = good
        assert (await reply_of(remote, plugin)).kind == "scale"


async def test_a_name_is_resolved_at_each_connect_and_every_address_checked() -> None:
    """A name that now resolves to a private address is refused, even if only one of its addresses is private."""
    stands_for = ["93.184.216.34", "10.0.0.7"]

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("planner.example.org", 8000)
        return stands_for

    client = PlannerClient(Allowed.of("http", "*", "public", prefix="WEIR_PLANNER_PLUGIN"), resolve=resolve)
    for inside in ("10.0.0.7", "127.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"):
        stands_for[1] = inside
        with pytest.raises(PlannerFailed) as refused:
            await client.exchange("GET", "http://planner.example.org:8000/", None, 5.0)
        assert "WEIR_PLANNER_PLUGIN_NETWORKS" in str(refused.value)
        assert inside in str(refused.value)
    await client.close()


async def test_the_connection_uses_the_checked_address() -> None:
    """The name stays in the Host header."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    client = PlannerClient(LOOPBACK, resolve=resolve)
    async with Plugin() as plugin:
        described = await client.get_json(f"http://planner.example.org:{plugin.port}/", 5.0, None)
        assert described["name"] == "mine"
        assert plugin.received[0].headers["host"] == f"planner.example.org:{plugin.port}"
    await client.close()


async def test_a_proxy_of_the_environment_is_not_used(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would bypass the checks."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with Plugin() as plugin:
        assert (await reply_of(remote, plugin)).kind == "scale"


async def test_credentials_go_by_name(tmp_path: Path) -> None:
    """The token is sent but never in a reply, an error or the log, even if the planner repeats it."""
    token = "-".join(("a", "very", "secret", "token"))
    (tmp_path / "for-mine").write_text(f"{token}\n")
    (tmp_path / "two-lines").write_text("first\nsecond")
    client = PlannerClient(LOOPBACK, Credentials(tmp_path))
    remote = Remote(client, FakeClock(NOON))
    with capture_logs() as logs:
        async with Plugin() as plugin:
            assert (await reply_of(remote, plugin, credential="for-mine")).kind == "scale"
            assert plugin.received[0].headers["authorization"] == f"Bearer {token}"
            plugin.respond = lambda a: json_answer({"detail": f"you sent {a.headers['authorization']}"}, 403)
            answers = [await reply_of(remote, plugin, credential="for-mine")]
            assert "repeats its credential" in answers[0].sentence
            count = len(plugin.received)
            answers += [await reply_of(remote, plugin, credential=name) for name in ("two-lines", "missing")]
            assert len(plugin.received) == count
    assert "WEIR_PLANNER_CREDENTIALS_FOLDER" in answers[2].sentence
    assert token not in repr(answers) + repr(logs)
    assert "first" not in answers[1].sentence
    await client.close()


async def test_large_fields_that_it_does_not_read_are_not_sent() -> None:
    """Its description lists what it reads; large fields of a request above the size limit are dropped too."""
    reading = Observation(id=SPACE, application=APP, observed_at=NOON, policy=policy(), status="running")
    question = request(observations=[reading] * 50)
    small = PlannerClient(LOOPBACK, request_bytes=10_000)
    wide = PlannerClient(LOOPBACK)
    async with Plugin() as plugin:
        complete = plugin.registered()
        description: dict[str, Any] = {**complete.model_dump()["description"], "reads": ["history"]}
        for client, registration, sent in (
            (wide, complete, 50),
            (wide, plugin.registered(description=description), 0),
            (small, complete, 0),
        ):
            assert (await Remote(client, FakeClock(NOON)).ask(question, registration, 5.0)).kind == "scale"
            assert len(plugin.received[-1].json["observations"]) == sent
    await small.close()
    await wide.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
async def test_certificates_are_verified_for_the_name(tmp_path: Path) -> None:
    """An untrusted certificate is refused; with its authority in the settings it is valid for its own name only."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    making = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    making += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=planner.example.org"]
    making += ["-addext", "subjectAltName=DNS:planner.example.org"]
    await asyncio.to_thread(subprocess.run, making, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    stranger = PlannerClient(LOOPBACK, resolve=resolve)
    friend = PlannerClient(LOOPBACK, resolve=resolve, ca_file=certificate)
    async with Plugin(tls=context) as plugin:
        ours, theirs = (f"https://{name}.example.org:{plugin.port}/" for name in ("planner", "other"))
        assert (await friend.get_json(ours, 10.0, None))["name"] == "mine"
        for client, url in ((stranger, ours), (friend, theirs)):
            with pytest.raises(PlannerFailed, match="certificate verify failed"):
                await client.get_json(url, 10.0, None)
        assert len(plugin.received) == 1
    await stranger.close()
    await friend.close()
