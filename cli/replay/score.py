"""How well an application was held, by what the simulation knows: not by what the loop believed."""

from dataclasses import asdict, dataclass
from typing import Any

from weir_contracts import Objective

from simulator import Simulation
from simulator.clairvoyant import Clairvoyant


@dataclass(frozen=True)
class Point:
    """One stretch of the run. Rates in records/s."""

    at_seconds: float
    arrivals: float
    lag_seconds: float
    """The largest."""
    slots: float
    """The mean."""
    least_slots: int
    """What the load of this stretch needs."""


@dataclass(frozen=True)
class Score:
    """The figures of a run. Slot-seconds are the integral of the slots held, restarts included."""

    seconds: float
    objective_seconds: float | None
    violation_share: float | None
    """Share of the time with more lag than the objective, or latency where that is what it bounds; None without one in seconds."""
    slot_seconds: float
    rescales: int
    """Restarts for another parallelism that were asked for."""
    max_lag_seconds: float
    least_slot_seconds: float
    """Of somebody who knows the load and rescales for free."""
    peak_slot_seconds: float
    """Of the smallest constant parallelism that carries the highest load."""

    @property
    def times_least(self) -> float | None:
        """Slot-seconds over the least."""
        return self.slot_seconds / self.least_slot_seconds if self.least_slot_seconds > 0 else None

    def to_document(self) -> dict[str, Any]:
        """For programs."""
        times = self.times_least
        return {**asdict(self), "times_least": None if times is None else round(times, 3)}


class Meter:
    """Looks at a simulation after each of its steps."""

    def __init__(
        self, simulation: Simulation, clairvoyant: Clairvoyant, objective: Objective, bucket_seconds: float
    ) -> None:
        self.points: list[Point] = []
        self._simulation = simulation
        self._clairvoyant = clairvoyant
        self._objective = objective.bound_seconds
        self._of_latency = objective.max_latency is not None
        self._bucket_seconds = bucket_seconds
        self._late = self._slot_seconds = self._least = self._seconds = self._max_lag = self._peak = 0.0
        self._began, self._appended, self._lag, self._slots = simulation.now, simulation.appended, 0.0, 0.0
        simulation.on_step = self._step

    def _step(self, seconds: float) -> None:
        simulation = self._simulation
        lag = simulation.lag_seconds
        bounded = simulation.latency_seconds if self._of_latency else lag
        if self._objective is not None and bounded > self._objective:
            self._late += seconds
        self._slots += simulation.slots_used * seconds
        self._lag = max(self._lag, lag)
        self._seconds += seconds
        if simulation.now - self._began >= self._bucket_seconds - 1e-6:
            self._close()

    def _close(self) -> None:
        simulation = self._simulation
        took = simulation.now - self._began
        if took <= 0:
            return
        middle = self._began + took / 2
        rate = (simulation.appended - self._appended) / took / self._share
        least = self._clairvoyant.slots(rate, middle)
        self.points.append(Point(self._began, rate, self._lag, self._slots / took, least))
        self._slot_seconds += self._slots
        self._least += least * took
        self._max_lag, self._peak = max(self._max_lag, self._lag), max(self._peak, rate)
        self._began, self._appended, self._lag, self._slots = simulation.now, simulation.appended, 0.0, 0.0

    @property
    def _share(self) -> float:
        """Records appended to all topics per record of the load."""
        return sum(o.source.share for o in self._simulation.application.operators if o.source) or 1.0

    def score(self, rescales: int) -> Score:
        """The figures until now."""
        self._close()
        return Score(
            seconds=round(self._seconds, 1),
            objective_seconds=self._objective,
            violation_share=None if self._objective is None else round(self._late / max(1e-9, self._seconds), 5),
            slot_seconds=round(self._slot_seconds, 1),
            rescales=rescales,
            max_lag_seconds=round(self._max_lag, 2),
            least_slot_seconds=round(self._least, 1),
            peak_slot_seconds=round(self._clairvoyant.slots(self._peak, self._simulation.now) * self._seconds, 1),
        )
