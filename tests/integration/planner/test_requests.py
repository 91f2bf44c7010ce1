"""Requests to the planner's API that run in processes: a check of parameters that hangs and a judgement that takes too
long cost their own answer."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import install
from tests.integration.planner.calls import hangs_while_judging
from tests.unit.planner.build import WORK, analysis, policy
from weir_contracts import Judgement
from weir_planner.telemetry import PlannerFailed
from weir_planner.workers import Workers
from weir_predictor import judged

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = """
import os, time
from pydantic import BaseModel, field_validator
from weir_sdk import planner

class Odd(BaseModel):
    does: str = "nothing"

    @field_validator("does")
    @classmethod
    def checked(cls, does):
        if does == "hangs":
            time.sleep(1000)
        if does == "dies":
            os._exit(0)
        if does == "raises":
            raise KeyError("no such thing")
        return does

@planner(name="odd", parameters=Odd, reads=[])
def odd(request):
    "stays"
    return request.hold("stays", "it stays")
"""


def test_a_check_of_parameters_that_hangs_costs_only_its_own_answer(tmp_path: Path) -> None:
    """A planner's own check hangs, ends its process or raises: that is a problem of its field. Thirty that hang hold no
    more than their share of the processes: another planner's parameters are checked and a parallelism is judged
    meanwhile, and later the planner's own are checked again."""
    install(tmp_path, "odd", PACKAGE, odd="odd:odd")

    def checks(name: str, does: str, count: int = 1) -> dict[str, object]:
        choice = {"name": name, "parameters": {"does": does}}
        return {"choices": [{"field": f"spec.candidates.{i}", **choice} for i in range(count)]}

    proposal = {"analysis": analysis().model_dump(mode="json"), "parallelism": {WORK: 4}}
    rounds = [
        [checks("odd", "hangs", 30), checks("rate", "x"), proposal],
        [checks("odd", does) for does in ("dies", "raises", "well")],
    ]
    run = "from tests.integration.planner.requests_process import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run, json.dumps(rounds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    responses = json.loads(done.stdout.splitlines()[-1])
    assert [each["status"] for each in responses] == [200] * 6
    hanging, rate, judgement, *odd = (each["body"] for each in responses)
    assert {each["message"] for each in hanging["problems"]} == {"planner odd did not reply within 5 s"}
    assert hanging["problems"][0]["field"] == "spec.candidates.0.parameters"
    assert [each["field"] for each in rate["problems"]] == ["spec.candidates.0.parameters.does"]
    assert Judgement.model_validate(judgement) == judged(analysis(), {WORK: 4})
    assert [[each["message"] for each in body["problems"]] for body in odd] == [
        ["planner odd ended its process"],
        ["planner odd failed: 'no such thing'"],
        [],
    ]


def test_a_judgement_that_takes_too_long_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of one application hang in processes: none is answered, and each says so. Another application's is answered
    meanwhile."""
    monkeypatch.setattr("weir_planner.workers._judged", hangs_while_judging)
    workers = Workers(1)

    async def judgements() -> list[Judgement | BaseException]:
        await workers._requests.start()
        hanging = [workers.judge(analysis(), {WORK: 99}, [], horizon_seconds=600) for _ in range(5)]
        other = analysis(the_policy=policy("shop/other"))
        return await asyncio.gather(
            *hanging, workers.judge(other, {WORK: 4}, [], horizon_seconds=600), return_exceptions=True
        )

    try:
        *hung, answered = asyncio.run(judgements())
    finally:
        workers.close()
    assert {type(each) for each in hung} == {PlannerFailed}
    assert str(hung[0]) == "the predictor did not reply within 5 s"
    assert answered == judged(analysis(the_policy=policy("shop/other")), {WORK: 4})
