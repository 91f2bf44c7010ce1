"""Cache of the parts of plan requests by application: observations, history, outcomes and plans, read from the topics."""

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

MAX_OUTCOMES = 20
COMPRESSION_LEVEL = 1


class Samples:
    """The newest observations of an application, compressed until a planner reads them, which few planners do: one of
    ten operators takes 70 kB as an object and 1.2 kB compressed."""

    def __init__(self, limit: int) -> None:
        self.newest: Observation | None = None
        self._packed: deque[bytes] = deque(maxlen=limit)
        self._plain: deque[Observation] | None = None
        self._limit = limit

    def add(self, observation: Observation) -> None:
        """Add an observation, unless it is not newer."""
        if self.newest is not None and observation.observed_at <= self.newest.observed_at:
            return
        self.newest = observation
        if self._plain is None:
            self._packed.append(zlib.compress(observation.model_dump_json().encode(), COMPRESSION_LEVEL))
        else:
            self._plain.append(observation)

    def all(self) -> list[Observation]:
        """Return the observations, oldest first. They stay uncompressed, since a reader comes back each cycle."""
        if self._plain is None:
            found = (Observation.model_validate_json(zlib.decompress(each)) for each in self._packed)
            self._plain = deque(found, maxlen=self._limit)
            self._packed.clear()
        return list(self._plain)

    def after(self, instant: datetime) -> list[Observation]:
        """Return the newer observations, oldest first."""
        if self.newest is None or self.newest.observed_at <= instant:
            return []
        return [observation for observation in self.all() if observation.observed_at > instant]


class RequestCache:
    """Bounded state by application; builds plan requests."""

    def __init__(self, observations_kept: int, history_kept: int) -> None:
        self._observations: dict[str, Samples] = defaultdict(lambda: Samples(max(1, observations_kept)))
        self._observations_kept = observations_kept
        self._history: dict[str, deque[LoopResult]] = defaultdict(lambda: deque(maxlen=max(1, history_kept)))
        self._history_kept = history_kept
        self._outcomes: dict[str, deque[Outcome]] = defaultdict(lambda: deque(maxlen=MAX_OUTCOMES))
        self._plans: dict[str, Plan] = {}

    def observed(self, observation: Observation) -> None:
        """Add an observation, unless it is not newer or carries an import, which is no reading; forget an application
        that ended."""
        if observation.imported is not None:
            return
        if observation.status == "ended":
            self.forget(observation.application)
        else:
            self._observations[observation.application].add(observation)

    def planned(self, plan: Plan, analysis: Analysis | None = None) -> None:
        """Add a plan, the replica's own or, after a takeover, another one's."""
        last = self._plans.get(plan.application)
        if last is not None and plan.observed_at <= last.observed_at:
            return
        self._plans[plan.application] = plan
        line = plan.in_short(None, None)
        if analysis is not None:
            line = plan.in_short(analysis.lag_seconds.value, analysis.arrival_rate.value, analysis.throughput)
        self._history[plan.application].appendleft(line)

    def happened(self, application: str, outcome: Outcome | None) -> None:
        """Add an outcome, unless it is older; None: the topic has deleted the application."""
        if outcome is None:
            self._outcomes.pop(application, None)
            return
        ring = self._outcomes[application]
        if not ring or not precedes(outcome.order, ring[0].order):
            ring.appendleft(outcome)

    def ended(self, analysis: Analysis) -> None:
        """Forget what is older than the end of an application; a replay of an old end changes nothing."""
        application, plan = analysis.application, self._plans.get(analysis.application)
        if plan is not None and plan.observed_at >= analysis.observed_at:
            return
        samples = self._observations.get(application)
        newer = samples.after(analysis.observed_at) if samples else []
        self.forget(application)
        for observation in newer:
            self.observed(observation)

    def forget(self, application: str) -> None:
        """Forget everything of an application except its outcomes."""
        for by_application in (self._observations, self._history, self._plans):
            by_application.pop(application, None)

    def keep_only(self, is_mine: Callable[[str], bool]) -> None:
        """Forget applications of lost partitions; outcomes stay, since that topic is read completely."""
        for application in set(self._observations) | set(self._plans):
            if not is_mine(application):
                self.forget(application)

    def plan(self, application: str) -> Plan | None:
        return self._plans.get(application)

    def state(self, application: str, planner: str) -> PlanState:
        """Return the state of the last plan, without another planner's memory."""
        plan = self._plans.get(application)
        if plan is None:
            return PlanState()
        return plan.state if plan.state.planner == planner else plan.state.model_copy(update={"memory": {}})

    def quarantine(self, application: str) -> list[QuarantinedVector]:
        """Return the quarantined vectors of the newest outcome."""
        ring = self._outcomes.get(application)
        return list(ring[0].quarantine) if ring else []

    def request(self, analysis: Analysis, now: datetime, *, with_observations: bool = True) -> PlanRequest:
        """Build the request about an analysis; without observations if no planner reads them."""
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
