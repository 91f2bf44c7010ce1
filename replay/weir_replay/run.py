"""One replay: the loop over a trace, and how well it held the application, by the state of the simulation and not by the
loop's estimates.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from weir_contracts import Objective, PlannerChoice, PlanReply, PlanRequest
from weir_runtime.loop import seldom_collected
from weir_sdk.installed import ask

from . import figure
from .loop import Loop
from .options import LOOK_SECONDS, Replay, ReplayOptions, prepare
from .simulator import Application, Noise, Simulation, StreamsSimulation
from .simulator.capacity import OfflineOptimum, Optimum, StreamsOptimum
from .simulator.world import START

UNDECIDED = frozenset({"warming-up", "metric-missing"})
"""Codes of plans that were made before enough was measured."""
PEAKED = 1.5
"""Ratio of a point's highest load to its mean from which the mean would hide it."""


@dataclass(frozen=True)
class Point:
    """One interval of the run: means, but for the largest lag and the highest load. Rates in records/s."""

    at_seconds: float
    arrivals: float
    lag_seconds: float
    slots: float
    optimum_slots: float
    peak_arrivals: float = 0.0

    @property
    def is_peaked(self) -> bool:
        """Whether the mean of the load hides its peak."""
        return self.peak_arrivals > PEAKED * self.arrivals


@dataclass(frozen=True)
class Score:
    """The figures of a run. Slot-seconds are the integral of the slots held, restarts included."""

    seconds: float
    objective_seconds: float | None
    violation_share: float | None
    """Share of the time with more lag than the objective, or latency if it bounds that; None without one in seconds."""
    slot_seconds: float
    rescales: int
    """Restarts for another parallelism that the engine accepted."""
    max_lag_seconds: float
    optimum_slot_seconds: float
    """Slot-seconds of the offline optimum, which knows the load and rescales for free."""
    peak_slot_seconds: float
    """Slot-seconds of the smallest constant parallelism that carries the highest load."""
    peak_is_carried: bool = True
    """Whether there is one; if not, it is the largest that policy and cluster allow."""

    @property
    def times_optimum(self) -> float | None:
        """Return the slot-seconds as a multiple of the offline optimum's."""
        return self.slot_seconds / self.optimum_slot_seconds if self.optimum_slot_seconds > 0 else None

    def to_document(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        times = self.times_optimum
        return {**asdict(self), "times_optimum": None if times is None else round(times, 3)}


class _Interval:
    """Sums of the point in progress."""

    def __init__(self, began: float, appended: float) -> None:
        self.began, self.appended = began, appended
        self.slot_seconds = self.optimum_slot_seconds = self.lag = self.peak = 0.0


class Meter:
    """Measures a simulation after each of its steps; completes a point of the curves every `point_seconds`."""

    def __init__(
        self,
        simulation: Simulation | StreamsSimulation,
        optimum: Optimum,
        objective: Objective,
        point_seconds: float,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.points: list[Point] = []
        self._simulation = simulation
        self._optimum = optimum
        self._objective = objective.bound_seconds
        self._of_latency = objective.max_latency is not None
        self._point_seconds = point_seconds
        self._look_seconds = min(look_seconds, point_seconds)
        self._share = simulation.application.input_share or 1.0
        """Records appended to all topics per record of the load."""
        self._late = self._slot_seconds = self._optimum_slot_seconds = self._seconds = self._max_lag = 0.0
        self._max_slots, self._carried = 0, True
        self._looked_at, self._looked_appended = simulation.now, simulation.appended
        self._point = _Interval(simulation.now, simulation.appended)
        simulation.on_step = self._step

    def score(self, rescales: int) -> Score:
        """Return the figures until now."""
        self._close()
        return Score(
            seconds=round(self._seconds, 1),
            objective_seconds=self._objective,
            violation_share=None if self._objective is None else round(self._late / max(1e-9, self._seconds), 5),
            slot_seconds=round(self._slot_seconds, 1),
            rescales=rescales,
            max_lag_seconds=round(self._max_lag, 2),
            optimum_slot_seconds=round(self._optimum_slot_seconds, 1),
            peak_slot_seconds=round(self._max_slots * self._seconds, 1),
            peak_is_carried=self._carried,
        )

    def _step(self, seconds: float) -> None:
        simulation, point = self._simulation, self._point
        lag = simulation.lag_seconds
        bounded = simulation.latency_seconds if self._of_latency else lag
        if self._objective is not None and bounded > self._objective:
            self._late += seconds
        point.slot_seconds += simulation.slots_used * seconds
        point.lag = max(point.lag, lag)
        self._seconds += seconds
        if simulation.now - self._looked_at >= self._look_seconds - 1e-6:
            self._look()
        if simulation.now - point.began >= self._point_seconds - 1e-6:
            self._close()

    def _look(self) -> None:
        """Add the optimum for the load since the last look."""
        simulation, optimum = self._simulation, self._optimum
        seconds = simulation.now - self._looked_at
        if seconds <= 0:
            return
        rate = (simulation.appended - self._looked_appended) / seconds / self._share
        middle = self._looked_at + seconds / 2
        peak = max(rate, *(simulation.arrivals(at) for at in (self._looked_at, middle, simulation.now)))
        self._carried = self._carried and optimum.carries(peak, middle)
        self._max_slots = max(self._max_slots, optimum.slots(peak, middle))
        self._point.optimum_slot_seconds += optimum.slots(rate, middle) * seconds
        self._point.peak = max(self._point.peak, peak)
        self._looked_at, self._looked_appended = simulation.now, simulation.appended

    def _close(self) -> None:
        """Complete the point in progress."""
        self._look()
        simulation, point = self._simulation, self._point
        seconds = simulation.now - point.began
        if seconds <= 0:
            return
        rate = (simulation.appended - point.appended) / seconds / self._share
        slots, optimum = point.slot_seconds / seconds, point.optimum_slot_seconds / seconds
        self.points.append(Point(point.began, rate, point.lag, slots, optimum, point.peak))
        self._slot_seconds += point.slot_seconds
        self._optimum_slot_seconds += point.optimum_slot_seconds
        self._max_lag = max(self._max_lag, point.lag)
        self._point = _Interval(simulation.now, simulation.appended)


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
    simulation, optimum = _simulated(prepared)
    meter = Meter(simulation, optimum, policy.spec.objective, prepared.point_seconds, prepared.look_seconds)
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


def _simulated(prepared: Replay) -> tuple[Simulation | StreamsSimulation, Optimum]:
    application, load, bounds = prepared.application, prepared.trace.rate_at, prepared.policy.spec.bounds
    step, calm = prepared.step_seconds, prepared.look_seconds
    if isinstance(application, Application):
        job = Simulation(application, load, step_seconds=step, calm_seconds=calm)
        return job, OfflineOptimum(application, bounds)
    group = StreamsSimulation(application, load, step_seconds=step, calm_seconds=calm)
    return group, StreamsOptimum(application, bounds)


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
