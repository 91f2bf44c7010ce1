"""What passes through the chain: a vector or a hold, what has been amended, and the facts that guards go by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from weir_contracts import (
    ActionState,
    Amendment,
    Analysis,
    Deployment,
    Infeasible,
    Parallelism,
    PolicySpec,
    QuarantinedVector,
    Recommendation,
    Topology,
    UsualArrivals,
)


@dataclass(frozen=True)
class Context:
    """Facts of one turn; none of them depends on which planner proposed."""

    now: datetime
    spec: PolicySpec
    topology: Topology
    deployment: Deployment
    analysis: Analysis
    last_action: ActionState | None = None
    quarantine: Sequence[QuarantinedVector] = ()
    recommendations: Sequence[Recommendation] = ()
    """What the planner wanted in the stabilisation windows, this turn included, oldest first."""
    arrivals: UsualArrivals | None = None
    """What usually arrives, and since when it does not."""

    @property
    def current(self) -> Parallelism:
        return self.deployment.observed

    def within_bounds(self, name: str) -> bool:
        """Whether what is running of an operator is what the policy allows."""
        least, most = self.spec.bounds.of(name)
        return least <= self.current.get(name, least) <= most


@dataclass(frozen=True)
class Draft:
    """A decision in the making. `vector is None`: a hold, with its code and sentence."""

    vector: Parallelism | None
    code: str
    sentence: str
    amendments: tuple[Amendment, ...] = field(default=())
    infeasible: tuple[Infeasible, ...] = field(default=())

    def changed(self, guard: str, code: str, because: str, vector: Mapping[str, int]) -> "Draft":
        """The draft with another vector; unchanged if it is the same."""
        if self.vector is None or dict(vector) == self.vector:
            return self
        amendment = Amendment(guard=guard, code=code, because=because, before=self.vector, after=dict(vector))
        return replace(self, vector=dict(vector), amendments=(*self.amendments, amendment))

    def held(self, guard: str, code: str, because: str) -> "Draft":
        """The draft as a hold."""
        amendment = Amendment(guard=guard, code=code, because=because, before=self.vector, after=None)
        return replace(self, vector=None, code=code, sentence=because, amendments=(*self.amendments, amendment))

    def noting(self, infeasible: Infeasible) -> "Draft":
        return replace(self, infeasible=(*self.infeasible, infeasible))


def moves(draft: Draft, context: Context) -> tuple[list[str], list[str]]:
    """The operators that the draft raises and lowers, but for those on their way into the policy's bounds: nothing else may hold
    these back."""
    vector = draft.vector or {}
    free = [name for name in vector if context.within_bounds(name)]
    up = [name for name in free if vector[name] > context.current.get(name, vector[name])]
    down = [name for name in free if vector[name] < context.current.get(name, vector[name])]
    return up, down
