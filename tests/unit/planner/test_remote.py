"""A planner elsewhere is slow, down, or answers nonsense: whatever it does, a reply comes in time and says what was wrong."""

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
from weir_contracts import Observation, PlanReply

from runtime.addresses import Allowed
from runtime.clock import FakeClock
from services.planner.adapters.http import Credentials, PlannerClient
from services.planner.core.breaker import FAILURES_TO_OPEN, FIRST_PAUSE_SECONDS
from services.planner.failures import PlannerFailed
from services.planner.remote import Remote
from tests.unit.planner.build import APP, NOON, SOURCE, SPACE, WORK, policy, request, scale
from tests.unit.planner.plugin import LOOPBACK, Asked, Plugin, answer, good, says

WHOLE = {SOURCE: 1, WORK: 3}


@pytest.fixture
async def client() -> AsyncIterator[PlannerClient]:
    made = PlannerClient(LOOPBACK, reply_bytes=20_000)
    yield made
    await made.close()


@pytest.fixture
def remote(client: PlannerClient) -> Remote:
    return Remote(client, FakeClock(NOON), {})


async def asked(remote: Remote, plugin: Plugin, seconds: float = 5.0, **registered: Any) -> PlanReply:
    return await remote.ask(request(), plugin.registered(**registered), seconds)


async def test_a_good_planner_decides(remote: Remote) -> None:
    """It gets the request as the contract has it, and its memory comes along."""
    async with Plugin() as plugin:
        reply = await asked(remote, plugin)
    assert (reply.kind, reply.parallelism, reply.memory) == ("scale", {SOURCE: 2, WORK: 3}, {"turn": 1})
    [question] = plugin.asked
    assert (question.method, question.path) == ("POST", "/plan")
    assert question.headers["content-type"] == "application/json"
    assert question.headers["host"] == f"127.0.0.1:{plugin.port}"
    assert question.json == json.loads(request().model_dump_json())


def reply_with(**changes: Any) -> bytes:
    return says({"kind": "scale", "parallelism": WHOLE, "code": "more", "sentence": "more", **changes})


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
    "a list": (says([1, 2]), "invalid-reply", "no PlanReply"),
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
    "its own fault": (says({"detail": "no such model"}, 500), "planner-failed", "answered 500: no such model"),
    "a refusal": (says({"message": "no such parameter"}, 422), "planner-failed", "answered 422: no such parameter"),
    "a page": (answer("<h1>secret inside</h1>", 404, "text/html"), "planner-failed", "answered 404"),
    "another success": (says({}, 204), "planner-failed", "answered 204"),
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
    """An explained hold, and the next answer is read as if nothing had been."""
    told, code, why = BAD[what]

    async def once(_asked: Asked) -> bytes:
        plugin.says = good
        plugin.writer.write(told)
        await plugin.writer.drain()
        plugin.writer.close()
        return b""

    async with Plugin(once) as plugin:
        reply = await asked(remote, plugin)
        assert (reply.kind, reply.code) == ("hold", code)
        assert why in reply.sentence
        assert "planner mine" in reply.sentence
        assert "secret inside" not in reply.sentence
        assert (await asked(remote, plugin)).kind == "scale"


@pytest.mark.parametrize("how", ["silent", "dripping body", "dripping head"])
async def test_a_slow_planner_costs_its_time_and_no_more(remote: Remote, how: str) -> None:
    """Silence, or a byte now and then: the deadline is for the whole exchange."""

    async def drip(asked: Asked) -> bytes:
        if how == "silent":
            await asyncio.Event().wait()
        if how == "dripping body":
            plugin.writer.write(answer(scale(WHOLE).model_dump_json())[:-200])
        while True:
            plugin.writer.write(b"H" if how == "dripping head" else b" ")
            await plugin.writer.drain()
            await asyncio.sleep(0.01)

    async with Plugin(drip) as plugin:
        reply = await asyncio.wait_for(asked(remote, plugin, 0.2), 5)
    assert (reply.kind, reply.code) == ("hold", "planner-timeout")
    assert "within 0.2 s" in reply.sentence


async def test_nobody_listens(remote: Remote) -> None:
    """Down: said at once."""
    async with Plugin() as plugin:
        gone = plugin.registered()
    reply = await remote.ask(request(), gone, 5.0)
    assert (reply.kind, reply.code) == ("hold", "planner-failed")


async def test_each_question_has_a_connection_of_its_own(remote: Remote) -> None:
    """So none is lost on one that the planner just closes, and each address is one that was checked."""
    async with Plugin() as plugin:
        for _ in range(3):
            assert (await asked(remote, plugin)).kind == "scale"
        assert plugin.connections == 3


async def test_after_failures_in_a_row_it_is_left_alone_for_a_while(client: PlannerClient) -> None:
    """The circuit opens, and a probe later closes it; who looks at the planners sees both."""
    clock = FakeClock(NOON)
    remote = Remote(client, clock, {})
    async with Plugin(lambda _: says({"detail": "ill"}, 503)) as plugin:
        registration = plugin.registered()
        for _ in range(FAILURES_TO_OPEN):
            await asked(remote, plugin)
        held = await asked(remote, plugin)
        assert len(plugin.asked) == FAILURES_TO_OPEN
        assert held.code == "planner-failed"
        assert "not called for another 10 s after 5 failures in a row, the last: answered 503: ill" in held.sentence
        seen = remote.breaker(registration)
        assert (seen["state"], seen["failures_in_a_row"], seen["last_failure"]) == ("open", 5, "answered 503: ill")
        plugin.says = good
        clock.advance(FIRST_PAUSE_SECONDS)
        assert remote.breaker(registration)["state"] == "half-open"
        assert (await asked(remote, plugin)).kind == "scale"
        assert remote.breaker(registration)["state"] == "closed"
        # Somebody registers a repaired one: it does not inherit the circuit.
        plugin.says = lambda _: says({}, 500)
        for _ in range(FAILURES_TO_OPEN):
            await asked(remote, plugin)
        plugin.says = good
        assert (await asked(remote, plugin)).kind == "hold"
        assert (await asked(remote, plugin, version=2)).kind == "scale"


async def test_what_fails_beside_the_loop_opens_no_circuit_in_it(remote: Remote) -> None:
    """A shadow that is left with too little time fails again and again; the same planner, chosen, is asked all the same, and no
    metric says otherwise."""
    beside = remote.apart()
    async with Plugin(lambda _: says({"detail": "ill"}, 503)) as plugin:
        for _ in range(FAILURES_TO_OPEN):
            await asked(beside, plugin, name="shadowed")
        assert beside.breaker(plugin.registered("shadowed"))["state"] == "open"
        assert REGISTRY.get_sample_value("weir_planner_circuit_open", {"planner": "shadowed"}) is None
        plugin.says = good
        assert (await asked(remote, plugin, name="shadowed")).kind == "scale"


async def test_one_policys_short_timeout_keeps_no_other_from_asking(remote: Remote) -> None:
    """It takes 0.2 s, and five times somebody gave it 50 ms."""

    async def slowly(_: Asked) -> Any:
        await asyncio.sleep(0.2)
        return good(_)

    async with Plugin(slowly) as plugin:
        for _ in range(FAILURES_TO_OPEN):
            assert (await asked(remote, plugin, 0.05)).code == "planner-timeout"
        assert "not called for another" in (await asked(remote, plugin, 0.05)).sentence
        assert (await asked(remote, plugin, 10.0)).kind == "scale"


async def test_a_refusal_of_one_request_does_not_open_the_circuit(remote: Remote) -> None:
    """One policy's parameters are wrong: other applications are still planned for."""
    async with Plugin(lambda _: says({"detail": "no such parameter"}, 422)) as plugin:
        for _ in range(3 * FAILURES_TO_OPEN):
            await asked(remote, plugin)
        plugin.says = good
        assert (await asked(remote, plugin)).kind == "scale"


async def test_a_name_is_resolved_at_each_connect_and_every_address_checked() -> None:
    """A name that first pointed outside and now points inside is refused, also where only one of its addresses does."""
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


async def test_the_checked_address_is_connected_to() -> None:
    """The name stays in the Host header."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    client = PlannerClient(LOOPBACK, resolve=resolve)
    async with Plugin() as plugin:
        told = await client.get_json(f"http://planner.example.org:{plugin.port}/", 5.0, None)
        assert told["name"] == "mine"
        assert plugin.asked[0].headers["host"] == f"planner.example.org:{plugin.port}"
    await client.close()


async def test_a_proxy_of_the_environment_is_not_used(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a way around the checks."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with Plugin() as plugin:
        assert (await asked(remote, plugin)).kind == "scale"


async def test_credentials_go_by_name(tmp_path: Path) -> None:
    """The token is sent and nowhere shown: not in a reply, an error or the log, not even where the planner repeats it."""
    token = "-".join(("a", "very", "secret", "token"))
    (tmp_path / "for-mine").write_text(f"{token}\n")
    (tmp_path / "two-lines").write_text("first\nsecond")
    client = PlannerClient(LOOPBACK, Credentials(tmp_path))
    remote = Remote(client, FakeClock(NOON), {})
    with capture_logs() as logs:
        async with Plugin() as plugin:
            assert (await asked(remote, plugin, credential="for-mine")).kind == "scale"
            assert plugin.asked[0].headers["authorization"] == f"Bearer {token}"
            plugin.says = lambda a: says({"detail": f"you sent {a.headers['authorization']}"}, 403)
            told = [await asked(remote, plugin, credential="for-mine")]
            assert "repeats its credential" in told[0].sentence
            count = len(plugin.asked)
            told += [await asked(remote, plugin, credential=name) for name in ("two-lines", "missing")]
            assert len(plugin.asked) == count
    assert "WEIR_PLANNER_CREDENTIALS_FOLDER" in told[2].sentence
    assert token not in repr(told) + repr(logs)
    assert "first" not in told[1].sentence
    await client.close()


async def test_large_parts_that_it_does_not_read_are_not_sent() -> None:
    """As its description says; and where a request is too large all the same, its large parts stay behind."""
    reading = Observation(id=SPACE, application=APP, observed_at=NOON, policy=policy(), status="running")
    question = request(observations=[reading] * 50)
    small = PlannerClient(LOOPBACK, request_bytes=10_000)
    wide = PlannerClient(LOOPBACK)
    async with Plugin() as plugin:
        whole = plugin.registered()
        told: dict[str, Any] = {**whole.model_dump()["description"], "reads": ["history"]}
        for client, registration, sent in (
            (wide, whole, 50),
            (wide, plugin.registered(description=told), 0),
            (small, whole, 0),
        ):
            assert (await Remote(client, FakeClock(NOON), {}).ask(question, registration, 5.0)).kind == "scale"
            assert len(plugin.asked[-1].json["observations"]) == sent
    await small.close()
    await wide.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
async def test_certificates_are_verified_for_the_name(tmp_path: Path) -> None:
    """A certificate that nobody vouches for is refused; with its authority in the settings it counts, for its own name only."""
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
        assert len(plugin.asked) == 1
    await stranger.close()
    await friend.close()
