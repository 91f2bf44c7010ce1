"""The shadows' shell: it runs alongside the loop and never delays it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from weir_contracts import PlanReply, PlanRequest, Shadows
from weir_contracts.topics import DEAD_LETTERS, SHADOWS
from weir_planner.installed import installed

from runtime.clock import FakeClock
from runtime.envelope import encode
from runtime.loop import Stop
from runtime.memory_bus import MemoryBus
from services.planner import shadows as shell
from services.planner.core.shadows import begin, finish
from services.planner.shadows import ShadowLimits, ShadowRunner, lower_priority
from services.planner.workers import WorkerProcess
from tests.unit.planner.build import APP, NOON, SOURCE, WORK, after, analysis, policy, request, scale
from tests.unit.planner.test_service import PARTITIONS, Cluster
from tests.unit.planner.test_shadows import scrape

BOLD: list[dict[str, Any]] = [{"name": "rate", "label": "bold", "parameters": {"target_utilization": 0.5}}]
MINE: list[dict[str, Any]] = [{"name": "mine"}]


class InProcess(WorkerProcess):
    """Runs work at once; `gate` may delay it, `fails` make it fail."""

    def __init__(self) -> None:
        super().__init__(lower_priority)
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails: Exception | None = None
        self.done = 0

    async def start(self) -> None:
        return

    async def run(self, work: Callable[..., str], *arguments: str, timeout_seconds: float) -> str:
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        self.done += 1
        return work(*arguments)


def question(seconds: float, application: str = APP, shadows: Any = BOLD, **of: Any) -> PlanRequest:
    the_policy = policy(application, shadows=shadows, **of.pop("spec", {}))
    return request(analysis(at=after(seconds), the_policy=the_policy, **of), now=after(seconds))


class Runners:
    """Shadow runners on a shared bus."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOON)
        self.bus = MemoryBus(partitions=PARTITIONS, clock=self.clock)
        self.workers = InProcess()
        self.running: list[tuple[Stop, asyncio.Task[None]]] = []

    def runner(self, **options: Any) -> ShadowRunner:
        made = ShadowRunner(self.bus, self.clock, self.workers, partitions=PARTITIONS, **options)
        made.assign(frozenset(range(PARTITIONS)))
        stop = Stop()
        self.running.append((stop, asyncio.create_task(made.run(stop))))
        return made

    async def end(self) -> None:
        for stop, _ in self.running:
            stop.request("the test is over")
        await asyncio.gather(*(task for _, task in self.running))
        self.running.clear()

    def messages(self, application: str = APP) -> list[Shadows | None]:
        records = [r for r in self.bus.records(SHADOWS.name) if r.key == application]
        return [None if r.value is None else Shadows.model_validate_json(r.value) for r in records]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, at most 5 s."""
        for _ in range(2500):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError("not within 5 s")


@pytest.fixture
async def runners() -> AsyncIterator[Runners]:
    made = Runners()
    yield made
    made.workers.gate.set()
    await made.end()


async def test_a_cycle_is_published(runners: Runners) -> None:
    """The first one at once, under the application's key."""
    runners.runner().offer(question(0))
    await runners.until(runners.messages)
    [message] = runners.messages()
    assert message is not None
    assert [c.label for c in message.candidates] == ["rate", "bold", "observed"]


async def test_without_shadows_nothing_is_done(runners: Runners) -> None:
    """Policies without shadows cause no work."""
    runner = runners.runner()
    runner.offer(question(0, shadows=[]))
    runner.offer(question(0, "shop/other"))
    await runners.until(lambda: runners.messages("shop/other"))
    assert runners.messages() == []


async def test_messages_are_rare(runners: Runners) -> None:
    """One in 30 s and one at the end, which bounds the loss."""
    runner = runners.runner()
    for i in range(8):
        runner.offer(question(5 * i))
        await runners.until(lambda i=i: runners.workers.done == i + 1)
        runners.clock.advance(5)
    await runners.until(lambda: len(runners.messages()) == 2)
    await runners.end()
    assert [m.at for m in runners.messages() if m] == [after(0), after(30), after(35)]


async def test_a_shadow_that_is_slow_delays_nothing(runners: Runners) -> None:
    """Offering never waits; the newest cycle of each application is kept, for a bounded number of applications."""
    runners.workers.gate.clear()
    runner = runners.runner(limits=ShadowLimits(queued=2))
    for i in range(100):
        runner.offer(question(i))
    for name in ("shop/b", "shop/c", "shop/d"):
        runner.offer(question(0, name))
    runners.workers.gate.set()
    await runners.until(lambda: runners.messages("shop/b"))
    assert runners.messages("shop/d") == []
    await runners.end()
    assert [m.at for m in runners.messages() if m] == [after(99)]


async def test_a_failure_loses_one_cycle(runners: Runners) -> None:
    """The process died or timed out: the next cycle continues from the one before."""
    runner = runners.runner()
    runner.offer(question(0))
    await runners.until(runners.messages)
    runners.workers.fails = TimeoutError("too slow")
    runner.offer(question(5))
    await asyncio.sleep(0.02)
    runners.workers.fails = None
    runner.offer(question(10))
    await runners.until(lambda: runners.workers.done == 2)
    await runners.end()
    message = runners.messages()[-1]
    assert message is not None
    assert {s.label: s.simulated_seconds for s in message.hours[0].scores}["bold"] == 10


async def test_another_replica_continues(runners: Runners) -> None:
    """It starts from the last message: the simulated application's parallelism and its sums."""
    first = runners.runner()
    moved, asks = begin(None, question(0))
    assert moved is not None
    reply = scale({SOURCE: 1, WORK: 4})
    moved = finish(moved, [(a, reply) for a in asks if a.label == "bold"])
    body, headers = encode(moved, type=SHADOWS.type, source="test", id=moved.id, time=NOON)
    del first
    await runners.end()
    await runners.bus.publish(SHADOWS.name, APP, body, headers)
    second = runners.runner()
    second.offer(question(5))
    await runners.until(lambda: runners.workers.done == 1)
    await runners.end()
    message = runners.messages()[-1]
    assert message is not None
    bold = next(c for c in message.candidates if c.label == "bold")
    assert (dict(bold.rescales[-1].wanted), message.at) == ({SOURCE: 1, WORK: 4}, after(5))


async def test_a_revoked_partition_is_dropped(runners: Runners) -> None:
    """Another replica has the partition now: this one neither simulates nor publishes it."""
    runner = runners.runner()
    runner.offer(question(0))
    await runners.until(runners.messages)
    runner.assign(frozenset())
    runner.offer(question(5))
    await asyncio.sleep(0.05)
    await runners.end()
    assert len(runners.messages()) == 1


async def test_an_end_is_published(runners: Runners) -> None:
    """The application has ended, and so have its simulated ones."""
    runner = runners.runner()
    runner.offer(question(0))
    await runners.until(runners.messages)
    runner.ended(APP)
    await runners.until(lambda: len(runners.messages()) == 2)
    assert runners.messages()[-1] is None


async def test_a_malformed_message_restarts_the_simulation(runners: Runners) -> None:
    """Other messages are read. Its dead letter is knowledge's, whose group reads the topic: replicas of the planner read it at
    every takeover."""
    await runners.bus.publish(SHADOWS.name, APP, b"{}", {})
    runner = runners.runner()
    runner.offer(question(0))
    await runners.until(lambda: len(runners.bus.records(SHADOWS.name)) == 2)
    assert runners.bus.records(DEAD_LETTERS.name) == []


async def test_a_registered_planner_is_called_at_its_address(runners: Runners) -> None:
    """With its name, parameters and simulated application, where its recommendation is applied."""
    requests: list[tuple[str, float, PlanRequest]] = []

    async def ask(about: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        requests.append((planner, timeout_seconds, about))
        return scale({SOURCE: 1, WORK: 5})

    runner = runners.runner(registered=lambda: frozenset({"mine"}), call_registered=ask)
    runner.offer(question(0, shadows=MINE))
    await runners.until(runners.messages)
    [(planner, timeout, about)] = requests
    assert (planner, about.policy.spec.planner.name) == ("mine", "mine")
    assert timeout <= 1.0
    message = runners.messages()[0]
    assert message is not None
    assert {c.label: c.parallelism[WORK] for c in message.candidates} == {"rate": 2, "mine": 5, "observed": 2}


async def test_a_registered_planner_gets_raw_observations(runners: Runners) -> None:
    """As a chosen planner does: its description does not exclude them."""
    requests: list[PlanRequest] = []

    async def ask(about: PlanRequest, _planner: str, _timeout_seconds: float) -> PlanReply:
        requests.append(about)
        return scale({SOURCE: 1, WORK: 2})

    runner = runners.runner(registered=lambda: frozenset({"mine"}), call_registered=ask)
    for cycle in range(2):
        scrapes = {"observations": [scrape(5 * i, 1000) for i in range(cycle + 1)]}
        runner.offer(question(5 * cycle, shadows=MINE).model_copy(update=scrapes))
        await runners.until(lambda: len(requests) > cycle)  # noqa: B023 - awaited at once
    assert [o.observed_at for o in requests[1].observations] == [after(5)]


# -- in the worker's process -------------------------------------------------------------------------------------------


def unanswered_in_process(
    monkeypatch: pytest.MonkeyPatch, plan: Callable[..., PlanReply], seconds: float
) -> dict[str, int]:
    """Run a cycle in which the planner `threshold` is `plan`; return the unanswered requests by label."""
    monkeypatch.setattr(installed()["threshold"].planner, "_plan", plan)
    question_text = json.dumps(
        {
            "before": None,
            "request": question(0, shadows=[{"name": "threshold"}, *BOLD]).model_dump_json(),
            "elsewhere": [],
            "seconds": seconds,
        }
    )
    after_text = json.loads(shell.run_cycle(question_text))["after"]
    return {s.label: s.unanswered for s in Shadows.model_validate_json(after_text).hours[0].scores}


def test_a_planner_that_hangs_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it catches every exception: its cycle has no reply, the others have theirs."""

    def hangs(_request: PlanRequest) -> PlanReply:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001, S112 - the case under test
                continue

    assert unanswered_in_process(monkeypatch, hangs, 3.0) == {"rate": 0, "threshold": 1, "bold": 0, "observed": 0}


def test_without_time_no_planner_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time budget is used up: the missing replies are counted."""
    plan = installed()["threshold"].planner._plan
    found = unanswered_in_process(monkeypatch, plan, 0.0)
    assert found == {"rate": 1, "threshold": 1, "bold": 1, "observed": 0}


def test_a_failing_planner_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are called as usual."""

    def fails(_request: PlanRequest) -> PlanReply:
        raise ZeroDivisionError("of mine")

    assert unanswered_in_process(monkeypatch, fails, 30.0) == {"rate": 0, "threshold": 1, "bold": 0, "observed": 0}


@pytest.mark.thorough
async def test_a_cycle_runs_in_a_real_process() -> None:
    """Text goes in and comes out; the dedicated pool starts on first use."""
    process = WorkerProcess(lower_priority)
    try:
        text = json.dumps({"before": None, "request": question(0).model_dump_json(), "elsewhere": [], "seconds": 30.0})
        found = json.loads(await process.run(shell.run_cycle, text, timeout_seconds=60.0))
        assert Shadows.model_validate_json(found["after"]).application == APP
    finally:
        process.close()


# -- alongside the planner ---------------------------------------------------------------------------------------------


async def test_the_loop_offers_what_it_has_planned() -> None:
    """Plans are published while the shadows are stuck; then the shadows get the newest cycle."""
    cluster = Cluster()
    stuck = InProcess()
    stuck.gate.clear()
    runner = ShadowRunner(cluster.bus, cluster.clock, stuck, partitions=PARTITIONS)
    stop = Stop()
    task = asyncio.create_task(runner.run(stop))
    replica = cluster.replica()
    replica.planner._shadows = runner
    for i in range(3):
        await cluster.analysed(5 * i, spec={"shadows": BOLD})
        await cluster.planned(i + 1)
    stuck.gate.set()
    await cluster.until(lambda: stuck.done == 2)
    stop.request("the test is over")
    await asyncio.gather(task, replica.end())
    newest = Shadows.model_validate_json(cluster.bus.records(SHADOWS.name)[-1].value or b"")
    assert newest.at == after(10)
