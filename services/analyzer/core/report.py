"""The analysis as a message, from the picture of the application."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from weir_contracts import (
    Analysis,
    EdgeAnalysis,
    Estimate,
    OperatorAnalysis,
    RestartTimes,
    SourceAnalysis,
    Symptom,
    Window,
    derive_id,
    unknown,
)

from .capacity import published
from .context import AnalysisContext, OperatorContext, SourceContext
from .learned import learned_of
from .memory import Memory, Point
from .numbers import estimate, total

STAGE = "analysis"


def analysis_of(context: AnalysisContext, memory: Memory, symptoms: Sequence[Symptom]) -> Analysis:
    """Everything that is known, as the contract says it."""
    observation = context.observation
    sources = [_source(context, source) for source in context.sources.values()]
    nothing = "no source is known"
    return Analysis(
        id=derive_id(observation.id, STAGE),
        application=observation.application,
        observation_id=observation.id,
        observed_at=observation.observed_at,
        policy=observation.policy,
        status=observation.status,
        message=observation.message,
        run=observation.run,
        deployment=observation.deployment,
        topology=observation.topology,
        window=_window(context),
        operators=[_operator(context, o, memory.capacities.get(o.name, ())) for o in context.operators.values()],
        edges=[
            EdgeAnalysis(source=source, target=target, selectivity=ratio)
            for (source, target), ratio in context.selectivities.items()
        ],
        sources=sources,
        arrival_rate=_sum((s.arrival_rate for s in sources), nothing),
        lag_records=_sum((s.lag_records for s in sources), nothing),
        lag_growth=_sum((s.lag_growth for s in sources), nothing),
        lag_seconds=_max_of([s.lag_seconds for s in sources], nothing),
        expected_latency_seconds=_max_of([s.expected_latency_seconds for s in sources], nothing),
        bottleneck=context.bottleneck,
        symptoms=list(symptoms),
        restart_times=RestartTimes(
            seconds=memory.restarts.seconds,
            last_seconds=memory.restarts.last_seconds,
            samples=memory.restarts.samples,
        ),
        problems=observation.problems,
        dropped_observations=memory.dropped,
        learnt={} if observation.status == "ended" else learned_of(memory),
    )


def _window(context: AnalysisContext) -> Window:
    views = [o.view for o in context.operators.values() if o.view is not None and o.view.taught]
    if not views:
        return Window()
    window = max(views, key=lambda view: view.seconds)
    return Window(
        started_at=datetime.fromtimestamp(window.taught[0].at, UTC),
        seconds=round(window.seconds, 3),
        samples=len(window.taught),
    )


def _operator(context: AnalysisContext, operator: OperatorContext, curve: Sequence[Point]) -> OperatorAnalysis:
    measured = operator.measured
    return OperatorAnalysis(
        operator=operator.name,
        parallelism=operator.parallelism,
        input_rate=operator.input_rate,
        output_rate=operator.output_rate,
        true_processing_rate=measured.whole,
        true_processing_rate_per_subtask=measured.per_subtask,
        least_processing_rate=measured.lower_bound,
        utilisation=_share(operator, operator.spent.busy, "busy"),
        backpressure=_share(operator, operator.spent.backpressured, "backpressured"),
        skew=measured.skew,
        target_input_rate=context.targets[operator.name],
        capacities=published(curve),
    )


def _share(operator: OperatorContext, share: float | None, what: str) -> Estimate:
    if share is None:
        return unknown(f"{what} time is unknown, or its window is not full")
    taught = operator.view.taught if operator.view is not None else ()
    if not taught or taught[-1].busy_ms is None:
        return estimate(share, f"the engine's {what} gauge, a 60 s average", 0.4, 1, 60.0)
    seconds = taught[-1].at - taught[0].at
    return estimate(share, f"accumulated {what} time", min(0.95, 0.5 + 0.05 * len(taught)), len(taught), seconds)


def _source(context: AnalysisContext, source: SourceContext) -> SourceAnalysis:
    partitions = sum(1 for p in context.observation.partitions if p.operator == source.name)
    return SourceAnalysis(
        operator=source.name,
        arrival_rate=source.arrival_rate,
        arrival_rate_trend=source.arrival_rate_trend,
        lag_records=source.lag.records,
        lag_growth=source.lag.growth,
        lag_seconds=source.lag.seconds,
        expected_latency_seconds=_expected_latency(context, source),
        partitions=partitions or None,
    )


def _expected_latency(context: AnalysisContext, source: SourceContext) -> Estimate:
    """Lag records ÷ processing rate.

    A backlogged source shows that rate by its throughput. Otherwise throughput is only what happened to arrive; the
    rate is then what it would be with the busiest operator busy all the time.
    """
    lag, operator = source.lag.records, context.operators.get(source.name)
    taken = None if operator is None else operator.input_rate
    if lag.value is None or taken is None or taken.value is None:
        return unknown("lag or throughput is unknown")
    if lag.value == 0:
        return estimate(0.0, "nothing waits", lag.confidence, lag.samples)
    if taken.value == 0:
        return unknown("nothing is being processed")
    rate, basis = taken.value, "lag ÷ throughput"
    busy = max((o.spent.busy or 0.0 for o in context.operators.values()), default=0.0)
    if not source.backlogged and 0.05 <= busy < 1:
        rate, basis = rate / busy, "lag ÷ throughput at full use of the busiest operator"
    confidence = 0.9 * min(lag.confidence, taken.confidence)
    return estimate(lag.value / rate, basis, confidence, taken.samples, taken.window_seconds)


def _sum(parts: Iterable[Estimate], nothing: str) -> Estimate:
    present = list(parts)
    if len(present) == 1:
        return present[0]
    value = total(part.value for part in present)
    if value is None:
        missing = next((part.basis for part in present if part.value is None), nothing)
        return unknown(missing)
    return estimate(
        value, f"sum of {len(present)} sources", min(p.confidence for p in present), min(p.samples for p in present)
    )


def _max_of(parts: Sequence[Estimate], nothing: str) -> Estimate:
    if not parts:
        return unknown(nothing)
    missing = next((part for part in parts if part.value is None), None)
    return missing if missing is not None else max(parts, key=lambda part: part.value or 0.0)
