"""Symptoms of consumer groups and of partitions' offsets: rebalances, members that stand still, threads that wait for
brokers; positions and timestamps that contradict the log."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import itemgetter

from weir_contracts import (
    Deployment,
    Group,
    Instance,
    PartitionReading,
    Symptom,
    bounded,
    counted,
    formatted,
    short_name,
)

from . import offsets as log
from .analysis import Findings, OperatorFindings, SourceFindings, symptom
from .lag import BACKLOG_SECONDS
from .window import COMMITS_PER_WINDOW, AnalysisSettings, since

_BLOCKED_SHARE = 0.5
_HOT_LAG_SHARE = 0.5
"""Share of the application's lag, from which a partition may be hot."""
_QUIET = ("Stable", "Empty", "Dead")
_STUCK_SECONDS = 20.0
"""Minimum time without a commit after which an instance is said to be stuck."""
_SHOWN_SECONDS = 600.0
"""Time for which reset offsets are shown: planners' windows have forgotten them by then."""
_YEAR_3000_MS = 32_503_680_000_000


def group_symptoms(findings: Findings, logs: log.LogHistory, settings: AnalysisSettings) -> Iterator[Symptom]:
    """Yield the symptoms of a group; none for an application that is no group."""
    deployment = findings.observation.deployment
    if deployment is None or deployment.group is None:
        return
    yield from _movements(deployment, deployment.group)
    for source in findings.sources.values():
        operator = findings.operators.get(source.name)
        if findings.run is not None and operator is not None:
            stuck = _stuck(findings, deployment, source, settings)
            if stuck is not None:  # the lag that grows is its own
                yield stuck
            else:
                yield from _brokers_bound(deployment, source, operator)
                yield from _hot_partitions(findings, logs, source, operator, settings)
            yield from _stalled(findings, source, settings)


def moves(deployment: Deployment | None) -> bool:
    """Return whether tasks move, wait for their state or are about to move: the instances that there are do not share the
    work yet, so that nothing is learned of their capacity."""
    if deployment is None or deployment.group is None:
        return False
    group, instances = deployment.group, deployment.instances
    is_restoring = any(instance.restore_remaining_records for instance in instances)
    return group.state not in _QUIET or group.probing_rebalance_at is not None or is_restoring


def _movements(deployment: Deployment, group: Group) -> Iterator[Symptom]:
    """Yield what says that tasks move or wait for their state."""
    name = short_name(group.id)
    if group.state not in _QUIET:
        cause = "tasks move between instances"
        if group.state == "PreparingRebalance":
            cause = "the broker waits for members that still process what they polled"
        sentence = f"{name} rebalances (state {group.state}, {counted(group.members, 'member')}): {cause}."
        yield symptom("rebalancing", sentence, members=group.members)
    if group.probing_rebalance_at is not None:
        waiting = sum(instance.standby_tasks or 0 for instance in deployment.instances)
        tasks = "1 standby task warms" if waiting == 1 else f"{waiting} standby tasks warm"
        until = f"{group.probing_rebalance_at:%H:%M:%S} UTC"
        sentence = f"{name} migrates: {tasks} up until the probing rebalance at {until}."
        yield symptom("migrating", sentence, tasks=waiting)
    restoring = [instance for instance in deployment.instances if instance.restore_remaining_records]
    if restoring:
        records = sum(instance.restore_remaining_records or 0 for instance in restoring)
        subject = "1 instance restores" if len(restoring) == 1 else f"{len(restoring)} instances restore"
        sentence = f"{name}: {subject} state, {records:,} changelog records are left; their threads look idle."
        yield symptom("restoring", sentence, instances=len(restoring), restore_remaining_records=records)


def _brokers_bound(deployment: Deployment, source: SourceFindings, operator: OperatorFindings) -> Iterator[Symptom]:
    """Yield what says that threads wait for brokers while lag grows: more threads would wait, too."""
    shares = [instance.blocked_share for instance in deployment.instances]
    read = [share for share in shares if share is not None]
    growth, lag, taken = source.lag.growth.proven, source.lag.records.proven, operator.window.input_rate.value
    if not read or len(read) < len(shares) or growth is None or lag is None or taken is None:
        return
    blocked = sum(read) / len(read)
    if blocked >= _BLOCKED_SHARE and growth > 0.05 * taken and lag > BACKLOG_SECONDS * taken:
        sentence = (
            f"{short_name(source.name)} waits for its brokers {blocked:.0%} of the time while its lag grows by "
            f"{formatted(growth)} records/s: more threads would wait, too."
        )
        yield symptom("brokers-bound", sentence, source.name, blocked_share=blocked, lag_growth=growth, lag_records=lag)


def _hot_partitions(
    findings: Findings,
    logs: log.LogHistory,
    source: SourceFindings,
    operator: OperatorFindings,
    settings: AnalysisSettings,
) -> Iterator[Symptom]:
    """Yield the partition that brings more records than one thread can process, while most of the lag is its own."""
    lag, capacity = source.lag.records.proven, operator.capacity
    if not lag or not capacity:
        return
    thread_rate = capacity / operator.parallelism
    columns = {key: i for i, key in enumerate(logs.keys)}
    for p in findings.observation.partitions:
        waiting = _waiting(p)
        column = columns.get(log.key_of(p))
        if p.operator != source.name or waiting is None or waiting < _HOT_LAG_SHARE * lag or column is None:
            continue
        points = since(log.column(logs, column), findings.at - settings.demand_window_seconds)
        if len(points) < 2 or points[-1][0] <= points[0][0]:
            continue
        rate = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
        if rate > thread_rate:
            sentence = (
                f"{short_name(p.topic)}/{p.partition} gets {formatted(rate)} records/s and a thread of "
                f"{short_name(source.name)} processes {formatted(thread_rate)}: more threads do not help."
            )
            numbers = {"arrival_rate": rate, "thread_rate": thread_rate, "lag_records": waiting}
            yield symptom("hot-partition", sentence, source.name, partition=p.partition, **numbers)


def _stalled(findings: Findings, source: SourceFindings, settings: AnalysisSettings) -> Iterator[Symptom]:
    """Yield the partitions whose commits stand still while records wait and others go forward (Burrow's rule STOP)."""
    limit = COMMITS_PER_WINDOW * settings.commit_seconds
    if not limit or findings.run is None or findings.at - findings.run.started_at < limit:
        return
    partitions = [p for p in findings.observation.partitions if p.operator == source.name]
    still = [
        (findings.at - p.committed_at.timestamp(), p)
        for p in partitions
        if p.committed_at is not None and _waiting(p) and findings.at - p.committed_at.timestamp() > limit
    ]
    if still and len(still) < len(partitions):
        seconds, first = max(still, key=itemgetter(0))
        others = f" and {len(still) - 1} more" if len(still) > 1 else ""
        which = f"{short_name(first.topic)}/{first.partition}{others}"
        sentence = f"{short_name(source.name)} committed nothing of {which} for {seconds:.0f} s while records wait."
        yield symptom("stalled", sentence, source.name, partitions=len(still), seconds=seconds)


def _stuck(
    findings: Findings, deployment: Deployment, source: SourceFindings, settings: AnalysisSettings
) -> Symptom | None:
    """Return the one instance that commits nothing while records wait for it, although others go forward.

    None while tasks move, or while the time of a commit is unknown.
    """
    interval = findings.observation.policy.spec.interval.total_seconds()
    limit = max(_STUCK_SECONDS, COMMITS_PER_WINDOW * settings.commit_seconds, 2 * interval)
    if not settings.commit_seconds or findings.run is None or moves(deployment):
        return None
    by_owner: dict[str, list[PartitionReading]] = {}
    for p in findings.observation.partitions:
        if p.operator == source.name:
            by_owner.setdefault(p.owner, []).append(p)
    stuck: list[tuple[Instance, float]] = []
    forward = doubtful = 0
    for instance in deployment.instances:
        still = _still_seconds(findings, by_owner.get(instance.id, ()))
        if still is not None and still <= limit / 2:
            forward += 1
        elif still is None or not any(_waiting(p) for p in by_owner[instance.id]):
            continue  # it has nothing to do, or its commits are unknown
        elif still > limit and findings.at - findings.run.started_at > limit:
            stuck.append((instance, still))
        else:
            doubtful += 1
    if len(stuck) != 1 or doubtful or not forward:
        return None
    instance, seconds = stuck[0]
    records = sum(_waiting(p) or 0 for p in by_owner[instance.id])
    others = "1 other instance goes" if forward == 1 else f"{forward} other instances go"
    reported = f" (client {instance.state})" if instance.state else ""
    sentence = (
        f"{bounded(instance.name, 30)}{reported} has committed nothing for {seconds:.0f} s while {records} records "
        f"wait for it, and {others} forward"
    )
    stands_still = symptom("instance-stuck", sentence, source.name, seconds=seconds, waiting_records=records)
    return stands_still.model_copy(update={"instance": instance.id})


def _still_seconds(findings: Findings, partitions: Sequence[PartitionReading]) -> float | None:
    """Return how long none of these partitions has had a new commit; None if that of one with waiting records is unknown."""
    if any(_waiting(p) is None or (_waiting(p) and p.committed_at is None) for p in partitions):
        return None
    times = [p.committed_at.timestamp() for p in partitions if p.committed_at is not None]
    return findings.at - max(times) if times else None


def _waiting(p: PartitionReading) -> int | None:
    if p.log_end_offset is None or p.committed_offset is None:
        return None
    return max(0, int(p.log_end_offset - log.first_waiting(p, p.committed_offset)))


def offset_symptoms(partitions: Sequence[PartitionReading], logs: log.LogHistory, at: float) -> Iterator[Symptom]:
    """Yield the symptoms of the partitions' offsets at `at`, at most one of a kind for a source."""
    by_source: dict[str, list[PartitionReading]] = {}
    for partition in partitions:
        by_source.setdefault(partition.operator, []).append(partition)
    columns = {key: i for i, key in enumerate(logs.keys)}
    for name, read in by_source.items():
        yield from _reset(name, read, at)
        yield from _expired(name, read)
        yield from _beyond(name, read)
        yield from _refused(name, read, logs, columns)


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
    position, start = log.own_position(p), p.log_start_offset
    if position is None or start is None:
        return 0
    # the last offset of an empty log may have been the marker of a transaction, which no reader gets
    return 0 if start == p.log_end_offset and start - position == 1 else max(0, start - position)


def _beyond(name: str, partitions: Sequence[PartitionReading]) -> Iterator[Symptom]:
    places = [
        (position - p.log_end_offset, p, position, p.log_end_offset)
        for p in partitions
        if p.log_end_offset is not None
        and (position := log.own_position(p)) is not None
        and position > p.log_end_offset
    ]
    lost = [(ahead, p, position, end) for ahead, p, position, end in places if log.is_beyond(p, position)]
    if lost:
        _, p, position, end = max(lost, key=itemgetter(0))
        place = f"{short_name(name)} is at {position:,} of {short_name(p.topic)}/{p.partition}"
        sentence = f"{place}, after the log's end {end:,}: cut off, created again, or of another cluster."
        yield symptom("position-beyond-log", sentence, name, partitions=len(lost), position=position, log_end=end)
    elif places:
        _, p, position, end = max(places, key=itemgetter(0))
        place = f"{short_name(name)} is at {position:,} of {short_name(p.topic)}/{p.partition}"
        sentence = f"{place}; committed are {end:,}: set signals.kafka.isolation to read_uncommitted."
        yield symptom("reads-uncommitted", sentence, name, partitions=len(places), position=position, log_end=end)


def _refused(
    name: str, partitions: Sequence[PartitionReading], logs: log.LogHistory, columns: dict[str, int]
) -> Iterator[Symptom]:
    refused = []
    for p in partitions:
        position, column = log.own_position(p), columns.get(log.key_of(p))
        stamped_ms = p.refused_timestamp_ms
        if position is None or column is None or (stamped_ms is None and p.position_appended_at is None):
            continue
        offset = int(log.first_waiting(p, position))
        earliest, latest = log.append_bounds(log.tail(logs, column, offset), offset)
        if p.position_appended_at is not None and stamped_ms is None:
            stamped = p.position_appended_at.timestamp()
            stamped_ms = round(stamped * 1000) if log.is_contradicted(stamped, earliest, latest) else None
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
