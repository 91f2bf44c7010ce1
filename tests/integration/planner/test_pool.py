"""The pool of processes: whatever a call does there, the others are answered."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testbed.process import wait_until
from tests.integration.planner.calls import (
    ends_well,
    exits,
    hangs_by_memory,
    ignores_termination,
    is_killed,
    leaves_a_child,
    leaves_a_thread,
    noted,
)
from tests.unit.planner.build import analysis, policy, request
from weir_contracts import PlanReply, PlanRequest
from weir_planner.core.candidates import ContenderRequest
from weir_planner.pool import Answer, Ended, NoProcess, Pool
from weir_planner.workers import Workers
from weir_sdk.installed import ask


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.close()


def reply_of(workers: Workers, question: PlanRequest, planner: str = "rate") -> PlanReply:
    return asyncio.run(workers.ask(question, planner, 20.0))


async def test_ctrl_c_ends_no_process_that_starts(capfd: pytest.CaptureFixture[str]) -> None:
    """It reaches all of a terminal's group: the service ends its processes in order, and none writes a traceback."""
    pool, launched = Pool(1), psutil.Process().children()

    def interrupted() -> bool:
        for each in psutil.Process().children():
            if each not in launched and "spawn_main" in " ".join(each.cmdline()):
                each.send_signal(signal.SIGINT)
                return True
        return False

    starting = asyncio.create_task(pool.start())
    await asyncio.to_thread(wait_until, interrupted, timeout_seconds=60, what="a process", poll_seconds=0.01)
    await starting
    pool.close()
    assert capfd.readouterr().err == ""


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


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(1)
    yield made
    made.close()


@pytest.fixture
def forking() -> Iterator[Pool]:
    """Two processes, each for one call."""
    made = Pool(2, is_kept=False)
    yield made
    made.close()


def runs(pid: int) -> bool:
    """Return whether the process has not ended; one that ended may wait for its parent."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


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
            pool.run(noted, notes, "hangs", "600", timeout_seconds=3.0),
            pool.run(noted, notes, "second", "0.5", timeout_seconds=9.0),
            pool.run(exits, notes, "exits", timeout_seconds=9.0),
            pool.run(noted, notes, "fourth", "2", timeout_seconds=9.0),
            pool.run(is_killed, notes, "killed", timeout_seconds=9.0),
            pool.run(noted, notes, "sixth", "2", timeout_seconds=9.0),
            pool.run(ignores_termination, notes, "ignores", timeout_seconds=3.0),
            pool.run(noted, notes, "eighth", "2", timeout_seconds=9.0),
            return_exceptions=True,
        )

    hangs, second, exited, fourth, killed, sixth, ignores, eighth = asyncio.run(line())
    assert isinstance(hangs, TimeoutError) and isinstance(ignores, TimeoutError)
    assert isinstance(exited, Ended) and isinstance(killed, Ended)
    assert [second, fourth, sixth, eighth] == [(None, "second"), (None, "fourth"), (None, "sixth"), (None, "eighth")]
    began = notes_of(notes)
    assert list(began) == ["hangs", "second", "exits", "fourth", "killed", "sixth", "ignores", "eighth"]
    ended = [began[what] for what in ("hangs", "exits", "killed", "ignores")]
    wait_until(lambda: not any(map(runs, ended)), timeout_seconds=10, what="the processes ended")


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


def test_a_start_that_is_cancelled_leaves_no_socket() -> None:
    """Some have not begun, as there are more processes than threads to start them."""

    async def cancelled() -> None:
        pool = Pool(40)
        starting = asyncio.create_task(pool.start())
        while len(pool._running) < 40:  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0)
        starting.cancel()
        pool.close()

    asyncio.run(cancelled())


def test_a_process_that_died_is_noticed_by_the_next_call(pool: Pool, tmp_path: Path) -> None:
    """Killed from outside while it had nothing to do: the next call is answered by another."""
    notes = str(tmp_path / "notes")
    assert asyncio.run(pool.run(noted, notes, "first", timeout_seconds=20.0)) == (None, "first")
    first = psutil.Process(notes_of(notes)["first"])
    first.kill()
    first.wait(timeout=10)
    assert asyncio.run(pool.run(noted, notes, "second", timeout_seconds=20.0)) == (None, "second")
    assert notes_of(notes)["second"] != first.pid


def test_a_process_that_stands_still_is_replaced(pool: Pool, tmp_path: Path) -> None:
    """Stopped from outside while it had nothing to do: it takes no call, so the next one ends at its deadline, and the one
    after it is answered by another process."""
    notes = str(tmp_path / "notes")
    assert asyncio.run(pool.run(noted, notes, "first", timeout_seconds=20.0)) == (None, "first")
    first = psutil.Process(notes_of(notes)["first"])
    first.suspend()
    with pytest.raises(TimeoutError):
        asyncio.run(pool.run(noted, notes, "stuck", timeout_seconds=0.1))
    assert asyncio.run(pool.run(noted, notes, "next", timeout_seconds=20.0)) == (None, "next")
    assert not runs(first.pid)


def test_the_process_that_all_are_forked_from_may_die(forking: Pool, tmp_path: Path) -> None:
    """Killed from outside, with the process of the call: a new one is started, and the next call is answered."""
    notes = str(tmp_path / "notes")

    async def calls() -> tuple[Answer | BaseException, Answer | BaseException]:
        hanging = asyncio.create_task(forking.run(noted, notes, "hangs", "600", timeout_seconds=600.0))
        await asyncio.to_thread(wait_until, Path(notes).exists, timeout_seconds=60, what="the call began")
        worker = psutil.Process(notes_of(notes)["hangs"])
        parent = worker.parent()
        assert parent is not None and parent.pid != os.getpid()
        parent.kill()
        worker.kill()
        await asyncio.to_thread(wait_until, lambda: not runs(parent.pid), timeout_seconds=10, what="the parent ended")
        again = asyncio.create_task(forking.run(noted, notes, "again", timeout_seconds=20.0))
        return await asyncio.gather(hanging, again, return_exceptions=True)

    hangs, again = asyncio.run(calls())
    assert isinstance(hangs, Exception)
    assert again == (None, "again")


def test_the_process_that_all_are_forked_from_may_stand_still(
    forking: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stopped from outside: the next call cannot begin. Soon another process is started, and a call is answered."""
    monkeypatch.setattr("weir_planner.pool.FORK_SECONDS", 1.0)
    notes = str(tmp_path / "notes")

    async def calls() -> Answer:
        worker = asyncio.create_task(forking.run(noted, notes, "first", "600", timeout_seconds=600.0))
        await asyncio.to_thread(wait_until, Path(notes).exists, timeout_seconds=60, what="the call began")
        parent = psutil.Process(notes_of(notes)["first"]).parent()
        assert parent is not None and parent.pid != os.getpid()
        worker.cancel()
        parent.suspend()
        until = asyncio.get_running_loop().time() + 0.3
        with pytest.raises(NoProcess):
            await forking.run(noted, notes, "never", timeout_seconds=0.3, until=until)
        async with asyncio.timeout(60):
            answer = await forking.run(noted, notes, "next", timeout_seconds=20.0)
        assert not runs(parent.pid)
        return answer

    assert asyncio.run(calls()) == (None, "next")
    assert list(notes_of(notes)) == ["first", "next"]


# -- processes for one call -------------------------------------------------------------------------------------------


def test_what_a_call_leaves_ends_with_it(forking: Pool, tmp_path: Path) -> None:
    """Four calls leave a thread that no process waits for, and one a child: all are answered by two processes at a time,
    and when they are, none of the processes runs."""
    notes = str(tmp_path / "notes")

    async def calls() -> list[Answer]:
        threads = [forking.run(leaves_a_thread, notes, f"{i}", timeout_seconds=20.0) for i in range(4)]
        return await asyncio.gather(*threads, forking.run(leaves_a_child, notes, "parent", timeout_seconds=20.0))

    assert asyncio.run(calls()) == [*((None, f"{i}") for i in range(4)), (None, "parent")]
    left = notes_of(notes)
    assert len(set(left.values())) == 6
    wait_until(lambda: not any(map(runs, left.values())), timeout_seconds=10, what="what the calls left ended")


@pytest.mark.parametrize("made", ["pool", "forking"])
def test_a_call_that_ends_its_process_without_an_error_is_noticed_at_once(
    request: pytest.FixtureRequest, made: str, tmp_path: Path
) -> None:
    """`os._exit(0)`: the call does not last until its deadline of ten minutes."""
    pool: Pool = request.getfixturevalue(made)
    with pytest.raises(Ended):
        asyncio.run(asyncio.wait_for(pool.run(ends_well, str(tmp_path / "n"), "0", timeout_seconds=600.0), 60))


def test_a_call_that_found_no_free_process_is_told_from_one_that_was_late(forking: Pool, tmp_path: Path) -> None:
    """Two calls that hang hold both processes: they are late, the third never began. A call cancelled in the line is not
    begun later."""
    notes = str(tmp_path / "notes")

    async def line() -> list[Answer | BaseException]:
        await forking.start()
        until = asyncio.get_running_loop().time() + 2
        hang = [forking.run(noted, notes, what, "600", timeout_seconds=2.0, until=until) for what in ("one", "two")]
        third = forking.run(noted, notes, "third", timeout_seconds=2.0, until=until)
        return await asyncio.gather(*hang, third, return_exceptions=True)

    one, two, third = asyncio.run(line())
    assert isinstance(one, TimeoutError) and isinstance(two, TimeoutError)
    assert isinstance(third, NoProcess)
    assert asyncio.run(forking.run(noted, notes, "next", timeout_seconds=20.0)) == (None, "next")
    assert set(notes_of(notes)) == {"one", "two", "next"}


def test_applications_whose_calls_hang_leave_processes_to_the_others(tmp_path: Path) -> None:
    """Ten calls of one application hang, then ten of another, on fifteen processes: the ten calls of a third are answered
    meanwhile. The first had ten processes: none of its calls waited for another."""
    notes, pool = str(tmp_path / "notes"), Pool(15, is_kept=False)

    def hanging(name: str) -> list[asyncio.Task[Answer]]:
        calls = (pool.run(noted, notes, f"{name}{i}", "600", timeout_seconds=600.0, holder=name) for i in range(10))
        return [asyncio.create_task(each) for each in calls]

    async def calls() -> list[Answer]:
        await pool.start()
        first = hanging("first")
        await asyncio.to_thread(
            wait_until, lambda: len(begun("first")) == 10, timeout_seconds=60, what="ten calls began"
        )
        second = hanging("second")
        await asyncio.to_thread(wait_until, lambda: begun("second"), timeout_seconds=60, what="another one's began")
        third = (pool.run(noted, notes, f"third{i}", timeout_seconds=20.0, holder="third") for i in range(10))
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*third)
        for each in [*first, *second]:
            each.cancel()
        return answers

    def begun(name: str) -> list[str]:
        return [what for what in notes_of(notes) if what.startswith(name)] if Path(notes).exists() else []

    try:
        assert asyncio.run(calls()) == [(None, f"third{i}") for i in range(10)]
    finally:
        pool.close()


def test_candidates_that_hung_leave_processes_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates of four applications hang and hold all four processes. In the next cycle they hang again, but share
    what one application may have: a fifth application's candidate replies."""
    monkeypatch.setattr("weir_planner.workers.CANDIDATES", 4)
    monkeypatch.setattr("weir_planner.workers._answer", hangs_by_memory)
    workers = Workers(1)

    def candidate(application: str, **memory: str) -> list[ContenderRequest]:
        question = request(of={"arrivals": 2400, "the_policy": policy(f"shop/{application}")}, memory=memory)
        return [ContenderRequest("rate", "rate", question)]

    async def cycle(*others: list[ContenderRequest]) -> list[str]:
        hanging = [candidate(f"hangs-{i}", hangs="yes") for i in range(4)]
        replies = await asyncio.gather(*(workers.ask_alongside(each, 2.0) for each in [*hanging, *others]))
        return [each.code for (each,) in replies]

    async def cycles() -> tuple[list[str], list[str]]:
        await workers._candidates.start()
        return await cycle(), await cycle(candidate("sound"))

    try:
        first, second = asyncio.run(cycles())
    finally:
        workers.close()
    assert first == ["planner-timeout"] * 4
    assert second[-1] == "overloaded"


def test_a_candidate_that_was_never_called_does_not_count_as_failing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another application's candidate holds the only process. In six cycles the candidate is not called, with that as the
    sentence; in the seventh it replies: its circuit did not open."""
    monkeypatch.setattr("weir_planner.workers.CANDIDATES", 1)
    workers, notes = Workers(1), str(tmp_path / "notes")
    candidate = ContenderRequest("rate", "rate", request(of={"arrivals": 2400}))

    async def cycles() -> list[PlanReply]:
        await workers._candidates.start()
        hangs = asyncio.create_task(workers._candidates.run(noted, notes, "hangs", "600", timeout_seconds=600.0))
        await asyncio.to_thread(wait_until, Path(notes).exists, timeout_seconds=60, what="the call began")
        replies = [(await workers.ask_alongside([candidate], 0.05))[0] for _ in range(6)]
        hangs.cancel()
        return [*replies, *await workers.ask_alongside([candidate], 20.0)]

    try:
        *never, last = asyncio.run(cycles())
    finally:
        workers.close()
    assert {each.sentence for each in never} == {"planner rate was not called: no process was free for 0.05 s"}
    assert last.kind == "scale"


def test_a_request_that_cannot_be_encoded_costs_its_reply(workers: Workers) -> None:
    """Half a character in the memory: a hold that names it, of the planner that decides and of a candidate."""
    question = request().model_copy(update={"memory": {"half": "\ud800"}})
    (candidate,) = asyncio.run(workers.ask_alongside([ContenderRequest("rate", "rate", question)], 20.0))
    for reply in (reply_of(workers, question), candidate):
        assert (reply.kind, reply.code) == ("hold", "planner-failed")
        assert reply.sentence.startswith("planner rate was not called: its request cannot be encoded: ")


_SERVICE = """
import asyncio, psutil, re, sys, time
from pathlib import Path
from weir_planner.pool import Pool

def hangs(path):
    Path(path).touch()
    time.sleep(600)

def holds(path):
    Path(path).touch()
    re.match(r"(a+)+$", "a" * 60 + "b")

async def main():
    kept, forking = Pool(2), Pool(1, is_kept=False)
    await asyncio.gather(kept.start(), forking.start())
    calls = [kept.run(hangs, sys.argv[1], timeout_seconds=600.0), forking.run(holds, sys.argv[2], timeout_seconds=2.0)]
    calls = [asyncio.create_task(each) for each in calls]
    await asyncio.sleep(0)
    print(*[process.pid for process in psutil.Process().children(recursive=True)], flush=True)
    await asyncio.gather(*calls, return_exceptions=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_processes_end_with_a_service_that_was_killed(tmp_path: Path) -> None:
    """kill -9 of the service leaves no process behind, not even one in a call, nor in one that never returns to Python
    (a regular expression that takes years)."""
    script, notes = tmp_path / "service.py", [tmp_path / "hangs", tmp_path / "holds"]
    script.write_text(_SERVICE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, str(script), *map(str, notes)], stdout=subprocess.PIPE, text=True, env=environment
    ) as service:
        assert service.stdout is not None
        try:
            processes = [psutil.Process(int(pid)) for pid in service.stdout.readline().split()]
            assert len(processes) >= 4
            for note in notes:
                wait_until(note.exists, timeout_seconds=60, what="the call began")
        finally:
            service.kill()
    _, alive = psutil.wait_procs(processes, timeout=20)
    for each in alive:
        each.kill()
    assert alive == []
