"""Symptoms of a consumer group: its rebalances, its partitions' offsets, and threads that wait for brokers."""

from collections.abc import Iterator, Sequence

from weir_contracts import (
    Deployment,
    Group,
    Instance,
    Observation,
    PartitionReading,
    Symptom,
    bounded,
    formatted,
    short_name,
)

from . import history
from .context import AnalysisContext, OperatorContext, SourceContext
from .lag import BACKLOG_SECONDS
from .offsets import first_waiting
from .settings import COMMITS_PER_WINDOW, AnalysisSettings
from .state import LogHistory
from .workloads import symptom

_BLOCKED_SHARE = 0.5
_HOT_LAG_SHARE = 0.5
"""Share of the application's lag, from which a partition may be hot."""
_QUIET = ("Stable", "Empty", "Dead")
_STUCK_SECONDS = 20.0
"""Minimum time without a commit after which an instance is said to be stuck."""


def group_symptoms(context: AnalysisContext, logs: LogHistory, settings: AnalysisSettings) -> Iterator[Symptom]:
    """Yield the symptoms of a group; none for an application that is no group."""
    deployment = context.observation.deployment
    if deployment is None or deployment.group is None:
        return
    yield from _movements(deployment, deployment.group)
    for source in context.sources.values():
        operator = context.operators.get(source.name)
        if context.run is not None and operator is not None:
            stuck = _stuck(context, deployment, source, settings)
            if stuck is not None:  # the lag that grows is its own
                yield stuck
            else:
                yield from _brokers_bound(deployment, source, operator)
                yield from _hot_partitions(context, logs, source, operator, settings)
            yield from _stalled(context, source, settings)


def moves(deployment: Deployment | None) -> bool:
    """Return whether tasks move, wait for their state or are about to move: the instances that there are do not share the
    work yet, so that nothing is learned of their capacity."""
    if deployment is None or deployment.group is None:
        return False
    group, instances = deployment.group, deployment.instances
    is_restoring = any(each.restore_remaining_records for each in instances)
    return group.state not in _QUIET or group.probing_rebalance_at is not None or is_restoring


def tasks_of(observation: Observation) -> int | None:
    """Return the tasks, or partitions, that a group divides among its members; None for another engine, or if unknown."""
    deployment, topology = observation.deployment, observation.topology
    if deployment is None or deployment.group is None or topology is None:
        return None
    return topology.operators[0].source_partitions


def _movements(deployment: Deployment, group: Group) -> Iterator[Symptom]:
    """Yield what says that tasks move or wait for their state."""
    name = short_name(group.id)
    if group.state not in _QUIET:
        cause = "tasks move between instances"
        if group.state == "PreparingRebalance":
            cause = "the broker waits for members that still process what they polled"
        sentence = f"{name} rebalances (state {group.state}, {group.members} members): {cause}."
        yield symptom("rebalancing", sentence, members=group.members)
    if group.probing_rebalance_at is not None:
        waiting = sum(instance.standby_tasks or 0 for instance in deployment.instances)
        tasks = "1 standby task warms" if waiting == 1 else f"{waiting} standby tasks warm"
        until = f"{group.probing_rebalance_at:%H:%M:%S} UTC"
        sentence = f"{name} migrates: {tasks} up until the probing rebalance at {until}."
        yield symptom("migrating", sentence, tasks=waiting)
    left = [each for each in deployment.instances if each.restore_remaining_records]
    if left:
        records = sum(each.restore_remaining_records or 0 for each in left)
        subject = "1 instance restores" if len(left) == 1 else f"{len(left)} instances restore"
        sentence = f"{name}: {subject} state, {records:,} changelog records are left; their threads look idle."
        yield symptom("restoring", sentence, instances=len(left), restore_remaining_records=records)


def _brokers_bound(deployment: Deployment, source: SourceContext, operator: OperatorContext) -> Iterator[Symptom]:
    """Yield what says that threads wait for brokers while lag grows: more threads would wait, too."""
    shares = [each.blocked_share for each in deployment.instances]
    read = [share for share in shares if share is not None]
    growth, lag, taken = source.lag.growth.proven, source.lag.records.proven, operator.input_rate.value
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
    context: AnalysisContext,
    logs: LogHistory,
    source: SourceContext,
    operator: OperatorContext,
    settings: AnalysisSettings,
) -> Iterator[Symptom]:
    """Yield the partition that brings more records than one thread can process, while most of the lag is its own."""
    lag, capacity = source.lag.records.proven, operator.capacity
    if not lag or not capacity:
        return
    thread_rate = capacity / operator.parallelism
    columns = {key: i for i, key in enumerate(logs.keys)}
    for p in context.observation.partitions:
        waiting = _waiting(p)
        column = columns.get(history.key_of(p))
        if p.operator != source.name or waiting is None or waiting < _HOT_LAG_SHARE * lag or column is None:
            continue
        points = history.column(logs, column)
        rate = _rate([each for each in points if each[0] >= context.at - settings.demand_window_seconds])
        if rate is not None and rate > thread_rate:
            sentence = (
                f"{short_name(p.topic)}/{p.partition} gets {formatted(rate)} records/s and a thread of "
                f"{short_name(source.name)} processes {formatted(thread_rate)}: more threads do not help."
            )
            numbers = {"arrival_rate": rate, "thread_rate": thread_rate, "lag_records": waiting}
            yield symptom("hot-partition", sentence, source.name, partition=p.partition, **numbers)


def _rate(points: Sequence[tuple[float, int]]) -> float | None:
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def _stalled(context: AnalysisContext, source: SourceContext, settings: AnalysisSettings) -> Iterator[Symptom]:
    """Yield the partitions whose commits stand still while records wait and others go forward (Burrow's rule STOP)."""
    limit = COMMITS_PER_WINDOW * settings.commit_seconds
    if not limit or context.run is None or context.at - context.run.started_at < limit:
        return
    own = [p for p in context.observation.partitions if p.operator == source.name]
    still = [
        (context.at - p.committed_at.timestamp(), p)
        for p in own
        if p.committed_at is not None and _waiting(p) and context.at - p.committed_at.timestamp() > limit
    ]
    if still and len(still) < len(own):
        seconds, first = max(still, key=lambda each: each[0])
        others = f" and {len(still) - 1} more" if len(still) > 1 else ""
        which = f"{short_name(first.topic)}/{first.partition}{others}"
        sentence = f"{short_name(source.name)} committed nothing of {which} for {seconds:.0f} s while records wait."
        yield symptom("stalled", sentence, source.name, partitions=len(still), seconds=seconds)


def _stuck(
    context: AnalysisContext, deployment: Deployment, source: SourceContext, settings: AnalysisSettings
) -> Symptom | None:
    """Return the one instance that commits nothing while records wait for it, although others go forward.

    None while tasks move, or while the time of a commit is unknown.
    """
    interval = context.observation.policy.spec.interval.total_seconds()
    limit = max(_STUCK_SECONDS, COMMITS_PER_WINDOW * settings.commit_seconds, 2 * interval)
    if not settings.commit_seconds or context.run is None or moves(deployment):
        return None
    by_owner: dict[str, list[PartitionReading]] = {}
    for p in context.observation.partitions:
        if p.operator == source.name:
            by_owner.setdefault(p.owner, []).append(p)
    stuck: list[tuple[Instance, float]] = []
    forward = doubtful = 0
    for instance in deployment.instances:
        still = _still_seconds(context, by_owner.get(instance.id, ()))
        if still is not None and still <= limit / 2:
            forward += 1
        elif still is None or not any(_waiting(p) for p in by_owner[instance.id]):
            continue  # it has nothing to do, or its commits are unknown
        elif still > limit and context.at - context.run.started_at > limit:
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
    found = symptom("instance-stuck", sentence, source.name, seconds=seconds, waiting_records=records)
    return found.model_copy(update={"instance": instance.id})


def _still_seconds(context: AnalysisContext, partitions: Sequence[PartitionReading]) -> float | None:
    """Return how long none of these partitions has had a new commit; None if that of one with waiting records is unknown."""
    if any(_waiting(p) is None or (_waiting(p) and p.committed_at is None) for p in partitions):
        return None
    times = [p.committed_at.timestamp() for p in partitions if p.committed_at is not None]
    return context.at - max(times) if times else None


def _waiting(p: PartitionReading) -> int | None:
    if p.log_end_offset is None or p.committed_offset is None:
        return None
    return max(0, int(p.log_end_offset - first_waiting(p, p.committed_offset)))
