"""Signals of a service, translated to the counters that every engine reports: records, busy time, and queues."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weir_contracts import MAX_COUNT, OperatorReading, PartitionReading, Problem
from weir_contracts.application import ServiceApplication, ServiceSignals
from weir_engines.scrape import Scrape

from .service import busy_share

_PURGED_SCRAPES = 3
"""Scrapes in a row with fewer records than were counted, after which they count as deleted and not as read late."""


@dataclass
class _Meter:
    """Counters of one operator since the collector began. They never fall, whatever the signals do."""

    at: float | None = None
    busy_ms: float = 0.0
    idle_ms: float = 0.0
    processed: float | None = None
    """Last value of the signal."""
    counted: float = 0.0
    """Records processed: grows as the signal does, and stands still while it falls."""
    end: float = 0.0
    """Records that arrived: processed, or waiting."""
    removed: float = 0.0
    """Records that left the queue without being processed."""
    short: int = 0

    def pass_time(self, at: float, share: float | None, parallelism: int) -> None:
        """Add the time since the last scrape as busy and idle time of `parallelism` replicas."""
        if self.at is not None and share is not None:
            passed_ms = max(0.0, at - self.at) * 1000 * parallelism
            self.busy_ms += share * passed_ms
            self.idle_ms += (1 - share) * passed_ms
        self.at = at

    def count(self, processed: float) -> int:
        """Return the records processed.

        A sum over replicas falls when one of them ends; nothing is added then, since the true number is unknown.
        """
        self.counted += processed if self.processed is None else max(0.0, processed - self.processed)
        self.processed = processed
        return min(int(self.counted), MAX_COUNT)

    def queue(self, waiting: float) -> tuple[int, int]:
        """Return position and end of the queue as offsets: their difference is `waiting`, and the end never falls."""
        end = self.counted + self.removed + waiting
        self.short = self.short + 1 if end < self.end else 0
        if self.short >= _PURGED_SCRAPES:
            self.removed += self.end - end
            self.short = 0
        self.end = max(self.end, end)
        last = min(int(self.end), MAX_COUNT)
        return max(0, last - int(waiting)), last


@dataclass
class ServiceMeter:
    """Signals of one service. One meter belongs to one collector: it holds what earlier scrapes counted."""

    application: ServiceApplication

    def __post_init__(self) -> None:
        self._meters: dict[str, _Meter] = {}

    def measured(self, scrape: Scrape, signals: Mapping[str, float | None], at: float) -> Scrape:
        """Return the scrape with the counters of its operators; `at` is a monotonic time in seconds."""
        if scrape.topology is None:
            return scrape
        partitions: list[PartitionReading] = []
        problems = list(scrape.problems)
        operators = []
        sources = scrape.topology.sources
        for reading in scrape.operators:
            own = self.application.signals_of(reading.operator, sources)
            meter = self._meters.setdefault(reading.operator, _Meter())
            processed, waiting = (_value(signals, name) for name in (own.processed, own.waiting))
            problems += [*_odd(signals, own), *_fallen(meter, own, processed)]
            operators.append(_with_counters(reading, meter, processed, waiting, at))
            if waiting is not None and processed is not None:
                position, end = meter.queue(waiting)
                if reading.operator in sources:
                    partitions.append(_partition(reading.operator, own.waiting or "", position, end))
            elif reading.operator in sources and own.waiting is not None and own.processed is not None:
                partitions.append(_partition(reading.operator, own.waiting, None, None))
            if reading.operator in sources:
                problems += _missing(reading.operator, own)
            if (
                scrape.status == "running"
                and reading.busy_share_mean is None
                and not _has_share(scrape, reading.operator)
            ):
                problems.append(_no_busy_share(reading.operator))
        return replace(scrape, operators=tuple(operators), partitions=tuple(partitions), problems=tuple(problems))


def _value(signals: Mapping[str, float | None], name: str | None) -> float | None:
    value = None if name is None else signals.get(name)
    return None if value is None or not 0 <= value <= MAX_COUNT / 4 else value


def _with_counters(
    reading: OperatorReading, meter: _Meter, processed: float | None, waiting: float | None, at: float
) -> OperatorReading:
    share = reading.busy_share_mean
    meter.pass_time(at, share, reading.parallelism)
    records = None if processed is None else meter.count(processed)
    measured = share is not None
    return reading.model_copy(
        update={
            "records_in": records,
            "records_out": records,
            "busy_ms": meter.busy_ms if measured else None,
            "idle_ms": meter.idle_ms if measured else None,
            "backpressured_ms": 0.0 if measured else None,
            "backpressure_share_mean": 0.0 if measured else None,
            "backpressure_share_max": 0.0 if measured else None,
            "pending_records": None if waiting is None else int(waiting),
        }
    )


def _odd(signals: Mapping[str, float | None], own: ServiceSignals) -> list[Problem]:
    """Report values that are no number of records: negative or too large ones are unknown."""
    found = []
    for role, name in (("processed", own.processed), ("waiting", own.waiting)):
        value = None if name is None else signals.get(name)
        if value is not None and _value(signals, name) is None:
            what = f"{value:g} is no number of records, so application.service.{role} is unknown now"
            found.append(Problem(where=f"signals.prometheus.queries.{name}", what=what))
    return found


def _fallen(meter: _Meter, own: ServiceSignals, processed: float | None) -> list[Problem]:
    """Report a counter that fell: what was processed meanwhile is unknown, and counts as nothing."""
    if processed is None or meter.processed is None or processed >= meter.processed:
        return []
    what = f"fell from {meter.processed:,.0f} to {processed:,.0f} records, as when a replica ends: none are counted"
    return [Problem(where=f"signals.prometheus.queries.{own.processed}", what=what)]


def _partition(operator: str, signal: str, position: int | None, end: int | None) -> PartitionReading:
    return PartitionReading(operator=operator, topic=signal, partition=0, log_end_offset=end, current_offset=position)


def _missing(operator: str, own: ServiceSignals) -> list[Problem]:
    names = [name for name in ("processed", "waiting") if getattr(own, name) is None]
    if not names:
        return []
    what = (
        f"application.service names no signal for {' and '.join(names)}: demand and lag are unknown, "
        "and planners that need them hold"
    )
    return [Problem(where=f"signals of {operator}", what=what)]


def _has_share(scrape: Scrape, operator: str) -> bool:
    """Return whether some pod has a busy share, if only from before the last change of its workload's pods."""
    pods = () if scrape.deployment is None else scrape.deployment.pods
    return any(pod.ready and pod.workload in (None, operator) and busy_share(pod) is not None for pod in pods)


def _no_busy_share(operator: str) -> Problem:
    what = "its busy share is unknown: its ready pods have no CPU limit and no request, or their CPU is not measured"
    return Problem(where=f"CPU of {operator}", what=what)
