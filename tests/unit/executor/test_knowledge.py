"""What the executor needs of knowledge: one suite for the in-memory twin and for the client of the real API."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from weir_contracts import ScalingPolicy

from runtime.clock import FakeClock
from runtime.http import application
from services.executor.adapters.knowledge import HttpKnowledge
from services.executor.adapters.memory import MemoryKnowledge
from services.executor.core import Conflict, Recorded, Unanswered
from services.executor.driver import Knowledge
from services.knowledge.adapters.memory import MemoryStore
from services.knowledge.adapters.planner import PlannerCatalogue
from services.knowledge.applications_api import applications_router
from services.knowledge.policies_api import policies_router
from tests.unit.executor.builders import NOON, OTHER_ATTEMPT, action, policy

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
    assert reading.policy.metadata.resource_version == rig.stored.metadata.resource_version


async def test_no_policy_is_not_an_outage(rig: Rig) -> None:
    """It was deleted: knowledge says so."""
    reading = await rig.knowledge.policy("shop/nobody")
    assert (reading.reachable, reading.policy) == (True, None)


async def test_an_action_is_claimed_once(rig: Rig) -> None:
    """The second claim of the same version gets what is there."""
    mine = action(version=1)
    assert await rig.knowledge.record(mine, 0) == Recorded()
    other = action(version=1, attempt_id=OTHER_ATTEMPT)
    assert await rig.knowledge.record(other, 0) == Conflict(mine)


async def test_an_action_moves_on_by_its_version(rig: Rig) -> None:
    """Only from the version that is there."""
    await rig.knowledge.record(action(version=1), 0)
    assert await rig.knowledge.record(action("applying", version=2), 1) == Recorded()
    assert await rig.knowledge.record(action("applying", version=2), 1) == Conflict(action("applying", version=2))


async def test_a_claim_on_nothing_says_so(rig: Rig) -> None:
    """An emptied store: the version that was read is not there any more."""
    assert await rig.knowledge.record(action(version=6), 5) == Conflict(None)


class TestHostileAnswers:
    """Whatever comes, it is an answer with a reason and never an exception."""

    async def ask(self, status: int, body: bytes) -> tuple[Any, Any]:
        transport = httpx.MockTransport(lambda _request: httpx.Response(status, content=body))
        knowledge = HttpKnowledge(httpx.AsyncClient(transport=transport, base_url="http://knowledge"))
        answers = await knowledge.policy(APP), await knowledge.record(action(), 4)
        await knowledge.close()
        return answers

    @pytest.mark.parametrize("status", [301, 401, 403, 429, 500, 503])
    async def test_an_error_is_an_outage(self, status: int) -> None:
        """Also a missing token: the mode is not known, so nothing begins."""
        reading, recorded = await self.ask(status, b'{"detail": "Redis cannot be reached"}')
        assert not reading.reachable
        assert f"{status} Redis cannot be reached" in reading.because
        assert isinstance(recorded, Unanswered)

    @pytest.mark.parametrize("body", [b"", b"{", b"<html>", b"[]", b"{}", b'{"spec": 1}'])
    async def test_nonsense_is_an_outage(self, body: bytes) -> None:
        """It names the call."""
        reading, _ = await self.ask(200, body)
        assert not reading.reachable
        assert reading.because.startswith("GET /v1/policies/shop/orders: ")

    @pytest.mark.parametrize("body", [b"", b"[1]", b'{"detail": "no"}', b'{"current": {"version": 0}}'])
    async def test_a_conflict_without_its_action_is_no_answer(self, body: bytes) -> None:
        """Nobody can tell from it who won."""
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
        assert "ConnectError" in (await knowledge.policy(APP)).because
        assert isinstance(await knowledge.record(action(), 4), Unanswered)
        with pytest.raises(httpx.HTTPError):
            await knowledge.ping()
        await knowledge.close()
