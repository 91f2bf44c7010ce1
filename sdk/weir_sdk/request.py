"""The request of a plan with helpers for planners, and the two replies."""

import math
import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from weir_contracts import (
    Deployment,
    Estimate,
    Infeasible,
    InvalidDocument,
    OperatorAnalysis,
    OperatorLimits,
    PlanReply,
    PlanRequest,
    Prediction,
    Topology,
    listed,
    short_name,
)

if TYPE_CHECKING:
    from weir_predictor import Gap, Model

Parameters = TypeVar("Parameters", bound=BaseModel)
MAX_EVIDENCE = 200
MAX_INFEASIBLE = 100


class MetricMissing(Exception):
    """A value that a planner needs is unknown; raised out of a planner it becomes a hold that names it."""


class InvalidParameters(ValueError):
    """The policy's `spec.planner.parameters` are not what the planner takes; the sentence names each, `problems` has
    them as field and sentence."""

    def __init__(self, sentence: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        self.problems = list(problems)
        super().__init__(sentence)


class Request(PlanRequest):
    """Request of a plan at one instant, with helpers. Rates in records/s of all subtasks of an operator."""

    if TYPE_CHECKING:  # checked when it is made
        topology: Topology
        deployment: Deployment

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
        _check(self)
        return self

    @classmethod
    def of(cls, request: PlanRequest, parameters: BaseModel | None = None) -> "Request":
        """Return a validated request with the helpers; one that has them is returned itself. `parameters` are the
        planner's, if they are validated already. Raises `ValueError` if it cannot be planned."""
        if isinstance(request, cls):
            if parameters is not None:
                request.__dict__["_validated"] = (request.policy.spec.planner.parameters, parameters)
            return request
        _check(request)
        made = cls.__new__(cls)
        # As `model_construct`, without going through every field: a plan takes less than a millisecond.
        fields = dict(request.__dict__)
        if parameters is not None:
            fields["_validated"] = (request.policy.spec.planner.parameters, parameters)
        object.__setattr__(made, "__dict__", fields)
        object.__setattr__(made, "__pydantic_fields_set__", set(request.model_fields_set))
        object.__setattr__(made, "__pydantic_extra__", None)
        object.__setattr__(made, "__pydantic_private__", None)
        return made

    @property
    def operators(self) -> list[str]:
        """The operators in topological order, sources first."""
        return list(self.topology.names)

    @property
    def sources(self) -> list[str]:
        """Operators without inputs."""
        return list(self.topology.sources)

    def inputs(self, name: str) -> list[str]:
        """Return the operators that feed `name`."""
        return self.topology.inputs(name)

    @property
    def current(self) -> dict[str, int]:
        """The parallelism that runs, of every operator, in topological order."""
        return dict(self._current)

    @cached_property
    def _current(self) -> Mapping[str, int]:
        return {name: self.deployment.observed[name] for name in self.topology.names}

    @property
    def replicas(self) -> int:
        """Parallelism of the application as one: that of its widest operator."""
        return max(self._current.values())

    @property
    def max_replicas(self) -> int:
        """The largest parallelism that any operator may have."""
        return max(limits.max for limits in self.limits.values())

    @cached_property
    def limits(self) -> Mapping[str, OperatorLimits]:
        """Smallest and largest parallelism of each operator by the policy's bounds, its key groups and its partitions."""
        return self.topology.limits(self.policy.spec.bounds)

    def uniform(self, wanted: int) -> dict[str, int]:
        """Return one parallelism for all operators, clamped to the limits of each operator."""
        return {name: max(limits.min, min(wanted, limits.max)) for name, limits in self.limits.items()}

    @property
    def seconds_since_action(self) -> float | None:
        """Since the newest action that began to run or ended; None: no action is known."""
        action = self.newest_action
        if action is None:
            return None
        at = action.running_at or action.finished_at or action.started_at
        return max(0.0, (self.now - at).total_seconds())

    def remembered(self, memory: type[Parameters]) -> Parameters:
        """Return the planner's memory of the last cycle; an empty one if it is another version's or damaged."""
        try:
            return memory.model_validate(self.memory)
        except ValidationError:
            return memory()

    @cached_property
    def analyses(self) -> Mapping[str, OperatorAnalysis]:
        """The analyses of the operators, by name."""
        return {found.operator: found for found in self.analysis.operators}

    def analysed(self, name: str) -> OperatorAnalysis:
        """Return the analysis of an operator. Raises `MetricMissing` if there is none."""
        found = self.analyses.get(name)
        if found is None:
            raise MetricMissing(f"nothing was analysed of {name}")
        return found

    def useful_parallelisms(self, name: str) -> list[int]:
        """Return the parallelisms within the limits that differ in effect, ascending. Partitions and key groups are not
        divided: of those with the same largest share the smallest is kept, so with T of them it is one of ⌈T/k⌉. The
        smallest allowed is always included."""
        low, high, _ = self.limits[name]
        useful = {self.topology.smallest_useful(name, p) for p in range(low, high + 1)}
        return sorted({low} | {p for p in useful if p >= low})

    def capacity(self, name: str, parallelism: int | None = None) -> float | None:
        """Return the records/s that `name` sustains at `parallelism` (default: the present one), by the predictor's
        curve through its measurements at this and other parallelisms; None if unknown."""
        curve = self.model[0].curves.get(name)
        return None if curve is None else curve.rate(self._current[name] if parallelism is None else parallelism)

    @cached_property
    def model(self) -> "tuple[Model, Sequence[Gap]]":
        """The application as the predictor reads it, and what is unknown of it."""
        from weir_predictor import model_of  # numpy takes longer to import than most planners to plan

        return model_of(self.analysis, self.topology)

    def demand(self, name: str) -> float | None:
        """Records/s that would arrive at `name` if everything before it kept up; None: unknown."""
        found = self.analyses.get(name)
        return None if found is None else found.target_input_rate.value

    def busy(self, name: str) -> float | None:
        """Share of the time in which the subtasks of `name` are busy; None: unknown."""
        found = self.analyses.get(name)
        return None if found is None else found.utilization.value

    def needed(self, value: float | Estimate | None, what: str, *, or_more: bool = False) -> float:
        """The value, if it is known; `or_more`: or its lower bound, which is enough to grow, and no plan shrinks on it. Raises
        `MetricMissing`, which becomes a hold that names `what`: unknown is not 0."""
        present = value if not isinstance(value, Estimate) else value.proven if or_more else value.value
        if present is None:
            reason = f": {value.basis}" if isinstance(value, Estimate) else ""
            raise MetricMissing(f"{what} is unknown{reason}")
        return present

    def within(self, name: str, wanted: float) -> tuple[int, list[Infeasible]]:
        """Return `wanted`, rounded up and clamped to the operator's limits, and a note for the reply if it is above
        them."""
        limits = self.limits[name]
        if wanted - 1e-9 <= limits.max:
            return max(limits.min, math.ceil(wanted - 1e-9)), []
        shown = float(math.ceil(wanted - 1e-9)) if math.isfinite(wanted) else None
        subtasks = "more" if shown is None else f"{shown:,.0f}"
        reason = f"{short_name(name)} would need {subtasks} subtasks and is limited to {limits.max:,}"
        limit = float(limits.max)
        return limits.max, [Infeasible(operator=name, wanted=shown, limit=limit, code="bounds", because=reason)]

    def parameters(self, model: type[Parameters]) -> Parameters:
        """Return the policy's parameters for this planner. Raises `InvalidParameters`."""
        given = self.policy.spec.planner.parameters
        cached = self.__dict__.get("_validated")
        if cached is not None and cached[0] is given and isinstance(cached[1], model):
            return cached[1]
        try:
            return model.model_validate(given)
        except ValidationError as error:
            raise InvalidParameters(str(InvalidDocument.of(error, "parameters"))) from None

    def hold(
        self,
        code: str,
        sentence: str,
        *,
        memory: Mapping[str, Any] | None = None,
        infeasible: Sequence[Infeasible] = (),
        **evidence: float | str | None,
    ) -> PlanReply:
        """Leave everything as it is, because. `code` is for programs (`metric-missing`), `evidence` the numbers used,
        with units in their names. `memory` is what comes back with the next request; None: what came with this one.
        `infeasible` are the notes of `within`."""
        return PlanReply(
            kind="hold",
            code=code,
            sentence=sentence,
            evidence=_plain(evidence),
            infeasible=list(infeasible)[:MAX_INFEASIBLE],
            memory=dict(self.memory if memory is None else memory),
        )

    def scale(
        self,
        parallelism: Mapping[str, int],
        code: str,
        sentence: str,
        *,
        memory: Mapping[str, Any] | None = None,
        prediction: Prediction | None = None,
        infeasible: Sequence[Infeasible] = (),
        **evidence: float | str | None,
    ) -> PlanReply:
        """Run with this parallelism; operators left out stay as they are. Raises `ValueError` for an operator that is
        not there."""
        unknown = sorted(set(parallelism) - set(self.operators))
        if unknown:
            raise ValueError(f"there is no operator {listed(unknown)}; there are: {listed(self.operators)}")
        wanted = {**self.current, **{name: operator.index(p) for name, p in parallelism.items()}}
        return PlanReply(
            kind="scale",
            parallelism=wanted,
            code=code,
            sentence=sentence,
            evidence=_plain(evidence),
            infeasible=list(infeasible)[:MAX_INFEASIBLE],
            prediction=prediction,
            memory=dict(self.memory if memory is None else memory),
        )


def _check(request: PlanRequest) -> None:
    """Raise `ValueError` unless the parallelism of every operator is known; Weir calls no planner otherwise."""
    if request.topology is None:
        raise ValueError("topology: is unknown, and a planner answers for all of it")
    if request.deployment is None:
        raise ValueError("deployment: is unknown, so the present parallelism is unknown")
    if request.deployment.observed.keys() != set(request.topology.names):
        raise ValueError("deployment.observed: is not of the topology's operators")


def _plain(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return as much of the evidence as a reply takes, with plain numbers in place of numpy's and None for infinite ones."""
    found = {name: value.item() if hasattr(value, "item") else value for name, value in evidence.items()}
    for name, value in found.items():
        if isinstance(value, float) and not math.isfinite(value):
            found[name] = None
    return dict(list(found.items())[:MAX_EVIDENCE])
