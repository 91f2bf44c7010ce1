"""Offsets of partitions: where a reader is, which record waits for it, and what contradicts them."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from weir_contracts import Observation, PartitionReading, Symptom, short_name

from . import history
from .state import LogHistory
from .workloads import symptom

CLOCKS_DIFFER_SECONDS = 10.0
"""Largest difference between clocks that is no contradiction."""
_SHOWN_SECONDS = 600.0
"""Time for which reset offsets are shown: planners' windows have forgotten them by then."""
_YEAR_3000_MS = 32_503_680_000_000


def own_position(p: PartitionReading) -> int | None:
    """Return the source's position, or its commit without one; None if both are unknown."""
    return p.current_offset if p.current_offset is not None else p.committed_offset


def first_waiting(p: PartitionReading, position: float) -> float:
    """Return the offset of the first record that waits for a reader at `position`, as far as it is known.

    Retention may have deleted records from there on, and not every offset is a record: markers of transactions have
    one, and so had aborted and compacted records.
    """
    first = max(position, p.log_start_offset or 0)
    if p.next_record_offset is not None and position == own_position(p):
        first = max(first, p.next_record_offset)
    return first


def is_beyond(p: PartitionReading, position: float) -> bool:
    """Return whether `position` is after all records of the log, those of open transactions included."""
    return p.log_end_offset is not None and position > max(p.log_end_offset, p.high_watermark or 0)


def hidden_partitions(observation: Observation, source: str) -> int:
    """Return how many partitions a source says it reads besides those whose offsets were read: in another cluster, or of a
    topic that the brokers do not list."""
    topology, deployment = observation.topology, observation.deployment
    if topology is None or (deployment is not None and deployment.group is not None):
        return 0  # a group's share of the work is tasks
    reported = topology.operator(source).source_partitions or 0
    return max(0, reported - sum(1 for p in observation.partitions if p.operator == source))


def is_of_another_job(partitions: Sequence[PartitionReading]) -> bool:
    """Return whether a group's commits are ahead of the positions in every partition that has both. If these positions
    move, another job commits to the group."""
    pairs = [(p.current_offset, p.committed_offset) for p in partitions]
    both = [(position, commit) for position, commit in pairs if position is not None and commit is not None]
    return bool(both) and all(commit > position for position, commit in both)


def append_time(p: PartitionReading, offset: int, points: Sequence[tuple[float, int]]) -> float | None:
    """Return when the record at `offset` was appended, by its timestamp if the log ends agree; None if unknown.

    `points` are (time, log end) around that offset, oldest first.
    """
    earliest, latest = _bounds(points, offset)
    stamped = None if p.position_appended_at is None else p.position_appended_at.timestamp()
    if stamped is None or latest is None or _contradicts(stamped, earliest, latest):
        return history.appended_at(points, offset)
    return min(stamped, latest) if earliest is None else max(earliest, min(stamped, latest))


def _bounds(points: Sequence[tuple[float, int]], offset: int) -> tuple[float | None, float | None]:
    """Return the last time before the log reached beyond `offset`, and the first time after; None where not observed."""
    earliest = None
    for at, end in points:
        if end > offset:
            return earliest, at
        earliest = at
    return earliest, None


def _contradicts(stamped: float, earliest: float | None, latest: float | None) -> bool:
    is_early = earliest is not None and stamped < earliest - CLOCKS_DIFFER_SECONDS
    return is_early or (latest is not None and stamped > latest + CLOCKS_DIFFER_SECONDS)


def offset_symptoms(partitions: Sequence[PartitionReading], logs: LogHistory, at: float) -> Iterator[Symptom]:
    """Yield the symptoms of the partitions' offsets at `at`, at most one of a kind for a source."""
    by_source: dict[str, list[PartitionReading]] = {}
    for partition in partitions:
        by_source.setdefault(partition.operator, []).append(partition)
    columns = {key: i for i, key in enumerate(logs.keys)}
    for name, own in by_source.items():
        yield from _reset(name, own, at)
        yield from _expired(name, own)
        yield from _beyond(name, own)
        yield from _refused(name, own, logs, columns)


def _reset(name: str, partitions: Sequence[PartitionReading], at: float) -> Iterator[Symptom]:
    reset = [p for p in partitions if p.rewound_at and at - p.rewound_at.timestamp() <= _SHOWN_SECONDS]
    if reset:
        others = f" and {len(reset) - 1} more" if len(reset) > 1 else ""
        which = f"offsets of {short_name(reset[0].topic)}/{reset[0].partition}{others}"
        sentence = f"{short_name(name)}: {which} went back: a reset, or a topic created again."
        yield symptom("offsets-reset", sentence, name, partitions=len(reset))


def _expired(name: str, partitions: Sequence[PartitionReading]) -> Iterator[Symptom]:
    expired = [(p, lost) for p in partitions if (lost := _lost(p)) > 0]
    if expired:
        records, topic = sum(lost for _, lost in expired), short_name(expired[0][0].topic)
        where = "1 partition" if len(expired) == 1 else f"{len(expired)} partitions"
        sentence = f"{short_name(name)}: {records:,} records of {topic} expired unread in {where}."
        yield symptom("records-expired", sentence, name, partitions=len(expired), records=records)


def _lost(p: PartitionReading) -> int:
    """Return how many offsets after the position retention has deleted."""
    position, start = own_position(p), p.log_start_offset
    if position is None or start is None:
        return 0
    # the last offset of an empty log may have been the marker of a transaction, which no reader gets
    return 0 if start == p.log_end_offset and start - position == 1 else max(0, start - position)


def _beyond(name: str, partitions: Sequence[PartitionReading]) -> Iterator[Symptom]:
    places = [
        (position - p.log_end_offset, p, position, p.log_end_offset)
        for p in partitions
        if p.log_end_offset is not None and (position := own_position(p)) is not None and position > p.log_end_offset
    ]
    lost = [each for each in places if is_beyond(each[1], each[2])]
    if lost:
        _, p, position, end = max(lost, key=lambda each: each[0])
        place = f"{short_name(name)} is at {position:,} of {short_name(p.topic)}/{p.partition}"
        sentence = f"{place}, after the log's end {end:,}: cut off, created again, or of another cluster."
        yield symptom("position-beyond-log", sentence, name, partitions=len(lost), position=position, log_end=end)
    elif places:
        _, p, position, end = max(places, key=lambda each: each[0])
        place = f"{short_name(name)} is at {position:,} of {short_name(p.topic)}/{p.partition}"
        sentence = f"{place}; committed are {end:,}: set signals.kafka.isolation to read_uncommitted."
        yield symptom("reads-uncommitted", sentence, name, partitions=len(places), position=position, log_end=end)


def _refused(
    name: str, partitions: Sequence[PartitionReading], logs: LogHistory, columns: dict[str, int]
) -> Iterator[Symptom]:
    refused = []
    for p in partitions:
        position, column = own_position(p), columns.get(history.key_of(p))
        stamped_ms = p.refused_timestamp_ms
        if position is None or column is None or (stamped_ms is None and p.position_appended_at is None):
            continue
        offset = int(first_waiting(p, position))
        earliest, latest = _bounds(history.tail(logs, column, offset), offset)
        if p.position_appended_at is not None and stamped_ms is None:
            stamped = p.position_appended_at.timestamp()
            stamped_ms = round(stamped * 1000) if _contradicts(stamped, earliest, latest) else None
        if stamped_ms is not None:
            refused.append((p, offset, stamped_ms, earliest, latest))
    if not refused:
        return
    p, offset, stamped_ms, earliest, latest = refused[0]
    is_a_time = 0 <= stamped_ms < _YEAR_3000_MS
    stamped_at = _minute(stamped_ms / 1000) if is_a_time else f"{stamped_ms:,} ms"
    appended = "this is no append time"
    if earliest is not None:
        appended = f"it was appended after {_minute(earliest)}"
    elif latest is not None:
        appended = f"it was in the log at {_minute(latest)}"
    record = f"offset {offset:,} of {p.topic[:40]}/{p.partition}"
    sentence = f"{short_name(name)}: {record} is stamped {stamped_at}, but {appended}."
    numbers = {"timestamp_ms": stamped_ms, "appended_after": earliest, "appended_by": latest}
    yield symptom("timestamps-refused", sentence, name, partitions=len(refused), **numbers)


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
