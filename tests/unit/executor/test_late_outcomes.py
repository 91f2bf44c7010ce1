"""Two executors held one application, and the first one's outcomes come late: the second one's count, in any order."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from tests.effort import some
from tests.unit.executor.builders import (
    BEFORE,
    NOON,
    RULES,
    WANTED,
    action,
    after,
    away,
    observed,
    plan,
    restarting,
    snapshot,
)
from tests.unit.executor.house import APP, House
from weir_contracts import Outcome
from weir_contracts.topics import OUTCOMES
from weir_engines.driver import Refusal
from weir_executor.core.history import ActionHistory, recall, record_refusal, record_transition, taken_over
from weir_executor.core.observed import Recorded, Step
from weir_executor.core.steps import next_step
from weir_executor.core.table import Event
from weir_knowledge.core import Cycle, HistoryLimits, State, remember
from weir_planner.request_cache import RequestCache

pytestmark = [pytest.mark.thorough, pytest.mark.virtual_time]

FOLLOWING = {**WANTED, "enrich": 6}


class Holder:
    """An executor that holds the application: moves its action, and writes down what it would publish."""

    def __init__(self, history: ActionHistory) -> None:
        self.history = history
        self.published: list[Outcome] = []

    def record(self, step: Step, at: Any) -> None:
        assert step.name is not None, step
        published = record_transition(self.history, step, snapshot(), at, RULES)
        self.history = published.history
        self.published.append(published.outcome)

    def step(self, at: float, **found: Any) -> None:
        assert self.history.action is not None
        self.record(next_step(self.history.action, observed(**found), after(at), RULES), after(at))

    def record_refusal(self, number: int, at: float) -> None:
        published = record_refusal(
            self.history, plan(number=number), Refusal("in-flight", "an action is verifying"), None, after(at)
        )
        self.history = published.history
        self.published.append(published.outcome)


def two_holders() -> tuple[list[Outcome], list[Outcome]]:
    """Return what two executors publish of one action.

    The first stalls after its request. The second takes over and verifies. Then the first goes on, 15 minutes later.
    """
    first = Holder(taken_over(ActionHistory()))
    first.record(Step(action(version=1, started_at=NOON), Event("admitted", "…")), NOON)
    first.step(1, answer=Recorded())
    second = Holder(taken_over(replayed(first.published)))
    first.step(900, found=away(at=after(900)))
    assert [outcome.phase for outcome in first.published] == ["intended", "applying", "failed"]
    second.step(20, found=restarting(requested=WANTED, at=after(20)))
    second.step(25, found=snapshot(WANTED, at=after(25), steady_since=after(24)))
    second.record_refusal(7, at=26)
    second.step(40, found=snapshot(WANTED, at=after(40), steady_since=after(24)))
    assert [outcome.phase for outcome in second.published] == ["verifying", "verifying", "refused", "verified"]
    return first.published, second.published


def replayed(outcomes: Sequence[Outcome]) -> ActionHistory:
    """Return the history that a new holder recalls from the topic."""
    history = ActionHistory()
    for outcome in outcomes:
        history = recall(history, Outcome.model_validate_json(outcome.model_dump_json()))
    return history


def orders() -> list[tuple[Outcome, ...]]:
    """Every order, in the fast tests one in seven, in which the outcomes of both may be read, duplicates and compaction
    aside."""
    first, second = two_holders()
    return some(permutations([*first, *second]), 7)


@pytest.mark.thorough
def test_every_order_of_two_holders_outcomes_recalls_the_same() -> None:
    """The owner's `verified` is the newest, and both holders' plans are answered."""
    _, second = two_holders()
    for order in orders():
        history = replayed(order)
        assert history.newest == second[-1].order
        assert history.action is not None and history.action.phase == "verified"
        assert (history.last_written, history.original, history.contested_since) == (WANTED, BEFORE, None)
        assert set(history.answered) == {plan().id, plan(number=7).id}
        assert history.epoch == 2


def test_every_order_of_two_holders_outcomes_is_the_same_to_planner_and_knowledge() -> None:
    """The newest outcome for planner and knowledge is the owner's."""
    _, second = two_holders()
    for order in orders():
        planner = RequestCache(1, 1)
        state = State(application=APP, cycles=[Cycle(correlation_id=plan().observation_id)])
        for outcome in order:
            planner.happened(APP, outcome)
            state = remember(state, outcome, HistoryLimits())
        assert planner._outcomes[APP][0] == second[-1]
        assert state.times.outcome == second[-1].order
        assert all(state.times.newer_than(late) for late in order if late.id != second[-1].id)


def test_the_last_outcome_suffices_to_continue() -> None:
    """Compaction leaves no other: since when it was contested, and what the job had when Weir first acted on it."""
    first, second = two_holders()
    history = replayed([*first, *second])
    contested = Refusal("contested", "another tool set the requirements")
    for number in (8, 9):
        published = record_refusal(history, plan(number=number), contested, None, after(100 + number))
        history = published.history
    alone = replayed([published.outcome])
    assert (alone.contested_since, alone.original) == (after(108), BEFORE)
    assert (alone.epoch, alone.sequence) == (history.epoch, history.sequence)


def stalled_in_applying(house: House) -> ActionHistory:
    """Return what the holder knew when it had published its newest `applying`."""
    published = house.published()
    last = max(place for place, outcome in enumerate(published) if outcome.phase == "applying")
    return replayed(published[: last + 1])


class TestReplicas:
    """The same with executors."""

    async def test_a_woken_holder_does_not_wedge_the_application(self) -> None:
        """It stalled in its second action; another replica verified that and a third. Then the first one's `failed`
        comes.

        The topic ends with the owner's outcome, and after a restart the next plan is acted on.
        """
        house = House()
        await house.start()
        await house.plan()
        await house.until(house.ended("verified"))
        await house.plan(FOLLOWING)
        await house.until(lambda: house.phases().count("applying") == 2)
        stalled = stalled_in_applying(house)
        await house.replicas[0].kill()
        house.replica()
        await house.until(house.ended("verified"))
        await house.plan({**WANTED, "enrich": 8})
        await house.until(lambda: house.phases().count("verified") == 3)
        owned = house.published()[-1]

        assert stalled.action is not None
        late = next_step(stalled.action, observed(found=away(at=house.clock.now())), after(9999), RULES)
        assert late.name == "unreachable"
        published = record_transition(stalled, late, None, house.clock.now(), RULES)
        await house.publish(OUTCOMES, APP, published.outcome, published.outcome.id)
        assert house.published()[-1].phase == "failed"
        await house.until(lambda: house.published()[-1].id == owned.id)

        await house.replicas[1].kill()
        house.replica()
        await house.plan({**WANTED, "enrich": 5})
        await house.until(lambda: house.phases().count("verified") == 5)
        assert "contested" not in [outcome.code for outcome in house.published()]
        await house.end()

    async def test_a_restart_finds_the_owners_outcome_before_the_late_one(self) -> None:
        """No owner was there to publish its newest outcome again after the late one."""
        house = House()
        await house.start()
        await house.plan()
        await house.until(lambda: "applying" in house.phases())
        stalled = stalled_in_applying(house)
        await house.replicas[0].kill()
        house.replica()
        await house.until(house.ended("verified"))
        await house.replicas[1].kill()
        assert stalled.action is not None
        late = next_step(stalled.action, observed(found=away(at=house.clock.now())), after(9999), RULES)
        published = record_transition(stalled, late, None, house.clock.now(), RULES)
        await house.publish(OUTCOMES, APP, published.outcome, published.outcome.id)
        third = house.replica()
        await house.until(lambda: APP in third.executor.applications.own)
        history = third.executor.applications.own[APP].history
        assert history.action is not None and history.action.phase == "verified"
        await house.until(house.ended("verified"))
        await house.end()
