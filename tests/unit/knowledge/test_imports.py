"""Importing what another Weir knew: the log's record, and what knowledge keeps of it."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.unit.knowledge.builders import APP, analysis, at, document, observation, outcome, plan
from tests.unit.knowledge.direct_log import DirectLog, add_routes, changes_of
from tests.unit.knowledge.memory_store import MemoryStore
from weir_contracts import LoopResult, Observation
from weir_contracts.topics import OBSERVATIONS
from weir_knowledge.__main__ import api
from weir_knowledge.core import HistoryLimits, State, history_entries, remember
from weir_runtime.access import Caller, Tokens
from weir_runtime.clock import FakeClock
from weir_runtime.messages import decode

PATH = f"/v1/applications/{APP}/import"


def lived(cycles: int) -> tuple[State, list[LoopResult]]:
    """Return the state and the history after some cycles, each with another decision."""
    state, lines = State(application=APP), list[LoopResult]()
    for cycle in range(1, cycles + 1):
        decided = plan(cycle, 4, code=f"reason-{cycle}")
        for event in (observation(cycle), analysis(cycle), decided, outcome(decided, "verified")):
            state = remember(state, event, HistoryLimits())
            lines += [line for _, line in history_entries(event, state) if isinstance(line, LoopResult)]
    return state, lines


def body(state: State, lines: list[LoopResult]) -> dict[str, Any]:
    return {
        "learned": {"version": 1},
        "history": [line.model_dump(mode="json") for line in lines],
        "cycles": [cycle.model_dump(mode="json") for cycle in state.cycles],
    }


class House:
    """The API, with a policy, and the log that it writes to."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.changes = changes_of(self.store, FakeClock(at(100)))
        assert isinstance(self.changes.log, DirectLog)
        self.app = api()
        add_routes(self.app, self.changes)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://knowledge")

    async def written(self) -> list[Observation]:
        """Return what the log of observations has."""
        reader = self.changes.log.bus.reader(OBSERVATIONS.name)
        found = [decode(each, Observation).message for each in await reader.receive(timeout_seconds=0.0)]
        await reader.close()
        return found


@pytest.fixture
async def house() -> AsyncIterator[House]:
    built = House()
    answer = await built.http.put(f"/v1/policies/{APP}", json=document())
    assert answer.status_code == 201
    yield built
    await built.http.aclose()


async def test_a_past_is_carried_by_the_log_and_kept(house: House) -> None:
    """The record has no readings; whoever folds it has the cycles and the lines of the other Weir, once."""
    before, lines = lived(3)
    answer = await house.http.post(PATH, json=body(before, lines))
    assert (answer.status_code, answer.json()) == (
        202,
        {"application": APP, "learned": True, "history": 3, "cycles": 3},
    )
    (carried,) = await house.written()
    assert carried.status == "unreachable"
    assert carried.imported is not None
    assert carried.imported.learned == {"version": 1}
    state = remember(State(application=APP), carried, HistoryLimits())
    assert state.cycles == before.cycles
    assert state.times.observation is None, "the next reading is the first one"
    assert [line for _, line in history_entries(carried, state)] == lines
    assert remember(state, carried, HistoryLimits()) is state


async def test_own_cycles_stay_and_the_newest_come_first(house: House) -> None:
    """An import between two cycles of this Weir adds the older ones behind them, as many as are kept."""
    past, lines = lived(3)
    await house.http.post(PATH, json=body(past, lines))
    (carried,) = await house.written()
    state = State(application=APP)
    for cycle in (10, 11):
        state = remember(state, plan(cycle, 4, code=f"own-{cycle}"), HistoryLimits())
    state = remember(state, carried, HistoryLimits(cycles_count=4))
    codes = [cycle.plan.code for cycle in state.cycles if cycle.plan is not None]
    assert codes == ["own-11", "own-10", "reason-3", "reason-2"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cycles": [{"correlation_id": str(observation(1).id)}]}, "cycles: one has no plan"),
        (
            {
                "cycles": [
                    {"correlation_id": str(observation(1).id), "plan": plan(1, 4, "shop/other").model_dump(mode="json")}
                ]
            },
            f"cycles: one is of shop/other, the address is {APP}",
        ),
        (
            {"cycles": [{"correlation_id": str(observation(1).id), "plan": plan(900, 4).model_dump(mode="json")}]},
            "cycles: one is of 2026-01-01T13:15Z, in the future",
        ),
        ({"history": [{"at": "2027-01-01T00:00:00Z"}]}, "history.0.plan_id: is required"),
        ({"learned": [1]}, "learned: must be a mapping"),
    ],
)
async def test_what_cannot_be_its_past_is_refused(house: House, change: dict[str, Any], sentence: str) -> None:
    """One sentence, and nothing is written."""
    answer = await house.http.post(PATH, json=change)
    assert answer.status_code == 422
    assert sentence in answer.json()["detail"]
    assert await house.written() == []


async def test_it_needs_a_policy_and_the_right_to_write_one(house: House) -> None:
    """A reader, and a writer of another namespace, may not; nor may anyone import what has no policy."""
    answer = await house.http.post("/v1/applications/shop/unknown/import", json={})
    assert answer.status_code == 404
    house.app.state.tokens = Tokens(
        {
            "reads": Caller("ada", frozenset({"read"})),
            "elsewhere": Caller("bob", frozenset({"write"}), frozenset({"other"})),
            "writes": Caller("eve", frozenset({"write"}), frozenset({"shop"})),
        }
    )
    codes = [
        (await house.http.post(PATH, json={}, headers={"Authorization": f"Bearer {token}"})).status_code
        for token in ("reads", "elsewhere", "writes")
    ]
    assert codes == [403, 403, 202]
