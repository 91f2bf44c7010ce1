"""Planners in processes of their own: whatever happens there, the answer is a reply, and the next question is answered."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from weir_contracts import PlanReply, PlanRequest

from services.planner.core.planners import ask
from services.planner.workers import Workers
from tests.unit.planner.build import analysis, policy, request


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.close()


def asked(workers: Workers, question: PlanRequest, planner: str = "rate", timeout_seconds: float = 20.0) -> PlanReply:
    return asyncio.run(workers.ask(question, planner, timeout_seconds))


def test_whatever_goes_wrong_the_next_question_is_answered(workers: Workers) -> None:
    """An answer that does not come in a millisecond is a hold, and its process is killed; a new one gives the very answer that the
    pure function gives. A planner nobody knows and parameters it does not have are holds, too."""
    late = asked(workers, request(), timeout_seconds=0.001)
    assert (late.kind, late.code) == ("hold", "planner-timeout")
    assert "within 0.001 s" in late.sentence

    question = request(of={"arrivals": 2400})
    answered = asked(workers, question)
    assert answered.kind == "scale"
    assert answered == ask(question, "rate")

    unknown = asked(workers, request(), "magic")
    assert (unknown.kind, unknown.code) == ("hold", "planner-invalid")
    assert "no planner 'magic'; there are: " in unknown.sentence

    wrong = request(
        analysis(the_policy=policy(planner={"name": "rate", "parameters": {"speed": 3, "drain_seconds": -1}}))
    )
    invalid = asked(workers, wrong)
    assert (invalid.kind, invalid.code) == ("hold", "planner-invalid")
    assert "speed: is not a parameter of this planner" in invalid.sentence
    assert "drain_seconds: Input should be greater than 0" in invalid.sentence


def test_a_burst_is_answered_one_after_the_other(workers: Workers) -> None:
    """Two hundred applications at once and one process: each deadline is for its own answer, not for the queue before it. One that
    is late takes no other with it."""

    async def burst() -> list[PlanReply]:
        question = request(of={"arrivals": 2400})
        asked = [workers.ask(question, "rate", 0.0 if i == 50 else 20.0) for i in range(200)]
        return list(await asyncio.gather(*asked))

    replies = asyncio.run(burst())
    assert replies[50].code == "planner-timeout"
    assert {reply.kind for i, reply in enumerate(replies) if i != 50} == {"scale"}


_SERVICE = """
import asyncio, sys
from services.planner.workers import Workers

if __name__ == "__main__":
    workers = Workers(1)
    asyncio.run(workers.start())
    print(*[process.pid for process in workers._pool._processes.values()], flush=True)
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
        assert workers
        service.kill()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
