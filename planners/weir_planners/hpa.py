"""The built-in planner `hpa`: the HorizontalPodAutoscaler's rule, `autoscaling/v2`, with its numbers.

    ratio = metric / target,    replicas = ceil(ratio · replicas)    unless ratio is within the tolerance

then stabilisation windows, rate policies and limits; `autoscaling/v2.py` has the arithmetic, what it was taken from and
how it was checked.

Mapping: a workload is an operator and its replicas are its subtasks (`scope: operators`, one autoscaler each), or the
application, whose replicas are its largest parallelism and which gives all operators the same (`application`). Current
and status replicas are what is observed. The policy's bounds are `minReplicas` and `maxReplicas` unless those are set.
The sync period is the policy's interval. A rescale counts for the rate policies when it was observed, at the time of
its last request.

Metrics, written as in the resource, with the names `busy` (share of time; in place of CPU), `input_rate` (of an
operator, records/s), `cpu` (of pods), `arrival_rate`, `lag_records`, `lag_seconds`, `expected_latency_seconds` (of the
application), or that of a signal. The default is `busy` at 80 %, or at the policy's utilization. One that is unknown
gives no proposal, as there: alone it holds.

Unlike the original: it is not called while nothing runs, so sizes of 0 do not occur. What it remembers is carried from
plan to plan and outlives a restart. Weir's own guards come after it; set `behavior` there to 0 s for the pure rule.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from weir_contracts import PlanReply, short_name
from weir_sdk import Request, planner

from .autoscaling import v2
from .autoscaling.decisions import Decision, answer, decide, label, narrowed
from .autoscaling.records import Workloads

METRICS_WINDOW_SECONDS = 30.0
"""Window of a CPU sample, as metrics servers take them."""
MAX_QUANTITY = 9e15
"""Largest value of a metric: its thousandths have 64 bits."""


class Written(BaseModel):
    """A part of the parameters, written as in the Kubernetes resource; names with underscores do as well."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class HpaPolicy(Written):
    type: Literal["Pods", "Percent"]
    value: Annotated[int, Field(gt=0, le=v2.MAX_REPLICAS)]
    period_seconds: Annotated[int, Field(ge=1, le=1800)]


class HpaRules(Written):
    """One direction; what is left out has the default of the resource."""

    stabilization_window_seconds: Annotated[int | None, Field(ge=0, le=3600)] = None
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    policies: Annotated[list[HpaPolicy] | None, Field(min_length=1, max_length=20)] = None
    tolerance: Annotated[float | None, Field(ge=0, le=10)] = None


class HpaBehavior(Written):
    scale_up: HpaRules = Field(default_factory=HpaRules)
    scale_down: HpaRules = Field(default_factory=HpaRules)


class Autoscaler(Written):
    """Parameters of every rule that a HorizontalPodAutoscaler carries out."""

    version: v2.Version = Field(
        default="1.34",
        description="rule of Kubernetes up to 1.32, or from 1.33 on (1.34); they differ only exactly at the tolerance",
    )
    behavior: HpaBehavior | None = Field(
        default=None,
        description="as in the resource; an empty one has the defaults, none means the older rule: at most twice the size, or 4",
    )
    tolerance: float = Field(default=0.1, ge=0, le=10, description="tolerance of the ratio in both directions")
    downscale_stabilization_seconds: int = Field(
        default=300, ge=0, le=3600, description="stabilisation window for scaling down, unless behavior sets one"
    )

    @model_validator(mode="after")
    def _tolerance_is_known(self) -> Self:
        rules = (self.behavior.scale_up, self.behavior.scale_down) if self.behavior else ()
        if self.version == "1.32" and any(rule.tolerance is not None for rule in rules):
            raise ValueError("behavior: a tolerance per direction needs version 1.34")
        return self

    def tolerances(self) -> v2.Tolerance:
        """For both directions."""
        up = self.behavior.scale_up.tolerance if self.behavior else None
        down = self.behavior.scale_down.tolerance if self.behavior else None
        return v2.Tolerance(
            self.tolerance if up is None else up, self.tolerance if down is None else down, self.version
        )

    def limits(self, minimum: int, maximum: int) -> v2.Limits:
        """With the resource's defaults filled in."""
        window = float(self.downscale_stabilization_seconds)
        if self.behavior is None:
            return v2.Limits(minimum, maximum, window_seconds=window)
        up, down = self.behavior.scale_up, self.behavior.scale_down
        quick = v2.RatePolicy("Percent", 100, 15)
        return v2.Limits(
            minimum,
            maximum,
            _rules(up, 0.0, (v2.RatePolicy("Pods", 4, 15), quick)),
            _rules(down, window, (quick,)),
            window,
        )


def _rules(rules: HpaRules, window: float, policies: tuple[v2.RatePolicy, ...]) -> v2.Rules:
    given = rules.stabilization_window_seconds
    own = tuple(v2.RatePolicy(p.type, p.value, p.period_seconds) for p in rules.policies or ())
    return v2.Rules(window if given is None else float(given), own or policies, rules.select_policy)


class HpaTarget(Written):
    """Exactly the field that `type` calls for."""

    type: Literal["Utilization", "AverageValue", "Value"]
    average_utilization: Annotated[int | None, Field(ge=1, le=100_000)] = None
    average_value: Annotated[float | None, Field(ge=0.001, le=1e15)] = None
    value: Annotated[float | None, Field(ge=0.001, le=1e15)] = None

    @model_validator(mode="after")
    def _the_one_field(self) -> Self:
        fields = {"Utilization": "averageUtilization", "AverageValue": "averageValue", "Value": "value"}
        given = {
            "averageUtilization": self.average_utilization,
            "averageValue": self.average_value,
            "value": self.value,
        }
        if [name for name, at in given.items() if at is not None] != [fields[self.type]]:
            raise ValueError(f"a target of type {self.type} has {fields[self.type]}, and no other")
        return self

    @property
    def milli(self) -> int:
        """The value, in thousandths."""
        return thousandths(self.average_value or self.value or 0.0)


class HpaMetric(Written):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    target: HpaTarget

    @model_validator(mode="after")
    def _target_fits(self) -> Self:
        allowed = _TARGETS.get(self.name, ("Value", "AverageValue"))
        if self.target.type not in allowed:
            raise ValueError(f"target: {self.name} takes {' or '.join(allowed)}")
        return self


_TARGETS: Mapping[str, tuple[str, ...]] = {
    "busy": ("Utilization", "AverageValue"),
    "cpu": ("Utilization", "AverageValue"),
    "input_rate": ("AverageValue",),
}
_OF_APPLICATION = ("arrival_rate", "lag_records", "lag_seconds", "expected_latency_seconds")


class HpaParameters(Autoscaler):
    """Parameters of the planner, written as in the resource."""

    scope: Literal["operators", "application"] = Field(
        default="operators", description="each operator as a workload of its own, or the whole application as one"
    )
    metrics: list[HpaMetric] = Field(
        default_factory=list,
        max_length=20,
        description="metrics, of which the largest proposal counts; by default a utilization of 80 %",
    )
    min_replicas: int | None = Field(default=None, ge=1, le=32768, description="by default the policy's bound")
    max_replicas: int | None = Field(default=None, ge=1, le=32768, description="by default the policy's bound")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.min_replicas is not None and self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError("minReplicas: is above maxReplicas")
        for metric in self.metrics:
            if metric.name == "cpu" and self.scope != "application":
                raise ValueError("metrics: cpu is known of pods, not of operators, so it needs scope: application")
            if metric.name == "input_rate" and self.scope != "operators":
                raise ValueError("metrics: input_rate is an operator's, so it needs scope: operators")
        return self


@planner(
    name="hpa",
    description="the HorizontalPodAutoscaler's rule, autoscaling/v2, for each operator or the application, with the original's numbers",
    parameters=HpaParameters,
    reads=[],
)
def plan_by_hpa(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(HpaParameters)
    observed = request.current
    sizes = observed if parameters.scope == "operators" else {"": max(observed.values())}
    workloads = Workloads.of(request.memory, list(sizes))
    now = request.now.timestamp()
    metrics, tolerance = _metrics(request, parameters), parameters.tolerances()
    decisions: dict[str, Decision] = {}
    for name, current in sizes.items():
        minimum, maximum = request.policy.spec.bounds.of(name)
        limits = parameters.limits(*narrowed(minimum, maximum, parameters.min_replicas, parameters.max_replicas))
        proposals = [_proposal(request, metric, tolerance, name, current) for metric in metrics]
        decisions[name] = decide(workloads, name, limits, current, proposals=proposals, now=now)
    read = {label(metric.name, name): _shown(request, metric.name, name) for metric in metrics for name in sizes}
    return answer(request, decisions, observed, workloads, evidence=read)


def _metrics(request: Request, parameters: HpaParameters) -> list[HpaMetric]:
    if parameters.metrics:
        return parameters.metrics
    share = request.policy.spec.objective.utilization
    target = HpaTarget(type="Utilization", average_utilization=80 if share is None else max(1, round(100 * share)))
    return [HpaMetric(name="busy", target=target)]


def _proposal(
    request: Request, metric: HpaMetric, tolerance: v2.Tolerance, workload: str, current: int
) -> int | v2.NoMetric:
    try:
        value = _value_of(request, metric.name, workload)
        target = metric.target
        if isinstance(value, list):
            pods, is_cpu = value, metric.name == "cpu"
            if target.average_utilization is not None:
                return v2.from_utilization(pods, target.average_utilization, current, tolerance, cpu=is_cpu)
            return v2.from_values(pods, target.milli, current, tolerance, cpu=is_cpu)
        if target.type == "Value":
            return v2.from_total([thousandths(value)], target.milli, current, current, tolerance)
        return v2.from_average([thousandths(value)], target.milli, current, tolerance)
    except v2.NoMetric as error:
        return error


def _value_of(request: Request, metric: str, workload: str) -> list[v2.Replica] | float:
    """Return a value for each replica of the workload, or one for all; `NoMetric` names the unknown."""
    if metric == "cpu":
        return _pods(request)
    if metric in {"busy", "input_rate"}:
        return _subtasks(request, metric, workload)
    if metric in _OF_APPLICATION:
        estimate = getattr(request.analysis, metric)
        if estimate.proven is None:
            raise v2.NoMetric(f"{metric} is unknown: {estimate.basis}")
        return float(estimate.proven)
    value = request.signals.get(metric)
    if value is None:
        accepted = ", ".join([*_TARGETS, *_OF_APPLICATION, *sorted(request.signals)])
        reason = (
            "has no value now"
            if metric in request.signals
            else f"is no signal of this application (there are: {accepted})"
        )
        raise v2.NoMetric(f"{metric} {reason}"[:1500])
    return value


def _subtasks(request: Request, metric: str, workload: str) -> list[v2.Replica]:
    """Each with the operator's mean; of the application the busiest operator's."""
    names = [workload] if workload else request.operators
    best: tuple[float, int] | None = None
    for name in names:
        found = request.analysis.operator(name)
        if found is None:
            raise v2.NoMetric(f"{metric} of {short_name(name)} is unknown (it was not analysed)")
        estimate = found.utilization if metric == "busy" else found.input_rate
        if estimate.value is None:
            raise v2.NoMetric(f"{metric} of {short_name(name)} is unknown: {estimate.basis}")
        each = estimate.value if metric == "busy" else estimate.value / found.parallelism
        if best is None or each > best[0]:
            best = each, found.parallelism
    if best is None:
        raise v2.NoMetric(f"{metric} is unknown (there are no operators)")
    return [v2.Replica(value_milli=round(1000 * _bounded(best[0])))] * best[1]


def _pods(request: Request) -> list[v2.Replica]:
    """Return the deployment's pods. Readiness time is not reported, so it counts from the start."""
    if not request.deployment.pods:
        raise v2.NoMetric("cpu is unknown (no pods were observed)")
    replicas = []
    for pod in request.deployment.pods:
        age = None if pod.started_at is None else max(0.0, (request.now - pod.started_at).total_seconds())
        replicas.append(
            v2.Replica(
                value_milli=None if pod.cpu_cores is None else thousandths(pod.cpu_cores),
                request_milli=None if pod.cpu_request_cores is None else thousandths(pod.cpu_request_cores),
                phase="Pending" if age is None else "Running",
                ready=None if pod.ready is None else ("True" if pod.ready else "False"),
                started_ago=age,
                transition_ago=age or 0.0,
                sample_window=METRICS_WINDOW_SECONDS,
            )
        )
    return replicas


def thousandths(value: float) -> int:
    """As a quantity holds it: rounded up, but not for a float's last bits."""
    return math.ceil(round(_bounded(value) * 1000, 3))


def _bounded(value: float) -> float:
    """Cut a value to the range of a quantity."""
    return max(-MAX_QUANTITY, min(value, MAX_QUANTITY))


def _shown(request: Request, metric: str, workload: str) -> float | None:
    """For the evidence."""
    try:
        value = _value_of(request, metric, workload)
    except v2.NoMetric:
        return None
    if isinstance(value, list):
        milli = [r.value_milli for r in value if r.value_milli is not None]
        return round(sum(milli) / len(milli) / 1000, 3) if milli else None
    return value
