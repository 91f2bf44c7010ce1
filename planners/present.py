"""What rules of parallelism read first and say in the same way: the present vector, its limits, gaps, the last action."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from weir_contracts import Infeasible, Parallelism, PlanReply, PlanRequest, Topology
from weir_contracts.planning import Number

M = TypeVar("M", bound=BaseModel)

MOST_EVIDENCE = 200
MOST_INFEASIBLE = 100
LONGEST_SENTENCE = 2000


@dataclass(frozen=True)
class Present:
    """What runs and what may run; `infeasible` gathers what could not be had."""

    topology: Topology
    current: Parallelism
    limits: Mapping[str, tuple[int, int]]
    """Least and most of each operator: the policy's bounds, its key groups and its partitions."""
    infeasible: list[Infeasible] = field(default_factory=list)

    def within(self, name: str, wanted: float) -> int:
        """`wanted`, rounded up, as far as it may be had; notes what may not."""
        least, most = self.limits[name]
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

    def uniform(self, wanted: int) -> Parallelism:
        """One parallelism for the whole application, of each operator as far as it may have it."""
        return {name: max(least, min(wanted, most)) for name, (least, most) in self.limits.items()}

    @property
    def replicas(self) -> int:
        """The one parallelism of the whole application: that of its widest operator."""
        return max(self.current.values())

    @property
    def most_replicas(self) -> int:
        """The largest that any operator may have."""
        return max(most for _, most in self.limits.values())


def present_of(request: PlanRequest, memory: Mapping[str, Any]) -> Present | PlanReply:
    """What runs and may run; a hold where graph, deployment or an operator's parallelism is unknown."""
    topology, deployment = request.topology, request.deployment
    if topology is None or deployment is None:
        return missing("the application's graph or deployment", "it was not observed", memory)
    if set(deployment.observed) != set(topology.names):
        return missing("the parallelism of every operator", "it was not observed", memory)
    limits = {}
    for operator in topology.operators:
        least, most = request.policy.spec.bounds.of(operator.name)
        most = max(1, min(p for p in (most, operator.max_parallelism, operator.source_partitions) if p is not None))
        limits[operator.name] = (min(least, most), most)
    return Present(topology, {name: deployment.observed[name] for name in topology.names}, limits)


def remembered(memory: type[M], request: PlanRequest) -> M:
    """What the last turn left; another version's, or a damaged one, is none."""
    try:
        return memory.model_validate(request.memory)
    except ValidationError:
        return memory()


def missing(what: str, because: str, memory: Mapping[str, Any]) -> PlanReply:
    """A hold for something unknown, which is named: unknown is not 0."""
    sentence = f"{what} is unknown ({because}), so nothing changes"
    return PlanReply(kind="hold", code="metric-missing", sentence=short(sentence), memory=dict(memory))


def seconds_since_action(request: PlanRequest) -> float | None:
    """Since the newest action that began to run or ended; None: no action is known."""
    action = request.newest_action
    if action is None:
        return None
    at = action.running_at or action.finished_at or action.started_at
    return max(0.0, (request.now - at).total_seconds())


def reply_of(  # noqa: PLR0917 - the parts of a reply, in its order
    present: Present,
    wanted: Parallelism | None,
    code: str,
    sentence: str,
    evidence: Mapping[str, Number],
    memory: Mapping[str, Any],
) -> PlanReply:
    """The answer, within what the contract allows; a vector that is running already is a hold."""
    scales = wanted is not None and wanted != present.current
    return PlanReply(
        kind="scale" if scales else "hold",
        parallelism=wanted if scales else None,
        code=code,
        sentence=short(sentence),
        evidence=dict([(name, told(value)) for name, value in evidence.items()][:MOST_EVIDENCE]),
        infeasible=present.infeasible[:MOST_INFEASIBLE],
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
