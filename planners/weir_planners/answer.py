"""Replies of rule-based planners: clamped to the operators' limits and the message's size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir_contracts import Infeasible, Parallelism, PlanReply, fitted, short_name
from weir_contracts.planning import Number
from weir_sdk import Request

MAX_EVIDENCE = 200
MAX_INFEASIBLE = 100


@dataclass
class Answer:
    """A reply in the making: its evidence, the planner's memory, and the parallelisms that the limits do not allow."""

    request: Request
    memory: Mapping[str, Any] = field(default_factory=dict)
    evidence: dict[str, Number] = field(default_factory=dict)
    infeasible: list[Infeasible] = field(default_factory=list)

    def within(self, name: str, wanted: float) -> int:
        """Return `wanted`, rounded up and clamped to the operator's limits; record it as infeasible if it is above
        them."""
        limits = self.request.limits[name]
        if wanted - 1e-9 <= limits.max:
            return max(limits.min, math.ceil(wanted - 1e-9))
        shown = float(math.ceil(wanted - 1e-9)) if math.isfinite(wanted) else None
        subtasks = "more" if shown is None else f"{shown:,.0f}"
        reason = f"{short_name(name)} would need {subtasks} subtasks and is limited to {limits.max:,}"
        self.infeasible.append(
            Infeasible(operator=name, wanted=shown, limit=float(limits.max), code="bounds", because=reason)
        )
        return limits.max

    def missing(self, what: str, reason: str) -> PlanReply:
        """Return a hold that names an unknown value: unknown is not 0."""
        sentence = fitted(f"{what} is unknown, so nothing changes", f": {reason}")
        return PlanReply(kind="hold", code="metric-missing", sentence=sentence, memory=dict(self.memory))

    def hold(self, code: str, sentence: str) -> PlanReply:
        """Return a hold with the evidence so far."""
        return self.scale(self.request.current, code, sentence)

    def scale(self, wanted: Parallelism, code: str, sentence: str) -> PlanReply:
        """Return the reply with the evidence so far; a vector that runs already is a hold."""
        scales = wanted != self.request.current
        return PlanReply(
            kind="scale" if scales else "hold",
            parallelism=wanted if scales else None,
            code=code,
            sentence=sentence,
            evidence=dict([(name, _evident(value)) for name, value in self.evidence.items()][:MAX_EVIDENCE]),
            infeasible=self.infeasible[:MAX_INFEASIBLE],
            memory=dict(self.memory),
        )


def _evident(value: Number) -> Number:
    """Return a number as evidence, to three places; None if it is not finite."""
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value


def total(values: Sequence[float | None]) -> float | None:
    """Return the sum, at least 0; None if a value is unknown or the sum is not finite."""
    added = sum(math.nan if value is None else value for value in values)
    return max(0.0, added) if values and math.isfinite(added) else None
