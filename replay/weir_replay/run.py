"""One replay: the loop over a trace, and its result."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from weir_contracts import PlannerChoice, PlanReply, PlanRequest
from weir_runtime.loop import seldom_collected
from weir_sdk.installed import ask
from weir_simulator import Application, Noise, Simulation, StreamsSimulation
from weir_simulator.observe import START

from . import figure
from .loop import Loop
from .options import Replay, ReplayOptions, prepare
from .score import LOOK_SECONDS, Meter, Point, Score, optimum_of

POINTS = 352
"""Points of a curve: two dots a character, and twice as many for a figure."""
UNDECIDED = frozenset({"warming-up", "metric-missing"})
"""Codes of plans that were made before enough was measured."""


@dataclass(frozen=True)
class Result:
    """Score and curves of a replay."""

    score: Score
    points: list[Point]
    codes: dict[str, int]
    """Plans by reason code."""
    ends: dict[str, int]
    """Actions and refusals by how they ended."""
    wall_seconds: float
    rescales_at_seconds: tuple[float, ...] = ()
    """Times at which the engine accepted a rescale, in simulated seconds."""
    hides_peaks: str | None = None
    """Note if the planner cannot see this load's peaks at its interval."""

    @property
    def notes(self) -> list[str]:
        """Return reasons to doubt the figures, for the user."""
        notes = [self.hides_peaks] if self.hides_peaks else []
        if self.codes and not set(self.codes) - UNDECIDED:
            looks = sum(self.codes.values())
            notes.append(
                f"nothing was decided in {looks} looks: give it longer (--duration) or look more often (--interval)"
            )
        if not self.score.peak_is_carried:
            notes.append(
                "the highest load is more than policy and cluster allow: optimum and static peak are all that they do"
            )
        return notes


def run(
    prepared: Replay,
    *,
    seed: int = 0,
    noise: float = 0.0,
    asks: Callable[[PlanRequest, str], PlanReply] = ask,
    carry: Callable[[Any], Any] | None = None,
) -> Result:
    """Run the loop over the trace. `asks` and `carry` as of `Loop`."""
    began = time.perf_counter()
    policy = prepared.policy
    simulation = _simulation(prepared)
    meter = Meter(
        simulation,
        optimum_of(prepared.application, policy.spec.bounds),
        policy.spec.objective,
        max(LOOK_SECONDS, prepared.duration_seconds / POINTS),
        prepared.look_seconds,
    )
    with seldom_collected(), closing(Loop(asks=asks, carry=carry)) as loop:
        loop.add(simulation, policy, noise=Noise(relative=noise), seed=seed)
        loop.run(prepared.duration_seconds)
    if loop.tally.dead_letters:
        raise RuntimeError(f"the loop could not process a message: {loop.tally.dead_letters[0].reason}")
    rescales = [(at - START).total_seconds() for at in loop.driver.accepted_at]
    if isinstance(simulation, StreamsSimulation):
        rescales = simulation.accepted_at
    return Result(
        score=meter.score(len(rescales)),
        points=meter.points,
        codes=dict(loop.tally.codes.most_common()),
        ends=dict(loop.tally.ends.most_common()),
        wall_seconds=round(time.perf_counter() - began, 2),
        rescales_at_seconds=tuple(rescales),
        hides_peaks=_hides_peaks(prepared),
    )


def _simulation(prepared: Replay) -> Simulation | StreamsSimulation:
    application, load = prepared.application, prepared.trace.rate_at
    step, calm = prepared.step_seconds, prepared.look_seconds
    if isinstance(application, Application):
        return Simulation(application, load, step_seconds=step, calm_seconds=calm)
    return StreamsSimulation(application, load, step_seconds=step, calm_seconds=calm)


def replay_own(
    plan: Callable[[PlanRequest], PlanReply],
    *,
    name: str,
    parameters: Mapping[str, Any],
    options: ReplayOptions,
) -> Result:
    """Replay with `plan` in the planner's place, for a planner that is not installed. Raises `InvalidReplay`, and what
    `plan` raises."""
    prepared = prepare(replace(options, planner="rate"))
    choice = PlannerChoice(name=name, parameters=dict(parameters))
    spec = prepared.policy.spec.model_copy(update={"planner": choice})
    prepared = replace(prepared, policy=prepared.policy.model_copy(update={"spec": spec}))
    return run(prepared, seed=options.seed, noise=options.noise, asks=lambda request, _name: plan(request))


def _hides_peaks(prepared: Replay) -> str | None:
    interval, rise = prepared.policy.spec.interval.total_seconds(), prepared.trace.turn_seconds
    if interval <= rise / 2:
        return None
    advice = f"use --interval {rise / 2:.0f} or less" if rise >= 2 else "replay it more slowly (--speedup)"
    return f"the load can rise and fall within {2 * rise:.3g} s, and rates over {interval:g} s hide that from the planner: {advice}"


def run_panels(
    points: Sequence[Point], objective_seconds: float | None, rescales_at_seconds: Sequence[float] = ()
) -> list[figure.Panel]:
    """Return load, lag and slots of a run as a figure's panels, with a mark at each rescale."""

    def over_time(name: str) -> list[tuple[float, float | None]]:
        return [(point.at_seconds, getattr(point, name)) for point in points]

    load = [figure.Curve("arrivals", "load", over_time("arrivals"))]
    if any(point.is_peaked for point in points):
        load.insert(0, figure.Curve("highest", "other", over_time("peak_arrivals")))
    lag = [figure.Curve("largest lag", "lag", over_time("lag_seconds"))]
    if objective_seconds is not None:
        lag.append(figure.Curve("objective", "bound", [(p.at_seconds, objective_seconds) for p in points]))
    slots = [
        figure.Curve("offline optimum", "optimum", over_time("optimum_slots"), stepped=True),
        figure.Curve("held", "held", over_time("slots"), stepped=True),
    ]
    return [
        figure.Panel("records/s", load),
        figure.Panel("lag, s", lag, marks=rescales_at_seconds),
        figure.Panel("slots", slots, marks=rescales_at_seconds),
    ]
