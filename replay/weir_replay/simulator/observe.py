"""Observations of a simulated application, in the form the monitor publishes for a real one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

from pydantic import TypeAdapter

from weir_contracts import (
    Checkpoints,
    Deployment,
    Observation,
    ObservationStatus,
    OperatorReading,
    PartitionReading,
    Problem,
    RescaleSettings,
    Run,
    ScalingPolicy,
    Slots,
    observation_id,
)

from .flink import Simulation
from .world import CLEAR, Delivery, Fault, Noise, at

_TIMES = ("busy_ms", "backpressured_ms", "idle_ms")
_SHARES = ("busy_share_mean", "busy_share_max", "backpressure_share_mean", "backpressure_share_max")
_COUNTS = ("records_in", "records_out")
_PARTITIONS = TypeAdapter(list[PartitionReading])
"""Validates all partitions in one call: several times faster than one by one."""
FIELDS = (*_COUNTS, *_TIMES, *_SHARES)


@dataclass
class _Counters:
    """The engine's counters at the last scrape; `reported` includes noise."""

    run_since: float
    values: list[dict[str, float]]
    positions: dict[str, list[float | None]]
    reported: list[dict[str, float]]
    gauges: list[dict[str, float]]


class Observer:
    """Scrapes one simulation; the same seed and scrapes give the same observations."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        noise: Noise = CLEAR,
        faults: Sequence[Fault] = (),
        seed: int = 0,
    ) -> None:
        self._simulation = simulation
        self._noise = noise
        self.faults = list(faults)
        self._random = Random(seed)  # noqa: S311 chance of a model, not of a cipher
        self._counters: _Counters | None = None
        self._attempt: tuple[float, int] | None = None
        self._committed: dict[tuple[str, int], tuple[int, datetime]] = {}
        self._delivery = Delivery()

    def scrape(self, policy: ScalingPolicy) -> list[Observation]:
        """Return the observations arriving now, in order: usually the current one; with faults none or delayed ones."""
        now = self._simulation.now
        current = self._observe(policy)
        delay = next((f.delay_seconds for f in self._holding("delayed")), 0.0)
        # Always drawn, so that one setting does not shift another's random numbers.
        lost, delayed = self._random.random(), self._random.random()
        if delayed < self._noise.delayed_share:
            delay = max(delay, self._noise.delay_seconds)
        is_lost = lost < self._noise.lost_share or bool(self._holding("lost"))
        return self._delivery.arriving(now, current, is_lost=is_lost, delay_seconds=delay)

    def _holding(self, kind: str) -> list[Fault]:
        if not self.faults:
            return []
        now = self._simulation.now
        return [fault for fault in self.faults if fault.kind == kind and fault.holds(now)]

    def _observe(self, policy: ScalingPolicy) -> Observation:
        sim, now = self._simulation, at(self._simulation.now)
        status, message = self._status()
        fields: dict[str, Any] = {"run": None, "deployment": None, "topology": None, "operators": [], "partitions": []}
        problems: list[Problem] = []
        if status in ("running", "not_running"):
            operators, positions = self._read()
            partitions = self._partitions(positions, now)
            if self._holding("brokers-away"):
                partitions = []
                problems.append(Problem(where="kafka offsets", what="the brokers do not answer"))
            fields = {
                "run": self._run() if status == "running" else None,
                # A job in reactive mode has no requirements: its instances are what was requested.
                "deployment": deployment_of(sim, has_requested=policy.spec.target.unit is None),
                "topology": sim.topology,
                "operators": operators,
                "partitions": partitions,
            }
        # The parts are validated already: validating the document would double the cost.
        return Observation.model_construct(
            id=observation_id(policy.application, now),
            application=policy.application,
            observed_at=now,
            source_time=now,
            scrape_seconds=0.0,
            policy=policy,
            status=status,
            message=message,
            signals={},
            problems=problems,
            **fields,
        )

    def _status(self) -> tuple[ObservationStatus, str]:
        sim = self._simulation
        if sim.conditions.away is not None:
            return "unreachable", sim.conditions.away
        if self._holding("unreachable"):
            return "unreachable", "the cluster does not answer"
        if self._holding("not-found"):
            return "not_found", "the cluster has no such job"
        if sim.state != "RUNNING":
            return "not_running", f"the job is {sim.state}"
        return "running", "RUNNING"

    def _read(self) -> tuple[list[OperatorReading], dict[str, list[float | None]]]:
        sim = self._simulation
        if sim.state != "RUNNING":
            # The engine still reports the graph, without counters.
            unknown: dict[str, Any] = dict.fromkeys((*FIELDS, "pending_records"))
            return [
                OperatorReading(operator=name, parallelism=p, complete=False, **unknown)
                for name, p in sim.observed.items()
            ], {}
        counters = self._counted()
        missing = [(fault.operator, fault.field) for fault in self._holding("missing")]
        readings = []
        for i, operator in enumerate(sim.application.operators):
            reported: dict[str, Any] = dict(counters.reported[i])
            for name in _COUNTS:
                reported[name] = int(reported[name])
            reported |= counters.gauges[i]
            for faulty, field in missing:
                if faulty in (None, operator.name):
                    reported |= dict.fromkeys(FIELDS if field is None else (field,))
            readings.append(
                OperatorReading(
                    operator=operator.name,
                    parallelism=sim.flow.parallelism[i],
                    complete=True,
                    pending_records=int(sim.topics[operator.name].backlog) if operator.source else None,
                    **reported,
                )
            )
        return readings, counters.positions

    def _counted(self) -> _Counters:
        """Return the counters as the engine reports them, with noise."""
        sim, before = self._simulation, self._counters
        if before is not None and before.run_since == sim.running_since:
            if self._holding("frozen"):
                return before
        else:
            before = None
        flow = sim.flow
        values = [
            dict(zip((*_COUNTS, *_TIMES), row, strict=True))
            for row in zip(flow.records_in, flow.records_out, flow.busy_ms, flow.blocked_ms, flow.idle_ms, strict=True)
        ]
        reported = values
        if self._noise.relative > 0 and before is not None:
            reported = [
                self._with_noise(old, new, last)
                for old, new, last in zip(before.values, values, before.reported, strict=True)
            ]
        positions = {name: topic.reported_positions() for name, topic in sim.topics.items()}
        gauges = [self._gauges(i) for i in range(len(values))]
        self._counters = _Counters(sim.running_since, values, positions, reported, gauges)
        return self._counters

    def _with_noise(self, old: dict[str, float], new: dict[str, float], reported: dict[str, float]) -> dict[str, float]:
        sigma, gauss = self._noise.relative, self._random.gauss
        found = {name: value - min(1.0, abs(gauss(0.0, sigma))) * (value - old[name]) for name, value in new.items()}
        for name in _COUNTS:
            found[name] = max(found[name], reported[name])
        return found

    def _gauges(self, i: int) -> dict[str, float]:
        """Return means of the last minute; in a younger run they rise from 0, as the engine's do."""
        sim = self._simulation
        if len(sim.gauges) < 2:
            return dict.fromkeys(_SHARES, 0.0)
        (t0, busy0, blocked0), (t1, busy1, blocked1) = sim.gauges[0], sim.gauges[-1]
        p = sim.flow.parallelism[i]
        spent = 1000.0 * (t1 - t0)
        # The engine counts the time before the run as idle.
        filled = 1.0 if t1 - t0 >= 55.0 else (t1 - t0) / 60.0
        busy = min(1.0, (busy1[i] - busy0[i]) / (spent * p)) * filled
        blocked = min(1.0, (blocked1[i] - blocked0[i]) / (spent * p)) * filled
        hottest = min(1.0, (busy1[i] - busy0[i]) / spent * sim.flow.hottest[i]) * filled
        return {
            "busy_share_mean": busy,
            "busy_share_max": max(busy, hottest),
            "backpressure_share_mean": blocked,
            "backpressure_share_max": blocked,
        }

    def _run(self) -> Run:
        """Return the run with the restart count of its first observation, as the monitor keeps it."""
        sim = self._simulation
        if self._attempt is None or self._attempt[0] != sim.running_since:
            self._attempt = (sim.running_since, sim.restarts)
        return Run(attempt=self._attempt[1], running_since=at(sim.running_since))

    def _partitions(self, positions: dict[str, list[float | None]], now: datetime) -> list[PartitionReading]:
        readings: list[dict[str, Any]] = []
        for operator in self._simulation.application.operators:
            if operator.source is None:
                continue
            topic = self._simulation.topics[operator.name]
            read = positions.get(operator.name) or [None] * len(topic.shares)
            for j, (end, committed, position) in enumerate(zip(topic.ends(), topic.committed, read, strict=True)):
                readings.append(
                    {
                        "operator": operator.name,
                        "topic": operator.source.topic,
                        "partition": j,
                        "log_start_offset": 0,
                        "log_end_offset": int(end + 1e-6),
                        "committed_offset": int(committed + 1e-6),
                        "committed_at": self._first_observed(operator.name, j, int(committed + 1e-6), now),
                        "current_offset": None if position is None else int(position + 1e-6),
                    }
                )
        return _PARTITIONS.validate_python(readings)

    def _first_observed(self, operator: str, partition: int, committed: int, now: datetime) -> datetime:
        """Return the time at which this committed offset was first observed."""
        last = self._committed.get((operator, partition))
        if last is None or last[0] != committed:
            last = self._committed[operator, partition] = (committed, now)
        return last[1]


def deployment_of(simulation: Simulation, *, has_requested: bool = True) -> Deployment:
    """Return the deployment as the engine reports it."""
    cluster, completed = simulation.application.cluster, simulation.checkpoint_completed_at
    slots = simulation.conditions.slots
    return Deployment(
        job_id=simulation.job_id,
        job_name=simulation.application.name,
        graph_hash=simulation.graph_hash,
        health=simulation.health,
        state=simulation.state,
        started_at=at(simulation.started_at),
        requested=dict(simulation.requested) if has_requested else None,
        requested_lower=dict.fromkeys(simulation.requested, 1) if has_requested else None,
        observed=dict(simulation.observed),
        slots=Slots(total=slots, available=max(0, slots - simulation.slots_used)),
        restarts=simulation.restarts,
        checkpoints=Checkpoints(
            interval_seconds=cluster.checkpoint_interval_seconds,
            last_completed_at=None if completed is None else at(completed),
            last_duration_seconds=simulation.checkpoint_seconds,
            completed=simulation.checkpoints_completed,
            failed=simulation.checkpoints_failed,
        ),
        rescale=RescaleSettings(
            scheduler="adaptive",
            cooldown_seconds=cluster.cooldown_seconds,
            stabilization_seconds=cluster.stabilization_seconds,
            max_trigger_delay_seconds=cluster.trigger_delay_seconds,
        ),
    )
