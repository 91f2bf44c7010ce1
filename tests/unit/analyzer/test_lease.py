"""One analyzer at a time: how the shell follows its lease."""

import asyncio
from collections.abc import Callable

import pytest

from tests.unit.runtime.lease_suite import TERMS
from tests.unit.runtime.memory_lease import MemoryGroup, MemoryLease
from tests.unit.runtime.test_lease import MemoryContest
from weir_analyzer.service import Analyzer, Batch
from weir_runtime.clock import FakeClock
from weir_runtime.loop import Stop


class Stream:
    """Stream that records the calls it receives; only its owner ends it."""

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
        self.lease = MemoryLease(group, name)
        self.analyzer = Analyzer(self.stream, self.lease, clock, TERMS)
        self.stop = Stop()
        self.task = asyncio.create_task(self.analyzer.run(self.stop))

    async def end(self) -> None:
        self.stop.request("test")
        await asyncio.wait_for(self.task, 5)


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch) -> MemoryContest:
    monkeypatch.setattr("weir_analyzer.service._POLL_SECONDS", 0.01)
    monkeypatch.setattr("weir_analyzer.service._GUARD_SECONDS", 0.01)
    return MemoryContest()


async def _until(contest: MemoryContest, condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        contest.clock.advance(0.3)
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


async def test_the_second_prepares_but_never_starts(contest: MemoryContest) -> None:
    """It is warm when it gets the lease; it touches nothing before; at its deadline it ends, naming the active one."""
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


async def test_a_standby_starts_when_the_first_has_ended(contest: MemoryContest) -> None:
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
    """No other analyzer can have taken over, so nothing is killed; when brokers are back the query is restarted."""
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
