"""Simulated applications under the services' own shells, on a bus in memory and in simulated time.

Planner and executor run as in production. The simulator stands in for what the monitor and the executor connect to, the
executor's adapter in memory for knowledge, and the analyzer's core is called for each observation, as a Spark batch
calls it.
"""

import asyncio
import logging
import selectors
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from pydantic import BaseModel

from weir_analyzer.core import AnalysisSettings
from weir_analyzer.core import advance as analyze
from weir_contracts import Analysis, DeadLetter, Observation, Outcome, Plan, PlanReply, PlanRequest, ScalingPolicy
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANS
from weir_engines.driver import Driver
from weir_engines.endpoint.driver import EndpointDriver
from weir_executor.core import Rules
from weir_executor.knowledge import MemoryKnowledge
from weir_executor.service import Executor
from weir_planner.core.candidates import ContenderRequest
from weir_planner.request_cache import RequestCache
from weir_planner.service import Planner
from weir_runtime.bus import Outgoing, Record
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, text_renderer
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import decode, encode
from weir_runtime.reading import DeadLetters
from weir_sdk.installed import LARGE, ask, reads

from .driver import SimulatedDriver, SimulatedEndpoints, SimulatedGroups
from .simulator import Fault, Noise, Observer, Simulation, StreamsSimulation
from .simulator.world import CLEAR, START
from .streams import SimulatedGroup, StreamsObserver

Message = Observation | Analysis | Plan | Outcome
_TOPICS = {topic.name: topic for topic in (OBSERVATIONS, ANALYSES, PLANS, OUTCOMES)}
RECORDS_KEPT = 100
"""Newest records of a topic that keep their values; consumers read each at once."""
OBSERVATIONS_KEPT, HISTORY_KEPT = 30, 20
"""The planner's defaults."""
ATTEMPT = UUID("11111111-2222-5333-8444-555555555555")
START_UP_SECONDS = 5.0
"""Simulated time before second 0 in which the shells join their groups and read their topics."""
SETTLING_SECONDS = 1e-7
"""Time jumps only when nothing is left to do, so after this pause all consequences of a moment have happened."""


class _Jumping(selectors.SelectSelector):
    """Moves the time on by each wait that the event loop asks for."""

    def __init__(self, start_seconds: float) -> None:
        super().__init__()
        self.now = start_seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for something that no timer will bring")
        self.now += max(0.0, timeout)
        return []


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits, so that unmodified asyncio code runs hours in seconds.

    Time stands still while anything can run; with nothing left to run it jumps to the next timer.
    """

    def __init__(self, start_seconds: float = 0.0) -> None:
        self._jumping = _Jumping(start_seconds)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class SimulatedClock:
    """Clock of a simulated event loop, whose second 0 is `start`. To the millisecond, as observations are."""

    def __init__(self, loop: SimulatedTimeLoop, start: datetime) -> None:
        self._loop = loop
        self._start = start

    def now(self) -> datetime:
        return self._start + timedelta(seconds=round(self._loop.time(), 3))

    def monotonic(self) -> float:
        return self._loop.time()


class ReplayBus(MemoryBus):
    """One partition a topic. `carry` receives each message and returns what arrives of it, None if it is lost.

    `published` is called with each record, lost or not.
    """

    def __init__(
        self, clock: Clock, published: Callable[[Outgoing], None], carry: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(partitions=1, clock=clock)
        self._clock = clock
        self._published = published
        self._carry = carry

    async def send(self, message: Message) -> None:
        """Publish a message on its topic."""
        await self.publish_many([self._record(message)])

    async def deliver(self, message: Message | Outgoing) -> None:
        """Let a message arrive that `carry` kept back, or any record."""
        await self._append([message if isinstance(message, Outgoing) else self._record(message)])

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            self._published(record)
        arriving = (self._carried(record) for record in records)
        await self._append([record for record in arriving if record is not None])

    async def _append(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            await super().publish_many([record])
            log = self.log[record.topic, 0]
            if len(log) > RECORDS_KEPT:
                log[-RECORDS_KEPT - 1] = replace(log[-RECORDS_KEPT - 1], value=None, headers={})

    def _carried(self, record: Outgoing) -> Outgoing | None:
        """Return what arrives of a record, or None."""
        topic = _TOPICS.get(record.topic)
        if self._carry is None or topic is None or record.value is None:
            return record
        message = decode(Record(record.topic, 0, 0, record.key, record.value, record.headers), topic.contract).message
        arriving = self._carry(message)
        if arriving is message:
            return record
        return None if arriving is None else self._record(arriving)

    def _record(self, message: Message) -> Outgoing:
        topic = next(topic for topic in _TOPICS.values() if isinstance(message, topic.contract))
        time = getattr(message, "observed_at", None) or self._clock.now()
        body, headers = encode(message, type=topic.type, source="replay", id=message.id, time=time)
        return Outgoing(topic.name, message.application, body, headers)


class InProcess:
    """Asks planners in this process. An exception ends the replay: it is a bug of the planner, which its author wants
    to see."""

    def __init__(self, asks: Callable[[PlanRequest, str], PlanReply]) -> None:
        self.failure: Exception | None = None
        self.failed = asyncio.Event()
        self._asks = asks

    async def start(self) -> None:
        return None

    def looks_at(self, planner: str) -> frozenset[str]:
        return reads(planner) if self._asks is ask else frozenset(LARGE)

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        try:
            return self._asks(request, planner)
        except Exception as error:
            self.failure = self.failure or error
            self.failed.set()
            raise

    async def ask_alongside(self, requests: Sequence[ContenderRequest], timeout_seconds: float) -> list[PlanReply]:
        return [await self.ask(each.request, each.planner, timeout_seconds) for each in requests]


class Tally:
    """Counts of what was published."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        """Plans by reason code."""
        self.ends: Counter[str] = Counter()
        """Actions and refusals by the phase they ended in."""
        self.dead_letters: list[DeadLetter] = []

    def count(self, record: Outgoing) -> None:
        if record.value is None:
            return
        if record.topic == PLANS.name:
            self.codes[_Coded.model_validate_json(record.value).code] += 1
        elif record.topic == OUTCOMES.name:
            outcome = Outcome.model_validate_json(record.value)
            if outcome.terminal:
                self.ends[outcome.phase] += 1
        elif record.topic == DEAD_LETTERS.name:
            self.dead_letters.append(DeadLetter.model_validate_json(record.value))


class _Coded(BaseModel):
    code: str


class SimulatedApplication:
    """A simulation, its monitor and its policy. Assign `policy` to change the policy in force."""

    def __init__(
        self,
        simulation: Simulation | StreamsSimulation,
        observer: Observer | StreamsObserver,
        knowledge: MemoryKnowledge,
        policy: ScalingPolicy,
    ) -> None:
        self.simulation = simulation
        self.observer = observer
        self._knowledge = knowledge
        self.policy = policy

    async def scrape(self) -> list[Observation]:
        """Return the observations that arrive now."""
        if isinstance(self.observer, Observer):
            return self.observer.scrape(self.policy)
        return await self.observer.scrape(self.policy)

    @property
    def policy(self) -> ScalingPolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: ScalingPolicy) -> None:
        self._policy = self._knowledge.policies[policy.application] = policy


class Loop:
    """One replica of each service around the applications of `add`. Each `run` continues where the last one ended.

    `carry` receives each message on its way and returns what arrives of it, None if it is lost. `asks` asks a planner
    by its name.
    """

    def __init__(
        self,
        *,
        rules: Rules | None = None,
        carry: Callable[[Any], Any] | None = None,
        asks: Callable[[PlanRequest, str], PlanReply] = ask,
    ) -> None:
        self._time = SimulatedTimeLoop(-START_UP_SECONDS)
        self._until = 0.0
        self._stop = Stop()
        self._tasks: list[asyncio.Task[None]] = []
        self.applications: list[SimulatedApplication] = []
        self.clock = SimulatedClock(self._time, START)
        self.tally = Tally()
        self.bus = ReplayBus(self.clock, self.tally.count, carry)
        self.driver = SimulatedDriver(self.clock)
        self.knowledge = MemoryKnowledge()
        self.request_cache = RequestCache(OBSERVATIONS_KEPT, HISTORY_KEPT)
        self._planners = InProcess(asks)
        self._planner = Planner(self.bus, self.clock, self._planners, self.request_cache, partitions=1)
        self._groups, self._endpoints = SimulatedGroups(), SimulatedEndpoints()
        endpoint = EndpointDriver(self.clock, self._groups, transport=self._endpoints)
        drivers: dict[str, Driver] = {"flink": self.driver, "kubernetes": self.driver, "endpoint": endpoint}
        self._executor = Executor(self.bus, drivers, self.knowledge, self.clock, rules or Rules(), attempt_id=ATTEMPT)

    def add(
        self,
        simulation: Simulation | StreamsSimulation,
        policy: ScalingPolicy,
        *,
        noise: Noise = CLEAR,
        faults: Sequence[Fault] = (),
        seed: int = 0,
    ) -> SimulatedApplication:
        """Add an application; its simulation begins with the first `run`. Noise is of the counters of Flink jobs only:
        a group's offsets are exact."""
        observer: Observer | StreamsObserver
        if isinstance(simulation, Simulation):
            observer = Observer(simulation, noise=noise, faults=faults, seed=seed)
            self.driver.add(policy.subject, simulation)
        else:
            # The policy names the simulated group and its endpoint.
            name, target = simulation.application.name, policy.subject.target.endpoint
            if target is None or policy.subject.application.group_id != name:
                raise ValueError(f"policy: must name group {name} and a target endpoint")
            group = SimulatedGroup(simulation, self.clock)
            self._groups.applications[name] = self._endpoints.applications[target.url.path or "/"] = group
            observer = StreamsObserver(group, self.clock, faults=faults)
        application = SimulatedApplication(simulation, observer, self.knowledge, policy)
        self.applications.append(application)
        return application

    @property
    def now(self) -> datetime:
        """Return the simulated time."""
        return self.clock.now()

    def run(self, seconds: float) -> None:
        """Let simulated time pass. Raises what a planner raises."""
        self._until += seconds
        self._complete(self._run())
        if self._planners.failure is not None:
            raise self._planners.failure

    def deliver(self, *messages: Message | Outgoing) -> None:
        """Let messages arrive that `carry` kept back, or any records, each with all its consequences before the next."""
        for message in messages:
            self._complete(self.bus.deliver(message))
            self.run(0)

    def close(self) -> None:
        """Stop the services."""
        self._stop.request("the replay is over")
        for task in self._tasks:
            task.cancel()
        self._complete(asyncio.wait(self._tasks) if self._tasks else asyncio.sleep(0))
        self._time.close()

    def _complete(self, work: Coroutine[Any, Any, object]) -> None:
        with _errors_only():
            self._time.run_until_complete(work)

    async def _run(self) -> None:
        if not self._tasks:
            await self._start_services()
        pause = asyncio.create_task(asyncio.sleep(max(0.0, self._until - self._time.time()) + SETTLING_SECONDS))
        failure = asyncio.create_task(self._planners.failed.wait())
        _, pending = await asyncio.wait({pause, failure}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for application in self.applications:
            application.simulation.advance(self._until)

    async def _start_services(self) -> None:
        services = [self._planner.run(self._stop), self._executor.run(self._stop), self._analyze()]
        services += [self._monitor(application) for application in self.applications]
        self._tasks = [asyncio.create_task(service) for service in services]
        await asyncio.sleep(-self._time.time())
        self.bus.wait_at_least(min(a.policy.spec.interval.total_seconds() for a in self.applications))

    async def _monitor(self, application: SimulatedApplication) -> None:
        """Publish the observations of an application at its policy's interval."""
        at = 0.0
        while True:
            at += application.policy.spec.interval.total_seconds()
            await asyncio.sleep(at - self._time.time())
            application.simulation.advance(at)
            for observation in await application.scrape():
                await self.bus.send(observation)

    async def _analyze(self) -> None:
        """Publish the analysis of each observation."""
        reader = self.bus.reader(OBSERVATIONS.name)
        dead_letters = DeadLetters(self.bus, "analyzer", self.clock)
        settings, states = AnalysisSettings(), dict[str, Any]()
        while True:
            for record in await reader.receive():
                decoded = await dead_letters.decoded(record, Observation)
                if decoded is None:
                    continue
                name = decoded.message.application
                states[name], analysis = analyze(states.get(name), decoded.message, settings)
                if analysis is not None:
                    await self.bus.send(analysis)


@contextmanager
def _errors_only() -> Iterator[None]:
    """Log only errors, to standard error: simulated services would bury the result of a replay under their lines."""
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.add_log_level, text_renderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
