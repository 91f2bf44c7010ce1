"""What passes through the chain: a vector or a hold, what has been amended, and the facts that guards go by."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from weir_contracts import (
    ActionState,
    Amendment,
    Analysis,
    Deployment,
    Infeasible,
    OperatorAnalysis,
    Parallelism,
    PastAction,
    PolicySpec,
    QuarantinedVector,
    Recommendation,
    Topology,
    UsualArrivals,
)

from predictor.capacity import MIN_CONFIDENCE, CapacityCurve, curve_of

from .allowed import allowed

Moves = tuple[list[str], list[str]]
"""Operators that are raised, and that are lowered."""

SATURATED = 0.95
"""Busy share from which an operator is as busy as it gets."""

HIGHEST_UTILISATION = 0.92
"""Load over capacity above which an operator is close enough to its limit for any relief to count."""


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

    actions: Sequence[PastAction] = ()
    """Of the last hour, oldest first."""
    _moves: list[tuple[Parallelism, Moves]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Of the vector that was asked about last: most guards ask, and few have changed it."""

    @property
    def current(self) -> Parallelism:
        return self.deployment.observed

    @cached_property
    def operators(self) -> Mapping[str, OperatorAnalysis]:
        """What was analysed, by operator."""
        return {found.operator: found for found in self.analysis.operators}

    @cached_property
    def busy(self) -> Mapping[str, float | None]:
        """Busy share of each operator."""
        return {name: found.utilisation.value for name, found in self.operators.items()}

    @cached_property
    def forced(self) -> Parallelism:
        """What comes nearest to the present of what the policy allows."""
        return allowed(self.current, self.spec, self.topology, self.busy)[0]

    def load(self, name: str) -> float | None:
        """Records that would arrive if nothing held them back, over what the operator can do; None where either is unknown."""
        capacity, target = self.capacity(name), self.target(name)
        return None if capacity is None or target is None else target / capacity

    def capacity(self, name: str) -> float | None:
        """Records/s that an operator can do as it runs: where its curve goes through, without the fit."""
        found, now = self.operators.get(name), self.current[name]
        if found is None:
            return None
        here = (c for c in found.capacities if c.parallelism == now and c.confidence >= MIN_CONFIDENCE)
        seen = next((c.records_per_second for c in here), None)
        rate = found.true_processing_rate
        trusted = rate.value if found.parallelism == now and rate.confidence >= MIN_CONFIDENCE else None
        return seen or trusted or None

    def curve(self, name: str) -> CapacityCurve | None:
        """What an operator can do at each parallelism."""
        found = self.operators.get(name)
        return None if found is None else curve_of(found)

    def target(self, name: str) -> float | None:
        """Records/s that would arrive at an operator if nothing held them back."""
        found = self.operators.get(name)
        return None if found is None else found.target_input_rate.value

    @property
    def backlog_seconds(self) -> tuple[float | None, float]:
        """What the objective bounds, and from where on something waits: a quarter of the bound, at least three intervals."""
        objective, reading = self.spec.objective, self.analysis
        lag = reading.expected_latency_seconds if objective.max_latency is not None else reading.lag_seconds
        return lag.value, max((objective.bound_seconds or 60.0) / 4, 3 * self.spec.interval.total_seconds())

    def needs_more(self, name: str) -> bool:
        """Whether an operator can hardly do what it is asked for, or nobody can tell."""
        busy, load, (lag, limit) = self.busy.get(name), self.load(name), self.backlog_seconds
        if busy is None or load is None:
            return True
        return busy >= SATURATED or load > HIGHEST_UTILISATION or (lag is not None and lag > limit)

    def moves(self, vector: Parallelism) -> Moves:
        """The operators that a vector raises and lowers, but for those on their way into the policy's bounds: nothing else may hold
        these back."""
        if self._moves and self._moves[0][0] is vector:
            return self._moves[0][1]
        up: list[str] = []
        down: list[str] = []
        current, free = self.current, self.free
        for name, p in vector.items():
            now = current.get(name, p)
            if p != now and name in free:
                (up if p > now else down).append(name)
        self._moves[:] = [(vector, (up, down))]
        return up, down

    @cached_property
    def free(self) -> frozenset[str]:
        """Operators of which the policy allows what is running: nothing may hold back the others on their way into bounds."""
        forced = self.forced
        return frozenset([name for name, p in self.current.items() if forced[name] == p])


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

    def staying(self, guard: str, because: str, names: Iterable[str], context: Context) -> "Draft":
        """The draft with some operators left as they are, for the guard's own reason."""
        vector = {**(self.vector or {}), **{name: context.current[name] for name in names}}
        return self.changed(guard, guard, because[:2000], vector)

    def noting(self, infeasible: Infeasible) -> "Draft":
        return replace(self, infeasible=(*self.infeasible, infeasible))


def moves(draft: Draft, context: Context) -> Moves:
    """`Context.moves` of the draft's vector."""
    return ([], []) if draft.vector is None else context.moves(draft.vector)
