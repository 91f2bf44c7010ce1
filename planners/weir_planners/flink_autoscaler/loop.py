"""State of the original between cycles: the samples of the window, past rescales, how long they took. Pure: state in,
state out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .decision import JobDecision, Rescaled, Waiting
from .evaluation import Evaluated, Reading, Sample, Values, average
from .ieee import INFINITY, NAN, divide, java_max, metric
from .parameters import FlinkAutoscalerParameters, milliseconds

Stage = Literal["stabilizing", "filling", "full"]


@dataclass(frozen=True)
class Restart:
    """A rescale, from its decision to the run that had all its parallelisms; seconds are None until then."""

    at_ms: int
    targets: Mapping[str, int]
    ms: int | None = None


@dataclass(frozen=True)
class Decided:
    """A rescale that was decided and not seen yet: per operator parallelism before, capacity and what was expected."""

    at_ms: int
    vertices: Mapping[str, tuple[int, int, float, float]]
    """Before, wanted, true processing rate, expected processing rate."""


@dataclass(frozen=True)
class State:
    graph: str = ""
    running_ms: int = 0
    parallelism: Mapping[str, int] = field(default_factory=dict)
    """Of the samples."""
    samples: tuple[Sample, ...] = ()
    history: Mapping[str, tuple[Rescaled, ...]] = field(default_factory=dict)
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    restarts: tuple[Restart, ...] = ()
    decided: Decided | None = None


@dataclass(frozen=True)
class Raw:
    """An operator's readings at one instant. Counters since the run began; rates in records/s; NaN: unknown."""

    records_in: float = NAN
    records_out: float = NAN
    busy_ms: float = NAN
    """Accumulated over all subtasks."""
    busy_ms_per_second: float = NAN
    """Of the busiest subtask, or the mean, as the parameters want it."""
    input_rate: float = NAN
    backpressured_ms_per_second: float = NAN
    lag: float = NAN
    """Of a source."""


def sampled(
    raw: Mapping[str, Raw],
    sources: Sequence[str],
    earlier: Sequence[Sample],
    at_ms: int,
    parameters: FlinkAutoscalerParameters,
) -> Sample:
    """Readings as the original keeps them: rounded, with a source's throughput where it shows its capacity."""
    readings = {}
    for name, found in raw.items():
        is_source = name in sources
        by_gauge = parameters.busy_time_aggregator == "MAX"
        readings[name] = Reading(
            records_in=metric(found.records_in),
            records_out=metric(found.records_out),
            busy_ms=NAN if by_gauge else metric(found.busy_ms),
            lag=metric(found.lag) if is_source else NAN,
            load=Values.of(metric(java_max(0.0, found.busy_ms_per_second) / 1000)) if by_gauge else Values(),
            input_rate=Values.of(metric(found.input_rate)) if parameters.is_1_16 and not is_source else Values(),
            observed_rate=Values.of(metric(_observed_rate(name, found, earlier, parameters)))
            if is_source
            else Values(),
        )
    return Sample(at_ms, readings)


def _observed_rate(name: str, raw: Raw, earlier: Sequence[Sample], parameters: FlinkAutoscalerParameters) -> float:
    """While a source catches up, its throughput is its capacity, but for the time in which it is held back."""
    if raw.input_rate == 0:
        return INFINITY
    lag_seconds = int(parameters.observed_true_processing_rate_lag_threshold_seconds)
    if raw.lag >= lag_seconds * raw.input_rate and raw.backpressured_ms_per_second < 1000:
        return divide(raw.input_rate, 1 - raw.backpressured_ms_per_second / 1000)
    return average(earlier, name, "observed_rate", parameters.observed_true_processing_rate_min_observations)


def of_run(state: State, running_ms: int) -> State:
    """Samples of an earlier run are dropped."""
    if state.samples and running_ms > state.samples[0].at_ms:
        state = replace(state, samples=())
    return replace(state, running_ms=running_ms)


def collected(state: State, sample: Sample, parameters: FlinkAutoscalerParameters) -> tuple[State, Stage, int]:
    """The sample in the window, what may be done with it, and until when (ms) it is not full.

    The window is full from (first sample after stabilization) + its length on; then what is older than its length is
    dropped.
    """
    stable_ms = state.running_ms + milliseconds(parameters.stabilization_interval_minutes)
    window_ms = parameters.metrics_window_ms
    full_ms = next((s.at_ms for s in state.samples if s.at_ms >= stable_ms), sample.at_ms) + window_ms
    samples = (*state.samples, sample)
    if sample.at_ms < stable_ms:
        return replace(state, samples=samples), "stabilizing", stable_ms
    if sample.at_ms < full_ms:
        return replace(state, samples=samples), "filling", full_ms
    kept = tuple(s for s in samples if s.last_ms >= sample.at_ms - window_ms)
    return replace(state, samples=kept), "full", full_ms


def trimmed(state: State, parallelism: Mapping[str, int], now_ms: int, parameters: FlinkAutoscalerParameters) -> State:
    """Drop rescales beyond age and number; add the newest restart's length once its targets run."""
    since, max_count = now_ms - milliseconds(parameters.history_max_age_hours * 60), parameters.history_max_count
    history = {
        name: kept
        for name, rescales in state.history.items()
        if name in parallelism and (kept := tuple(p for p in rescales if p.at_ms >= since)[-max_count:])
    }
    restarts = [r for r in state.restarts if r.at_ms >= since][-max_count:]
    if state.restarts and state.restarts[-1] not in restarts:
        restarts.append(state.restarts[-1])
    if restarts and restarts[-1].ms is None:
        newest = restarts[-1]
        # A target is known as long as its rescale is in the history.
        targets = {n: p for n, p in newest.targets.items() if any(h.at_ms == newest.at_ms for h in history.get(n, ()))}
        if all(parallelism.get(name) == p for name, p in targets.items()):
            restarts[-1] = replace(newest, ms=state.running_ms - newest.at_ms)
    return replace(state, history=history, restarts=tuple(restarts))


def restart_seconds(state: State, parameters: FlinkAutoscalerParameters) -> int:
    """Return the expected length of a restart in seconds, rounded down."""
    lengths = [r.ms // 1000 for r in state.restarts if r.ms is not None]
    if not parameters.restart_time_tracking_enabled or not lengths or max(lengths) < 0:
        return milliseconds(parameters.restart_time_minutes) // 1000
    return min(max(lengths), milliseconds(parameters.restart_time_tracking_limit_minutes) // 1000)


def decided(decision: JobDecision, evaluated: Mapping[str, Evaluated], now_ms: int) -> Decided:
    """The decision to rescale, to be remembered until it is seen."""
    return Decided(
        now_ms,
        {
            name: (
                evaluated[name].parallelism,
                wanted,
                evaluated[name].true_processing_rate,
                decision.vertices[name].expected_processing_rate,
            )
            for name, wanted in decision.changes.items()
        },
    )


def rescaled(
    state: State, decided: Decided, parallelism: Mapping[str, int], parameters: FlinkAutoscalerParameters
) -> State:
    """The decision was carried out, to the parallelisms given: it becomes history, and nothing waits any more."""
    history = dict(state.history)
    targets = {}
    for name, (before, wanted, rate, expected) in decided.vertices.items():
        after = parallelism.get(name, before)
        if after == before:
            continue
        if after != wanted and parameters.is_1_16:
            expected = metric(divide(rate, before) * after)  # noqa: PLW2901 - of what was let through
        targets[name] = after
        history[name] = (*history.get(name, ()), Rescaled(decided.at_ms, before, after, rate, expected))
    restarts = (*state.restarts, Restart(decided.at_ms, targets))
    return replace(state, history=history, waiting={}, restarts=restarts, decided=None)
