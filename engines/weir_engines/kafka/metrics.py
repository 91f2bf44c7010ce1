"""Metrics of one Kafka Streams instance: Prometheus' text format, as the JMX exporter writes the beans; its threads' busy time.

Only lines of the metrics that are used are parsed, so that an endpoint with all beans of a hundred tasks is read in a
few milliseconds. A thread is busy while it does not wait for brokers, by differences of its counters.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from weir_contracts import Instance, Problem
from weir_engines.kafka.group import Membership
from weir_engines.kafka.readings import BusyTime

MAX_BYTES = 4_000_000
MAX_LINE_CHARACTERS = 4_000
MAX_SAMPLES = 20_000
_NAME = re.compile(
    r"^(?:kafka_streams_(?P<streams>stream_thread_metrics_(?:blocked_time_ns|process|thread_state)"
    r"|stream_task_metrics_restore_remaining_records"
    r"|stream_metrics_(?:client_state|failed_stream_threads))(?:_total)?"
    r"|(?P<memory>process_resident_memory_bytes|jvm_memory_used_bytes|jvm_memory_bytes_used))(?=[{ ])",
    re.IGNORECASE,
)
_CLIENT_STATES = ("CREATED", "REBALANCING", "RUNNING", "PENDING_SHUTDOWN", "NOT_RUNNING", "PENDING_ERROR", "ERROR")
_THREAD_RUNNING = 4


@dataclass(frozen=True)
class ThreadMetrics:
    """Counters of one stream thread; None is unknown."""

    blocked_ns: float | None = None
    """Time that it waited for brokers since it began, in ns."""
    processed: float | None = None
    """Records that it processed since it began."""
    state: int | None = None
    """Its state: 4 is RUNNING, lower ones come before it."""


@dataclass(frozen=True)
class InstanceMetrics:
    """Report of one endpoint."""

    threads: dict[str, ThreadMetrics] = field(default_factory=dict)
    """Stream threads by their id, whose main consumer has the client id `<thread>-consumer`."""
    client_state: str = ""
    """State of its Kafka Streams client, such as RUNNING. Empty: unknown."""
    restore_remaining_records: int | None = None
    """Changelog records that its tasks have to read. None: unknown."""
    memory_bytes: int | None = None
    read_at: float | None = None
    """Monotonic second at which its endpoint answered; None: when it is counted."""

    @property
    def restores(self) -> bool:
        """Whether it restores or waits for tasks: its threads then look idle."""
        starting = [t for t in self.threads.values() if t.state is not None and t.state < _THREAD_RUNNING]
        return bool(self.restore_remaining_records) or bool(starting) or self.client_state == "REBALANCING"


class Unreadable(ValueError):
    """A response that is no metrics of Kafka Streams; the sentence says why."""


def instance_metrics(content: bytes) -> InstanceMetrics:
    """Return the metrics in a response; `Unreadable` without any of a stream thread.

    Values that are no finite number of 0 or more are unknown.
    """
    if len(content) > MAX_BYTES:
        raise Unreadable(f"the response has {len(content):,} bytes, more than {MAX_BYTES:,}")
    threads: dict[str, dict[str, float]] = {}
    client: dict[str, float] = {}
    restore: dict[tuple[str, str], float] = {}
    memory: dict[str, float] = {}
    for name, labels, value in _samples(content):
        thread = labels.get("thread_id", "")
        if name.startswith("stream_thread_metrics_") and thread:
            threads.setdefault(thread, {})[name.removeprefix("stream_thread_metrics_")] = value
        elif name.startswith("stream_task_metrics_"):
            restore[thread, labels.get("task_id", "")] = value
        elif name.startswith("stream_metrics_"):
            client[name.removeprefix("stream_metrics_")] = value
        elif "memory" in name:
            memory[name] = memory.get(name, 0.0) + value
    if not threads:
        raise Unreadable("it has no stream-thread-metrics: check the port, and the exporter's configuration")
    return InstanceMetrics(
        threads={name: _thread(values) for name, values in threads.items()},
        client_state=_client_state(client.get("client_state")),
        restore_remaining_records=_count(sum(restore.values())) if restore else None,
        memory_bytes=_count(memory.get("process_resident_memory_bytes", next(iter(memory.values()), None))),
    )


def _thread(values: dict[str, float]) -> ThreadMetrics:
    state = values.get("thread_state")
    return ThreadMetrics(values.get("blocked_time_ns"), values.get("process"), None if state is None else int(state))


def _client_state(number: float | None) -> str:
    return _CLIENT_STATES[int(number)] if number is not None and number < len(_CLIENT_STATES) else ""


def _count(value: float | None) -> int | None:
    return None if value is None or value > 2**62 else int(value)


def _samples(content: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of each sample that is used, in lower case and without `_total`."""
    found = 0
    for line in content.decode(errors="replace").split("\n"):
        matched = _NAME.match(line) if len(line) <= MAX_LINE_CHARACTERS else None
        if matched is None:
            continue
        found += 1
        if found > MAX_SAMPLES:
            raise Unreadable(f"it has more than {MAX_SAMPLES:,} samples")
        try:
            (family,) = text_string_to_metric_families(line + "\n")
            (sample,) = family.samples
        except (ValueError, IndexError, KeyError):
            continue
        name = (matched["streams"] or matched["memory"]).lower().removesuffix("_total")
        if math.isfinite(sample.value) and sample.value >= 0:
            yield name, sample.labels, sample.value


_SHARE_SECONDS = 60.0
"""Window of an instance's blocked share: one poll waits up to a large part of a scrape's interval."""
_SHARE_SLACK = 0.25
"""Share of the window by which blocked time may exceed it: a wait is booked when it ends."""
_BLOCKED, _PROCESSED = "blocked-time-ns-total", "process-total"


@dataclass
class _Thread:
    read_at: float
    blocked_ns: float
    processed: float | None
    points: deque[tuple[float, float]] = field(default_factory=deque)
    """Time and blocked time of the last readings."""

    def last_minute(self) -> tuple[float, float]:
        """Return the time that it waited in the last minute, and the time that passed, in seconds."""
        (t0, before), (t1, now) = self.points[0], self.points[-1]
        return (now - before) / 1e9, t1 - t0


@dataclass
class BusyMeter:
    """Sums over all threads of one application since the first reading. They never fall, whatever thread ends."""

    busy_ms: float = 0.0
    idle_ms: float = 0.0
    processed: float = 0.0
    is_known: bool = True
    """Whether the time of each thread since its last reading is known. The sums lack a time that is not."""
    _threads: dict[str, _Thread] = field(default_factory=dict)

    def add(self, metrics: Iterable[InstanceMetrics], at: float) -> list[Problem]:
        """Count the time since each thread's last reading; `at` is the monotonic time in seconds.

        A thread's first reading counts nothing, and neither does one after which it began again, or with more blocked
        time than passed. Returns contradictory readings, one of each kind.
        """
        # Each endpoint's own time: with the slowest one's, a quick answer would contradict a slow one before it.
        present = {
            name: (thread, at if each.read_at is None else each.read_at)
            for each in metrics
            for name, thread in each.threads.items()
        }
        self.is_known = True
        found: dict[str, Problem] = {}
        for name, (thread, read_at) in present.items():
            if thread.blocked_ns is not None:
                for where, what in self._count(name, thread, thread.blocked_ns, read_at).items():
                    found.setdefault(where, Problem(where=f"{where} of {name}", what=what))
        # kept for some time: an endpoint that did not answer once goes on where it was
        expired = [name for name, thread in self._threads.items() if at - thread.read_at > 10 * _SHARE_SECONDS]
        for name in expired:
            del self._threads[name]
        return list(found.values())

    def _count(self, name: str, thread: ThreadMetrics, blocked_ns: float, at: float) -> dict[str, str]:
        """Count a thread's time and records; return sentences by the metric that contradicts its last reading."""
        last = self._threads.get(name)
        begun = _Thread(at, blocked_ns, thread.processed, deque([(at, blocked_ns)]))
        if last is None or blocked_ns < last.blocked_ns:
            self._threads[name] = begun
            return {}
        last.points.append((at, blocked_ns))
        while at - last.points[1][0] >= _SHARE_SECONDS:
            last.points.popleft()
        blocked_seconds, passed_seconds = last.last_minute()
        if blocked_seconds > (1 + _SHARE_SLACK) * passed_seconds:
            self._threads[name], self.is_known = begun, False
            times = f"grew by {blocked_seconds:,.1f} s while {passed_seconds:,.1f} s passed"
            return {_BLOCKED: f"{times}: busy time is unknown"}
        passed_ms = (at - last.read_at) * 1000
        blocked_ms = min(passed_ms, (blocked_ns - last.blocked_ns) / 1e6)
        self.busy_ms += passed_ms - blocked_ms
        self.idle_ms += blocked_ms
        before, last.read_at, last.blocked_ns, last.processed = last.processed, at, blocked_ns, thread.processed
        if thread.processed is None or before is None:
            return {}
        if thread.processed < before:
            change = f"fell from {before:,.0f} to {thread.processed:,.0f} records"
            return {_PROCESSED: f"{change}, as when a thread restarts: none are counted"}
        self.processed += thread.processed - before
        return {}

    def blocked_share(self, threads: Mapping[str, ThreadMetrics]) -> float | None:
        """Return the mean share of the last minute that these threads waited; None if one's is unknown."""
        times = [self._threads[name].last_minute() if name in self._threads else (0.0, 0.0) for name in threads]
        shares = [min(1.0, blocked / passed) for blocked, passed in times if passed > 0]
        return sum(shares) / len(shares) if shares and len(shares) == len(times) else None


@dataclass(frozen=True)
class Measured:
    """Total of what the endpoints of all instances report."""

    instances: dict[str, Instance]
    """Processes with their state, blocked share, restore and memory."""
    busy: BusyTime | None
    """None unless the time of every member of the group is known."""
    restores: bool
    threads: int
    """Number of members whose blocked time is known."""


def merged(membership: Membership, metrics: Sequence[InstanceMetrics], meter: BusyMeter) -> Measured:
    """Return the group's instances with their metrics, which are matched by the threads' ids."""
    by_id = {instance.id: instance for instance in membership.instances()}
    found = {}
    threads = 0
    for each in metrics:
        processes = {name: membership.process_of_thread(name) for name in each.threads}
        threads += sum(
            process is not None and each.threads[name].blocked_ns is not None for name, process in processes.items()
        )
        instance = next((by_id[process] for process in processes.values() if process in by_id), None)
        if instance is not None:
            found[instance.id] = instance.model_copy(update=_fields(each, meter))
    is_known = meter.is_known and bool(membership.members) and threads >= len(membership.members)
    busy = BusyTime(meter.busy_ms, meter.idle_ms) if is_known else None
    return Measured(found, busy, any(each.restores for each in metrics), threads)


def _fields(metrics: InstanceMetrics, meter: BusyMeter) -> dict[str, object]:
    return {
        "state": metrics.client_state,
        "blocked_share": None if metrics.restores else meter.blocked_share(metrics.threads),
        "restore_remaining_records": metrics.restore_remaining_records,
        "memory_bytes": metrics.memory_bytes,
    }
