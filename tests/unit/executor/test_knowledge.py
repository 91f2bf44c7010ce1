"""Suite of knowledge, in memory and by the client of the real API."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.unit.executor.builders import NOON, OTHER_ATTEMPT, RULES, action, after, policy
from tests.unit.knowledge.direct_log import add_routes, changes_of, show, show_messages
from tests.unit.knowledge.memory_store import MemoryStore
from weir_contracts import ScalingPolicy
from weir_engines.driver import Rejected, Unanswered
from weir_executor.core.history import ActionHistory, record_transition
from weir_executor.core.observed import Conflict, Recorded, Step
from weir_executor.core.table import Event
from weir_executor.knowledge import TOKEN_SETTING, HttpKnowledge, Knowledge, MemoryKnowledge, NotUsable
from weir_executor.settings import Settings
from weir_runtime.access import Caller, Tokens
from weir_runtime.clock import FakeClock
from weir_runtime.http import application
from weir_runtime.loop import Stop
from weir_runtime.settings import variable

APP = "shop/orders"


class Rig:
    """Knowledge with one policy of version 3."""

    def __init__(self, knowledge: Knowledge, stored: ScalingPolicy) -> None:
        self.knowledge = knowledge
        self.stored = stored


@pytest.fixture
def memory() -> Rig:
    twin = MemoryKnowledge()
    twin.policies[APP] = policy()
    return Rig(twin, policy())


@pytest.fixture
async def http() -> AsyncIterator[Rig]:
    """The knowledge service's own routes over its in-memory store."""
    store, clock = MemoryStore(), FakeClock(NOON)
    app = application("knowledge", "for a test")
    add_routes(app, changes_of(store, clock))
    await show(store, policy())
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://knowledge")
    yield Rig(HttpKnowledge(client), policy())
    await client.aclose()


@pytest.fixture(params=["memory", "http"])
def rig(request: pytest.FixtureRequest) -> Rig:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Rig)
    return found


async def test_a_policy_is_read_as_it_is(rig: Rig) -> None:
    """With mode, version and target, which the gate needs."""
    reading = await rig.knowledge.policy(APP)
    assert reading.reachable and reading.policy is not None
    assert reading.policy.spec == rig.stored.spec
    assert reading.policy.metadata.version == rig.stored.metadata.version


async def test_a_policy_comes_with_the_time_of_knowledge() -> None:
    """Its server names it in each response; one that does not, or wrongly, leaves it unknown."""
    for date, at in (("Thu, 01 Jan 2026 12:00:05 GMT", after(5)), ("yesterday", None), (None, None)):
        headers = {} if date is None else {"Date": date}
        response = httpx.Response(200, content=policy().model_dump_json(by_alias=True), headers=headers)
        transport = httpx.MockTransport(lambda _request, response=response: response)
        knowledge = HttpKnowledge(httpx.AsyncClient(transport=transport, base_url="http://knowledge"))
        assert (await knowledge.policy(APP)).at == at
        await knowledge.close()


async def test_no_policy_is_not_an_outage(rig: Rig) -> None:
    """Knowledge responds that there is none."""
    reading = await rig.knowledge.policy("shop/nobody")
    assert (reading.reachable, reading.policy) == (True, None)


async def test_an_action_is_recorded_once(rig: Rig) -> None:
    """The second write of the same version gets the stored action."""
    mine = action(version=1)
    assert await rig.knowledge.record(mine, 0) == Recorded()
    other = action(version=1, attempt_id=OTHER_ATTEMPT)
    assert await rig.knowledge.record(other, 0) == Conflict(mine)


async def test_an_action_is_replaced_by_version(rig: Rig) -> None:
    """Only if the stored version is named."""
    await rig.knowledge.record(action(version=1), 0)
    assert await rig.knowledge.record(action("applying", version=2), 1) == Recorded()
    assert await rig.knowledge.record(action("applying", version=2), 1) == Conflict(action("applying", version=2))


async def test_version_0_writes_to_an_empty_store(rig: Rig) -> None:
    """The store lost the version that was read before."""
    assert await rig.knowledge.record(action(version=6), 5) == Conflict(None)


async def test_the_newest_outcome_is_read(memory: Rig) -> None:
    """The executor continues from it when the topic no longer holds the application."""
    outcome = record_transition(
        ActionHistory(), Step(action(version=1), Event("admitted", "…")), None, NOON, RULES
    ).outcome
    twin = memory.knowledge
    assert isinstance(twin, MemoryKnowledge)
    twin.outcomes[APP] = outcome
    store = MemoryStore()
    routes = application("knowledge", "for a test")
    add_routes(routes, changes_of(store, FakeClock(NOON)))
    await show_messages(store, outcome)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(routes), base_url="http://knowledge")
    for knowledge in (twin, HttpKnowledge(client)):
        assert await knowledge.outcome(APP) == outcome
        assert await knowledge.outcome("shop/nobody") is None
    await client.aclose()


class TestHostileAnswers:
    """Whatever comes, it is an answer with a reason and never an exception."""

    async def ask(self, status: int, body: bytes, content_type: str = "application/json") -> tuple[Any, Any]:
        headers = {"Content-Type": content_type}
        transport = httpx.MockTransport(lambda _request: httpx.Response(status, content=body, headers=headers))
        knowledge = HttpKnowledge(httpx.AsyncClient(transport=transport, base_url="http://knowledge"))
        answers = await knowledge.policy(APP), await knowledge.record(action(), 4)
        assert isinstance(await knowledge.outcome(APP), Unanswered)
        await knowledge.close()
        return answers

    @pytest.mark.parametrize("status", [301, 400, 401, 403, 422, 429, 500, 503])
    async def test_an_error_is_an_outage(self, status: int) -> None:
        """A missing token, too: the mode is unknown, so no action begins. A proxy's 400 or 422 says nothing of the action."""
        reading, recorded = await self.ask(status, b'{"detail": "Redis cannot be reached"}')
        assert not reading.reachable
        assert f"{status} Redis cannot be reached" in reading.reason
        assert isinstance(recorded, Unanswered)
        assert ("WEIR_KNOWLEDGE_TOKEN" in reading.reason) == (status in (401, 403))

    @pytest.mark.parametrize("status", [400, 413, 422])
    async def test_a_refused_request_is_no_outage(self, status: int) -> None:
        """The same action is refused again, until its intent has expired."""
        document = "application/json" if status == 413 else "application/problem+json; charset=utf-8"
        reading, recorded = await self.ask(status, b'{"detail": "the body is too large"}', document)
        assert not reading.reachable
        assert recorded == Rejected(f"PUT /v1/applications/shop/orders/action: {status} the body is too large")

    @pytest.mark.parametrize("body", [b"", b"{", b"<html>", b"[]", b"{}", b'{"spec": 1}'])
    async def test_an_invalid_response_is_an_outage(self, body: bytes) -> None:
        """The reason names the call."""
        reading, _ = await self.ask(200, body)
        assert not reading.reachable
        assert reading.reason.startswith("GET /v1/policies/shop/orders: ")

    @pytest.mark.parametrize("body", [b"", b"[1]", b'{"detail": "no"}', b'{"current": {"version": 0}}'])
    async def test_a_conflict_without_its_action_is_unanswered(self, body: bytes) -> None:
        """Such a response does not show which executor stored its action."""
        _, recorded = await self.ask(409, body)
        assert isinstance(recorded, Unanswered)

    async def test_the_body_of_a_conflict_may_be_the_action(self) -> None:
        """Without a problem document around it."""
        there = action("applying", attempt_id=OTHER_ATTEMPT)
        _, recorded = await self.ask(409, json.dumps(there.model_dump(mode="json")).encode())
        assert recorded == Conflict(there)

    async def test_silence_is_an_outage(self) -> None:
        """Refused, cut or too slow."""

        def cut(_request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("")

        knowledge = HttpKnowledge(httpx.AsyncClient(transport=httpx.MockTransport(cut), base_url="http://knowledge"))
        assert "ConnectError" in (await knowledge.policy(APP)).reason
        assert isinstance(await knowledge.record(action(), 4), Unanswered)
        with pytest.raises(NotUsable, match="ConnectError"):
            await knowledge.ping()
        await knowledge.close()


SECRET = "a-token-that-nobody-may-read"  # noqa: S105 - of this test
READER = "one-that-may-not-write"


class Guarded:
    """The knowledge service's own routes, which want a token, and an executor's client with one or none."""

    def __init__(self, token: str | None) -> None:
        app = application(
            "knowledge",
            "for a test",
            Tokens({SECRET: Caller("executor", frozenset({"executor"})), READER: Caller("ada", frozenset({"read"}))}),
        )
        store, clock = MemoryStore(), FakeClock(NOON)
        add_routes(app, changes_of(store, clock))
        self.app = app
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://knowledge",
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        self.knowledge = HttpKnowledge(self._client)


class TestToken:
    """Knowledge answers and does not know the token: no plan would be carried out, and readiness says so beforehand."""

    @pytest.mark.parametrize("token", [None, "an-old-token-of-before", SECRET + "x"])
    async def test_an_unknown_token_is_reported_with_its_setting(self, token: str | None) -> None:
        """In each readiness check, once in the log; never the token itself."""
        guarded = Guarded(token)
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(NotUsable) as refused:
                    await guarded.knowledge.ping()
                await guarded.knowledge.policy(APP)
            await guarded.knowledge.record(action(), 0)
        text = str(refused.value)
        assert "knowledge refused the token (401 " in text
        assert "set WEIR_KNOWLEDGE_TOKEN, or the file WEIR_KNOWLEDGE_TOKEN in WEIR_SECRETS_FOLDER" in text
        (line,) = lines
        assert (line["event"], line["log_level"], line["reason"]) == ("knowledge-refuses-the-token", "warning", text)
        assert not token or token not in f"{text}{lines}"
        await guarded.knowledge.close()

    async def test_a_read_only_token_is_reported_when_an_action_is_recorded(self) -> None:
        """Reading does not show the role of a token: one log line, even if both continue."""
        guarded = Guarded(READER)
        with capture_logs() as lines:
            for _ in range(3):
                await guarded.knowledge.ping()
                recorded = await guarded.knowledge.record(action(), 0)
        assert [line["event"] for line in lines] == ["knowledge-refuses-the-token"]
        assert isinstance(recorded, Unanswered)
        assert "403 ada has no token of the role executor): set one of role executor WEIR_KNOWLEDGE_TOKEN" in str(
            recorded
        )
        await guarded.knowledge.close()

    async def test_a_valid_token_is_ready(self) -> None:
        """With an empty store, and without a log line."""
        guarded = Guarded(SECRET)
        with capture_logs() as lines:
            await guarded.knowledge.ping()
        assert lines == []
        await guarded.knowledge.close()

    async def test_a_change_is_logged_in_both_directions(self) -> None:
        """The tokens of knowledge were changed while the executor ran, and restored."""
        guarded = Guarded(SECRET)
        base = guarded.app.state.tokens
        with capture_logs() as lines:
            for tokens in (base, Tokens({READER: Caller("ada", frozenset({"read"}))}), base, base):
                guarded.app.state.tokens = tokens
                await guarded.knowledge.policy(APP)
        assert [line["event"] for line in lines] == ["knowledge-refuses-the-token", "knowledge-accepts-the-token"]
        await guarded.knowledge.close()

    async def test_knowledge_without_its_store_is_not_ready(self) -> None:
        """With its reason."""
        away = httpx.MockTransport(lambda _: httpx.Response(503, json={"detail": "redis: connection refused"}))
        knowledge = HttpKnowledge(httpx.AsyncClient(transport=away, base_url="http://knowledge"))
        with pytest.raises(NotUsable, match="503 redis: connection refused"):
            await knowledge.ping()
        await knowledge.close()

    async def test_the_token_is_checked_from_the_start_until_a_response(self) -> None:
        """Before the first plan, also if knowledge starts later."""
        answers = iter([httpx.ConnectError("not yet"), httpx.ConnectError("not yet"), httpx.Response(401)])

        def answer(_request: httpx.Request) -> httpx.Response:
            found = next(answers)
            if isinstance(found, Exception):
                raise found
            return found

        knowledge = HttpKnowledge(httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://knowledge"))
        with capture_logs() as lines:
            await knowledge.until_answered(Stop(), again_seconds=0.001)
        assert [line["event"] for line in lines] == ["knowledge-refuses-the-token"]
        await knowledge.close()

    def test_the_setting_has_its_shown_name(self) -> None:
        """By `--help` and `--print-settings`."""
        assert variable(Settings, "knowledge_token", Settings.model_fields["knowledge_token"]) == TOKEN_SETTING
        assert variable(Settings, "secrets_folder", Settings.model_fields["secrets_folder"]) == "WEIR_SECRETS_FOLDER"
