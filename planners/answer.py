"""What rules of parallelism say in the same way: what may be had of what is wanted, gaps, the reply."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir_contracts import Infeasible, Parallelism, PlanReply
from weir_contracts.planning import Number
from weir_planner import Request

MOST_EVIDENCE = 200
MOST_INFEASIBLE = 100
LONGEST_SENTENCE = 2000


@dataclass(frozen=True)
class Answer:
    """An answer in the making; `infeasible` gathers what could not be had."""

    request: Request
    infeasible: list[Infeasible] = field(default_factory=list)

    def within(self, name: str, wanted: float) -> int:
        """`wanted`, rounded up, as far as it may be had; notes what may not."""
        least, most, _ = self.request.limits[name]
        if not wanted - 1e-9 <= most:  # also where it is no number any more
            shown = None if not math.isfinite(wanted) else float(math.ceil(wanted - 1e-9))
            words = "more" if shown is None else f"{shown:,.0f}"
            self.infeasible.append(
                Infeasible(
                    operator=name,
                    wanted=shown,
                    limit=float(most),
                    code="bounds",
                    because=f"{words} subtasks are wanted and {most} may be had",
                )
            )
            return most
        return max(least, math.ceil(wanted - 1e-9))


def missing(what: str, because: str, memory: Mapping[str, Any]) -> PlanReply:
    """A hold for something unknown, which is named: unknown is not 0."""
    sentence = f"{what} is unknown ({because}), so nothing changes"
    return PlanReply(kind="hold", code="metric-missing", sentence=short(sentence), memory=dict(memory))


def reply_of(  # noqa: PLR0917 - the parts of a reply, in its order
    answer: Answer,
    wanted: Parallelism | None,
    code: str,
    sentence: str,
    evidence: Mapping[str, Number],
    memory: Mapping[str, Any],
) -> PlanReply:
    """The answer, within what the contract allows; a vector that is running already is a hold."""
    scales = wanted is not None and wanted != answer.request.current
    return PlanReply(
        kind="scale" if scales else "hold",
        parallelism=wanted if scales else None,
        code=code,
        sentence=short(sentence),
        evidence=dict([(name, told(value)) for name, value in evidence.items()][:MOST_EVIDENCE]),
        infeasible=answer.infeasible[:MOST_INFEASIBLE],
        memory=dict(memory),
    )


def told(value: Number) -> Number:
    """A number as evidence: three places, and None where it is none any more."""
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value


def short(sentence: str) -> str:
    """Within what a sentence may be long."""
    return sentence if len(sentence) <= LONGEST_SENTENCE else sentence[: LONGEST_SENTENCE - 1] + "…"


def total(values: Sequence[float | None]) -> float | None:
    """The sum, if all of it is known and a number; never below 0."""
    known = [value for value in values if value is not None]
    if len(known) != len(values) or not known:
        return None
    added = sum(known)
    return max(0.0, added) if math.isfinite(added) else None
