"""The original's readings of one cycle, from an analysis: counters, gauges and limits of each operator."""

from dataclasses import dataclass
from datetime import datetime
from math import isnan

from weir_contracts import Estimate, OperatorAnalysis, Topology, counted
from weir_sdk import MetricMissing, Request

from .decision import Limits
from .evaluation import Graph, Sample
from .ieee import NAN, java_min
from .loop import Raw, State, sampled
from .parameters import FlinkAutoscalerParameters, milliseconds


@dataclass(frozen=True)
class Cycle:
    """One request of a running application."""

    request: Request
    parameters: FlinkAutoscalerParameters
    graph: Graph
    now_ms: int
    running_ms: int

    @property
    def topology(self) -> Topology:
        return self.graph.topology

    @property
    def stable_ms(self) -> int:
        return self.running_ms + milliseconds(self.parameters.stabilization_interval_minutes)


def cycle_of(request: Request, parameters: FlinkAutoscalerParameters) -> Cycle:
    """The request as a cycle. Raises `MetricMissing`."""
    analysis = request.analysis
    if analysis.run is None:
        raise MetricMissing("the start of the application is unknown")
    return Cycle(
        request,
        parameters,
        Graph(request.topology, request.current),
        _ms(analysis.observed_at),
        _ms(analysis.run.running_since),
    )


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def sample_of(cycle: Cycle, state: State) -> Sample | None:
    """The cycle's sample; None if its readings have been taken already. Counters go on from the last sample, at the
    analysed rates. Raises `MetricMissing`."""
    last = state.samples[-1] if state.samples else None
    if last is not None and cycle.now_ms <= last.at_ms:
        return None
    # Before the first sample nothing was counted; where a run's counters begin does not matter.
    seconds = 0.0 if last is None else (cycle.now_ms - last.at_ms) / 1000
    by_name = {o.operator: o for o in cycle.request.analysis.operators}
    raw = {}
    for name in cycle.topology.names:
        operator = by_name.get(name)
        if operator is None:
            raise MetricMissing(f"{name} was not analysed")
        runs = cycle.graph.parallelism[name]
        if operator.parallelism != runs:
            raise MetricMissing(
                f"{name} runs with {counted(runs, 'subtask')} and was analysed at {operator.parallelism}"
            )
        before = Raw() if last is None else last.readings[name]
        taken = max(0.0, cycle.request.needed(operator.input_rate, f"the input rate of {name}"))
        sent, busy = _sent(cycle, operator), busy_ms_per_second(operator, "AVG")
        raw[name] = Raw(
            records_in=_counted(before.records_in, taken, seconds),
            records_out=_counted(before.records_out, sent, seconds),
            busy_ms=_counted(before.busy_ms, busy * runs, seconds),
            busy_ms_per_second=busy_ms_per_second(operator, cycle.parameters.busy_time_aggregator),
            input_rate=taken,
            backpressured_ms_per_second=1000 * _value(operator.backpressure),
            lag=_lag(cycle, name),
        )
    return sampled(raw, cycle.topology.sources, state.samples, cycle.now_ms, cycle.parameters)


def _counted(before: float, per_second: float, seconds: float) -> float:
    """Advance a counter from `before`; an unknown one begins again."""
    return (0.0 if isnan(before) else before) + per_second * seconds


def _value(estimate: Estimate) -> float:
    return NAN if estimate.value is None else max(0.0, estimate.value)


def _sent(cycle: Cycle, operator: OperatorAnalysis) -> float:
    """Records/s sent. Needed where an output has other inputs, too: taken for 0 it would let that output look idle."""
    joins = any(len(cycle.topology.inputs(output)) > 1 for output in cycle.topology.outputs(operator.operator))
    if joins:
        cycle.request.needed(operator.output_rate, f"the output rate of {operator.operator}")
    return _value(operator.output_rate)


def busy_ms_per_second(operator: OperatorAnalysis, of: str) -> float:
    """ms/s of the mean or of the busiest subtask; NaN if unknown."""
    mean, skew = 1000 * _value(operator.utilization), _value(operator.skew)
    return mean if of == "AVG" or isnan(skew) else java_min(1000.0, mean * max(1.0, skew))


def _lag(cycle: Cycle, name: str) -> float:
    if not cycle.graph.is_source(name):
        return NAN
    source = next((s for s in cycle.request.analysis.sources if s.operator == name), None)
    if source is None:
        raise MetricMissing(f"the lag of {name} is unknown: it was not analysed")
    return max(0.0, cycle.request.needed(source.lag_records, f"the lag of {name}", or_more=True))


def limits_of(cycle: Cycle, name: str) -> Limits:
    operator, parameters = cycle.topology.operator(name), cycle.parameters
    low, high = cycle.request.policy.spec.bounds.of(name)
    return Limits(
        min=max(parameters.vertex_min_parallelism, low),
        max=min(parameters.vertex_max_parallelism, high),
        max_parallelism=operator.max_parallelism or 32768,
        partitions=(operator.source_partitions or 0) if cycle.graph.is_source(name) else 0,
        keyed=operator.max_parallelism is not None and cycle.topology.is_keyed(name),
    )
