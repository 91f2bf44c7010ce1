"""One analyzer at a time: what a contender may do, and how the shell follows its lease."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from runtime.clock import FakeClock
from runtime.loop import Stop
from services.analyzer.adapters.memory_lease import MemoryGroup, MemoryLease
from services.analyzer.core.lease import Claim, Standing, Terms, heard, judge
from services.analyzer.service import Analyzer
from services.analyzer.stream import Batch
from tests.unit.analyzer import lease_suite
from tests.unit.analyzer.lease_suite import TERMS, claim, verdict, works

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINE = Claim("me, process 1", NOON, 3)
THEIRS = Claim("them, process 2", NOON, 2)


class MemoryContest:
    """On a clock that is moved by those who wait."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.group = MemoryGroup(self.clock, TERMS)

    def contender(self, name: str) -> MemoryLease:
        return MemoryLease(self.group, name, self.clock)

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def wait(self, condition: Callable[[], bool], seconds: float) -> float:
        begun = self.monotonic()
        while not condition():
            assert self.monotonic() - begun < seconds, "it did not come to that"
            self.clock.advance(0.5)
            self.group.turn()
        return self.monotonic() - begun


@pytest.mark.parametrize("story", lease_suite.STORIES, ids=lambda story: story.__name__)
def test_the_twin_keeps_what_a_lease_promises(story: Callable[[lease_suite.Contest], None]) -> None:
    """The same stories as Kafka's group."""
    story(MemoryContest())


def test_a_claim_counts_for_as_long_as_a_lease_and_no_longer() -> None:
    """From when it was sent: at the lease's very end it is over, whatever the brokers may still answer."""
    held = Standing(0.0, MINE, confirmed_at=100.0)
    assert judge(held, 109.9, Terms()).kind == "works"
    over = judge(replace(held, why_not="no brokers"), 110.0, Terms())
    assert (over.kind, over.because) == ("waits", "its claim was last confirmed 10.0 s ago: no brokers")
    assert judge(Standing(0.0, MINE), 0.0, Terms()).because == "its claim is not confirmed yet"


def test_only_a_holder_that_lives_is_a_reason_to_give_up() -> None:
    """With brokers that do not answer, or a holder that died, one waits on however long it takes."""
    nobody = Standing(0.0, why_not="no brokers")
    assert judge(nobody, 1000.0, Terms()).because == "the group has not answered yet: no brokers"
    waits = Standing(0.0, other=THEIRS, other_heard_at=29.0)
    assert judge(waits, 29.9, Terms()).kind == "waits"
    refused = judge(waits, 30.0, Terms())
    assert refused.kind == "refused"
    assert refused.because == (
        "another analyzer of this loop is at work: them, process 2, since 2026-01-01 12:00:00 UTC; waited 30 s for it to end"
    )
    assert judge(waits, 39.0, Terms()).kind == "waits"
    assert "not heard of for 10 s" in judge(waits, 39.0, Terms()).because
    assert judge(waits, 30.0, Terms(patience_seconds=float("inf"))).kind == "waits"


def test_an_outage_is_no_time_in_which_another_lived() -> None:
    """The brokers were away for five minutes. What was written before says nothing of who lives now, and patience begins with the
    first sign of life behind the gap."""
    read_once = Standing(0.0, other=THEIRS)
    assert judge(read_once, 300.0, Terms()).because.endswith("not known yet whether it lives")
    alive = heard(heard(read_once, THEIRS, 300.0, Terms()), THEIRS, 302.0, Terms())
    assert (alive.other_alive_since, alive.other_heard_at) == (300.0, 302.0)
    assert judge(alive, 303.0, Terms()).kind == "waits"
    for second in range(304, 330, 2):
        alive = heard(alive, THEIRS, float(second), Terms())
    assert judge(alive, 329.9, Terms()).kind == "waits"
    assert judge(alive, 330.0, Terms()).because.endswith("waited 30 s for it to end")
    after_a_gap = heard(alive, THEIRS, 400.0, Terms())
    assert judge(after_a_gap, 400.0, Terms()).kind == "waits"


def test_a_dead_holder_is_followed_when_its_lease_has_run_out() -> None:
    """Killed without a good-bye: who stands by gets it after one lease, well before its patience is at an end."""
    contest = MemoryContest()
    first, second = contest.contender("first"), contest.contender("second")
    first.open()
    second.open()
    contest.wait(lambda: works(contest, first), 5)
    contest.group.turn()
    first.alive = False
    took = contest.wait(lambda: works(contest, second), 30)
    assert TERMS.lease_seconds <= took <= TERMS.lease_seconds + 1
    assert not works(contest, first)


def test_a_paused_holder_knows_that_it_is_none_before_another_works() -> None:
    """It stands still for a minute. There is no instant at which both may work, and awake it waits in turn."""
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
    assert verdict(contest, first).kind == "waits"
    contest.wait(lambda: first.standing().other == claim(second), 5)
    assert works(contest, second)


class Stream:
    """A stream that notes what it is told; nothing ends it but its owner."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def prepare(self) -> None:
        self.told.append("prepare")

    def start(self) -> str:
        self.told.append("start")
        return "here"

    def batches(self) -> list[Batch]:
        return []

    def set_aside(self) -> None:
        self.told.append("set-aside")

    def suspend(self) -> None:
        self.told.append("suspend")

    def abort(self) -> None:
        self.told.append("abort")

    def stop(self) -> None:
        self.told.append("stop")


class Shell:
    """An analyzer on the twin, its clock moved by the test, its waits made short."""

    def __init__(self, group: MemoryGroup, clock: FakeClock, name: str) -> None:
        self.stream = Stream()
        self.lease = MemoryLease(group, name, clock)
        self.analyzer = Analyzer(self.stream, self.lease, clock, TERMS)
        self.stop = Stop()
        self.task = asyncio.create_task(self.analyzer.run(self.stop))

    async def end(self) -> None:
        self.stop.request("test")
        await asyncio.wait_for(self.task, 5)


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch) -> MemoryContest:
    monkeypatch.setattr("services.analyzer.service._POLL_SECONDS", 0.01)
    monkeypatch.setattr("services.analyzer.service._GUARD_SECONDS", 0.01)
    return MemoryContest()


async def _until(contest: MemoryContest, condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        contest.clock.advance(0.3)
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


async def test_the_second_prepares_but_never_starts(contest: MemoryContest) -> None:
    """It is warm when its turn comes; until then it touches nothing, and after its patience it ends and says who works."""
    first = Shell(contest.group, contest.clock, "first")
    await _until(contest, lambda: "start" in first.stream.told)
    second = Shell(contest.group, contest.clock, "second")
    await _until(contest, second.task.done)
    assert second.stream.told == ["prepare", "stop"]
    assert second.analyzer.refused is not None
    assert "at work: first, since" in second.analyzer.refused
    assert first.stream.told == ["prepare", "start"]
    await first.end()
    assert first.stream.told[-1] == "stop"


async def test_who_stands_by_starts_when_the_first_is_gone(contest: MemoryContest) -> None:
    """A crash, then nothing but waiting: the other goes on from where the first was."""
    first = Shell(contest.group, contest.clock, "first")
    await _until(contest, lambda: "start" in first.stream.told)
    second = Shell(contest.group, contest.clock, "second")
    await _until(contest, lambda: second.lease.now.other is not None)
    first.task.cancel()
    first.lease.alive = False
    await asyncio.gather(first.task, return_exceptions=True)
    await _until(contest, lambda: "start" in second.stream.told)
    assert second.analyzer.refused is None
    await second.end()


async def test_brokers_that_are_away_suspend_the_stream_and_keep_what_is_warm(contest: MemoryContest) -> None:
    """Nobody else can have taken over, so nothing is killed; when they are back the query is started again."""
    shell = Shell(contest.group, contest.clock, "only")
    await _until(contest, lambda: "start" in shell.stream.told)
    contest.group.reachable = False
    await _until(contest, lambda: "suspend" in shell.stream.told)
    contest.group.reachable = True
    await _until(contest, lambda: shell.stream.told.count("start") == 2)
    assert shell.stream.told == ["prepare", "start", "suspend", "prepare", "start"]
    await shell.end()


async def test_a_lease_that_went_to_another_kills_what_could_still_write(contest: MemoryContest) -> None:
    """Paused for longer than its lease and awake again: at once, without asking, and then it stands by."""
    first = Shell(contest.group, contest.clock, "first")
    await _until(contest, lambda: "start" in first.stream.told)
    second = Shell(contest.group, contest.clock, "second")
    await _until(contest, lambda: second.lease.now.other is not None)
    contest.group.leave(first.lease)  # as the coordinator does with one that it has not heard of
    await _until(contest, lambda: "abort" in first.stream.told)
    await _until(contest, lambda: "start" in second.stream.told)
    assert first.stream.told[:3] == ["prepare", "start", "abort"]
    assert first.stream.told.count("start") == 1
    await first.end()
    await second.end()
