"""Suite of knowledge, in memory and by the client of the real API."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from weir_contracts import ScalingPolicy

from runtime.auth import Caller, Tokens
from runtime.clock import FakeClock
from runtime.http import application
from runtime.loop import Stop
from runtime.settings import variable
from services.executor.adapters.knowledge import TOKEN_SETTING, HttpKnowledge, NotUsable
from services.executor.adapters.memory import MemoryKnowledge
from services.executor.core.history import ActionHistory, record_transition
from services.executor.core.observed import Conflict, Recorded, Step, Unanswered
from services.executor.core.table import Event
from services.executor.driver import Knowledge
from services.executor.settings import Settings
from services.knowledge.adapters.memory import MemoryStore
from services.knowledge.adapters.planner import PlannerCatalogue
from services.knowledge.applications_api import applications_router
from services.knowledge.core import State
from services.knowledge.policies_api import policies_router
from tests.unit.executor.builders import NOON, OTHER_ATTEMPT, RULES, action, policy

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
    app.include_router(policies_router(store, clock, PlannerCatalogue(None), lambda: None))
    app.include_router(applications_router(store, clock))
    await store.put_policy(policy(), None)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://knowledge")
    yield Rig(HttpKnowledge(client), policy())
    await client.aclose()


@pytest.fixture(params=["memory", "http"])
def rig(request: pytest.FixtureRequest) -> Rig:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Rig)
    return found


async def test_a_policy_is_read_as_it_is(rig: Rig) -> None:
    """Mode, version and target are what the gate decides by."""
    reading = await rig.knowledge.policy(APP)
    assert reading.reachable and reading.policy is not None
    assert reading.policy.spec == rig.stored.spec
    assert reading.policy.metadata.version == rig.stored.metadata.version


async def test_no_policy_is_not_an_outage(rig: Rig) -> None:
    """It was deleted: knowledge says so."""
    reading = await rig.knowledge.policy("shop/nobody")
    assert (reading.reachable, reading.policy) == (True, None)


async def test_an_action_is_claimed_once(rig: Rig) -> None:
    """The second write of the same version gets the stored action."""
    mine = action(version=1)
    assert await rig.knowledge.record(mine, 0) == Recorded()
    other = action(version=1, attempt_id=OTHER_ATTEMPT)
    assert await rig.knowledge.record(other, 0) == Conflict(mine)


async def test_an_action_moves_on_by_its_version(rig: Rig) -> None:
    """Only from the version that is there."""
    await rig.knowledge.record(action(version=1), 0)
    assert await rig.knowledge.record(action("applying", version=2), 1) == Recorded()
    assert await rig.knowledge.record(action("applying", version=2), 1) == Conflict(action("applying", version=2))


async def test_version_0_writes_to_an_empty_store(rig: Rig) -> None:
    """An emptied store: the version that was read is not there any more."""
    assert await rig.knowledge.record(action(version=6), 5) == Conflict(None)


async def test_the_newest_outcome_is_read(memory: Rig) -> None:
    """The executor goes on from it when the topic has forgotten the application."""
    outcome = record_transition(
        ActionHistory(), Step(action(version=1), Event("admitted", "…")), None, NOON, RULES
    ).outcome
    twin = memory.knowledge
    assert isinstance(twin, MemoryKnowledge)
    twin.outcomes[APP] = outcome
    store = MemoryStore()
    await store.save([State(application=APP)], [], [], {APP: {"outcome": outcome.model_dump_json()}})
    routes = application("knowledge", "for a test")
    routes.include_router(applications_router(store, FakeClock(NOON)))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(routes), base_url="http://knowledge")
    for knowledge in (twin, HttpKnowledge(client)):
        assert await knowledge.outcome(APP) == outcome
        assert await knowledge.outcome("shop/nobody") is None
    await client.aclose()


class TestHostileAnswers:
    """Whatever comes, it is an answer with a reason and never an exception."""

    async def ask(self, status: int, body: bytes) -> tuple[Any, Any]:
        transport = httpx.MockTransport(lambda _request: httpx.Response(status, content=body))
        knowledge = HttpKnowledge(httpx.AsyncClient(transport=transport, base_url="http://knowledge"))
        answers = await knowledge.policy(APP), await knowledge.record(action(), 4)
        assert isinstance(await knowledge.outcome(APP), Unanswered)
        await knowledge.close()
        return answers

    @pytest.mark.parametrize("status", [301, 401, 403, 429, 500, 503])
    async def test_an_error_is_an_outage(self, status: int) -> None:
        """Also a missing token: the mode is not known, so nothing begins."""
        reading, recorded = await self.ask(status, b'{"detail": "Redis cannot be reached"}')
        assert not reading.reachable
        assert f"{status} Redis cannot be reached" in reading.reason
        assert isinstance(recorded, Unanswered)
        assert ("WEIR_KNOWLEDGE_TOKEN" in reading.reason) == (status in (401, 403))

    @pytest.mark.parametrize("body", [b"", b"{", b"<html>", b"[]", b"{}", b'{"spec": 1}'])
    async def test_nonsense_is_an_outage(self, body: bytes) -> None:
        """It names the call."""
        reading, _ = await self.ask(200, body)
        assert not reading.reachable
        assert reading.reason.startswith("GET /v1/policies/shop/orders: ")

    @pytest.mark.parametrize("body", [b"", b"[1]", b'{"detail": "no"}', b'{"current": {"version": 0}}'])
    async def test_a_conflict_without_its_action_is_no_answer(self, body: bytes) -> None:
        """Such a response does not show which executor stored its action."""
        _, recorded = await self.ask(409, body)
        assert isinstance(recorded, Unanswered)

    async def test_a_bare_action_is_understood_too(self) -> None:
        """The body of a conflict may be the action itself."""
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
            "knowledge", "for a test", Tokens({SECRET: Caller("executor", "write"), READER: Caller("ada", "read")})
        )
        store, clock = MemoryStore(), FakeClock(NOON)
        app.include_router(policies_router(store, clock, PlannerCatalogue(None), lambda: None))
        app.include_router(applications_router(store, clock))
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
        """In readiness at each look, in the log once, whatever is asked how often; never the token itself."""
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
        assert "403 ada may read but not write): set one of role write WEIR_KNOWLEDGE_TOKEN" in str(recorded)
        await guarded.knowledge.close()

    async def test_the_right_one_is_ready(self) -> None:
        """With nothing stored: no policy is asked for that would have to be there, and nothing is logged."""
        guarded = Guarded(SECRET)
        with capture_logs() as lines:
            await guarded.knowledge.ping()
        assert lines == []
        await guarded.knowledge.close()

    async def test_a_change_is_logged_in_both_directions(self) -> None:
        """The tokens of knowledge were changed under a running executor, and changed back."""
        guarded = Guarded(SECRET)
        base = guarded.app.state.tokens
        with capture_logs() as lines:
            for tokens in (base, Tokens({READER: Caller("ada", "read")}), base, base):
                guarded.app.state.tokens = tokens
                await guarded.knowledge.policy(APP)
        assert [line["event"] for line in lines] == ["knowledge-refuses-the-token", "knowledge-accepts-the-token"]
        await guarded.knowledge.close()

    async def test_knowledge_without_its_memory_is_not_ready_either(self) -> None:
        """Its reason is passed on."""
        away = httpx.MockTransport(lambda _: httpx.Response(503, json={"detail": "redis: connection refused"}))
        knowledge = HttpKnowledge(httpx.AsyncClient(transport=away, base_url="http://knowledge"))
        with pytest.raises(NotUsable, match="503 redis: connection refused"):
            await knowledge.ping()
        await knowledge.close()

    async def test_it_is_asked_from_the_start_until_it_answers(self) -> None:
        """Before any plan comes, and also where knowledge is started later."""
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

    def test_the_setting_is_called_as_it_is_shown(self) -> None:
        """By `--help` and `--print-settings`."""
        assert variable(Settings, "knowledge_token", Settings.model_fields["knowledge_token"]) == TOKEN_SETTING
        assert variable(Settings, "secrets_folder", Settings.model_fields["secrets_folder"]) == "WEIR_SECRETS_FOLDER"
