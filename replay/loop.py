"""One application's loop in one process: the five cores, wired as the services wire them, without a bus or a clock.

Time is the simulation's. A turn: the simulation runs for an interval while the executor drives its action at its own pace, the
observer scrapes, and what arrives is analysed, planned, let through the gate, and remembered.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from weir_contracts import ActionState, Analysis, Observation, Outcome, Plan, PlanReply, PlanRequest, ScalingPolicy
from weir_planner.installed import ask

from services.analyzer.core import AnalysisSettings
from services.analyzer.core import advance as analyse
from services.executor.applications import Applications as Fleet
from services.executor.applications import NewestOutcomes
from services.executor.core import (
    ActionHistory,
    Answer,
    Context,
    Event,
    Observed,
    PolicyReading,
    Record,
    Recorded,
    Refusal,
    Request,
    Rules,
    Snapshot,
    Step,
    TriggerCheckpoint,
    admit,
    expected,
    is_for_us,
    is_watched,
    judge,
    late_rollback,
    next_step,
    record_refusal,
    record_transition,
    supersede,
)
from services.executor.driver import Unfenced
from services.knowledge.core import HistoryLimits, State, remember
from services.planner.core.decide import make_plan, precheck
from services.planner.memory import Applications
from simulator import Fault, Noise, Observer, Simulation
from simulator.faults import CLEAR
from simulator.observe import START

from .driver import SimulatedDriver

PACE_SECONDS = 0.5
"""Between two looks of the executor at a target while an action is under way, as in its service."""
TRIGGER_PAUSE_SECONDS = 2.0
MAX_MOVES = 6
ATTEMPT = UUID("11111111-2222-5333-8444-555555555555")
OBSERVATIONS_KEPT, HISTORY_KEPT = 30, 20


@dataclass
class Records:
    """What was said, oldest first: counted all, kept the newest `keep` of (None: all)."""

    keep: int | None = None
    plans: deque[Plan] = field(init=False)
    outcomes: deque[Outcome] = field(init=False)
    codes: Counter[str] = field(default_factory=Counter)
    """Plans by reason code."""
    ends: Counter[str] = field(default_factory=Counter)
    """Actions and refusals by the phase they ended in."""
    rescales_at: list[datetime] = field(default_factory=list)
    """When the engine accepted each action; a rollback counts as its own."""

    def __post_init__(self) -> None:
        self.plans, self.outcomes = deque(maxlen=self.keep), deque(maxlen=self.keep)

    @property
    def rescales(self) -> int:
        """Actions that the engine accepted."""
        return len(self.rescales_at)

    def planned(self, plan: Plan) -> None:
        """Take a plan in."""
        self.plans.append(plan)
        self.codes[plan.code] += 1

    def happened(self, outcome: Outcome, event: Event | None) -> None:
        """Take an outcome in, and the event it tells of; None for a refusal."""
        self.outcomes.append(outcome)
        if outcome.terminal:
            self.ends[outcome.phase] += 1
        if event in ("accepted", "found-requested"):
            self.rescales_at.append(outcome.at)


class Loop:
    """The loop around one simulation.

    `carry` is the way between two services: what arrives of a message, None for nothing. What it keeps may arrive later, by `hear`,
    `decide` or `consider`. `gate` is what the executor reads of the policy just before it acts; by default the policy in force.
    `fleet` is what several loops have together that share an executor. `asks` is how a planner is asked by its name.
    """

    def __init__(
        self,
        simulation: Simulation,
        policy: ScalingPolicy,
        *,
        noise: Noise = CLEAR,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        start: datetime = START,
        settings: AnalysisSettings | None = None,
        rules: Rules | None = None,
        carry: Callable[[Any], Any] = lambda message: message,
        records: Records | None = None,
        fleet: Fleet | None = None,
        asks: Callable[[PlanRequest, str], PlanReply] = ask,
    ) -> None:
        self.simulation = simulation
        self.policy = policy
        self.observer = Observer(simulation, noise=noise, faults=faults, seed=seed, start=start)
        self.driver = SimulatedDriver(self.observer.at)
        self.driver.add(policy.spec.target, simulation)
        self.rules = rules or Rules()
        self.carry = carry
        self.gate: Callable[[], PolicyReading] = lambda: PolicyReading(reachable=True, policy=self.policy)
        self.said = records or Records()
        self.analysis: Analysis | None = None
        self.executor = ActionHistory()
        self.knowledge = State(application=policy.application)
        self.planner = Applications(OBSERVATIONS_KEPT, HISTORY_KEPT)
        self._asks = asks
        self._settings = settings or AnalysisSettings()
        self._analyzer: Any = None
        self._fleet = fleet or Fleet(NewestOutcomes(), self.rules)
        self._answer: Answer | None = None
        self._planned_version: int | None = None
        self._checkpoint_triggered_at: float | None = None
        self._limits = HistoryLimits(cycles_count=20)

    @property
    def now(self) -> datetime:
        """The moment it is in the simulation."""
        return self.observer.at(self.simulation.now)

    async def run(self, seconds: float, watch: Callable[[], None] = lambda: None) -> None:
        """Turn for so long; `watch` is called whenever some simulated time has passed."""
        end = self.simulation.now + seconds
        interval = self.policy.spec.interval.total_seconds()
        while self.simulation.now < end - 1e-6:
            await self.turn(min(interval, end - self.simulation.now), watch)

    async def turn(self, seconds: float, watch: Callable[[], None] = lambda: None) -> None:
        """Let an interval pass, scrape, and do all that follows from it."""
        await self._pass(seconds, watch)
        for scraped in self.observer.scrape(self.policy):
            seen = self.carry(scraped)
            if seen is not None:
                await self.hear(seen)

    async def hear(self, observation: Observation) -> None:
        """What follows from one observation, as each service does it."""
        self.planner.observed(observation)
        self._remember(observation)
        self._analyzer, analysis = analyse(self._analyzer, observation, self._settings)
        if analysis is None:
            return
        self._remember(analysis)
        arrived = self.carry(analysis)
        if arrived is not None:
            await self.decide(arrived)

    async def decide(self, analysis: Analysis) -> None:
        """What follows from one analysis."""
        if self.analysis is None or analysis.observed_at >= self.analysis.observed_at:
            self.analysis = analysis
        plan = self._plan(analysis)
        if plan is None:
            return
        self.said.planned(plan)
        self._remember(plan)
        arrived = self.carry(plan)
        if arrived is not None:
            await self.consider(arrived)

    def _plan(self, analysis: Analysis) -> Plan | None:
        last = self.planner.plan(analysis.application)
        if last is not None and analysis.observed_at <= last.observed_at:
            return None
        if analysis.status == "ended":
            self.planner.ended(analysis)
            return None
        name = analysis.policy.spec.planner.name
        request = self.planner.request(analysis, self.now)
        reply = precheck(request) or self._asks(request, name)
        state = self.planner.state(analysis.application, name)
        plan = make_plan(request, reply, state, planner=name, created_at=self.now)
        self.planner.planned(plan, analysis)
        return plan

    # -- the executor ---------------------------------------------------------------------------------------------

    async def consider(self, plan: Plan) -> None:
        """The gate, for one plan."""
        self._fleet.note_recommendation(plan, self.now)
        if not is_for_us(plan, self.executor):
            return
        policy, snapshot = self.gate(), await self.driver.observe(self.policy.spec.target)
        context = Context(
            now=self.now,
            history=self.executor,
            policy=policy,
            snapshot=snapshot,
            attempt_id=ATTEMPT,
            analysis=self.analysis,
            fleet=self._fleet.fleet(),
            rules=self.rules,
        )
        found = admit(plan, context)
        if isinstance(found, Refusal):
            transition = record_refusal(self.executor, plan, found, snapshot, self.now)
            self.executor = transition.history
            self._tell(transition.outcome, None)
        elif found is not None:
            if self.executor.action is not None and not self.executor.action.terminal:
                self._move(supersede(self.executor.action, self.now), snapshot)
            self._checkpoint_triggered_at = None
            self._planned_version = policy.policy.metadata.resource_version if policy.policy else None
            self._move(Step(found, "admitted"), snapshot)
            await self._drive()

    async def _pass(self, seconds: float, watch: Callable[[], None]) -> None:
        """Time goes by; in the executor's pace while it has something to do."""
        end = self.simulation.now + seconds
        while self.simulation.now < end - 1e-6:
            step = PACE_SECONDS if self._is_busy() else end - self.simulation.now
            self.simulation.advance(min(end, self.simulation.now + step))
            watch()
            if self._is_busy():
                await self._drive()

    def _is_busy(self) -> bool:
        action = self.executor.action
        return action is not None and (not action.terminal or is_watched(action, self.now, self.rules))

    async def _drive(self) -> None:
        """One look at the target and the moves that follow from it."""
        action, target = self.executor.action, self.policy.spec.target
        if action is None:
            return
        if action.terminal:
            await self._watch(action)
            return
        snapshot = await self.driver.observe(target)
        for _ in range(MAX_MOVES):
            action = self.executor.action
            if action is None:
                return
            seen = Observed(
                snapshot,
                self.analysis,
                self.gate() if action.phase == "intended" else None,
                planned_version=self._planned_version,
                answer=self._answer,
            )
            self._answer = None
            step = next_step(action, seen, self.now, self.rules)
            self._move(step, snapshot)
            if step.instruction is None or not await self._perform(step):
                return

    async def _perform(self, step: Step) -> bool:
        """Do as the core says; returns whether there is an answer to go on with."""
        target, job_id = self.policy.spec.target, step.action.deployment.job_id
        if isinstance(step.instruction, Record):
            self._answer = Recorded()
        elif isinstance(step.instruction, Request):
            self._answer = await self.driver.request(
                target, job_id, step.instruction.parallelism, expected(step.action), Unfenced()
            )
        elif isinstance(step.instruction, TriggerCheckpoint):
            now = self.simulation.now
            if self._checkpoint_triggered_at is None or now - self._checkpoint_triggered_at >= TRIGGER_PAUSE_SECONDS:
                problem = await self.driver.trigger_checkpoint(target, job_id)
                self._checkpoint_triggered_at = now if problem is None else None
            return False
        return True

    async def _watch(self, action: ActionState) -> None:
        """A verified action is taken back if its first warm window shows less capacity than before."""
        if judge(action, self.analysis, self.rules).kind != "worse":
            return
        snapshot = await self.driver.observe(self.policy.spec.target)
        seen = Observed(snapshot, self.analysis, self.gate())
        step = late_rollback(action, seen, self.now, ATTEMPT, self.rules)
        if step is not None:
            self._move(step, snapshot)
            await self._perform(step)

    def _move(self, step: Step, snapshot: Snapshot | None) -> None:
        if step.event is None:
            self.executor = replace(self.executor, action=step.action)
            return
        transition = record_transition(self.executor, step, snapshot, self.now, self.rules)
        self.executor = transition.history
        self._tell(transition.outcome, step.event)

    def _tell(self, outcome: Outcome, event: Event | None) -> None:
        self.said.happened(outcome, event)
        self._remember(outcome)
        arrived = self.carry(outcome)
        if arrived is not None:
            self.planner.happened(outcome.application, arrived)

    def _remember(self, event: Observation | Analysis | Plan | Outcome) -> None:
        self.knowledge = remember(self.knowledge, event, self._limits)
