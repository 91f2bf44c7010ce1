"""A planner of one's own on the simulator, before anybody registers it."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from weir_sdk import Reply, Request, planner
from weir_sdk.testing import replay

pytestmark = pytest.mark.thorough


class Sizes(BaseModel):
    enrich: int = 1


@planner(name="fixed", parameters=Sizes)
def fixed(request: Request) -> Reply:
    """Gives `enrich` what the policy says, and counts its cycles."""
    cycles = int(request.memory.get("cycles", 0)) + 1
    wanted = request.parameters(Sizes).enrich
    return request.scale({"enrich": wanted}, "fixed", f"always {wanted}", memory={"cycles": cycles}, cycles=cycles)


def test_a_planner_is_scored_in_weirs_own_loop() -> None:
    """Its plans act on the simulated job, after the guards; memory comes back; the same arguments give the same score."""
    enough = replay(fixed, "step", parameters={"enrich": 6}, duration_seconds=300)
    assert enough.planner == "fixed"
    assert (enough.seconds, enough.objective_seconds) == (300.0, 30.0)
    assert enough.rescales == 1
    assert enough.plans["fixed"] >= 1
    assert enough.outcomes == {"verified": 1}
    assert enough == replay(fixed, "step", parameters={"enrich": 6}, duration_seconds=300)
    assert str(enough).startswith("fixed: 0.00% of the time late, ")


def test_too_little_is_seen_to_be_too_little() -> None:
    """The simulation's state counts, not the planner's."""
    little = replay(fixed, "step", parameters={"enrich": 2}, duration_seconds=300)
    assert little.violation_share is not None
    assert little.violation_share > 0.3
    assert little.max_lag_seconds > 60


@pytest.mark.thorough
def test_what_a_planner_raises_comes_out() -> None:
    """Its author wants the traceback, not a hold."""

    def broken(request: Request) -> Reply:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        replay(broken, "step", duration_seconds=60)


def test_a_replay_that_is_impossible_is_reported(tmp_path: Path) -> None:
    """Which argument, and why."""
    with pytest.raises(ValueError, match="trace"):
        replay(fixed, "no-such-trace")
    with pytest.raises(ValueError, match="policy"):
        replay(fixed, "step", policy=tmp_path / "none.yaml")
