"""What one observation says of an application, and the message made of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from weir_contracts import (
    MAX_SENTENCE,
    Analysis,
    EdgeAnalysis,
    Estimate,
    Observation,
    OperatorAnalysis,
    OperatorReading,
    RestartTimes,
    SourceAnalysis,
    Symptom,
    SymptomCode,
    Window,
    bounded,
    derive_id,
    unknown,
)

from .capacity import Measured, Point, published
from .demand import Counted
from .forecast.application import forecasts_of
from .lag import SourceLag
from .run import RunState, Shares, View
from .state import AnalyzerState, learned_of
from .window import at_least, estimate

_NO_SOURCE = unknown("no source is known")
_OPERATORS: Callable[[object], list[OperatorAnalysis]] = TypeAdapter(list[OperatorAnalysis]).validator.validate_python
_EDGES: Callable[[object], list[EdgeAnalysis]] = TypeAdapter(list[EdgeAnalysis]).validator.validate_python
"""Make the messages of dictionaries, all at once: a topology has dozens of them, and constructors take half as long again."""


class OperatorWindow(NamedTuple):
    """One operator's readings in the current window."""

    reading: OperatorReading | None
    view: View | None
    spent: Shares
    input_rate: Estimate
    output_rate: Estimate


class OperatorFindings(NamedTuple):
    """One operator: its readings in the current window and what they mean."""

    name: str
    parallelism: int
    is_source: bool
    window: OperatorWindow
    measured: Measured
    learned_rate: float | None
    """Capacity learned at this parallelism, records/s."""

    @property
    def capacity(self) -> float | None:
        """The measured capacity at this parallelism, else the learned one, records/s."""
        return self.measured.whole.value if self.measured.whole.value is not None else self.learned_rate


class SourceFindings(NamedTuple):
    """One source's demand and lag."""

    name: str
    arrival_rate: Estimate
    arrival_rate_trend: Estimate
    lag: SourceLag
    backlogged: bool
    waiting_since: float | None = None
    """Time since which records wait for a group whose throughput is known from commits."""
    counted: Counted | None = None
    """What it took in by its counter and by its offsets, if they contradict each other."""
    doubt: str = ""
    """Why the busy time of a source without offsets is not believed; empty: it is."""


@dataclass(slots=True)
class Findings:
    """The application at one observation. `advance` fills in what follows from its topology."""

    observation: Observation
    at: float
    run: RunState | None
    """The run the observation was taken in; None while the job is not running."""
    stale_seconds: float
    """Time for which the engine's snapshot has not changed."""
    fresh_run: bool
    gap_seconds: float | None
    """Time since the observation before."""
    lost_records: int | None
    """Observations of this application's partition that retention deleted before they were read."""
    operators: dict[str, OperatorFindings] = field(default_factory=dict)
    """Those whose parallelism is known."""
    sources: dict[str, SourceFindings] = field(default_factory=dict)
    targets: dict[str, Estimate] = field(default_factory=dict)
    """Input rate of each operator if every source kept up, records/s."""
    selectivities: dict[tuple[str, str], Estimate] = field(default_factory=dict)
    bottleneck: str | None = None


def symptom(code: SymptomCode, evidence: str, operator: str | None = None, **numbers: float | None) -> Symptom:
    """Return a symptom with its numbers rounded."""
    rounded = {name: None if number is None else round(number, 3) for name, number in numbers.items()}
    return Symptom(code=code, operator=operator, evidence=bounded(evidence, MAX_SENTENCE), numbers=rounded)


def analysis_of(findings: Findings, state: AnalyzerState, symptoms: Sequence[Symptom]) -> Analysis:
    """Return the contract's message of everything derived."""
    observation, restarts = findings.observation, state.restarts
    operators, sources = findings.operators.values(), []
    busiest = max((operator.window.spent.busy or 0.0 for operator in operators), default=0.0)
    for source in findings.sources.values():
        operator = findings.operators.get(source.name)
        taken = None if operator is None else operator.window.input_rate
        partitions = sum(1 for p in observation.partitions if p.operator == source.name)
        sources.append(
            SourceAnalysis(
                operator=source.name,
                arrival_rate=source.arrival_rate,
                arrival_rate_trend=source.arrival_rate_trend,
                lag_records=source.lag.records,
                lag_growth=source.lag.growth,
                lag_seconds=source.lag.seconds,
                expected_latency_seconds=_expected_latency(source, taken, busiest),
                partitions=partitions or None,
            )
        )
    views = [o.window.view for o in operators if o.window.view is not None and o.window.view.samples]
    window = Window()
    if views:
        view = max(views, key=lambda view: view.seconds)
        started_at = datetime.fromtimestamp(view.at[view.taught], UTC)
        window = Window(started_at=started_at, seconds=round(view.seconds, 3), samples=view.samples)
    return Analysis(
        id=derive_id(observation.id, "analysis"),
        application=observation.application,
        observation_id=observation.id,
        observed_at=observation.observed_at,
        policy=observation.policy,
        status=observation.status,
        message=observation.message,
        run=observation.run,
        deployment=observation.deployment,
        topology=observation.topology,
        window=window,
        operators=_OPERATORS(
            [_operator(o, findings.targets[o.name], state.capacities.get(o.name, ())) for o in operators]
        ),
        edges=_EDGES(
            [
                {"source": source, "target": target, "selectivity": ratio}
                for (source, target), ratio in findings.selectivities.items()
            ]
        ),
        sources=sources,
        forecasts=forecasts_of(state.forecasts, findings.sources or state.forecasts.series, findings.at),
        arrival_rate=_sum([s.arrival_rate for s in sources]),
        lag_records=_sum([s.lag_records for s in sources]),
        lag_growth=_sum([s.lag_growth for s in sources], signed=True),
        lag_seconds=_max_of([s.lag_seconds for s in sources]),
        expected_latency_seconds=_max_of([s.expected_latency_seconds for s in sources]),
        bottleneck=findings.bottleneck,
        symptoms=list(symptoms),
        restart_times=RestartTimes(
            seconds=restarts.seconds,
            last_seconds=restarts.last_seconds,
            samples=restarts.samples,
            restore_seconds=restarts.restore_seconds,
            warm_up_seconds=restarts.warm_up_seconds,
        ),
        problems=observation.problems,
        dropped_observations=state.dropped,
        learned={} if observation.status == "ended" else learned_of(state),
    )


def _operator(operator: OperatorFindings, target: Estimate, curve: Sequence[Point]) -> dict[str, Any]:
    window, measured = operator.window, operator.measured
    return {
        "operator": operator.name,
        "parallelism": operator.parallelism,
        "input_rate": window.input_rate,
        "output_rate": window.output_rate,
        "true_processing_rate": measured.whole,
        "true_processing_rate_per_subtask": measured.per_subtask,
        "min_processing_rate": measured.lower_bound,
        "utilization": _share(window.view, window.spent.busy, "busy"),
        "backpressure": _share(window.view, window.spent.backpressured, "backpressured"),
        "skew": measured.skew,
        "target_input_rate": target,
        "capacities": published(curve),
    }


def _share(view: View | None, share: float | None, name: str) -> Estimate:
    if share is None:
        return unknown(f"{name} time is unknown, or its window is not full")
    if view is not None and view.warm is not None and view.busy_ms[-1] is not None:
        seconds = view.at[-1] - view.at[view.warm]
        return estimate(share, f"{name} time since the warm-up", 0.5, len(view.at) - view.warm, seconds)
    if view is None or not view.samples or view.busy_ms[-1] is None:
        return estimate(share, f"the engine's {name} gauge, a 60 s average", 0.4, 1, 60.0)
    return estimate(share, f"accumulated {name} time", min(0.95, 0.5 + 0.05 * view.samples), view.samples, view.seconds)


def _expected_latency(source: SourceFindings, taken: Estimate | None, busiest: float) -> Estimate:
    """Return lag records ÷ processing rate. `taken` is the source's throughput, `busiest` the largest busy share.

    A backlogged source shows that rate by its throughput. Otherwise throughput is only what happened to arrive; the
    rate is then what it would be with the busiest operator busy all the time.
    """
    lag = source.lag.records
    if lag.proven is None or taken is None or taken.value is None:
        return unknown("lag or throughput is unknown")
    if lag.value == 0:
        return estimate(0.0, "nothing waits", lag.confidence, lag.samples)
    if taken.value == 0:
        return unknown("nothing is being processed")
    rate, basis = taken.value, "lag ÷ throughput"
    if not source.backlogged and 0.05 <= busiest < 1:
        rate, basis = rate / busiest, "lag ÷ throughput at full use of the busiest operator"
    confidence = 0.9 * min(lag.confidence, taken.confidence)
    if lag.value is None:
        return at_least(lag.proven / rate, lag.basis, confidence, taken.samples, taken.window_seconds)
    return estimate(lag.value / rate, basis, confidence, taken.samples, taken.window_seconds)


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
