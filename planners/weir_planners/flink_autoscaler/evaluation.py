"""From samples to an evaluation of each operator: rates over the window, target rates, true processing rate and the two
thresholds.

Over the samples of the window: `Rate(m)` = 1000 · (last - first) / milliseconds between them, NaN with fewer than two
values; `Avg(m, n)` = mean of the finite values, ∞ if there are infinite ones only, NaN with fewer than n.

* Source: target = max(0, Rate(records in) + Rate(lag)), catch-up = lag / catch-up duration. Any other operator: the sum
  over its inputs
  of their target (catch-up) · records that reach it per record they take, estimated from the operators' counters.
* True processing rate = input rate / busy share, or at sources the throughput observed while catching up, where busy
  time promises over
  `switch_threshold` more than that.
* Capacity(u) = round(catch-up + target · restart / catch-up duration + target / u): up threshold at the largest
  utilization without the
  restart's term, down threshold at the minimum utilization with it. A source too far behind opens the band to 0 and 1
  for the job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isinf, isnan

from weir_contracts import Topology

from .ieee import INFINITY, NAN, divide, java_max, metric, rounded
from .parameters import FlinkAutoscalerParameters, milliseconds


class NoIngestionRate(ValueError):
    """A source's rate or lag is unknown, so nothing can be evaluated."""


@dataclass(frozen=True)
class Values:
    """Values of one metric of one sample, or of neighbouring samples that were put together: their sum and number."""

    total: float = 0.0
    count: int = 0
    infinite: bool = False

    @staticmethod
    def of(value: float) -> "Values":
        if isnan(value):
            return Values()
        return Values(infinite=True) if isinf(value) else Values(value, 1)

    def __add__(self, other: "Values") -> "Values":
        return Values(self.total + other.total, self.count + other.count, self.infinite or other.infinite)


@dataclass(frozen=True)
class Reading:
    """An operator in one sample. Counters and lag as of the sample's time, NaN if unknown; load is a busy share."""

    records_in: float = NAN
    records_out: float = NAN
    busy_ms: float = NAN
    lag: float = NAN
    load: Values = field(default_factory=Values)
    input_rate: Values = field(default_factory=Values)
    observed_rate: Values = field(default_factory=Values)


@dataclass(frozen=True)
class Sample:
    at_ms: int
    readings: Mapping[str, Reading]
    until_ms: int | None = None
    """Of neighbouring samples that were put together: when the last of them was."""

    @property
    def last_ms(self) -> int:
        return self.at_ms if self.until_ms is None else self.until_ms


@dataclass(frozen=True)
class Graph:
    """The topology with what the original knows of each vertex."""

    topology: Topology
    parallelism: Mapping[str, int]

    def is_source(self, name: str) -> bool:
        return not self.topology.inputs(name)


@dataclass(frozen=True)
class Evaluated:
    """Evaluation of an operator. Rates in records/s, rounded as the original's."""

    operator: str
    parallelism: int
    target_data_rate: float
    catch_up_data_rate: float
    true_processing_rate: float
    load: float = NAN
    scale_up_threshold: float = NAN
    scale_down_threshold: float = NAN


def rate(samples: Sequence[Sample], name: str, metric_name: str, min_ms: int) -> float:
    """Change per second of a counter (or of lag) between its first and its last value."""
    first = last = NAN
    first_ms = last_ms = 0
    for sample in samples:
        value = getattr(sample.readings[name], metric_name)
        if isnan(value):
            continue
        if isnan(first):
            first, first_ms = value, sample.at_ms
        else:
            last, last_ms = value, sample.at_ms
    if isnan(last):
        return NAN
    return divide(1000 * (last - first), max(last_ms - first_ms, min_ms))


def average(samples: Sequence[Sample], name: str, metric_name: str, minimum: int = 1) -> float:
    """Mean of a gauge's finite values."""
    total = Values()
    for sample in samples:
        total = total + getattr(sample.readings[name], metric_name)
    if total.count == 0:
        return INFINITY if total.infinite else NAN
    return NAN if total.count < minimum else total.total / total.count


def evaluate(
    graph: Graph, samples: Sequence[Sample], parameters: FlinkAutoscalerParameters, restart_seconds: int
) -> dict[str, Evaluated]:
    """Every operator, in topological order. Raises `NoIngestionRate`."""
    window = _Window(graph, samples, parameters)
    behind = window.is_processing_backlog()
    evaluated: dict[str, Evaluated] = {}
    for name in graph.topology.names:
        target, catch_up = window.target(name, evaluated)
        busy = window.busy_ms_per_second(name)
        found = Evaluated(
            operator=name,
            parallelism=graph.parallelism[name],
            target_data_rate=metric(target),
            catch_up_data_rate=metric(catch_up),
            true_processing_rate=metric(window.true_processing_rate(name, busy)),
            load=metric(busy / 1000),
        )
        evaluated[name] = with_thresholds(found, parameters, restart_seconds, behind=behind)
    return evaluated


def with_thresholds(
    found: Evaluated, parameters: FlinkAutoscalerParameters, restart_seconds: int, *, behind: bool
) -> Evaluated:
    """The rates between which capacity is left alone."""
    target, boundary = parameters.utilization_target, parameters.target_utilization_boundary
    upper = target + boundary if parameters.utilization_max is None else parameters.utilization_max
    lower = target - boundary if parameters.utilization_min is None else parameters.utilization_min
    if behind:
        upper, lower = 1.0, 0.0
    up = capacity_needed(found, upper, parameters, None)
    down = capacity_needed(found, lower, parameters, restart_seconds)
    return Evaluated(**{**found.__dict__, "scale_up_threshold": metric(up), "scale_down_threshold": metric(down)})


def capacity_needed(
    found: Evaluated, utilization: float, parameters: FlinkAutoscalerParameters, restart_seconds: int | None
) -> float:
    """Return records/s needed to keep up at that busy share and to clear the backlog, plus the restart's if its length
    is known."""
    if isnan(found.catch_up_data_rate) or isnan(found.target_data_rate):
        return NAN
    share = min(1.0, max(0.0, utilization))
    if share == 0:
        return INFINITY
    catch_up = parameters.catch_up_seconds
    target = found.target_data_rate
    of_restart = 0.0 if restart_seconds is None or catch_up == 0 else target * restart_seconds / catch_up
    return rounded(found.catch_up_data_rate + of_restart + target / share)


@dataclass(frozen=True)
class _Window:
    graph: Graph
    samples: Sequence[Sample]
    parameters: FlinkAutoscalerParameters

    def rate(self, name: str, metric_name: str) -> float:
        return rate(self.samples, name, metric_name, 0 if self.parameters.is_1_10 else 1)

    def lag(self, name: str) -> float:
        lag = self.samples[-1].readings[name].lag
        return 0.0 if isnan(lag) else lag

    def is_processing_backlog(self) -> bool:
        limit = milliseconds(self.parameters.backlog_processing_lag_threshold_minutes) // 1000
        return any(divide(self.lag(s), self.rate(s, "records_in")) > limit for s in self.graph.topology.sources)

    def target(self, name: str, evaluated: Mapping[str, Evaluated]) -> tuple[float, float]:
        """Records/s that arrive, and records/s of the backlog that are to be caught up with."""
        if self.graph.is_source(name):
            arriving = java_max(0.0, self.rate(name, "records_in") + self.rate(name, "lag"))
            if isnan(arriving):
                raise NoIngestionRate(f"records in or lag of {name}: fewer than two samples have it")
            catch_up = self.parameters.catch_up_seconds
            return arriving, 0.0 if catch_up == 0 else self.lag(name) / catch_up
        target = catch = 0.0
        for source in self.graph.topology.inputs(name):
            ratio = self.output_ratio(source, name)
            target += evaluated[source].target_data_rate * ratio
            catch += evaluated[source].catch_up_data_rate * ratio
        return target, catch

    def output_ratio(self, source: str, target: str) -> float:
        """Records that reach `target` per record that `source` takes in."""
        taken = self.rate(source, "records_in")
        if not taken > 0:
            return 0.0
        given = self.edge_rate(source, target)
        return given / taken if given > 0 else 0.0

    def edge_rate(self, source: str, target: str) -> float:
        """Return the rate of an edge, which the engine does not report.

        It is the target's input, less the output of its other inputs if they send nowhere else.
        """
        inputs = self.graph.topology.inputs(target)
        if len(inputs) == 1:
            return self.rate(target, "records_in")
        others = 0.0
        for other in inputs:
            if other == source:
                continue
            if len(self.graph.topology.outputs(other)) != 1:
                others = NAN
                break
            others += self.rate(other, "records_out")
        if not isnan(others):
            return self.rate(target, "records_in") - others
        return self.rate(source, "records_out")

    def busy_ms_per_second(self, name: str) -> float:
        if self.parameters.busy_time_aggregator == "AVG":
            return self.rate(name, "busy_ms") / self.graph.parallelism[name]
        return average(self.samples, name, "load") * 1000

    def true_processing_rate(self, name: str, busy: float) -> float:
        taken = self.rate(name, "records_in")
        if self.parameters.is_1_16 and self.parameters.busy_time_aggregator != "AVG":
            reported = average(self.samples, name, "input_rate")
            taken = reported if isfinite(reported) else taken
        by_busy_time = INFINITY if taken == 0 else divide(taken, busy / 1000)
        minimum = self.parameters.observed_true_processing_rate_min_observations
        observed = average(self.samples, name, "observed_rate", minimum)
        if isnan(observed):
            return by_busy_time
        limit = observed * (1 + self.parameters.observed_true_processing_rate_switch_threshold)
        return observed if not isfinite(by_busy_time) or by_busy_time > limit else by_busy_time
