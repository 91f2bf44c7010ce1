"""Flink's metrics: a vertex's aggregates over its subtasks, and what a source reports of its partitions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .values import count, number, sequence

_OFFSET = re.compile(r"KafkaSourceReader\.topic\.(?P<topic>.+)\.partition\.(?P<partition>\d{1,9})\.currentOffset$")
_COUNTER = re.compile(r"Source__[^.]*\.(?P<what>numRecordsIn|numRecordsOut)$")


def metric_names(document: Any) -> list[str]:
    """`GET …/subtasks/metrics` without `get=`."""
    entries = sequence(document, "subtasks/metrics")
    return [e["id"] for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)]


Aggregates = dict[str, Mapping[str, float | None]]
"""min, max, avg and sum over subtasks, by metric name."""


def aggregates(document: Any) -> Aggregates:
    """`GET …/subtasks/metrics?get=…`. A name that nobody knows makes Flink answer with none."""
    found: Aggregates = {}
    for entry in sequence(document, "subtasks/metrics?get="):
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            found[entry["id"]] = {key: number(entry.get(key)) for key in ("min", "max", "avg", "sum")}
    return found


def plain_metrics(document: Any) -> dict[str, float | None]:
    """`GET …/metrics?get=…`: values, which Flink writes as texts, by name."""
    entries = sequence(document, "metrics?get=")
    return {e["id"]: number(e.get("value")) for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)}


@dataclass(frozen=True)
class SourceOffsets:
    """What a source tells of its partitions: position (next offset to process) by metric topic name and partition."""

    positions: Mapping[tuple[str, int], int | None] = field(default_factory=dict)
    pending_records: int | None = None
    records_in: int | None = None


def wanted_source_metrics(names: Sequence[str]) -> list[str]:
    """Of a source's listed metrics, those that are needed: asking for an unlisted one would give nothing at all."""
    return [name for name in names if name.endswith((".pendingRecords", ".currentOffset")) or _COUNTER.fullmatch(name)]


def source_offsets(found: Aggregates) -> SourceOffsets:
    """A source's own account from its aggregated metrics."""
    positions: dict[tuple[str, int], int | None] = {}
    pending: list[float] = []
    counted: dict[str, float] = {}
    for name, values in found.items():
        if offset := _OFFSET.search(name):
            place = (offset["topic"], int(offset["partition"]))
            # The last record sent; -1, which `number` reads as unknown, until there is one in this run.
            last = values.get("max")
            # One place under two names is read from two clusters: whose position it is cannot be told.
            positions[place] = None if last is None or place in positions else int(last) + 1
            continue
        total = values.get("sum")
        if total is None:
            continue
        if counter := _COUNTER.fullmatch(name):
            counted[counter["what"]] = total
        elif name.endswith(".pendingRecords"):
            pending.append(total)
    records = counted.get("numRecordsIn", counted.get("numRecordsOut"))
    return SourceOffsets(positions, count(sum(pending)) if pending else None, None if records is None else int(records))
