"""Symptoms: what a person should know, each with a sentence and the numbers it rests on."""

from collections.abc import Iterator, Mapping, Sequence

from weir_contracts import Symptom, SymptomCode

from .context import AnalysisContext, OperatorContext, SourceContext
from .memory import Point
from .numbers import formatted
from .settings import AnalysisSettings

_MAX_SYMPTOMS = 100
_STALLED_SECONDS = 10.0


def symptoms_of(
    context: AnalysisContext, curves: Mapping[str, Sequence[Point]], settings: AnalysisSettings
) -> list[Symptom]:
    """All that apply, the application's own before its operators'."""
    found = [
        *_status(context),
        *_gap(context),
        *_warming_up(context, settings),
        *(s for source in context.sources.values() for s in _source(context, source, settings)),
        *(s for operator in context.operators.values() for s in _operator(context, operator, curves, settings)),
        *_missing(context),
    ]
    return found[:_MAX_SYMPTOMS]


def _symptom(
    code: SymptomCode, evidence: str, numbers: dict[str, float | None] | None = None, operator: str | None = None
) -> Symptom:
    rounded = {name: None if n is None else round(n, 3) for name, n in (numbers or {}).items()}
    return Symptom(code=code, operator=operator, evidence=evidence[:2000], numbers=rounded)


def _status(context: AnalysisContext) -> Iterator[Symptom]:
    observation = context.observation
    message = f": {observation.message}" if observation.message else ""
    restarts = None if observation.deployment is None else observation.deployment.restarts
    if observation.status == "unreachable":
        yield _symptom("unreachable", f"The application cannot be reached{message}.")
    elif observation.status == "not_found":
        yield _symptom("not-found", f"The cluster answers but has no such job{message}.")
    elif observation.status == "ended":
        yield _symptom("ended", "The policy was deleted; the application is forgotten.")
    elif observation.status == "not_running":
        state = "unknown" if observation.deployment is None else observation.deployment.state
        yield _symptom("not-running", f"The job is in state {state}, not all of its tasks run{message}.")
        if observation.deployment is not None and observation.deployment.health in ("running", "restarting"):
            yield _symptom("restarting", f"The job is on its way back up (state {state}).", {"restarts": restarts})
    elif context.fresh_run and context.gap_seconds is not None and context.run is not None:
        age = context.at - context.run.started_at
        yield _symptom(
            "restarting", f"A new run began {age:.0f} s ago.", {"run_age_seconds": age, "restarts": restarts}
        )


def _gap(context: AnalysisContext) -> Iterator[Symptom]:
    gap = context.gap_seconds
    interval = context.observation.policy.spec.interval.total_seconds()
    if gap is not None and gap > max(3 * interval, interval + 5):
        numbers: dict[str, float | None] = {"gap_seconds": gap, "interval_seconds": interval}
        yield _symptom("gap", f"Nothing was observed for {gap:.0f} s; the interval is {interval:.0f} s.", numbers)
    if context.lost_records is not None:
        yield _symptom(
            "retention-gap",
            f"{context.lost_records} observations of this application's partition were deleted by retention before "
            "they could be read.",
            {"observations": context.lost_records},
        )


def _warming_up(context: AnalysisContext, settings: AnalysisSettings) -> Iterator[Symptom]:
    if context.run is None:
        return
    age = context.at - context.run.started_at
    if age < settings.warm_up_seconds:
        yield _symptom(
            "warming-up",
            f"The run is {age:.0f} s old; its readings teach from {settings.warm_up_seconds:.0f} s on.",
            {"run_age_seconds": age, "warm_up_seconds": settings.warm_up_seconds},
        )
    elif not any(o.view is not None and o.view.taught for o in context.operators.values()):
        needed = settings.warm_up_seconds + settings.capacity_window_seconds
        yield _symptom(
            "warming-up",
            f"The window is not full: {settings.capacity_window_seconds:.0f} s of samples after the warm-up, and since "
            "the brokers were last away, are needed.",
            {"run_age_seconds": age, "needed_seconds": needed},
        )


def _source(context: AnalysisContext, source: SourceContext, settings: AnalysisSettings) -> Iterator[Symptom]:
    operator = context.operators.get(source.name)
    if context.run is None or operator is None:
        return
    lag, growth = source.lag.records.value, source.lag.growth.value
    taken = operator.input_rate.value
    numbers: dict[str, float | None] = {
        "lag_records": lag,
        "lag_seconds": source.lag.seconds.value,
        "lag_growth": growth,
        "input_rate": taken,
        "arrival_rate": source.arrival_rate.value,
    }
    observed_seconds = operator.input_rate.window_seconds or 0.0
    if taken == 0 and lag and observed_seconds >= _STALLED_SECONDS:
        yield _symptom(
            "stalled",
            f"{source.name} took nothing in for {observed_seconds:.0f} s while {formatted(lag)} records wait.",
            numbers,
            source.name,
        )
        return
    if lag is not None and growth is not None and _is_catching_up(source, operator, settings):
        yield _symptom(
            "catching-up",
            f"The lag of {formatted(lag)} records at {source.name} shrinks by {formatted(-growth)} records/s: cleared in "
            f"{lag / -growth:.0f} s.",
            {**numbers, "seconds_left": lag / -growth},
            source.name,
        )
    if source.backlogged and operator.measured.saturated and (operator.spent.backpressured or 0.0) < 0.1:
        yield _symptom(
            "source-bound",
            f"{source.name} lags by {formatted(lag)} records though nothing behind it holds it back: reading is the limit, "
            f"at {formatted(taken)} records/s and {formatted(operator.spent.busy)} busy.",
            {**numbers, "busy_share": operator.spent.busy, "backpressured_share": operator.spent.backpressured},
            source.name,
        )


def _is_catching_up(source: SourceContext, operator: OperatorContext, settings: AnalysisSettings) -> bool:
    lag, growth, seconds = source.lag.records.value, source.lag.growth.value, source.lag.seconds.value
    if lag is None or growth is None or growth >= 0 or lag <= 0:
        return False
    if seconds is not None and seconds < settings.backlog_seconds:
        return False
    return -growth > 0.02 * (operator.input_rate.value or 0.0) and source.lag.growth.confidence >= 0.3


def _operator(
    context: AnalysisContext,
    operator: OperatorContext,
    curves: Mapping[str, Sequence[Point]],
    settings: AnalysisSettings,
) -> Iterator[Symptom]:
    uneven, reading = operator.measured.skew.value, operator.reading
    if uneven is not None and reading is not None and uneven >= settings.skew_ratio:
        busiest = reading.busy_share_max or 0.0
        if busiest >= 0.5:
            yield _symptom(
                "skewed",
                f"The busiest subtask of {operator.name} is {busiest:.0%} busy, {uneven:.1f} times the mean: more "
                "subtasks help little.",
                {"skew": uneven, "busy_share_max": busiest, "busy_share_mean": reading.busy_share_mean},
                operator.name,
            )
    yield from _downstream_bound(context, operator, curves.get(operator.name, ()))


def _downstream_bound(context: AnalysisContext, operator: OperatorContext, curve: Sequence[Point]) -> Iterator[Symptom]:
    if operator.name != context.bottleneck or operator.is_source:
        return
    spent = operator.spent
    if operator.measured.saturated and spent.busy is not None and spent.busy < 0.5:
        yield _symptom(
            "downstream-bound",
            f"{operator.name} holds its inputs back while only {spent.busy:.0%} busy: it waits for something outside.",
            {"busy_share": spent.busy, "backpressured_share": spent.backpressured},
            operator.name,
        )
    here = next((p for p in curve if p.parallelism == operator.parallelism and p.saturated), None)
    fewer = [p for p in curve if p.saturated and p.parallelism * 1.5 <= operator.parallelism and p.confidence >= 0.3]
    if here is None or not fewer:
        return
    best = max(fewer, key=lambda p: p.rate)
    if here.rate < 1.1 * best.rate:
        yield _symptom(
            "downstream-bound",
            f"{operator.name} takes in {formatted(here.rate)} records/s with {here.parallelism} subtasks and took "
            f"{formatted(best.rate)} with {best.parallelism}: what it writes to or waits for is the limit.",
            {
                "capacity": here.rate,
                "parallelism": here.parallelism,
                "earlier_capacity": best.rate,
                "earlier_parallelism": best.parallelism,
            },
            operator.name,
        )


def _missing(context: AnalysisContext) -> Iterator[Symptom]:
    if context.observation.status != "running":
        return
    for operator in context.operators.values():
        lacking = _lacking(operator)
        if lacking:
            yield _symptom("metric-missing", f"{operator.name}: {' and '.join(lacking)} unknown.", {}, operator.name)
    for source in context.sources.values():
        for what, reported in (("arrival rate", source.arrival_rate), ("lag", source.lag.records)):
            if reported.value is None and context.gap_seconds is not None:
                yield _symptom("metric-missing", f"{source.name}: {what} unknown, {reported.basis}.", {}, source.name)


def _lacking(operator: OperatorContext) -> list[str]:
    reading = operator.reading
    if reading is None:
        return ["every reading is"]
    if not reading.complete:
        return ["the readings of some subtasks are"]
    lacking = []
    if reading.records_in is None and not (operator.is_source and reading.records_out is not None):
        lacking.append("records in")
    if reading.busy_ms is None and reading.busy_share_mean is None:
        lacking.append("busy time")
    if lacking:
        lacking[-1] += " is" if len(lacking) == 1 else " are"
    return lacking
