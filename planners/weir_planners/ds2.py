"""The built-in planner `ds2`: three steps is all you need.

Kalavri et al., OSDI 2018, equations 7 and 8, in one pass from the sources; the order of the float operations is that of
the released code (`strymon-system/ds2`, controller/src/policy/scaling.rs):

    p_i'  = ceil( (1 + scaling_factor) · in_i / (lp_i / p_i) )          in_i = sum of the ideal outputs of what feeds i
    out_i = lo_i · in_i / lp_i,   of a source its given rate            lp, lo: true rates of the operator, busy time
    only

lp is the analysis's true processing rate, lo/lp an edge's selectivity, the given rate a source's arrivals. Sources keep
their parallelism, as there, unless `scale_sources`: a source that does the work itself is then sized by what arrives.

Target-rate-ratio correction (`evaluate_scaling_policy`): if no operator goes up and yet arrivals / observed rate of a
source is above `target_rate_ratio`, all p' are multiplied by the greatest such ratio and rounded up again.

Of its manager: `warm_up_intervals` (policy_interval is the policy's interval), `activation_intervals` decisions in a
row combined by `activation` (the released code takes the latest; the paper speaks of maximum and median), and which
changes are too small: `ignored_increase` 0 and `ignored_decrease` 1 are the code's `consider_change`. Its roll-back and
its cap on the number of decisions were never finished; here the executor rolls back.

Unlike the original: an operator of unknown true rate ends the pass with a hold that names it, where the original
computes with NaN; so does one that was analysed at another parallelism than it runs with. A nearly idle operator has a
lower bound instead, which may take subtasks away and never add any.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from weir_contracts import Infeasible, Parallelism, PlanReply, changes, counted
from weir_sdk import MetricMissing, Request, planner

MAX_PARALLELISM = 2**31 - 1
MAX_KEPT = 1500
"""Parallelisms that fit into a plan's memory as past decisions."""


class Ds2Parameters(BaseModel):
    """Parameters of the planner."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    warm_up_intervals: int = Field(
        default=2, ge=0, le=1000, description="intervals without a decision after a change of parallelism"
    )
    activation_intervals: int = Field(
        default=1, ge=1, le=100, description="number of consecutive decisions before one takes effect"
    )
    activation: Literal["latest", "maximum", "median"] = Field(
        default="latest", description="how consecutive decisions are combined, operator by operator"
    )
    target_rate_ratio: float | None = Field(
        default=None,
        ge=1,
        le=100,
        description="ratio of arrivals to observed source rate above which every operator is scaled up; none: never",
    )
    scaling_factor: float = Field(default=0.0, ge=0, le=10, description="share of subtasks added on top of the optimum")
    ignored_increase: int = Field(
        default=0, ge=0, le=1000, description="largest increase, in subtasks, that alone does not justify a restart"
    )
    ignored_decrease: int = Field(
        default=1, ge=0, le=1000, description="largest decrease, in subtasks, that alone does not justify a restart"
    )
    scale_sources: bool = Field(default=False, description="size sources too, by their arrival rates")


@dataclass(frozen=True)
class Rates:
    """An operator's true rates in records/s, all its instances together; `outputs` by what they reach."""

    processing: float
    outputs: Mapping[str, float]


@dataclass(frozen=True)
class Graph:
    """Operators in topological order, instances of each, their rates, and the given rates of the sources."""

    instances: Mapping[str, int]
    rates: Mapping[str, Rates]
    """Of what is not a source."""
    sources: Mapping[str, Mapping[str, float]]
    """Given output of each source by what it reaches, in records/s."""


def optimal(graph: Graph, scaling_factor: float = 0.0) -> dict[str, int]:
    """Return the optimal parallelism of each operator that is not a source; at least 0."""
    arriving: dict[str, float] = {}
    found: dict[str, int] = {}
    for name, instances in graph.instances.items():
        if name in graph.sources:
            flowing = dict(graph.sources[name])
        else:
            rates = graph.rates[name]
            ideal = _ideal(arriving.get(name, 0.0), rates.processing, instances)
            found[name] = _whole(ideal * (1.0 + scaling_factor))
            flowing = {target: output * (ideal / instances) for target, output in rates.outputs.items()}
        for target, rate in flowing.items():
            arriving[target] = arriving.get(target, 0.0) + rate
    return found


def corrected(
    wanted: Mapping[str, int], instances: Mapping[str, int], ratio: float | None, threshold: float | None
) -> dict[str, int]:
    """The target-rate-ratio correction, for overheads that true rates do not show."""
    goes_up = any(p > instances[name] for name, p in wanted.items())
    if ratio is None or threshold is None or goes_up or ratio <= threshold:
        return dict(wanted)
    return {name: _whole(ratio * p) for name, p in wanted.items()}


def _ideal(arriving: float, processing: float, instances: int) -> float:
    """Return the instances that process the arrivals, before rounding."""
    each = processing / instances
    if each == 0:  # so little that a share of it is no number any more
        return math.inf if arriving else 0.0
    return arriving / each


def _whole(instances: float) -> int:
    """Return the instances rounded up, at most `MAX_PARALLELISM`."""
    return math.ceil(instances) if instances < MAX_PARALLELISM else MAX_PARALLELISM


@planner(
    name="ds2",
    description="the optimal parallelism of each operator by true rates, in one pass from the sources (OSDI 2018)",
    parameters=Ds2Parameters,
    reads=[],
)
def plan_by_ds2(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(Ds2Parameters)
    memory = _Memory.of(request.memory).after(request.current)
    if memory.intervals <= parameters.warm_up_intervals:
        sentence = f"interval {memory.intervals} of {parameters.warm_up_intervals} since the parallelism changed: no decision yet"
        return request.hold("warming-up", sentence, memory=memory.kept())
    try:
        inputs = _inputs(request, parameters)
    except MetricMissing as gap:
        # The next decision is the first in a row again.
        return request.hold("metric-missing", str(gap), memory=replace(memory, decisions=()).kept())
    wanted = _sized(inputs, request, parameters)
    needed = max(1, min(parameters.activation_intervals, MAX_KEPT // len(wanted)))
    memory = memory.decided(wanted, needed)
    about = {"memory": memory.kept(), **_evidence(inputs, wanted)}
    if len(memory.decisions) < needed:
        sentence = f"{len(memory.decisions)} of {needed} consecutive decisions were made"
        return request.hold("activating", sentence, **about)
    combined = dict(zip(wanted, _combined(memory.decisions, parameters.activation), strict=True))
    vector, about["infeasible"] = dict[str, int](), list[Infeasible]()
    for name, p in combined.items():
        vector[name], notes = request.within(name, p)
        about["infeasible"] += notes
    return _reply(request, vector, parameters, sum(inputs.arrivals.values()), about)


@dataclass(frozen=True)
class _Inputs:
    """A request's rates; `upper_bounds_only`: operators that may lose subtasks only."""

    graph: Graph
    arrivals: Mapping[str, float]
    ratio: float | None
    source_rates: Mapping[str, float]
    upper_bounds_only: frozenset[str]


def _inputs(request: Request, parameters: Ds2Parameters) -> _Inputs:
    """Return the rates. Raises `MetricMissing` for the first one that is unknown."""
    analysis, topology = request.analysis, request.topology
    analysed = {(e.source, e.target): e.selectivity for e in analysis.edges}
    selectivity: dict[str, dict[str, float]] = {name: {} for name in request.current}
    for source, target in ((edge.source, edge.target) for edge in topology.edges):
        upstream = analysis.operator(source)
        if upstream is not None and upstream.target_input_rate.value == 0:
            continue  # nothing of nothing arrives, whatever the selectivity
        ratio = request.needed(analysed.get((source, target)), f"the selectivity from {source} to {target}")
        selectivity[source][target] = max(0.0, ratio)
    sources, given = set(topology.sources), {s.operator: s.arrival_rate for s in analysis.sources}
    arrivals: dict[str, float] = {}
    ratios: list[float] = []
    processing: dict[str, float] = {}
    upper_bounds_only: set[str] = set()
    idle: set[str] = set()
    for name, parallelism in request.current.items():
        operator = analysis.operator(name)
        if name in sources:
            arrivals[name] = max(0.0, request.needed(given.get(name), f"the arrival rate of {name}", or_more=True))
            taken = operator.input_rate.value if operator else None
            if taken is not None and taken > 0:
                ratios.append(arrivals[name] / taken)
        if name not in sources or parameters.scale_sources:
            what = f"the true processing rate of {name}"
            if operator is None:
                raise MetricMissing(f"{what} is unknown: it was not analysed")
            rate = operator.true_processing_rate
            if rate.proven is None and operator.target_input_rate.value == 0 and name not in sources:
                idle.add(name)  # it keeps its parallelism
                continue
            if rate.value is None and operator.min_processing_rate:
                rate = operator.min_processing_rate
                upper_bounds_only.add(name)
            processing[name] = request.needed(rate, what)
            if processing[name] <= 0:
                raise MetricMissing(f"{what} is unknown: {rate.basis}")
            if operator.parallelism != parallelism:
                reason = f"it was analysed at {counted(operator.parallelism, 'subtask')} and runs with {parallelism}"
                raise MetricMissing(f"{what} is unknown: {reason}")
    graph = Graph(
        instances={name: p for name, p in request.current.items() if name not in idle},
        rates={
            name: Rates(rate, {target: rate * share for target, share in selectivity[name].items()})
            for name, rate in processing.items()
            if name not in arrivals
        },
        sources={
            name: {target: rate * share for target, share in selectivity[name].items()}
            for name, rate in arrivals.items()
        },
    )
    source_rates = {n: r for n, r in processing.items() if n in arrivals}
    return _Inputs(graph, arrivals, max(ratios, default=None), source_rates, frozenset(upper_bounds_only))


def _sized(inputs: _Inputs, request: Request, parameters: Ds2Parameters) -> Parallelism:
    """This interval's decision for every operator."""
    wanted = optimal(inputs.graph, parameters.scaling_factor)
    for name, rate in inputs.source_rates.items():
        ideal = _ideal(inputs.arrivals[name], rate, request.current[name])
        wanted[name] = _whole(ideal * (1.0 + parameters.scaling_factor))
    for name in inputs.upper_bounds_only & set(wanted):
        wanted[name] = min(wanted[name], request.current[name])
    wanted = corrected(wanted, request.current, inputs.ratio, parameters.target_rate_ratio)
    return {name: max(1, min(wanted.get(name, p), MAX_PARALLELISM)) for name, p in request.current.items()}


def _combined(decisions: Sequence[Sequence[int]], how: str) -> Sequence[int]:
    if how == "maximum":
        return [max(of_one) for of_one in zip(*decisions, strict=True)]
    if how == "median":
        return [statistics.median_high(of_one) for of_one in zip(*decisions, strict=True)]
    return decisions[-1]


def _reply(
    request: Request, vector: Parallelism, parameters: Ds2Parameters, demand: float, about: dict[str, Any]
) -> PlanReply:
    moved = {name: p - request.current[name] for name, p in vector.items()}
    moves = changes(request.current, vector)
    if not any(moved.values()):
        return request.hold("at-optimum", "every operator has its optimal parallelism", **about)
    if not any(by > parameters.ignored_increase or -by > parameters.ignored_decrease for by in moved.values()):
        sentence = f"{moves} is too small a change for a restart"
        return request.hold("small-change", sentence, **about)
    code = "under-provisioned" if any(by > 0 for by in moved.values()) else "over-provisioned"
    sentence = f"{moves}: the optimum by true rates where {demand:,.0f} records/s arrive"
    return request.scale(vector, code, sentence, **about)


def _evidence(inputs: _Inputs, wanted: Parallelism) -> dict[str, Any]:
    evidence: dict[str, Any] = {f"arrival_rate[{n}]": r for n, r in inputs.arrivals.items()}
    evidence["source_rate_ratio"] = inputs.ratio
    for name, p in wanted.items():
        evidence[f"optimum[{name}]"] = p
        rate = inputs.graph.rates[name].processing if name in inputs.graph.rates else inputs.source_rates.get(name)
        if rate is not None:
            evidence[f"true_processing_rate[{name}]"] = rate
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in evidence.items()}


@dataclass(frozen=True)
class _Memory:
    """How long this parallelism has been seen, and the last decisions in a row; operators in topological order, without
    names."""

    vector: tuple[int, ...] = ()
    intervals: int = 0
    decisions: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, memory: Mapping[str, Any]) -> "_Memory":
        try:
            return _KEPT.validate_python(dict(memory))
        except ValidationError:
            return cls()

    def after(self, current: Parallelism) -> "_Memory":
        """One more interval; of another parallelism the first."""
        vector = tuple(current.values())
        return replace(self, intervals=self.intervals + 1) if vector == self.vector else _Memory(vector, 1)

    def decided(self, wanted: Parallelism, kept: int) -> "_Memory":
        """With one more decision."""
        return replace(self, decisions=(*self.decisions, tuple(wanted.values()))[-kept:])

    def kept(self) -> dict[str, Any]:
        """For the plan."""
        return {
            "vector": list(self.vector),
            "intervals": self.intervals,
            "decisions": [list(decision) for decision in self.decisions],
        }


_KEPT = TypeAdapter(_Memory)
