"""The built-in planner `threshold`: one step up above a threshold, one step down below another.

    value > up_above    p + step, or ceil(p · factor)
    value < down_below  p - step, or floor(p / factor), at least 1

No source: it is the rule that most home-made scripts have. `utilization` is each operator's own (busy share) and moves
that operator; `lag_seconds`, `latency_seconds` and `backlog` (records) are the application's and move all operators, or
those named. It looks at nothing else: a step is the same however far the value is away, and up and down again is likely
where the thresholds lie close together.
"""

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from weir_contracts import Estimate, Infeasible, PlanReply, changes, fitted, listed
from weir_contracts.base import OperatorName
from weir_sdk import Request, planner

from .static import no_such_operator

Measure = Literal["utilization", "lag_seconds", "latency_seconds", "backlog"]


class ThresholdParameters(BaseModel):
    """Parameters of the planner."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    measure: Measure = Field(
        default="utilization",
        description="measure: utilization as a share, lag_seconds, latency_seconds, or backlog in records",
    )
    up_above: float = Field(ge=0, description="threshold for scaling up, in the unit of the measure")
    down_below: float = Field(ge=0, description="threshold for scaling down, in the unit of the measure; 0: never")
    step: int | None = Field(
        default=None, ge=1, le=32768, description="subtasks added or removed at once; 1 without a factor"
    )
    factor: float | None = Field(
        default=None, gt=1, le=100, description="factor of the parallelism at once, instead of step"
    )
    operators: list[OperatorName] | None = Field(
        default=None, min_length=1, max_length=500, description="operators that are scaled; by default all"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.down_below >= self.up_above:
            raise ValueError(f"down_below: {self.down_below:g} is not below up_above ({self.up_above:g})")
        if self.step is not None and self.factor is not None:
            raise ValueError("factor: give step or factor, not both")
        if self.measure == "utilization" and self.up_above >= 1:
            raise ValueError("up_above: utilization is a share, and none is above 1")
        return self

    def moved(self, p: int, direction: int) -> int:
        """Return the parallelism one step from p, at minimum 1."""
        if self.factor is None:
            return max(1, p + direction * (self.step or 1))
        return math.ceil(p * self.factor) if direction > 0 else max(1, math.floor(p / self.factor))


@planner(
    name="threshold",
    description="a step up above a threshold, a step down below another; of utilization, lag, latency or backlog",
    parameters=ThresholdParameters,
    reads=[],
)
def plan_by_threshold(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(ThresholdParameters)
    evidence, beyond = dict[str, Any](), list[Infeasible]()
    chosen = parameters.operators or list(request.current)
    if unknown := sorted(set(chosen) - set(request.current)):
        return no_such_operator(unknown, request)
    readings = _readings(request, parameters.measure, chosen)
    wanted = request.current
    taken: list[str] = []
    stuck: list[str] = []
    unread: list[tuple[str, str]] = []
    for name in chosen:
        what, estimate = readings[name]
        value = estimate.proven
        evidence[what] = None if value is None else round(value, 3)
        direction = 0 if value is None else (value > parameters.up_above) - (value < parameters.down_below)
        if value is None or (estimate.value is None and direction <= 0):  # a lower bound only ever grows
            unread.append((what, estimate.basis))
            continue
        if direction:
            wanted[name], notes = _kept(request, name, parameters.moved(request.current[name], direction))
            beyond += notes
            moves = wanted[name] != request.current[name]
            crossed = f"above {parameters.up_above:g}" if direction > 0 else f"below {parameters.down_below:g}"
            (taken if moves else stuck).append(f"{what} is {value:,.4g}, {crossed}")
    reason = listed(list(dict.fromkeys(taken or stuck)), 90, "; ")
    about = {"memory": {}, **evidence}
    if wanted != request.current:
        grows = any(wanted[name] > p for name, p in request.current.items())
        code = "above-threshold" if grows else "below-threshold"
        moved = changes(request.current, wanted)
        return request.scale(wanted, code, f"{moved}: {reason}", infeasible=beyond, **about)
    if unread:
        what, reason = unread[0]
        sentence = fitted(f"{what} is unknown, so nothing changes", f": {reason}")
        return request.hold("metric-missing", sentence, **about)
    if stuck:
        return request.hold("at-bound", f"{reason}, and there is no step left", infeasible=beyond, **about)
    sentence = f"{parameters.measure} lies between {parameters.down_below:g} and {parameters.up_above:g}"
    return request.hold("within-thresholds", sentence, **about)


def _readings(request: Request, measure: Measure, names: list[str]) -> dict[str, tuple[str, Estimate]]:
    """For each operator what is looked at, by name, and its value."""
    analysis = request.analysis
    if measure != "utilization":
        estimate = {
            "lag_seconds": analysis.lag_seconds,
            "latency_seconds": analysis.expected_latency_seconds,
            "backlog": analysis.lag_records,
        }[measure]
        return dict.fromkeys(names, (measure, estimate))
    found = {name: analysis.operator(name) for name in names}
    nothing = Estimate(basis="it was not analysed")
    return {name: (f"utilization[{name}]", o.utilization if o else nothing) for name, o in found.items()}


def _kept(request: Request, name: str, wanted: int) -> tuple[int, list[Infeasible]]:
    """Clamp to the limits without reversing the direction: the bounds guard handles a parallelism outside them."""
    p, (within, beyond) = request.current[name], request.within(name, wanted)
    return (max(p, within) if wanted >= p else min(p, within)), beyond
