"""The pool of processes: whatever a call does there, the others are answered."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pebble import ProcessExpired

from testbed.process import wait_until
from tests.unit.planner.build import analysis, policy, request
from weir_contracts import PlanReply, PlanRequest
from weir_planner.pool import Answer, Pool, Workers
from weir_sdk.installed import ask


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.close()


def reply_of(workers: Workers, question: PlanRequest, planner: str = "rate") -> PlanReply:
    return asyncio.run(workers.ask(question, planner, 20.0))


def test_a_reply_is_that_of_the_pure_function(workers: Workers) -> None:
    """Also after an unknown planner and unknown parameters, which are holds that name the mistake."""
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

    question = request(of={"arrivals": 2400})
    answered = reply_of(workers, question)
    assert answered.kind == "scale"
    assert answered == ask(question, "rate")


def test_a_burst_is_answered_by_two_processes() -> None:
    """Two hundred applications at once: each gets its reply, within a deadline that all of them together exceed."""
    workers = Workers(2)

    async def burst() -> list[PlanReply]:
        return list(
            await asyncio.gather(*(workers.ask(request(of={"arrivals": 2400}), "rate", 5.0) for _ in range(200)))
        )

    try:
        assert {reply.kind for reply in asyncio.run(burst())} == {"scale"}
    finally:
        workers.close()


# -- one process ------------------------------------------------------------------------------------------------------


def noted(path: str, what: str, seconds: str = "0") -> Answer:
    """Note the call and its process, then sleep."""
    with Path(path).open("a") as notes:
        notes.write(f"{what} {os.getpid()}\n")
    time.sleep(float(seconds))
    return None, what


def exits(path: str, what: str) -> Answer:
    noted(path, what)
    os._exit(3)


def is_killed(path: str, what: str) -> Answer:
    """As by the kernel when memory runs out."""
    noted(path, what)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def ignores_termination(path: str, what: str) -> Answer:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return noted(path, what, "600")


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(1)
    yield made
    made.close()


def notes_of(path: str) -> dict[str, int]:
    """Return the calls in the order in which they began, with their processes."""
    return {what: int(pid) for what, pid in (line.split() for line in Path(path).read_text().splitlines())}


def test_calls_that_hang_or_end_their_process_cost_no_other_answer(pool: Pool, tmp_path: Path) -> None:
    """Eight wait in line; three of them outlive their deadline or end the process. The others are answered in the order
    in which they asked, and each deadline begins with its call: all have less than the line takes."""
    notes = str(tmp_path / "notes")

    async def line() -> list[Answer | BaseException]:
        await pool.start()
        return await asyncio.gather(
            pool.run(noted, notes, "hangs", "600", timeout_seconds=0.5),
            pool.run(noted, notes, "second", "0.5", timeout_seconds=5.0),
            pool.run(exits, notes, "exits", timeout_seconds=5.0),
            pool.run(noted, notes, "fourth", "2", timeout_seconds=5.0),
            pool.run(is_killed, notes, "killed", timeout_seconds=5.0),
            pool.run(noted, notes, "sixth", "2", timeout_seconds=5.0),
            pool.run(ignores_termination, notes, "ignores", timeout_seconds=0.5),
            pool.run(noted, notes, "eighth", "2", timeout_seconds=5.0),
            return_exceptions=True,
        )

    hangs, second, exited, fourth, killed, sixth, ignores, eighth = asyncio.run(line())
    assert isinstance(hangs, TimeoutError) and isinstance(ignores, TimeoutError)
    assert isinstance(exited, ProcessExpired) and isinstance(killed, ProcessExpired)
    assert [second, fourth, sixth, eighth] == [(None, "second"), (None, "fourth"), (None, "sixth"), (None, "eighth")]
    began = notes_of(notes)
    assert list(began) == ["hangs", "second", "exits", "fourth", "killed", "sixth", "ignores", "eighth"]
    assert not any(psutil.pid_exists(began[what]) for what in ("hangs", "exits", "killed", "ignores"))


def test_a_cancelled_call_leaves_the_line(pool: Pool, tmp_path: Path) -> None:
    """Applications that ended: the one whose call runs costs its process, the one behind it nothing; the last is
    answered."""
    notes = str(tmp_path / "notes")

    async def line() -> Answer:
        await pool.start()
        runs = asyncio.create_task(pool.run(noted, notes, "runs", "600", timeout_seconds=600.0))
        waits = asyncio.create_task(pool.run(noted, notes, "waits", "600", timeout_seconds=600.0))
        last = asyncio.create_task(pool.run(noted, notes, "last", timeout_seconds=20.0))
        await asyncio.to_thread(wait_until, Path(notes).exists, timeout_seconds=60, what="the call began")
        waits.cancel()
        runs.cancel()
        return await last

    assert asyncio.run(line()) == (None, "last")


def test_a_process_that_died_is_noticed_by_the_next_call(pool: Pool, tmp_path: Path) -> None:
    """Killed from outside while it had nothing to do: the next call is answered by another."""
    notes = str(tmp_path / "notes")
    assert asyncio.run(pool.run(noted, notes, "first", timeout_seconds=20.0)) == (None, "first")
    first = psutil.Process(notes_of(notes)["first"])
    first.kill()
    wait_until(lambda: not first.is_running(), timeout_seconds=10, what="the process ended")
    assert asyncio.run(pool.run(noted, notes, "second", timeout_seconds=20.0)) == (None, "second")
    assert notes_of(notes)["second"] != first.pid


def test_a_pool_that_is_stuck_is_replaced(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only process stands still and takes no call, so that no deadline begins: the call ends all the same, and the next
    one is answered by another process."""
    monkeypatch.setattr("weir_planner.pool.STUCK_SECONDS", 0.5)
    notes = str(tmp_path / "notes")
    assert asyncio.run(pool.run(noted, notes, "first", timeout_seconds=20.0)) == (None, "first")
    first = psutil.Process(notes_of(notes)["first"])
    first.suspend()
    with pytest.raises(TimeoutError):
        asyncio.run(pool.run(noted, notes, "stuck", timeout_seconds=0.1))
    assert not first.is_running()
    monkeypatch.setattr("weir_planner.pool.STUCK_SECONDS", 60.0)
    assert asyncio.run(pool.run(noted, notes, "next", timeout_seconds=20.0)) == (None, "next")


def test_the_process_that_all_are_forked_from_may_die(pool: Pool, tmp_path: Path) -> None:
    """Killed from outside, with the process of the call: a new one is started, and the next call is answered."""
    notes = str(tmp_path / "notes")

    async def calls() -> list[Answer | BaseException]:
        hanging = asyncio.create_task(pool.run(noted, notes, "hangs", "600", timeout_seconds=600.0))
        await asyncio.to_thread(wait_until, Path(notes).exists, timeout_seconds=60, what="the call began")
        worker = psutil.Process(notes_of(notes)["hangs"])
        parent = worker.parent()
        assert parent is not None and parent.pid != os.getpid()
        parent.kill()
        worker.kill()
        again = asyncio.create_task(pool.run(noted, notes, "again", timeout_seconds=20.0))
        return await asyncio.gather(hanging, again, return_exceptions=True)

    hangs, again = asyncio.run(calls())
    assert isinstance(hangs, Exception)
    assert again == (None, "again")


_SERVICE = """
import asyncio, psutil, sys, time
from pathlib import Path
from weir_planner.pool import Pool

def hangs(path):
    Path(path).touch()
    time.sleep(600)

async def main():
    pool = Pool(2)
    await pool.start()
    call = asyncio.create_task(pool.run(hangs, sys.argv[1], timeout_seconds=600.0))
    await asyncio.sleep(0)
    print(*[process.pid for process in psutil.Process().children(recursive=True)], flush=True)
    await call

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_processes_end_with_a_service_that_was_killed(tmp_path: Path) -> None:
    """kill -9 of the service leaves no process behind, not even one in a call."""
    script, notes = tmp_path / "service.py", tmp_path / "notes"
    script.write_text(_SERVICE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, str(script), str(notes)], stdout=subprocess.PIPE, text=True, env=environment
    ) as service:
        assert service.stdout is not None
        try:
            processes = [psutil.Process(int(pid)) for pid in service.stdout.readline().split()]
            assert len(processes) >= 3
            wait_until(notes.exists, timeout_seconds=60, what="the call began")
        finally:
            service.kill()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
