"""Runs one application's action: observe, decide in the core, publish the outcome, then carry it out.

The invariant of `fence` holds directly before each effect.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from weir_contracts import ActionState, Outcome, Parallelism, Plan, ScalingPolicy
from weir_engines.driver import Driver, Refusal, Snapshot, TargetChanged, Unanswered
from weir_executor.core.observed import (
    Answer,
    Instruction,
    Observed,
    PolicyReading,
    Provide,
    Record,
    Request,
    Step,
    StopJob,
)
from weir_executor.knowledge import Knowledge
from weir_runtime.bus import Bus, Refused
from weir_runtime.clock import Clock
from weir_runtime.loop import canonical_line
from weir_runtime.messages import child_traceparent, new_traceparent
from weir_runtime.reach import Reach

from . import telemetry
from .analyses import LatestAnalyses
from .applications import Application, Applications
from .core.capacity import judge
from .core.gate import POLICY_DELETED, Context, admit, is_for_us, precheck
from .core.history import Transition, recall, record_refusal, record_transition, taken_over
from .core.limits import out_of_bounds
from .core.parameters import Rules
from .core.steps import is_watched, late_rollback, next_step, resume, supersede, unpublished
from .core.table import Event
from .driver_calls import Targets
from .effects import ActionStore, OutcomePublisher
from .fence import Ownership


@dataclass(frozen=True)
class Pace:
    """Pauses between observations, and other waits, in seconds."""

    expecting: float = 0.5
    """Pause while a change is imminent, so that restart times are precise."""
    watching: float = 1.0
    receiving: float = 0.5
    """Maximum wait for records, and so for noticing a stop."""
    retrying: float = 1.0
    """Pause before an unacknowledged outcome is published again."""


GATE_SECONDS = 6.0
"""Time limit of the gate for reading policy and target."""
READ_SECONDS = 2.0
"""Maximum wait for the own intent to be read back from its topic before the next observation."""
MAX_MOVES = 6


class ActionRunner:
    """Observes, publishes and requests for actions. `analyses` and `policies` are views that the service updates."""

    def __init__(
        self,
        bus: Bus,
        drivers: Mapping[str, Driver],
        knowledge: Knowledge,
        clock: Clock,
        rules: Rules,
        *,
        attempt_id: UUID,
        ownership: Ownership,
        analyses: LatestAnalyses,
        policies: Mapping[str, ScalingPolicy],
        applications: Applications,
        reach: Reach,
        pace: Pace = Pace(),
    ) -> None:
        self._knowledge = knowledge
        self._clock = clock
        self._rules = rules
        self._attempt_id = attempt_id
        self._analyses = analyses
        self._applications = applications
        self._policies = policies
        self._pace = pace
        self._outcomes = OutcomePublisher(bus, ownership, pace.retrying)
        self._actions = ActionStore(knowledge, ownership)
        self._targets = Targets(drivers, knowledge, clock, ownership=ownership, policies=policies, reach=reach)
        self._log = structlog.get_logger("executor")

    # -- plans -----------------------------------------------------------------------------------------------------

    async def consider(self, app: Application, plan: Plan, traceparent: str | None) -> bool:
        """Pass a plan to the gate; return whether an action is in flight now."""
        if not is_for_us(plan, app.history):
            return False
        trace = traceparent or new_traceparent(plan.observation_id)
        fields = {"application": app.id, "plan_id": str(plan.id), "traceparent": trace}
        with canonical_line(self._log, "considered", self._clock, **fields) as line:
            decision = await self._decide(app, plan, trace)
            line["decision"] = "admitted" if isinstance(decision, ActionState) else "refused" if decision else "ignored"
            line["code"] = decision.code if decision else None
        return app.in_flight

    async def refuse_superseded(self, app: Application, plan: Plan, newer: Plan, traceparent: str | None) -> None:
        """Refuse a plan that arrived together with a newer one, so that every plan has an outcome."""
        if is_for_us(plan, app.history):
            refusal = Refusal("superseded-plan", f"plan {newer.id} is newer and arrived with it")
            await self._publish_refusal(app, plan, refusal, snapshot=None, traceparent=traceparent)

    async def _decide(self, app: Application, plan: Plan, traceparent: str) -> Refusal | ActionState | None:
        """Refuse a plan or begin its action; None: the plan needs no answer. Reads policy and target if they matter."""
        policy, snapshot = PolicyReading(reachable=False), None
        decision: Refusal | ActionState | None = precheck(
            plan, app.history, self._applications.fleet(), self._clock.now(), self._rules
        )
        if decision is None:
            policy, snapshot = await self._gather(app.id)
            if policy.policy is not None and not app.recalled:
                policy = await self._recall(app, policy)
            decision = admit(plan, self._context(app, policy, snapshot))
        if isinstance(decision, Refusal):
            await self._publish_refusal(app, plan, decision, snapshot=snapshot, traceparent=traceparent)
        elif decision is not None and policy.policy is not None:
            # No await between the gate and this line: the next gate must see this action in its counts.
            self._applications.reserve(app.id, policy.policy.subject.cluster)
            telemetry.admitted(plan, self._clock.now())
            try:
                await self._begin(app, decision, policy.policy, snapshot, traceparent)
            finally:
                self._applications.release(app.id)
        return decision

    def _context(self, app: Application, policy: PolicyReading, snapshot: Snapshot) -> Context:
        return Context(
            now=self._clock.now(),
            history=app.history,
            policy=policy,
            snapshot=snapshot,
            attempt_id=self._attempt_id,
            analysis=self._analyses.get(app.id),
            fleet=self._applications.fleet(),
            rules=self._rules,
        )

    async def _begin(
        self,
        app: Application,
        intent: ActionState,
        policy: ScalingPolicy,
        snapshot: Snapshot | None,
        traceparent: str | None,
    ) -> None:
        last = app.history.action
        if last is not None and not last.terminal:
            await self._apply(app, supersede(last, self._clock.now()), snapshot)
        app.previous = app.history.action
        app.subject, app.admitted = policy.subject, intent.id
        app.planned_version, app.traceparent = policy.metadata.version, traceparent
        app.checkpoint_triggered_at, app.resumed = None, False
        await self._apply(app, Step(intent, Event("admitted", intent.sentence)), snapshot)

    async def _recall(self, app: Application, policy: PolicyReading) -> PolicyReading:
        """Restore the history from knowledge if the topic no longer holds the application's outcomes."""
        outcome = await self._knowledge.outcome(app.id)
        if isinstance(outcome, Unanswered):
            return PolicyReading(reachable=False, reason=outcome.reason)
        if outcome is not None:
            app.history = taken_over(recall(app.history, outcome))
        app.recalled = True
        return policy

    async def _gather(self, application: str) -> tuple[PolicyReading, Snapshot]:
        now = self._clock.now()
        try:
            async with asyncio.timeout(GATE_SECONDS):
                policy = await self._knowledge.policy(application)
                if policy.policy is None:
                    return policy, Snapshot(now, reachable=False, reason="not observed without a policy")
                return policy, await self._targets.observe_subject(policy.policy.subject)
        except TimeoutError:
            reason = f"no answer within {GATE_SECONDS:.0f} s"
            return PolicyReading(reachable=False, reason=reason), Snapshot(now, reachable=False, reason=reason)

    # -- actions --------------------------------------------------------------------------------------------------

    async def advance(self, app: Application) -> float | None:
        """Observe once and apply the steps that follow. Return the seconds until the next observation, None at the end.

        An action whose outcome the brokers refuse for good has ended: to repeat it would keep its application from every
        other plan.
        """
        try:
            return await self._advance(app)
        except Refused as error:
            await self._end_unpublished(app, str(error))
            return None

    async def _end_unpublished(self, app: Application, reason: str) -> None:
        app.log.error("outcome-refused", reason=reason)
        action, now = app.history.action, self._clock.now()
        step = None if action is None else unpublished(action, reason, now)
        if step is None or step.event is None:
            return
        transition = record_transition(app.history, step, None, now, self._rules)
        try:
            await self._publish(app, transition, app.traceparent)
        except Refused:
            # The application goes on; its topic still has the action in flight, for other replicas to count.
            app.history = transition.history
            self._applications.published.note_unpublished(transition.outcome)
        self._actions.mirror(app, step.action)
        telemetry.moved(step.action, step.name, now)

    async def _advance(self, app: Application) -> float | None:
        action = app.history.action
        if action is None:
            return None
        if action.terminal:
            return await self._watch(app, action)
        if app.resumed:
            app.resumed = False
            await self._apply(app, resume(action, self._attempt_id, self._clock.now()), None)
        observed = await self._look(app)
        for _ in range(MAX_MOVES):
            if app.history.action is None:
                break
            step = next_step(app.history.action, observed, self._clock.now(), self._rules)
            await self._apply(app, step, observed.snapshot)
            answer = await self._perform(app, step.instruction, observed.snapshot) if step.instruction else None
            is_open = isinstance(answer, Unanswered) and not answer.is_sent
            if answer is None or is_open or isinstance(answer, TargetChanged):
                break
            observed = replace(observed, answer=answer)
        return self._pause(app)

    def _pause(self, app: Application) -> float | None:
        action = app.history.action
        if action is None or (action.terminal and not is_watched(action, self._clock.now(), self._rules)):
            return None
        waiting = action.phase in ("intended", "preparing", "applying", "releasing", "rolling-back") or (
            action.phase == "verifying" and not action.running_at
        )
        return self._pace.expecting if waiting else self._pace.watching

    async def _watch(self, app: Application, action: ActionState) -> float | None:
        """Roll a verified action back if its first warm window shows less capacity than before."""
        if not is_watched(action, self._clock.now(), self._rules):
            return None
        if judge(action, self._analyses.get(app.id), self._rules).kind == "worse":
            policy = await self._knowledge.policy(app.id)
            observed = replace(await self._look(app), policy=policy)
            step = late_rollback(action, observed, self._clock.now(), self._attempt_id, self._rules)
            if step is not None:
                app.previous = action
                if app.admitted == action.id:
                    app.admitted = step.action.id
                await self._apply(app, step, observed.snapshot)
                return 0.0
        return self._pause(app)

    async def _look(self, app: Application) -> Observed:
        action, snapshot = app.history.action, await self._targets.observe(app)
        policy, crowded, contended = None, None, False
        if action is not None and action.phase == "intended":
            policy = await self._knowledge.policy(app.id)
            # With its own intent an executor has read all intents published before it.
            read = await self._applications.published.wait_for(action, READ_SECONDS)
            crowded = self._applications.fleet(action).too_many_actions(app.id, action.cluster, self._rules)
            everything = self._applications.fleet().too_many_actions(app.id, action.cluster, self._rules)
            contended = not read or everything is not None
        return Observed(
            snapshot=snapshot,
            analysis=self._analyses.get(app.id),
            policy=policy,
            planned_version=app.planned_version,
            crowded=crowded,
            contended=contended,
        )

    # -- publish, then act ---------------------------------------------------------------------------------------------

    async def _apply(self, app: Application, step: Step, snapshot: Snapshot | None) -> None:
        """Keep a step in the history; one with an event is published first, and kept once it is acknowledged."""
        if step.event is None:
            app.history = replace(app.history, action=step.action)
            return
        transition = record_transition(app.history, step, snapshot, self._clock.now(), self._rules)
        await self._publish(app, transition, app.traceparent)
        if transition.outcome.action is not None and transition.outcome.phase != "intended":
            self._actions.mirror(app, transition.outcome.action)
        telemetry.moved(step.action, step.name, self._clock.now())

    async def _publish_refusal(
        self, app: Application, plan: Plan, refusal: Refusal, *, snapshot: Snapshot | None, traceparent: str | None
    ) -> None:
        transition = record_refusal(app.history, plan, refusal, snapshot, self._clock.now())
        await self._publish(app, transition, traceparent)

    async def _publish(self, app: Application, transition: Transition, traceparent: str | None) -> None:
        outcome = transition.outcome
        trace = traceparent or new_traceparent(outcome.observation_id)
        await self._outcomes.publish(app, outcome, trace)
        app.history = transition.history
        telemetry.published(outcome)
        self._log.info(
            "outcome",
            application=outcome.application,
            phase=outcome.phase,
            code=outcome.code,
            because=outcome.sentence,
            plan_id=str(outcome.plan_id),
            observation_id=str(outcome.observation_id),
            restart_seconds=outcome.restart_seconds,
            traceparent=child_traceparent(trace, outcome.id),
        )

    async def repeat(self, app: Application, outcome: Outcome) -> bool:
        """Publish an outcome again, as `OutcomePublisher.repeat`."""
        return await self._outcomes.repeat(app, outcome)

    async def _perform(self, app: Application, instruction: Instruction, snapshot: Snapshot) -> Answer | None:
        action = app.history.action
        if action is None:
            return None
        prepares = isinstance(instruction, Provide | StopJob) and action.phase == "preparing"
        refusal: Refusal | None = None
        if (isinstance(instruction, Request) or prepares) and app.admitted != action.id:
            asked = instruction.parallelism if isinstance(instruction, Request) else action.wanted
            refusal = self._beyond_today(app, asked, snapshot)
            if refusal is not None and not isinstance(instruction, StopJob):
                return refusal
        if not isinstance(instruction, Record):
            return await self._targets.carry_out(app, action, instruction, snapshot.version, refusal)
        answer = await self._actions.record(app, action)
        if isinstance(answer, Unanswered):
            app.log.warning("held", reason=f"intent not recorded: {answer.reason}")
        return answer

    def _beyond_today(self, app: Application, asked: Parallelism, snapshot: Snapshot) -> Refusal | None:
        """Return why a request of an action that another process began is not sent: it is outside the limits of the policy
        in force, whatever the topic says was decided."""
        policy, there = self._policies.get(app.id), snapshot.deployment
        if policy is None or there is None or set(there.observed) != set(asked):
            return POLICY_DELETED if policy is None else None
        return out_of_bounds(asked, there, policy.spec, snapshot.topology)

    async def drain(self) -> None:
        """Wait for the pending writes to knowledge."""
        await self._actions.drain()
