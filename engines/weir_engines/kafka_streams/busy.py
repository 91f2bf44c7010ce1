"""Busy time of stream threads: the time that they do not wait for brokers, from differences of their counters."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weir_contracts import Instance

from .group import Membership
from .metrics import InstanceMetrics, ThreadMetrics
from .readings import BusyTime

_SHARE_SECONDS = 60.0
"""Window of an instance's blocked share: one poll waits up to a large part of a scrape's interval."""


@dataclass
class _Thread:
    read_at: float
    blocked_ns: float
    processed: float | None
    points: deque[tuple[float, float]] = field(default_factory=deque)
    """Time and blocked time of the last readings."""

    def share(self) -> float | None:
        """Return the share of the last minute that it waited."""
        (t0, before), (t1, now) = self.points[0], self.points[-1]
        return None if t1 <= t0 else min(1.0, max(0.0, (now - before) / 1e9 / (t1 - t0)))


@dataclass
class BusyMeter:
    """Sums over all threads of one application since the first reading. They never fall, whatever thread ends."""

    busy_ms: float = 0.0
    idle_ms: float = 0.0
    processed: float = 0.0
    _threads: dict[str, _Thread] = field(default_factory=dict)

    def add(self, metrics: Iterable[InstanceMetrics], at: float) -> None:
        """Count the time since each thread's last reading; `at` is a monotonic time in seconds.

        A thread's first reading counts nothing, and neither does one with a counter that fell.
        """
        present = {name: thread for each in metrics for name, thread in each.threads.items()}
        for name, thread in present.items():
            if thread.blocked_ns is not None:
                self._count(name, thread, thread.blocked_ns, at)
        # kept for some time: an endpoint that did not answer once goes on where it was
        expired = [name for name, thread in self._threads.items() if at - thread.read_at > 10 * _SHARE_SECONDS]
        for name in expired:
            del self._threads[name]

    def _count(self, name: str, thread: ThreadMetrics, blocked_ns: float, at: float) -> None:
        last = self._threads.get(name)
        if last is None or blocked_ns < last.blocked_ns:
            self._threads[name] = _Thread(at, blocked_ns, thread.processed, deque([(at, blocked_ns)]))
            return
        passed_ms = (at - last.read_at) * 1000
        blocked_ms = min(passed_ms, (blocked_ns - last.blocked_ns) / 1e6)
        self.busy_ms += passed_ms - blocked_ms
        self.idle_ms += blocked_ms
        if thread.processed is not None and last.processed is not None:
            self.processed += max(0.0, thread.processed - last.processed)
        last.read_at, last.blocked_ns, last.processed = at, blocked_ns, thread.processed
        last.points.append((at, blocked_ns))
        while at - last.points[1][0] >= _SHARE_SECONDS:
            last.points.popleft()

    def blocked_share(self, threads: Mapping[str, ThreadMetrics]) -> float | None:
        """Return the mean share of the last minute that these threads waited; None if one's is unknown."""
        shares = [self._threads[name].share() if name in self._threads else None for name in threads]
        measured = [share for share in shares if share is not None]
        return sum(measured) / len(measured) if measured and len(measured) == len(shares) else None


@dataclass(frozen=True)
class Measured:
    """Total of what the endpoints of all instances report."""

    instances: dict[str, Instance]
    """Processes with their state, blocked share, restore and memory."""
    busy: BusyTime | None
    """None unless every member of the group is a thread with metrics."""
    restores: bool
    threads: int
    """Number of members with metrics."""


def merged(membership: Membership, metrics: Sequence[InstanceMetrics], meter: BusyMeter) -> Measured:
    """Return the group's instances with their metrics, which are matched by the threads' ids."""
    by_id = {instance.id: instance for instance in membership.instances()}
    found = {}
    threads = 0
    for each in metrics:
        processes = {name: membership.process_of_thread(name) for name in each.threads}
        threads += sum(process is not None for process in processes.values())
        instance = next((by_id[process] for process in processes.values() if process in by_id), None)
        if instance is not None:
            found[instance.id] = instance.model_copy(update=_fields(each, meter))
    is_known = bool(membership.members) and threads >= len(membership.members)
    busy = BusyTime(meter.busy_ms, meter.idle_ms) if is_known else None
    return Measured(found, busy, any(each.restores for each in metrics), threads)


def _fields(metrics: InstanceMetrics, meter: BusyMeter) -> dict[str, object]:
    return {
        "state": metrics.client_state,
        "blocked_share": None if metrics.restores else meter.blocked_share(metrics.threads),
        "restore_remaining_records": metrics.restore_remaining_records,
        "memory_bytes": metrics.memory_bytes,
    }
