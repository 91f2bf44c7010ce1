"""Replays a planner on Weir's simulator, in Weir's own loop: analyzer, guards and executor as they are, the planner in
its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from weir_contracts import PlanReply, PlanRequest
from weir_sdk.planner import Planner
from weir_sdk.request import Request


@dataclass(frozen=True)
class Score:
    """How well an application was held, by what the simulation knows. Slot-seconds are the integral of the slots held."""

    planner: str
    seconds: float
    """Simulated."""
    objective_seconds: float | None
    violation_share: float | None
    """Share of the time with more lag than the objective; None without an objective in seconds."""
    max_lag_seconds: float
    slot_seconds: float
    optimum_slot_seconds: float
    """Of a planner that knows the load and rescales for free."""
    peak_slot_seconds: float
    """Of the smallest constant parallelism that carries the highest load."""
    rescales: int
    plans: Mapping[str, int]
    """Plans by reason code."""
    outcomes: Mapping[str, int]
    """Actions and refusals by how they ended."""

    def __str__(self) -> str:
        late = "" if self.violation_share is None else f"{self.violation_share:.2%} of the time late, "
        return (
            f"{self.planner}: {late}largest lag {self.max_lag_seconds:.1f} s, {self.slot_seconds:,.0f} slot-seconds (optimum "
            f"{self.optimum_slot_seconds:,.0f}, static peak {self.peak_slot_seconds:,.0f}), {self.rescales} rescales"
        )


def replay(
    planner: Any,
    trace: str = "spike",
    *,
    topology: str = "chain",
    policy: Path | str | None = None,
    parameters: Mapping[str, Any] | None = None,
    interval_seconds: float | None = None,
    speedup: float = 1.0,
    peak_rate: float = 2400.0,
    duration_seconds: float | None = None,
    seed: int = 0,
    noise: float = 0.02,
) -> Score:
    """Run the planner over a trace: `step`, `sine`, `spike`, `worldcup98_minutes`, `nyc_taxi`, `twitter_volume_amzn` or
    a CSV file.

    `topology` is `chain`, `diamond`, `two-sources` or a YAML file; `policy` a policy file, whose planner is replaced;
    `peak_rate` records/s at the trace's highest point; `noise` that of each reading, as a share. The same arguments
    give the same score. What the planner raises comes out. Raises `ImportError` without weir-sdk[testing], and
    `ValueError` for arguments that cannot be run.
    """
    try:
        options, replay_own = import_module("weir_replay.options"), import_module("weir_replay.run").replay_own
    except ImportError as error:
        raise ImportError(f"a replay runs Weir's own loop: install weir-sdk[testing] ({error})") from error
    served = Planner(planner)

    def plan(request: PlanRequest) -> PlanReply:
        return served.plan(Request.of(request))

    try:
        result = replay_own(
            plan,
            name=served.description.name,
            parameters=parameters or {},
            options=options.ReplayOptions(
                trace=trace,
                topology=topology,
                policy_file=None if policy is None else Path(policy),
                interval_seconds=interval_seconds,
                speedup=speedup,
                peak_rate=peak_rate,
                duration_seconds=duration_seconds,
                seed=seed,
                noise=noise,
            ),
        )
    except options.InvalidReplay as error:
        raise ValueError(str(error)) from None
    found = result.score
    return Score(
        planner=served.description.name,
        seconds=found.seconds,
        objective_seconds=found.objective_seconds,
        violation_share=found.violation_share,
        max_lag_seconds=found.max_lag_seconds,
        slot_seconds=found.slot_seconds,
        optimum_slot_seconds=found.optimum_slot_seconds,
        peak_slot_seconds=found.peak_slot_seconds,
        rescales=found.rescales,
        plans=dict(result.codes),
        outcomes=dict(result.ends),
    )
