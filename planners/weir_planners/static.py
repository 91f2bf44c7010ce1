"""The built-in planner `static`: a fixed parallelism.

    wanted(operator) = operators[operator], else parallelism, else what it has

No source: it is what a person sets by hand, to compare with and to fall back on. Looks at no metric, so it never holds
for one.
"""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from weir_contracts import Infeasible, Parallelism, PlanReply, changes, fitted, listed, short_name, sizes
from weir_contracts.base import OperatorName
from weir_sdk import Request, planner

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

    def of(self, request: Request) -> tuple[Parallelism, list[Infeasible]]:
        """Return the recommendation for each operator within its limits, and what these do not allow; operators without one
        keep their parallelism."""
        wanted, beyond = dict[str, int](request.current), list[Infeasible]()
        for name in request.current:
            size = self.operators.get(name, self.parallelism)
            if size is not None:
                wanted[name], notes = request.within(name, size)
                beyond += notes
        return wanted, beyond

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
    if unknown := parameters.unknown(request):
        return no_such_operator(unknown, request)
    return settled(request, parameters, "fixed", "the policy fixes it")


def no_such_operator(unknown: list[str], request: Request) -> PlanReply:
    """A hold for names that the graph does not have: after a change of the job, a person must look."""
    sentence = fitted(
        f"nothing changes: there is no operator {listed(list(map(short_name, unknown)))}",
        f"; there are: {listed(list(map(short_name, request.current)))}",
    )
    return PlanReply(kind="hold", code="unknown-operator", sentence=sentence)


def settled(request: Request, vector: Vector, code: str, reason: str) -> PlanReply:
    """The reply that holds the application at a vector."""
    wanted, beyond = vector.of(request)
    about: dict[str, Any] = {f"wanted[{name}]": p for name, p in wanted.items()}
    about |= {"memory": {}, "infeasible": beyond}
    if wanted == request.current:
        return request.hold(code, f"{sizes(wanted)}: {reason}", **about)
    return request.scale(wanted, code, f"{changes(request.current, wanted)}: {reason}", **about)
