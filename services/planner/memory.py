"""What a replica knows of the applications of its partitions, read from the topics; it owns no database."""

import zlib
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import datetime

from weir_contracts import (
    Analysis,
    LoopResult,
    Observation,
    Outcome,
    Plan,
    PlanRequest,
    PlanState,
    QuarantinedVector,
    derive_id,
    precedes,
)

MOST_OUTCOMES = 20
LEVEL = 1
"""Of deflating: the fastest."""


class Samples:
    """The newest observations of an application. They are deflated until somebody looks at them, which few planners do: one of ten
    operators takes 70 kB as an object, and 1.2 kB like this."""

    def __init__(self, most: int) -> None:
        self.newest: Observation | None = None
        self._packed: deque[bytes] = deque(maxlen=most)
        self._plain: deque[Observation] | None = None
        self._most = most

    def add(self, observation: Observation) -> None:
        """Take one in; what is not newer is ignored."""
        if self.newest is not None and observation.observed_at <= self.newest.observed_at:
            return
        self.newest = observation
        if self._plain is None:
            self._packed.append(zlib.compress(observation.model_dump_json().encode(), LEVEL))
        else:
            self._plain.append(observation)

    def all(self) -> list[Observation]:
        """Oldest first. Who looks once looks at each turn: from now on they are kept as they are."""
        if self._plain is None:
            found = (Observation.model_validate_json(zlib.decompress(each)) for each in self._packed)
            self._plain = deque(found, maxlen=self._most)
            self._packed.clear()
        return list(self._plain)

    def after(self, instant: datetime) -> list[Observation]:
        """Those that are newer, oldest first."""
        if self.newest is None or self.newest.observed_at <= instant:
            return []
        return [observation for observation in self.all() if observation.observed_at > instant]


class Applications:
    """Raw samples, past turns and outcomes by application, bounded; pure bookkeeping."""

    def __init__(self, observations_kept: int, history_kept: int) -> None:
        self._observations: dict[str, Samples] = defaultdict(lambda: Samples(max(1, observations_kept)))
        self._observations_kept = observations_kept
        self._history: dict[str, deque[LoopResult]] = defaultdict(lambda: deque(maxlen=max(1, history_kept)))
        self._history_kept = history_kept
        self._outcomes: dict[str, deque[Outcome]] = defaultdict(lambda: deque(maxlen=MOST_OUTCOMES))
        self._plans: dict[str, Plan] = {}

    def observed(self, observation: Observation) -> None:
        """Take a raw sample in; what is not newer is ignored, an ended application forgotten."""
        if observation.status == "ended":
            self.forget(observation.application)
        else:
            self._observations[observation.application].add(observation)

    def planned(self, plan: Plan, analysis: Analysis | None = None) -> None:
        """Take a plan in, one's own or, after a takeover, another replica's."""
        known = self._plans.get(plan.application)
        if known is not None and plan.observed_at <= known.observed_at:
            return
        self._plans[plan.application] = plan
        self._history[plan.application].appendleft(
            plan.in_short(
                analysis.lag_seconds.value if analysis else None, analysis.arrival_rate.value if analysis else None
            )
        )

    def happened(self, application: str, outcome: Outcome | None) -> None:
        """Take an outcome in, unless it is older; None: its topic has forgotten the application."""
        if outcome is None:
            self._outcomes.pop(application, None)
            return
        ring = self._outcomes[application]
        if not ring or not precedes(outcome.order, ring[0].order):
            ring.appendleft(outcome)

    def ended(self, analysis: Analysis) -> None:
        """The application ended: all that is older than this is forgotten. A replay of what ended long ago changes nothing."""
        application, plan = analysis.application, self._plans.get(analysis.application)
        if plan is not None and plan.observed_at >= analysis.observed_at:
            return
        samples = self._observations.get(application)
        newer = samples.after(analysis.observed_at) if samples else []
        self.forget(application)
        for observation in newer:
            self.observed(observation)

    def forget(self, application: str) -> None:
        """Everything of an application, but for its outcomes."""
        for known in (self._observations, self._history, self._plans):
            known.pop(application, None)

    def keep_only(self, is_mine: Callable[[str], bool]) -> None:
        """Forget what belongs to partitions that were lost; outcomes stay, they are read whole."""
        for application in set(self._observations) | set(self._plans):
            if not is_mine(application):
                self.forget(application)

    def plan(self, application: str) -> Plan | None:
        """The newest plan."""
        return self._plans.get(application)

    def state(self, application: str, planner: str) -> PlanState:
        """What the last plan left for this one; another planner's memory is left out."""
        plan = self._plans.get(application)
        if plan is None:
            return PlanState()
        if plan.state.planner != planner:
            return plan.state.model_copy(update={"memory": {}})
        return plan.state

    def quarantine(self, application: str) -> list[QuarantinedVector]:
        """The vectors that were rolled back, as the newest outcome tells."""
        ring = self._outcomes.get(application)
        return list(ring[0].quarantine) if ring else []

    def request(self, analysis: Analysis, now: datetime, *, with_observations: bool = True) -> PlanRequest:
        """Everything a planner may know about the application of an analysis; without raw samples where nobody will look at them."""
        application = analysis.application
        samples = self._observations.get(application) if self._observations_kept else None
        observations = samples.all() if samples and with_observations else []
        newest = samples.newest if samples else None
        state = self.state(application, analysis.policy.spec.planner.name)
        return PlanRequest.model_construct(
            id=derive_id(analysis.id, "request"),
            application=application,
            now=now,
            policy=analysis.policy,
            analysis=analysis,
            topology=analysis.topology,
            deployment=analysis.deployment,
            observations=[o for o in observations if o.observed_at <= analysis.observed_at],
            signals=newest.signals if newest else {},
            history=list(self._history.get(application, ())) if self._history_kept else [],
            outcomes=list(self._outcomes.get(application, ())),
            quarantine=self.quarantine(application),
            memory=state.memory,
            state=state.model_copy(update={"memory": {}}),
        )
