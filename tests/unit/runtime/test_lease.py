"""One holder at a time: what a contender may do."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.unit.runtime import lease_suite
from tests.unit.runtime.lease_suite import TERMS, decide, holder, works
from tests.unit.runtime.memory_lease import MemoryGroup, MemoryLease
from weir_runtime.clock import FakeClock
from weir_runtime.lease import Holder, LeaseState, Terms, judge, renewed_by_other

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINE = Holder("me, process 1", NOON, 3)
THEIRS = Holder("them, process 2", NOON, 2)
ANALYZER = Terms("analyzer")


class MemoryContest:
    """On a clock that waiting contenders advance."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.group = MemoryGroup(self.clock, TERMS)

    def contender(self, name: str) -> MemoryLease:
        return MemoryLease(self.group, name)

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def wait(self, condition: Callable[[], bool], seconds: float) -> float:
        begun = self.monotonic()
        while not condition():
            assert self.monotonic() - begun < seconds, "it did not come to that"
            self.clock.advance(0.5)
            self.group.heartbeat()
        return self.monotonic() - begun


@pytest.mark.parametrize("story", lease_suite.STORIES, ids=lambda story: story.__name__)
def test_the_twin_keeps_what_a_lease_promises(story: Callable[[lease_suite.Contest], None]) -> None:
    """The same stories as Kafka's group."""
    story(MemoryContest())


def test_a_confirmation_lasts_as_long_as_a_lease() -> None:
    """From when it was sent: at the lease's very end it is over, whatever the brokers may still answer."""
    held = LeaseState(0.0, MINE, confirmed_at=100.0)
    assert judge(held, 109.9, ANALYZER).kind == "works"
    over = judge(replace(held, problem="no brokers"), 110.0, ANALYZER)
    assert (over.kind, over.reason) == ("waits", "its lease was last confirmed 10.0 s ago: no brokers")
    assert judge(LeaseState(0.0, MINE), 0.0, ANALYZER).reason == "its lease is not confirmed yet"


def test_only_a_holder_that_lives_is_a_reason_to_give_up() -> None:
    """With brokers that do not answer, or a holder that died, one waits on however long it takes."""
    unanswered = LeaseState(0.0, problem="no brokers")
    assert judge(unanswered, 1000.0, ANALYZER).reason == "the group has not answered yet: no brokers"
    waits = LeaseState(0.0, other=THEIRS, other_renewed_at=29.0)
    assert judge(waits, 29.9, ANALYZER).kind == "waits"
    refused = judge(waits, 30.0, ANALYZER)
    assert refused.kind == "refused"
    assert refused.reason == (
        "another analyzer of this loop is at work: them, process 2, since 2026-01-01 12:00:00 UTC; waited 30 s for it to end"
    )
    assert judge(waits, 39.0, ANALYZER).kind == "waits"
    assert "not renewed for 10 s" in judge(waits, 39.0, ANALYZER).reason
    assert judge(waits, 30.0, Terms("analyzer", standby_seconds=float("inf"))).kind == "waits"


def test_an_outage_is_no_time_of_another_holder() -> None:
    """The brokers were away for five minutes. Earlier records do not show which holder is alive, and the deadline
    begins with the first sign of life behind the gap."""
    read_once = LeaseState(0.0, other=THEIRS)
    assert judge(read_once, 300.0, ANALYZER).reason.endswith("unknown whether it is alive")
    alive = renewed_by_other(renewed_by_other(read_once, THEIRS, 300.0, ANALYZER), THEIRS, 302.0, ANALYZER)
    assert (alive.other_alive_since, alive.other_renewed_at) == (300.0, 302.0)
    assert judge(alive, 303.0, ANALYZER).kind == "waits"
    for second in range(304, 330, 2):
        alive = renewed_by_other(alive, THEIRS, float(second), ANALYZER)
    assert judge(alive, 329.9, ANALYZER).kind == "waits"
    assert judge(alive, 330.0, ANALYZER).reason.endswith("waited 30 s for it to end")
    after_a_gap = renewed_by_other(alive, THEIRS, 400.0, ANALYZER)
    assert judge(after_a_gap, 400.0, ANALYZER).kind == "waits"


def test_a_dead_holder_is_followed_when_its_lease_has_run_out() -> None:
    """Killed without a good-bye: a standby gets it after one lease, well before its deadline."""
    contest = MemoryContest()
    first, second = contest.contender("first"), contest.contender("second")
    first.open()
    second.open()
    contest.wait(lambda: works(contest, first), 5)
    contest.group.heartbeat()
    first.alive = False
    took = contest.wait(lambda: works(contest, second), 30)
    assert TERMS.lease_seconds <= took <= TERMS.lease_seconds + 1
    assert not works(contest, first)


def test_a_paused_holder_loses_its_lease_before_another_works() -> None:
    """It stands still for a minute. There is no instant at which both may work, and awake it waits like any standby."""
    contest = MemoryContest()
    first, second = contest.contender("first"), contest.contender("second")
    first.open()
    second.open()
    contest.wait(lambda: works(contest, first), 5)
    first.alive = False

    def turned() -> bool:
        assert not (works(contest, first) and works(contest, second))
        return works(contest, second)

    contest.wait(turned, 60)
    first.alive = True
    assert decide(contest, first).kind == "waits"
    contest.wait(lambda: first.state().other == holder(second), 5)
    assert works(contest, second)
