"""Symptoms: findings for a person, each with a sentence and its numbers."""

from collections.abc import Iterator, Mapping, Sequence

from weir_contracts import Symptom, even_subtasks

from . import messages
from .context import AnalysisContext, OperatorContext, SourceContext
from .groups import group_symptoms
from .lag import BACKLOG_SECONDS
from .offsets import is_of_another_job, offset_symptoms
from .settings import AnalysisSettings
from .state import LogHistory, Point
from .workloads import symptom, workload_symptoms

_MAX_SYMPTOMS = 100
_STALLED_SECONDS = 10.0
_SKEW_RATIO = 1.5
"""Busiest subtask's busy share over the mean, from which the symptom `skewed` is shown."""


def symptoms_of(
    context: AnalysisContext,
    curves: Mapping[str, Sequence[Point]],
    logs: LogHistory,
    settings: AnalysisSettings,
) -> list[Symptom]:
    """All that apply, the application's own before its operators'."""
    found = [
        *_status(context),
        *_gap(context),
        *workload_symptoms(context.observation.deployment, context.observation.observed_at),
        *offset_symptoms(context.observation.partitions, logs, context.at),
        *group_symptoms(context, logs, settings),
        *_warming_up(context, settings),
        *(s for source in context.sources.values() for s in _source(context, source)),
        *(s for operator in context.operators.values() for s in _operator(context, operator, curves)),
        *_missing(context),
    ]
    return found[:_MAX_SYMPTOMS]


def _status(context: AnalysisContext) -> Iterator[Symptom]:
    observation, deployment = context.observation, context.observation.deployment
    restarts = None if deployment is None else deployment.restarts
    if observation.status == "unreachable":
        yield symptom("unreachable", messages.unreachable(observation.message))
    elif observation.status == "not_found":
        yield symptom("not-found", messages.not_found(observation.message))
    elif observation.status == "ended":
        yield symptom("ended", messages.ended())
    elif observation.status == "not_running":
        state = "unknown" if deployment is None else deployment.state
        yield symptom("not-running", messages.not_running(state, observation.message))
        if deployment is not None and deployment.health in ("running", "restarting"):
            yield symptom("restarting", messages.returning(state), restarts=restarts)
    elif context.fresh_run and context.gap_seconds is not None and context.run is not None:
        age = context.at - context.run.started_at
        yield symptom("restarting", messages.new_run(age), run_age_seconds=age, restarts=restarts)


def _gap(context: AnalysisContext) -> Iterator[Symptom]:
    gap = context.gap_seconds
    interval = context.observation.policy.spec.interval.total_seconds()
    if gap is not None and gap > max(3 * interval, interval + 5):
        yield symptom("gap", messages.gap(gap, interval), gap_seconds=gap, interval_seconds=interval)
    if context.lost_records is not None:
        sentence = messages.retention_gap(context.lost_records)
        yield symptom("retention-gap", sentence, observations=context.lost_records)


def _warming_up(context: AnalysisContext, settings: AnalysisSettings) -> Iterator[Symptom]:
    if context.run is None:
        return
    age, warm_up = context.at - context.run.started_at, settings.warm_up_seconds
    window = settings.capacity_window_seconds
    if age < warm_up:
        sentence = messages.warming_up(age, warm_up)
        yield symptom(
            "warming-up", sentence, run_age_seconds=age, warm_up_seconds=warm_up, needed_seconds=warm_up + window
        )
    elif not any(operator.view is not None and operator.view.samples for operator in context.operators.values()):
        sentence = messages.window_not_full(window)
        yield symptom("warming-up", sentence, run_age_seconds=age, needed_seconds=warm_up + window)


def _source(context: AnalysisContext, source: SourceContext) -> Iterator[Symptom]:
    name, operator = source.name, context.operators.get(source.name)
    if context.run is None or operator is None:
        return
    if source.counted is not None:
        counter, offsets = source.counted
        sentence = messages.counted_otherwise(name, counter, offsets)
        yield symptom("contradiction", sentence, name, counter_rate=counter, offsets_rate=offsets)
    own = [p for p in context.observation.partitions if p.operator == name]
    if context.run.positions_at == context.at and is_of_another_job(own):
        positions, commits = (
            sum(getattr(p, each) or 0 for p in own) for each in ("current_offset", "committed_offset")
        )
        sentence = messages.commits_of_another_job(name, positions, commits)
        yield symptom("contradiction", sentence, name, positions=positions, committed_offsets=commits)
    # Of a lower bound the symptom is true, too: what is known to wait does.
    lag, growth, taken = source.lag.records.proven, source.lag.growth.proven, operator.input_rate.value
    numbers = {
        "lag_records": lag,
        "lag_seconds": source.lag.seconds.proven,
        "lag_growth": growth,
        "input_rate": taken,
        "arrival_rate": source.arrival_rate.proven,
    }
    seconds, spent = operator.input_rate.window_seconds or 0.0, operator.spent
    if taken == 0 and lag and seconds >= _STALLED_SECONDS:
        yield symptom("stalled", messages.stalled(name, seconds, lag), name, **numbers)
        return
    if lag is not None and growth is not None and _is_catching_up(source, operator):
        sentence = messages.catching_up(name, lag, -growth)
        yield symptom("catching-up", sentence, name, **numbers, seconds_left=lag / -growth)
    if source.backlogged and operator.measured.saturated and (spent.backpressured or 0.0) < 0.1:
        sentence = messages.source_bound(name, lag, taken, spent.busy)
        shares = {"busy_share": spent.busy, "backpressured_share": spent.backpressured}
        yield symptom("source-bound", sentence, name, **numbers, **shares)


def _is_catching_up(source: SourceContext, operator: OperatorContext) -> bool:
    lag, growth, seconds = source.lag.records.proven, source.lag.growth.proven, source.lag.seconds.proven
    if lag is None or growth is None or growth >= 0 or lag <= 0:
        return False
    if seconds is not None and seconds < BACKLOG_SECONDS:
        return False
    return -growth > 0.02 * (operator.input_rate.value or 0.0) and source.lag.growth.confidence >= 0.3


def _operator(
    context: AnalysisContext, operator: OperatorContext, curves: Mapping[str, Sequence[Point]]
) -> Iterator[Symptom]:
    name, ratio, reading = operator.name, operator.measured.skew.value, operator.reading
    busiest = (reading.busy_share_max if reading else None) or 0.0
    topology = context.observation.topology
    shares = topology.work_shares(name) if topology else None
    # A larger part of the partitions or key groups is no skew of the data: enough subtasks end it.
    steps = operator.parallelism / even_subtasks(operator.parallelism, shares)
    if ratio is not None and reading is not None and ratio >= _SKEW_RATIO * steps and busiest >= 0.5:
        numbers = {"skew": ratio, "busy_share_max": busiest, "busy_share_mean": reading.busy_share_mean}
        yield symptom("skewed", messages.skewed(name, busiest, ratio), name, **numbers)
    if name == context.bottleneck and not operator.is_source:
        yield from _downstream_bound(operator, curves.get(name, ()), shares)


def _downstream_bound(operator: OperatorContext, curve: Sequence[Point], shares: int | None) -> Iterator[Symptom]:
    name, spent, now = operator.name, operator.spent, even_subtasks(operator.parallelism, shares)
    if operator.measured.saturated and spent.busy is not None and spent.busy < 0.5:
        numbers = {"busy_share": spent.busy, "backpressured_share": spent.backpressured}
        yield symptom("downstream-bound", messages.waits_outside(name, spent.busy), name, **numbers)
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
            messages.no_faster(name, here.rate, here.parallelism, best.rate, best.parallelism),
            name,
            capacity=here.rate,
            parallelism=here.parallelism,
            earlier_capacity=best.rate,
            earlier_parallelism=best.parallelism,
        )


def _missing(context: AnalysisContext) -> Iterator[Symptom]:
    if context.observation.status != "running":
        return
    for operator in context.operators.values():
        if (missing := _missing_readings(operator)) == [_NO_BUSY_TIME] and (field := _metrics_field(context)):
            sentence = messages.busy_unknown_without_metrics(operator.name, field)
            yield symptom("metric-missing", sentence, operator.name)
        elif missing:
            yield symptom("metric-missing", messages.readings_missing(operator.name, missing), operator.name)
    for source in context.sources.values():
        for name, unit, found in (
            ("arrival rate", "records/s", source.arrival_rate),
            ("lag", "records", source.lag.records),
        ):
            if found.value is None and context.gap_seconds is not None:
                sentence = messages.estimate_missing(source.name, name, found.lower_bound, unit, found.basis)
                numbers = {} if found.lower_bound is None else {"lower_bound": found.lower_bound}
                yield symptom("metric-missing", sentence, source.name, **numbers)


def _metrics_field(context: AnalysisContext) -> str:
    """Return the field of the policy whose endpoint reports the busy time; empty for an engine without one."""
    deployment = context.observation.deployment
    streams = context.observation.policy.subject.application.kafka_streams
    if streams is not None and streams.metrics is None:
        return "application.kafkaStreams.metrics"
    return "metrics of its consumers" if streams is None and deployment is not None and deployment.group else ""


_NO_BUSY_TIME = "busy time is"


def _missing_readings(operator: OperatorContext) -> list[str]:
    reading = operator.reading
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
