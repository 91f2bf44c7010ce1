"""How well an application was held, by the state of the simulation: not by the loop's estimates."""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from weir_contracts import Bounds, Objective
from weir_simulator import Application, Simulation, StreamsApplication, StreamsSimulation
from weir_simulator.capacity import OfflineOptimum

LOOK_SECONDS = 10.0
"""Maximum time between two calculations of the optimum, however long a point of the curves is: a load that rises and
falls within one would look like its mean, which is never late and needs half."""
PEAKED = 1.5
"""Ratio of a point's highest load to its mean from which the mean would hide it."""


class BoundedOptimum(OfflineOptimum):
    """Smallest parallelism that carries a load, each operator within its upper bound and all together within the
    cluster's slots."""

    def __init__(self, application: Application, bounds: Bounds) -> None:
        self._cluster_slots = application.cluster.slots
        super().__init__(application, {name: bounds.of(name)[1] for name in application.parallelism})

    def carries(self, rate: float, seconds: float = 0.0) -> bool:
        return super().carries(rate, seconds) and super().slots(rate, seconds) <= self._cluster_slots

    def slots(self, rate: float, seconds: float = 0.0) -> int:
        return min(self._cluster_slots, super().slots(rate, seconds))


class Optimum(Protocol):
    """Smallest size that carries a load."""

    def carries(self, rate: float, seconds: float = 0.0) -> bool:
        """Return whether the upper bounds suffice for `rate`."""

    def slots(self, rate: float, seconds: float = 0.0) -> int:
        """Return the slots of the smallest size for `rate`."""


class StreamsOptimum:
    """Threads of the fewest instances that carry a load; it moves tasks and state for free."""

    def __init__(self, application: StreamsApplication, bounds: Bounds) -> None:
        unit, max_parallelism = application.threads, bounds.of(application.name)[1]
        limit = max(1, min(max_parallelism // unit, application.max_instances))
        self._capacities = [(n * unit, application.capacity(n * unit)) for n in range(1, limit + 1)]

    def carries(self, rate: float, seconds: float = 0.0) -> bool:
        return max(capacity for _, capacity in self._capacities) >= rate * (1 - 1e-9)

    def slots(self, rate: float, seconds: float = 0.0) -> int:
        max_threads = self._capacities[-1][0]
        return next((threads for threads, capacity in self._capacities if capacity >= rate * (1 - 1e-9)), max_threads)


def optimum_of(application: Application | StreamsApplication, bounds: Bounds) -> Optimum:
    """Return the offline optimum of an application within a policy's bounds."""
    if isinstance(application, Application):
        return BoundedOptimum(application, bounds)
    return StreamsOptimum(application, bounds)


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
