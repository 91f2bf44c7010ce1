"""The analysis as a message."""

from collections.abc import Sequence
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
from .forecast.application import forecasts_of
from .learned import learned_of
from .numbers import at_least, estimate
from .state import AnalyzerState, Point

STAGE = "analysis"


def analysis_of(context: AnalysisContext, state: AnalyzerState, symptoms: Sequence[Symptom]) -> Analysis:
    """The contract's message of everything derived."""
    observation = context.observation
    sources = [_source(context, source) for source in context.sources.values()]
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
        operators=[_operator(context, o, state.capacities.get(o.name, ())) for o in context.operators.values()],
        edges=[
            EdgeAnalysis(source=source, target=target, selectivity=ratio)
            for (source, target), ratio in context.selectivities.items()
        ],
        sources=sources,
        forecasts=forecasts_of(state.forecasts, context.sources or state.forecasts.series, context.at),
        arrival_rate=_sum([s.arrival_rate for s in sources]),
        lag_records=_sum([s.lag_records for s in sources]),
        lag_growth=_sum([s.lag_growth for s in sources], signed=True),
        lag_seconds=_max_of([s.lag_seconds for s in sources]),
        expected_latency_seconds=_max_of([s.expected_latency_seconds for s in sources]),
        bottleneck=context.bottleneck,
        symptoms=list(symptoms),
        restart_times=RestartTimes(
            seconds=state.restarts.seconds,
            last_seconds=state.restarts.last_seconds,
            samples=state.restarts.samples,
            restore_seconds=state.restarts.restore_seconds,
            warm_up_seconds=state.restarts.warm_up_seconds,
        ),
        problems=observation.problems,
        dropped_observations=state.dropped,
        learned={} if observation.status == "ended" else learned_of(state),
    )


def _window(context: AnalysisContext) -> Window:
    views = [o.view for o in context.operators.values() if o.view is not None and o.view.samples]
    if not views:
        return Window()
    view = max(views, key=lambda view: view.seconds)
    started_at = datetime.fromtimestamp(view.at[view.taught], UTC)
    return Window(started_at=started_at, seconds=round(view.seconds, 3), samples=view.samples)


def _operator(context: AnalysisContext, operator: OperatorContext, curve: Sequence[Point]) -> OperatorAnalysis:
    measured = operator.measured
    return OperatorAnalysis(
        operator=operator.name,
        parallelism=operator.parallelism,
        input_rate=operator.input_rate,
        output_rate=operator.output_rate,
        true_processing_rate=measured.whole,
        true_processing_rate_per_subtask=measured.per_subtask,
        min_processing_rate=measured.lower_bound,
        utilization=_share(operator, operator.spent.busy, "busy"),
        backpressure=_share(operator, operator.spent.backpressured, "backpressured"),
        skew=measured.skew,
        target_input_rate=context.targets[operator.name],
        capacities=published(curve),
    )


def _share(operator: OperatorContext, share: float | None, name: str) -> Estimate:
    if share is None:
        return unknown(f"{name} time is unknown, or its window is not full")
    view = operator.view
    if view is not None and view.warm is not None and view.busy_ms[-1] is not None:
        seconds = view.at[-1] - view.at[view.warm]
        return estimate(share, f"{name} time since the warm-up", 0.5, len(view.at) - view.warm, seconds)
    if view is None or not view.samples or view.busy_ms[-1] is None:
        return estimate(share, f"the engine's {name} gauge, a 60 s average", 0.4, 1, 60.0)
    return estimate(share, f"accumulated {name} time", min(0.95, 0.5 + 0.05 * view.samples), view.samples, view.seconds)


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
    if lag.proven is None or taken is None or taken.value is None:
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
    if lag.value is None:
        return at_least(lag.proven / rate, lag.basis, confidence, taken.samples, taken.window_seconds)
    return estimate(lag.value / rate, basis, confidence, taken.samples, taken.window_seconds)


_NO_SOURCE = unknown("no source is known")


def _sum(parts: Sequence[Estimate], *, signed: bool = False) -> Estimate:
    """Return the sum; a lower bound if parts are unknown: the sum of the others, unless these may be negative (`signed`)."""
    if len(parts) == 1:
        return parts[0]
    proven = [part for part in parts if part.proven is not None]
    confidence = min((part.confidence for part in proven), default=0.0)
    samples = min((part.samples for part in proven), default=0)
    value = sum(part.proven or 0.0 for part in proven) if proven else None
    missing = next((part for part in parts if part.value is None), None if parts else _NO_SOURCE)
    if missing is None:
        return estimate(value, f"sum of {len(parts)} sources", confidence, samples)
    return at_least(None if signed and len(proven) < len(parts) else value, missing.basis, confidence, samples)


def _max_of(parts: Sequence[Estimate]) -> Estimate:
    """Return the largest; a lower bound if parts are unknown: the largest of the others."""
    missing = next((part for part in parts if part.value is None), None)
    proven = [part for part in parts if part.proven is not None]
    largest = max(proven, key=lambda part: part.proven or 0.0, default=_NO_SOURCE)
    if missing is None:
        return largest
    return at_least(largest.proven, missing.basis, largest.confidence, largest.samples, largest.window_seconds)
