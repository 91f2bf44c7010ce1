"""Flink's metrics: aggregates of a vertex over its subtasks, offsets of a source, and TaskManagers as replicas."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir_contracts import MAX_SECONDS, Pod, within
from weir_engines.flink.rest import Unreadable, count, number, sequence

_OFFSET = re.compile(r"KafkaSourceReader\.topic\.(?P<topic>.+)\.partition\.(?P<partition>\d{1,9})\.currentOffset$")
_ACTIVE_SPLITS = ".activeSplitCount"
"""Splits of a source that reads several clusters, without those that it has given up (FLINK-39990)."""
_COUNTER = re.compile(r"(?P<operator>Source__[^.]*)\.(?P<what>numRecordsIn|numRecordsOut)$")
_PENDING = ".pendingRecords"
_BEHIND, _SHARD = ".millisBehindLatest", ".shardId."
"""Of the source of Kinesis, one for each shard: `….stream.<name>.shardId.<id>.millisBehindLatest`."""
_RECEIVED, _PULSAR = ".numMsgsReceived", ".PulsarConsumer."
"""Of the source of Pulsar: `….PulsarConsumer.<topic>-partition-<number>.<consumer>.numMsgsReceived`."""
_PULSAR_PARTITION = re.compile(r"-partition-\d{1,9}$")
_IDLE, _FETCH_LAG, _WATERMARK_LAG = ".sourceIdleTime", ".currentFetchEventTimeLag", ".watermarkLag"


def metric_names(document: Any) -> list[str]:
    """Parse `GET …/subtasks/metrics` without `get=`."""
    entries = sequence(document, "subtasks/metrics")
    return [e["id"] for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)]


Aggregates = dict[str, Mapping[str, float | None]]
"""Minimum (min), maximum (max), mean (avg) and sum over subtasks, by metric name."""


def aggregates(document: Any) -> Aggregates:
    """Parse `GET …/subtasks/metrics?get=…`. An unlisted name in the request makes Flink's response empty."""
    found: Aggregates = {}
    for entry in sequence(document, "subtasks/metrics?get="):
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            found[entry["id"]] = {key: number(entry[key]) for key in ("min", "max", "avg", "sum") if key in entry}
    return found


def plain_metrics(document: Any) -> dict[str, float | None]:
    """Parse `GET …/metrics?get=…`, whose values are texts, by name."""
    entries = sequence(document, "metrics?get=")
    return {e["id"]: number(e.get("value")) for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)}


@dataclass(frozen=True)
class SourceOffsets:
    """Offsets and counters of a source: position (next offset to process) by metric topic name and partition."""

    positions: Mapping[tuple[str, int], int | None] = field(default_factory=dict)
    pending_records: int | None = None
    records_in: int | None = None
    splits: int | None = None
    """Partitions that the source reads, if they are not those of `positions`: of several clusters, which may have the same
    topic and number, or of another system. None: they are."""
    has_broker_offsets: bool | None = None
    """False for a source of shards or partitions of another system than Kafka."""
    pending_refused: str = ""
    """Why `pendingRecords` are unusable; empty if they are usable or not reported."""
    idle_seconds: float | None = None
    behind_seconds: float | None = None
    behind_shortest_seconds: float | None = None
    fetch_lag_seconds: float | None = None
    watermark_lag_seconds: float | None = None


def wanted_source_metrics(names: Sequence[str]) -> list[str]:
    """Return the listed metrics of a source that a scrape needs."""
    wanted = (_PENDING, ".currentOffset", _ACTIVE_SPLITS, _IDLE, _FETCH_LAG, _WATERMARK_LAG)
    return [n for n in names if n.endswith(wanted) or _COUNTER.fullmatch(n) or _foreign_split(n) is not None]


def _foreign_split(name: str) -> str | None:
    """Return the shard of Kinesis or the partition of Pulsar that a metric is of; None if it is of neither."""
    if name.endswith(_BEHIND) and _SHARD in name:
        return name.removesuffix(_BEHIND)
    if name.endswith(_RECEIVED) and _PULSAR in name:
        # a partition has a new consumer after a reconnection
        partition = name.partition(_PULSAR)[2].removesuffix(_RECEIVED).rpartition(".")[0]
        return partition if _PULSAR_PARTITION.search(partition) else None
    return None


def source_offsets(found: Aggregates, vertex_name: str | None = None) -> SourceOffsets:
    """Return the offsets and counters in the aggregated metrics of a source, the vertex `vertex_name`; None: any."""
    positions: dict[tuple[str, int], int | None] = {}
    active: list[float] = []
    splits = 0
    counted: dict[str, dict[str, float]] = {}
    pending, refused = _pending(found, vertex_name)
    foreign = {split for name in found if (split := _foreign_split(name)) is not None}
    for name, values in found.items():
        if offset := _OFFSET.search(name):
            place = (offset["topic"], int(offset["partition"]))
            # The offset of the last record; -1, which `number` reads as unknown, before the first record of a run.
            last = values.get("max")
            splits += 1
            # A partition with two metrics is read from two clusters: the position may be of either.
            positions[place] = None if last is None or place in positions else int(last) + 1
            continue
        total = values.get("sum")
        if total is None:
            continue
        if counter := _COUNTER.fullmatch(name):
            counted.setdefault(counter["operator"], {})[counter["what"]] = total
        elif name.endswith(_ACTIVE_SPLITS):
            active.append(total)
    behind = [values.get("max") for name, values in found.items() if name.endswith(_BEHIND) and _SHARD in name]
    if None in behind:
        refused = refused or "are not reported, and a shard was not read yet"
    return SourceOffsets(
        positions,
        pending,
        _records(found, counted),
        count(sum(active)) if active else splits + len(foreign),
        has_broker_offsets=False if foreign and not splits else None,
        pending_refused=refused,
        idle_seconds=_seconds(found, _IDLE, "min"),
        # a shard that was not read yet may be far behind
        behind_seconds=None if not behind or None in behind else max(each or 0.0 for each in behind) / 1000,
        behind_shortest_seconds=None if not behind or None in behind else min(each or 0.0 for each in behind) / 1000,
        fetch_lag_seconds=_seconds(found, _FETCH_LAG, "max"),
        watermark_lag_seconds=_seconds(found, _WATERMARK_LAG, "max"),
    )


def _records(found: Aggregates, counted: Mapping[str, Mapping[str, float]]) -> int | None:
    """Return the records that the sources of a vertex took in, by their counters.

    A reader that counts only what it sends has the other counter, too, at 0. One that fetches batches (change data) counts
    these as taken in. Where offsets or waiting records are reported, what is taken in is counted as they are.
    """
    as_fetched = {name.partition(".")[0] for name in found if name.endswith(_PENDING) or _OFFSET.search(name)}
    records = [
        (each.get("numRecordsIn") or each.get("numRecordsOut", 0.0)) if operator in as_fetched else max(each.values())
        for operator, each in counted.items()
    ]
    return count(sum(records)) if records else None


def _pending(found: Aggregates, vertex_name: str | None) -> tuple[int | None, str]:
    """Return the waiting records that a source reports, and why they are unusable: empty if they are usable or absent."""
    named = None if vertex_name is None else _metric_name(vertex_name)
    waiting, refused = [], ""
    for name, values in found.items():
        if not name.endswith(_PENDING):
            continue
        operator = name.partition(".")[0]
        if named is not None and operator not in named:
            refused = refused or f"are those of another source, {operator[:80]}"
            continue
        total = values.get("sum")
        if total is None or ("min" in values and values["min"] is None):
            return None, "are negative or not a number"
        waiting.append(total)
    return (count(sum(waiting)), "") if waiting else (None, refused)


def _metric_name(vertex_name: str) -> str:
    """Return a name as it is in the names of metrics. Those of a chain's operators are parts of the vertex's name; metrics
    have the first 80 characters of them."""
    return re.sub(r"[ :.,]", "_", vertex_name)


def _seconds(found: Aggregates, suffix: str, of: str) -> float | None:
    """Return the `min` or `max` over all subtasks and operators of a metric in ms, in seconds; None without any value."""
    values = [each for name, found_ in found.items() if name.endswith(suffix) and (each := found_.get(of)) is not None]
    return within((min if of == "min" else max)(values) / 1000, MAX_SECONDS) if values else None


CPU_LOAD = "Status.JVM.CPU.Load"
"""CPU use of the JVM, as a share of the machine's processors."""
_MEMORY = ("Status.JVM.Memory.Heap.Used", "Status.JVM.Memory.NonHeap.Used", "Status.JVM.Memory.Direct.MemoryUsed")
METRICS = (CPU_LOAD, *_MEMORY)
_ID = re.compile(r"[0-9A-Za-z_:.-]{1,253}")
"""An id such as `10.0.0.1:6122-a1b2c3`, which is safe in the path of a request."""
MAX_TASK_MANAGERS = 50
"""TaskManagers of a cluster whose metrics are read; each costs a request."""


@dataclass(frozen=True)
class TaskManager:
    """One TaskManager as the JobManager lists it."""

    id: str
    processors: float | None
    """Processors of its machine or container, as its JVM counts them."""
    cpu_cores: float | None
    """Cores that its configuration gives it."""
    memory_bytes: int | None
    """Size of its process by its memory configuration."""

    def pod(self, metrics: Mapping[str, float | None]) -> Pod:
        """Return the replica with CPU and memory in use; unknown without the metrics."""
        load, used = metrics.get(CPU_LOAD), [metrics.get(name) for name in _MEMORY]
        present = [each for each in used if each is not None]
        return Pod(
            name=self.id,
            ready=True,
            cpu_cores=None if load is None or self.processors is None else min(1.0, load) * self.processors,
            cpu_request_cores=self.cpu_cores,
            memory_bytes=count(sum(present)) if len(present) == len(used) else None,
            memory_limit_bytes=self.memory_bytes,
        )


def task_managers(document: Any) -> list[TaskManager]:
    """Parse `GET /taskmanagers`. One without a readable id is left out."""
    listed = document.get("taskmanagers") if isinstance(document, dict) else None
    found = []
    for each in sequence(listed, "/taskmanagers")[:MAX_TASK_MANAGERS]:
        entry = each if isinstance(each, dict) else {}
        called = entry.get("id")
        if not isinstance(called, str) or not is_safe_id(called):
            continue
        found.append(
            TaskManager(
                id=called,
                processors=number(_part(entry, "hardware").get("cpuCores")) or None,
                cpu_cores=number(_part(entry, "totalResource").get("cpuCores")) or None,
                memory_bytes=count(_part(entry, "memoryConfiguration").get("totalProcessMemory")) or None,
            )
        )
    return found


@dataclass(frozen=True)
class ManagerSlots:
    """Slots of one registered TaskManager."""

    id: str
    host: str
    """Host that it registered with; empty if unknown."""
    slots: int
    free: int


_ADDRESS = re.compile(r"@(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9A-Za-z_.-]{1,253})):[0-9]{1,5}/")
"""Host in the path of a TaskManager, such as `pekko.tcp://flink@10.0.0.1:6122/user/rpc/taskmanager_0`."""
_MAX_REGISTERED = 2000


def manager_slots(document: Any) -> list[ManagerSlots]:
    """Parse the slots in `GET /taskmanagers`. Raises `Unreadable` if those of one are missing: it might be in use."""
    listed = document.get("taskmanagers") if isinstance(document, dict) else None
    found = []
    for each in sequence(listed, "/taskmanagers")[:_MAX_REGISTERED]:
        entry = each if isinstance(each, dict) else {}
        slots, free = count(entry.get("slotsNumber")), count(entry.get("freeSlots"))
        if slots is None or free is None:
            raise Unreadable("/taskmanagers slotsNumber, freeSlots", "expected a number of slots")
        path, called = entry.get("path"), entry.get("id")
        host = _ADDRESS.search(path[:500]) if isinstance(path, str) else None
        found.append(
            ManagerSlots(
                id=called[:253] if isinstance(called, str) else "",
                host="" if host is None else (host[1] or host[2]),
                slots=slots,
                free=min(free, slots),
            )
        )
    return found


def is_safe_id(called: str) -> bool:
    """Return whether an id of a TaskManager is safe in the path of a request."""
    return _ID.fullmatch(called) is not None and ".." not in called


def slots_of_others(document: Any, job_id: str) -> int:
    """Parse `GET /taskmanagers/:id`: return the number of its slots that other jobs than this one hold."""
    listed = document.get("allocatedSlots") if isinstance(document, dict) else None
    holders = [each.get("jobId") if isinstance(each, dict) else None for each in sequence(listed, "allocatedSlots")]
    return sum(1 for holder in holders if holder != job_id)


def _part(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = entry.get(key)
    return part if isinstance(part, dict) else {}
