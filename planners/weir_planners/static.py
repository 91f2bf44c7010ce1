"""The built-in planner `static`: a fixed parallelism.

    wanted(operator) = operators[operator], else parallelism, else what it has

No source: it is what a person sets by hand, to compare with and to fall back on. Looks at no metric, so it never holds
for one.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from weir_contracts import PlanReply, changes, fitted, listed, short_name, sizes
from weir_contracts.base import OperatorName
from weir_sdk import Request, planner

from .answer import Answer

Parallel = Annotated[int, Field(ge=1, le=32768)]


class Vector(BaseModel):
    """A parallelism for all operators, and for single ones by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parallelism: Parallel | None = Field(
        default=None, description="parallelism of every operator that is not in operators"
    )
    operators: dict[OperatorName, Parallel] = Field(
        default_factory=dict, max_length=500, description="parallelism of single operators, by name"
    )

    def of(self, answer: Answer) -> dict[str, int]:
        """Return the recommendation for each operator within its limits; others keep their parallelism."""
        default = self.parallelism
        return {
            name: answer.within(name, self.operators.get(name, default if default is not None else p))
            if name in self.operators or default is not None
            else p
            for name, p in answer.request.current.items()
        }

    def unknown(self, request: Request) -> list[str]:
        """Names of no operator of the graph."""
        return sorted(set(self.operators) - set(request.current))


class StaticParameters(Vector):
    """Parameters of the planner."""

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.parallelism is None and not self.operators:
            raise ValueError("give parallelism, operators or both")
        return self


@planner(
    name="static",
    description="a fixed parallelism",
    parameters=StaticParameters,
    reads=[],
)
def plan_static(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(StaticParameters)
    answer = Answer(request)
    if unknown := parameters.unknown(request):
        return no_such_operator(unknown, request)
    return settled(answer, parameters, "fixed", "the policy fixes it")


def no_such_operator(unknown: list[str], request: Request) -> PlanReply:
    """A hold for names that the graph does not have: after a change of the job, a person must look."""
    sentence = fitted(
        f"nothing changes: there is no operator {listed(list(map(short_name, unknown)))}",
        f"; there are: {listed(list(map(short_name, request.current)))}",
    )
    return PlanReply(kind="hold", code="unknown-operator", sentence=sentence)


def settled(answer: Answer, vector: Vector, code: str, reason: str) -> PlanReply:
    """The reply that holds the application at a vector."""
    wanted = vector.of(answer)
    answer.evidence |= {f"wanted[{name}]": p for name, p in wanted.items()}
    return answer.scale(
        wanted,
        code,
        f"{changes(answer.request.current, wanted) if wanted != answer.request.current else sizes(wanted)}: {reason}",
    )
