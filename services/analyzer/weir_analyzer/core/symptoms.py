"""Symptoms of the application, its operators and its Kubernetes workloads: findings for a person, each with a sentence
and its numbers."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from weir_contracts import (
    Deployment,
    Pod,
    Symptom,
    WorkloadStatus,
    after_colon,
    bounded,
    counted,
    even_subtasks,
    formatted,
    short_name,
)

from .analysis import Findings, OperatorFindings, SourceFindings, symptom
from .capacity import Point
from .group_symptoms import group_symptoms, offset_symptoms
from .lag import BACKLOG_SECONDS, NO_METRIC
from .offsets import LogHistory, is_of_another_job
from .window import AnalysisSettings

_MAX_SYMPTOMS = 100
_STALLED_SECONDS = 10.0
_SKEW_RATIO = 1.5
"""Busiest subtask's busy share over the mean, from which the symptom `skewed` is shown."""
_CRASHES = ("CrashLoopBackOff", "Error", "OOMKilled", "ContainerCannotRun", "StartError", "RunContainerError")
_REASON_LENGTH = 90
"""Characters of Kubernetes' own reason in a sentence."""


def symptoms_of(
    findings: Findings,
    curves: Mapping[str, Sequence[Point]],
    logs: LogHistory,
    settings: AnalysisSettings,
) -> list[Symptom]:
    """All that apply, the application's own before its operators'."""
    symptoms = [
        *_status(findings),
        *_gap(findings),
        *workload_symptoms(findings.observation.deployment, findings.observation.observed_at),
        *offset_symptoms(findings.observation.partitions, logs, findings.at),
        *group_symptoms(findings, logs, settings),
        *_warming_up(findings, settings),
        *(s for source in findings.sources.values() for s in _source(findings, source)),
        *(s for operator in findings.operators.values() for s in _operator(findings, operator, curves)),
        *_missing(findings),
    ]
    return symptoms[:_MAX_SYMPTOMS]


def _status(findings: Findings) -> Iterator[Symptom]:
    observation, deployment = findings.observation, findings.observation.deployment
    restarts = None if deployment is None else deployment.restarts
    reason = after_colon(observation.message)
    if observation.status == "unreachable":
        yield symptom("unreachable", f"The application cannot be reached{reason}.")
    elif observation.status == "not_found":
        yield symptom("not-found", f"The cluster has no such job{reason}.")
    elif observation.status == "ended":
        yield symptom("ended", "The policy was deleted; the analyzer drops the application's state.")
    elif observation.status == "not_running":
        state = "unknown" if deployment is None else deployment.state
        if deployment is not None and deployment.group is not None and deployment.group.state == "Empty":
            name = short_name(deployment.group.id)
            yield symptom(
                "not-running", f"The group {name} has no members: nothing processes its records. Start its consumers."
            )
        else:
            yield symptom("not-running", f"The job is in state {state}, not all of its tasks run{reason}.")
        if deployment is not None and deployment.health in ("running", "restarting"):
            yield symptom("restarting", f"The job is starting again (state {state}).", restarts=restarts)
    elif findings.fresh_run and findings.gap_seconds is not None and findings.run is not None:
        age = findings.at - findings.run.started_at
        yield symptom("restarting", f"A new run began {age:.0f} s ago.", run_age_seconds=age, restarts=restarts)


def _gap(findings: Findings) -> Iterator[Symptom]:
    gap = findings.gap_seconds
    interval = findings.observation.policy.spec.interval.total_seconds()
    if gap is not None and gap > max(3 * interval, interval + 5):
        sentence = f"No observation came for {gap:.0f} s; the interval is {interval:.0f} s."
        yield symptom("gap", sentence, gap_seconds=gap, interval_seconds=interval)
    if (lost := findings.lost_records) is not None:
        sentence = f"Retention deleted {lost} observations of this application's partition before they could be read."
        yield symptom("retention-gap", sentence, observations=lost)


def _warming_up(findings: Findings, settings: AnalysisSettings) -> Iterator[Symptom]:
    if findings.run is None:
        return
    age, warm_up = findings.at - findings.run.started_at, settings.warm_up_seconds
    window = settings.capacity_window_seconds
    if age < warm_up:
        sentence = f"The run is {age:.0f} s old; its readings count from {warm_up:.0f} s on."
        yield symptom(
            "warming-up", sentence, run_age_seconds=age, warm_up_seconds=warm_up, needed_seconds=warm_up + window
        )
    elif not any(
        operator.window.view is not None and operator.window.view.samples for operator in findings.operators.values()
    ):
        needs = f"{window:.0f} s of samples since the warm-up and the brokers' last absence"
        sentence = f"The window is not full: it needs {needs}."
        yield symptom("warming-up", sentence, run_age_seconds=age, needed_seconds=warm_up + window)


def _source(findings: Findings, source: SourceFindings) -> Iterator[Symptom]:
    name, operator = source.name, findings.operators.get(source.name)
    if findings.run is None or operator is None:
        return
    if source.counted is not None:
        counter, offsets = source.counted
        why = "not all of its partitions are known" if counter > offsets else "it drops records"
        taken_in = f"{formatted(counter)} records/s by its counter and {formatted(offsets)} by its offsets"
        sentence = f"{short_name(name)} takes in {taken_in}: perhaps {why}."
        yield symptom("contradiction", sentence, name, counter_rate=counter, offsets_rate=offsets)
    yield from _late_at_source(findings, source)
    if source.doubt:
        yield symptom("contradiction", f"{short_name(name)}: {source.doubt}: its busy time is not used.", name)
    partitions = [p for p in findings.observation.partitions if p.operator == name]
    if findings.run.positions_at == findings.at and is_of_another_job(partitions):
        positions = sum(p.current_offset or 0 for p in partitions)
        commits = sum(p.committed_offset or 0 for p in partitions)
        ahead = f"the group's commits ({commits:,}) are ahead of its moving positions ({positions:,})"
        sentence = f"{short_name(name)}: {ahead}, so that another job commits: check signals.kafka.groupId."
        yield symptom("contradiction", sentence, name, positions=positions, committed_offsets=commits)
    # Of a lower bound the symptom is true, too: what is known to wait does.
    lag, growth, taken = source.lag.records.proven, source.lag.growth.proven, operator.window.input_rate.value
    numbers = {
        "lag_records": lag,
        "lag_seconds": source.lag.seconds.proven,
        "lag_growth": growth,
        "input_rate": taken,
        "arrival_rate": source.arrival_rate.proven,
    }
    seconds, spent = operator.window.input_rate.window_seconds or 0.0, operator.window.spent
    if taken == 0 and lag and seconds >= _STALLED_SECONDS:
        sentence = f"{name} took nothing in for {seconds:.0f} s while {formatted(lag)} records wait."
        yield symptom("stalled", sentence, name, **numbers)
        return
    if lag is not None and growth is not None and _is_catching_up(source, operator):
        shrinks = f"shrinks by {formatted(-growth)} records/s: cleared in {lag / -growth:.0f} s"
        sentence = f"The lag of {formatted(lag)} records at {name} {shrinks}."
        yield symptom("catching-up", sentence, name, **numbers, seconds_left=lag / -growth)
    if source.backlogged and operator.measured.saturated and (spent.backpressured or 0.0) < 0.1:
        busy = "unknown" if spent.busy is None else f"{spent.busy:.0%}"
        sentence = (
            f"{name} lags by {formatted(lag)} records and nothing behind it holds it back: reading is the limit, "
            f"at {formatted(taken)} records/s, {busy} busy."
        )
        shares = {"busy_share": spent.busy, "backpressured_share": spent.backpressured}
        yield symptom("source-bound", sentence, name, **numbers, **shares)


def _late_at_source(findings: Findings, source: SourceFindings) -> Iterator[Symptom]:
    """Yield the symptom of records that come later than the objective allows, by the metric that it names."""
    objective, seconds = findings.observation.policy.spec.objective, source.lag.seconds.value
    metric, bound = objective.lag_metric, objective.bound_seconds
    if metric is None or bound is None or seconds is None or seconds <= bound or source.lag.records.value != 0:
        return
    sentence = (
        f"{short_name(source.name)}: {metric} is {seconds:,.0f} s while nothing waits, above the {bound:,.0f} s of maxLag: "
        "no parallelism makes it shorter."
    )
    yield symptom("late-at-source", sentence, source.name, lag_seconds=seconds, objective_seconds=bound)


def _is_catching_up(source: SourceFindings, operator: OperatorFindings) -> bool:
    lag, growth, seconds = source.lag.records.proven, source.lag.growth.proven, source.lag.seconds.proven
    if lag is None or growth is None or growth >= 0 or lag <= 0:
        return False
    if seconds is not None and seconds < BACKLOG_SECONDS:
        return False
    return -growth > 0.02 * (operator.window.input_rate.value or 0.0) and source.lag.growth.confidence >= 0.3


def _operator(
    findings: Findings, operator: OperatorFindings, curves: Mapping[str, Sequence[Point]]
) -> Iterator[Symptom]:
    name, ratio, reading = operator.name, operator.measured.skew.value, operator.window.reading
    busiest = (reading.busy_share_max if reading else None) or 0.0
    topology = findings.observation.topology
    shares = topology.work_shares(name) if topology else None
    # A larger part of the partitions or key groups is no skew of the data: enough subtasks end it.
    steps = operator.parallelism / even_subtasks(operator.parallelism, shares)
    if ratio is not None and reading is not None and ratio >= _SKEW_RATIO * steps and busiest >= 0.5:
        numbers = {"skew": ratio, "busy_share_max": busiest, "busy_share_mean": reading.busy_share_mean}
        mean = f"{busiest:.0%} busy, {ratio:.1f} times the mean"
        yield symptom("skewed", f"The busiest subtask of {name} is {mean}: more subtasks help little.", name, **numbers)
    if name == findings.bottleneck and not operator.is_source:
        yield from _downstream_bound(operator, curves.get(name, ()), shares)


def _downstream_bound(operator: OperatorFindings, curve: Sequence[Point], shares: int | None) -> Iterator[Symptom]:
    name, spent, now = operator.name, operator.window.spent, even_subtasks(operator.parallelism, shares)
    if operator.measured.saturated and spent.busy is not None and spent.busy < 0.5:
        numbers = {"busy_share": spent.busy, "backpressured_share": spent.backpressured}
        sentence = f"{name} holds its inputs back while only {spent.busy:.0%} busy: it waits for something outside."
        yield symptom("downstream-bound", sentence, name, **numbers)
    here = next((p for p in curve if p.parallelism == operator.parallelism and p.saturated), None)
    fewer = [
        p for p in curve if p.saturated and even_subtasks(p.parallelism, shares) * 1.5 <= now and p.confidence >= 0.3
    ]
    if here is None or not fewer:
        return
    best = max(fewer, key=lambda p: p.rate)
    if here.rate < 1.1 * best.rate:
        yield symptom(
            "downstream-bound",
            f"{name} takes in {formatted(here.rate)} records/s with {counted(here.parallelism, 'subtask')} and took "
            f"{formatted(best.rate)} with {best.parallelism}: the system it writes to or waits for is the limit.",
            name,
            capacity=here.rate,
            parallelism=here.parallelism,
            earlier_capacity=best.rate,
            earlier_parallelism=best.parallelism,
        )


def _missing(findings: Findings) -> Iterator[Symptom]:
    if findings.observation.status != "running":
        return
    for operator in findings.operators.values():
        if (missing := _missing_readings(operator)) == [_NO_BUSY_TIME] and (field := _metrics_field(findings)):
            unknown = f"busy time is unknown without {field}, so capacity is known only while records wait"
            yield symptom("metric-missing", f"{short_name(operator.name)}: {unknown}.", operator.name)
        elif missing:
            yield symptom("metric-missing", f"{operator.name}: {' and '.join(missing)} unknown.", operator.name)
    metric = findings.observation.policy.spec.objective.lag_metric
    for source in findings.sources.values():
        if metric is not None and NO_METRIC in source.lag.seconds.basis:
            sentence = f"{source.name}: it reports no {metric}, which the objective names: another lag is used."
            yield symptom("metric-missing", sentence, source.name)
        for name, unit, value in (
            ("arrival rate", "records/s", source.arrival_rate),
            ("lag", "records", source.lag.records),
        ):
            if value.value is None and findings.gap_seconds is not None:
                bound, known = value.lower_bound, "unknown"
                if bound is not None:
                    known = f"at least {formatted(bound)} {unit}"
                numbers = {} if bound is None else {"lower_bound": bound}
                sentence = f"{source.name}: {name} {known}, {value.basis}."
                yield symptom("metric-missing", sentence, source.name, **numbers)


def _metrics_field(findings: Findings) -> str:
    """Return what would report the busy time, such as a field of the policy; empty if something does."""
    application = findings.observation.policy.subject.application
    return "" if application.has_busy_time else application.unread_metrics or "metrics of its consumers"


_NO_BUSY_TIME = "busy time is"


def _missing_readings(operator: OperatorFindings) -> list[str]:
    reading = operator.window.reading
    if reading is None:
        return ["every reading is"]
    if reading.finished:
        return []
    if not reading.complete:
        return ["the readings of some subtasks are"]
    missing = []
    if reading.records_in is None and not (operator.is_source and reading.records_out is not None):
        missing.append("records in")
    if reading.busy_ms is None and reading.busy_share_mean is None:
        missing.append("busy time")
    if missing:
        missing[-1] += " is" if len(missing) == 1 else " are"
    return missing


def workload_symptoms(deployment: Deployment | None, now: datetime) -> Iterator[Symptom]:
    """Yield the symptoms of each workload at `now`; none for a deployment without Kubernetes workloads."""
    if deployment is None:
        return
    several = len(deployment.workloads) > 1
    for workload in deployment.workloads:
        pods = [pod for pod in deployment.pods if not several or pod.workload == workload.name]
        operator = workload.name if workload.name in deployment.observed else None
        yield from _of_workload(workload, pods, operator, now)


def _of_workload(
    workload: WorkloadStatus, pods: Sequence[Pod], operator: str | None, now: datetime
) -> Iterator[Symptom]:
    name = f"{workload.kind} {workload.name}"
    live = [pod for pod in pods if pod.phase not in ("Succeeded", "Failed")]
    crashing = [pod for pod in live if _is_crashing(pod)]
    yield from _pending(workload, live, name, operator)
    if crashing:
        restarts = [pod.restarts for pod in crashing if pod.restarts is not None]
        total = sum(restarts) if restarts else None
        subject = "1 pod crashes" if len(crashing) == 1 else f"{len(crashing)} pods crash"
        times = "" if total is None else f", {total} restarts so far"
        reason = bounded(next(filter(None, (pod.reason for pod in crashing)), ""), _REASON_LENGTH)
        sentence = f"{name}: {subject} again and again{times}{after_colon(reason)}."
        yield symptom("pods-crashing", sentence, operator, pods=len(crashing), restarts=total)
    killed = [pod for pod in live if pod.out_of_memory and pod.restarts_persist(now)]
    if killed:
        limit = next((pod.memory_limit_bytes for pod in killed if pod.memory_limit_bytes is not None), None)
        subject = "1 pod was" if len(killed) == 1 else f"{len(killed)} pods were"
        exceeded = "its memory limit" if limit is None else f"the memory limit of {limit / 2**20:,.0f} MiB"
        sentence = f"{name}: {subject} ended and restarted for exceeding {exceeded}."
        yield symptom("out-of-memory", sentence, operator, pods=len(killed), memory_limit_bytes=limit)
    if workload.rolling_out:
        updated = "an unknown number" if workload.updated is None else str(workload.updated)
        sentence = f"{name}: a rollout runs; {updated} of {workload.wanted} replicas have the new version."
        yield symptom("rollout", sentence, operator, updated=workload.updated, wanted=workload.wanted)
    elif workload.paused:
        sentence = f"{name}: its rollout is paused (spec.paused): new replicas may run the earlier version."
        yield symptom("rollout", sentence, operator, updated=workload.updated, wanted=workload.wanted)


def _pending(workload: WorkloadStatus, live: Sequence[Pod], name: str, operator: str | None) -> Iterator[Symptom]:
    """Yield the symptom of replicas that are not created or not running; a crashing pod has its own."""
    waiting = [pod for pod in live if pod.phase == "Pending" and not _is_crashing(pod)]
    absent = 0 if workload.current is None else max(0, workload.wanted - workload.current)
    missing = len(waiting) + absent
    if not missing:
        return
    verb = "is" if missing == 1 else "are"
    reason = bounded(next(filter(None, (workload.reason, *(pod.reason for pod in waiting))), ""), _REASON_LENGTH)
    sentence = f"{name}: {missing} of {workload.wanted} replicas {verb} not running{after_colon(reason)}."
    numbers = {"pending": len(waiting), "not_created": absent, "wanted": workload.wanted}
    yield symptom("pods-pending", sentence, operator, **numbers)


def _is_crashing(pod: Pod) -> bool:
    return pod.reason.partition(":")[0] in _CRASHES
