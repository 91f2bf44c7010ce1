"""A replay with a planner that is not built in: for its author, before anybody registers it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weir_contracts import PlannerChoice, PlanReply, PlanRequest

from .options import ReplayOptions, prepare
from .run import Result, run


def replay_own(
    plan: Callable[[PlanRequest], PlanReply],
    *,
    name: str,
    parameters: Mapping[str, Any],
    trace: str,
    topology: str = "chain",
    policy_file: Path | None = None,
    interval_seconds: float | None = None,
    speedup: float = 1.0,
    peak_rate: float = 2400.0,
    duration_seconds: float | None = None,
    seed: int = 0,
    noise: float = 0.02,
) -> Result:
    """Run the loop on a simulated application with `plan` in the planner's place; the guards come after it as ever. What it raises comes
    out. Raises `InvalidReplay`."""
    prepared = prepare(
        ReplayOptions(
            trace=trace,
            planner="rate",
            topology=topology,
            policy_file=policy_file,
            interval_seconds=interval_seconds,
            speedup=speedup,
            peak_rate=peak_rate,
            duration_seconds=duration_seconds,
        )
    )
    choice = PlannerChoice(name=name, parameters=dict(parameters))
    spec = prepared.policy.spec.model_copy(update={"planner": choice})
    prepared = replace(prepared, policy=prepared.policy.model_copy(update={"spec": spec}))
    return run(prepared, seed=seed, noise=noise, asks=lambda request, _name: plan(request))
