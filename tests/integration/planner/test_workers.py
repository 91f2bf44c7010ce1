"""Planners in worker processes: whatever happens there, the result is a reply, and the next request is answered."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil
import pytest

from testbed.process import wait_until
from tests.unit.planner.build import analysis, policy, request
from weir_contracts import PlanReply, PlanRequest
from weir_planner.workers import DEPTH, WorkerProcess, Workers
from weir_sdk.installed import ask


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.close()


def reply_of(
    workers: Workers, question: PlanRequest, planner: str = "rate", timeout_seconds: float = 20.0
) -> PlanReply:
    return asyncio.run(workers.ask(question, planner, timeout_seconds))


def child(process: WorkerProcess) -> psutil.Process:
    """The real one."""
    assert process._made is not None
    (pid,) = process._made[0]._processes
    return psutil.Process(pid)


def test_whatever_goes_wrong_the_next_question_is_answered(workers: Workers) -> None:
    """An answer that takes longer than a millisecond is a hold, and its process is killed; a new one answers as the
    pure function. An unknown planner and unknown parameters are holds, too."""
    asyncio.run(workers.start())
    child(workers._processes[0]).suspend()
    late = reply_of(workers, request(), timeout_seconds=0.001)
    assert (late.kind, late.code) == ("hold", "planner-timeout")
    assert "within 0.001 s" in late.sentence

    question = request(of={"arrivals": 2400})
    answered = reply_of(workers, question)
    assert answered.kind == "scale"
    assert answered == ask(question, "rate")

    unknown = reply_of(workers, request(), "magic")
    assert (unknown.kind, unknown.code) == ("hold", "planner-invalid")
    assert "no planner 'magic'; there are: " in unknown.sentence

    wrong = request(
        analysis(the_policy=policy(planner={"name": "rate", "parameters": {"speed": 3, "drain_seconds": -1}}))
    )
    invalid = reply_of(workers, wrong)
    assert (invalid.kind, invalid.code) == ("hold", "planner-invalid")
    assert "speed: is not a parameter of this planner" in invalid.sentence
    assert "drain_seconds: must be greater than 0" in invalid.sentence


def test_a_burst_is_answered_by_all_processes() -> None:
    """Two hundred applications at once and two processes: no process has more questions than it may, and each gets its
    answer."""
    workers = Workers(2)

    async def burst() -> list[PlanReply]:
        asking = [asyncio.create_task(workers.ask(request(of={"arrivals": 2400}), "rate", 20.0)) for _ in range(200)]
        await asyncio.sleep(0)
        assert [len(process) for process in workers._processes] == [DEPTH, DEPTH]
        return list(await asyncio.gather(*asking))

    try:
        assert {reply.kind for reply in asyncio.run(burst())} == {"scale"}
    finally:
        workers.close()


# -- one process ------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Nothing."""


def noted(path: str, what: str, seconds: str = "0") -> str:
    """Note the call, then sleep."""
    with Path(path).open("a") as notes:
        notes.write(f"{what}\n")
    time.sleep(float(seconds))
    return what


def crash(path: str, what: str) -> str:
    noted(path, what)
    os._exit(3)


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    made = WorkerProcess(prepare)
    yield made
    made.close()


def test_a_call_that_hangs_or_crashes_loses_no_other_answer(process: WorkerProcess, tmp_path: Path) -> None:
    """Six wait in line; the first outlives its deadline, the third ends the process. The others are answered in the
    order in which they asked, by the next process, and each deadline began with its call: all have less than the line
    takes."""
    notes = str(tmp_path / "notes")

    async def line() -> list[str | BaseException]:
        await process.start()
        return await asyncio.gather(
            process.run(noted, notes, "hangs", "600", timeout_seconds=0.5),
            process.run(noted, notes, "second", "0.5", timeout_seconds=5.0),
            process.run(crash, notes, "crashes", timeout_seconds=5.0),
            process.run(noted, notes, "fourth", "2", timeout_seconds=5.0),
            process.run(noted, notes, "fifth", "2", timeout_seconds=5.0),
            process.run(noted, notes, "sixth", "2", timeout_seconds=5.0),
            return_exceptions=True,
        )

    hangs, second, crashes, *others = asyncio.run(line())
    assert isinstance(hangs, TimeoutError)
    assert second == "second"
    assert isinstance(crashes, BrokenProcessPool)
    assert others == ["fourth", "fifth", "sixth"]
    assert Path(notes).read_text().split() == ["hangs", "second", "crashes", "fourth", "fifth", "sixth"]
    assert len(process) == 0


def test_a_call_that_misses_a_short_deadline_costs_the_others_no_new_process(
    process: WorkerProcess, tmp_path: Path
) -> None:
    """It gets no answer in time; its work ends a moment later, and the same process answers what waited behind it."""
    notes = str(tmp_path / "notes")

    async def line() -> list[str | BaseException]:
        await process.start()
        return await asyncio.gather(
            process.run(noted, notes, "late", "0.3", timeout_seconds=0.05),
            process.run(noted, notes, "second", timeout_seconds=20.0),
            process.run(noted, notes, "late again", "0.3", timeout_seconds=0.05),
            process.run(noted, notes, "fourth", timeout_seconds=20.0),
            return_exceptions=True,
        )

    asyncio.run(process.start())
    before = child(process).pid
    first, second, third, fourth = asyncio.run(line())
    assert isinstance(first, TimeoutError) and isinstance(third, TimeoutError)
    assert (second, fourth) == ("second", "fourth")
    assert child(process).pid == before
    assert len(process) == 0


def test_what_hangs_beyond_a_short_deadline_is_killed_by_the_next_call(process: WorkerProcess, tmp_path: Path) -> None:
    """Before, it counts as a request of this process, so that another process is chosen first."""
    notes = str(tmp_path / "notes")

    async def one_after_another() -> tuple[int, str]:
        with pytest.raises(TimeoutError):
            await process.run(noted, notes, "hangs", "600", timeout_seconds=0.05)
        waiting = len(process)
        return waiting, await process.run(noted, notes, "answered", timeout_seconds=20.0)

    asyncio.run(process.start())
    hanging = child(process)
    assert asyncio.run(one_after_another()) == (1, "answered")
    wait_until(lambda: not psutil.pid_exists(hanging.pid), timeout_seconds=10, what="the hanging process ended")
    assert len(process) == 0


def test_a_cancelled_call_leaves_the_line(process: WorkerProcess, tmp_path: Path) -> None:
    """An application that ended: its question is not waited for, and the one behind it is answered."""
    notes = str(tmp_path / "notes")

    async def line() -> str:
        await process.start()
        first = asyncio.create_task(process.run(noted, notes, "first", "0.2", timeout_seconds=20.0))
        gives_up = asyncio.create_task(process.run(noted, notes, "gives up", timeout_seconds=20.0))
        last = asyncio.create_task(process.run(noted, notes, "last", timeout_seconds=20.0))
        await asyncio.sleep(0)
        gives_up.cancel()
        assert await first == "first"
        return await last

    assert asyncio.run(line()) == "last"
    assert len(process) == 0


def test_a_process_that_died_is_noticed_by_the_next_question(process: WorkerProcess, tmp_path: Path) -> None:
    """Killed from outside while it had nothing to do: the next question is answered by another."""
    notes = str(tmp_path / "notes")

    asyncio.run(process.start())
    assert process._made is not None
    pool, _ = process._made
    child(process).kill()
    wait_until(lambda: pool._broken, timeout_seconds=10, what="the death noticed")
    assert asyncio.run(process.run(noted, notes, "answered", timeout_seconds=20.0)) == "answered"


_SERVICE = """
import asyncio, psutil, sys
from weir_planner.workers import Workers

if __name__ == "__main__":
    workers = Workers(2)
    asyncio.run(workers.start())
    print(*[process.pid for process in psutil.Process().children()], flush=True)
    sys.stdin.read()
"""


def test_workers_end_with_a_service_that_was_killed(tmp_path: Path) -> None:
    """kill -9 of the service leaves no process behind."""
    script = tmp_path / "service.py"
    script.write_text(_SERVICE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as service:
        assert service.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in service.stdout.readline().split()]
        assert len(workers) >= 2
        service.kill()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
