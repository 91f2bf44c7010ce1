"""The shadows' shell: beside the loop, never in its way."""

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
from services.planner.process import WorkerProcess
from services.planner.shadows import ShadowLimits, ShadowRunner, lower_priority
from tests.unit.planner.build import APP, NOON, SOURCE, WORK, after, analysis, policy, request, scale
from tests.unit.planner.test_service import PARTITIONS, Desk
from tests.unit.planner.test_shadows import scrape

BOLD: list[dict[str, Any]] = [{"name": "rate", "label": "bold", "parameters": {"target_utilization": 0.5}}]
MINE: list[dict[str, Any]] = [{"name": "mine"}]


class InProcess(WorkerProcess):
    """Works at once; `gate` may hold it up, `fails` break it."""

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


class Bench:
    """ShadowRunners on one bus."""

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

    def told(self, application: str = APP) -> list[Shadows | None]:
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
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.workers.gate.set()
    await made.end()


async def test_a_turn_is_told(bench: Bench) -> None:
    """The first at once, under the application's key."""
    bench.runner().offer(question(0))
    await bench.until(bench.told)
    [message] = bench.told()
    assert message is not None
    assert [c.label for c in message.candidates] == ["rate", "bold", "observed"]


async def test_without_shadows_nothing_is_done(bench: Bench) -> None:
    """Most policies list none: they cost nothing."""
    runner = bench.runner()
    runner.offer(question(0, shadows=[]))
    runner.offer(question(0, "shop/other"))
    await bench.until(lambda: bench.told("shop/other"))
    assert bench.told() == []


async def test_messages_are_rare(bench: Bench) -> None:
    """One in 30 s, and one at the end: so little is lost."""
    runner = bench.runner()
    for i in range(8):
        runner.offer(question(5 * i))
        await bench.until(lambda i=i: bench.workers.done == i + 1)
        bench.clock.advance(5)
    await bench.until(lambda: len(bench.told()) == 2)
    await bench.end()
    assert [m.at for m in bench.told() if m] == [after(0), after(30), after(35)]


async def test_a_shadow_that_is_slow_delays_nothing(bench: Bench) -> None:
    """Offering never waits; of what piles up the newest turn of each application is kept, and no more applications than there is room."""
    bench.workers.gate.clear()
    runner = bench.runner(limits=ShadowLimits(queued=2))
    for i in range(100):
        runner.offer(question(i))
    for name in ("shop/b", "shop/c", "shop/d"):
        runner.offer(question(0, name))
    bench.workers.gate.set()
    await bench.until(lambda: bench.told("shop/b"))
    assert bench.told("shop/d") == []
    await bench.end()
    assert [m.at for m in bench.told() if m] == [after(99)]


async def test_what_goes_wrong_costs_one_turn(bench: Bench) -> None:
    """The process died, or took too long: the next turn goes on from the one before."""
    runner = bench.runner()
    runner.offer(question(0))
    await bench.until(bench.told)
    bench.workers.fails = TimeoutError("too slow")
    runner.offer(question(5))
    await asyncio.sleep(0.02)
    bench.workers.fails = None
    runner.offer(question(10))
    await bench.until(lambda: bench.workers.done == 2)
    await bench.end()
    message = bench.told()[-1]
    assert message is not None
    assert {s.label: s.simulated_seconds for s in message.hours[0].scores}["bold"] == 10


async def test_another_replica_goes_on(bench: Bench) -> None:
    """What was told last is where the next one begins: the copy's own parallelism, and its sums."""
    first = bench.runner()
    moved, asks = begin(None, question(0))
    assert moved is not None
    wish = scale({SOURCE: 1, WORK: 4})
    moved = finish(moved, [(a, wish) for a in asks if a.label == "bold"])
    body, headers = encode(moved, type=SHADOWS.type, source="test", id=moved.id, time=NOON)
    del first
    await bench.end()
    await bench.bus.publish(SHADOWS.name, APP, body, headers)
    second = bench.runner()
    second.offer(question(5))
    await bench.until(lambda: bench.workers.done == 1)
    await bench.end()
    message = bench.told()[-1]
    assert message is not None
    bold = next(c for c in message.candidates if c.label == "bold")
    assert (dict(bold.rescales[-1].wanted), message.at) == ({SOURCE: 1, WORK: 4}, after(5))


async def test_what_is_lost_is_forgotten(bench: Bench) -> None:
    """Another replica has the partition now: nothing of it is worked on or told here."""
    runner = bench.runner()
    runner.offer(question(0))
    await bench.until(bench.told)
    runner.assign(frozenset())
    runner.offer(question(5))
    await asyncio.sleep(0.05)
    await bench.end()
    assert len(bench.told()) == 1


async def test_an_end_is_told(bench: Bench) -> None:
    """The application is no more: neither are its copies."""
    runner = bench.runner()
    runner.offer(question(0))
    await bench.until(bench.told)
    runner.ended(APP)
    await bench.until(lambda: len(bench.told()) == 2)
    assert bench.told()[-1] is None


async def test_a_bad_message_is_put_aside(bench: Bench) -> None:
    """The copies of that application begin anew; the others are read."""
    await bench.bus.publish(SHADOWS.name, APP, b"{}", {})
    runner = bench.runner()
    runner.offer(question(0))
    await bench.until(lambda: len(bench.bus.records(SHADOWS.name)) == 2)
    assert len(bench.bus.records(DEAD_LETTERS.name)) == 1


async def test_a_registered_planner_is_asked_where_it_is(bench: Bench) -> None:
    """By its name, with its parameters, about its copy; and its wish is carried out there."""
    asked: list[tuple[str, float, PlanRequest]] = []

    async def ask(about: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        asked.append((planner, timeout_seconds, about))
        return scale({SOURCE: 1, WORK: 5})

    runner = bench.runner(registered=lambda: frozenset({"mine"}), call_registered=ask)
    runner.offer(question(0, shadows=MINE))
    await bench.until(bench.told)
    [(planner, timeout, about)] = asked
    assert (planner, about.policy.spec.planner.name) == ("mine", "mine")
    assert timeout <= 1.0
    message = bench.told()[0]
    assert message is not None
    assert {c.label: c.parallelism[WORK] for c in message.candidates} == {"rate": 2, "mine": 5, "observed": 2}


async def test_a_registered_planner_sees_raw_readings(bench: Bench) -> None:
    """As it would as the chosen one: nobody knows that it does not look at them."""
    asked: list[PlanRequest] = []

    async def ask(about: PlanRequest, _planner: str, _timeout_seconds: float) -> PlanReply:
        asked.append(about)
        return scale({SOURCE: 1, WORK: 2})

    runner = bench.runner(registered=lambda: frozenset({"mine"}), call_registered=ask)
    for turn in range(2):
        scrapes = {"observations": [scrape(5 * i, 1000) for i in range(turn + 1)]}
        runner.offer(question(5 * turn, shadows=MINE).model_copy(update=scrapes))
        await bench.until(lambda: len(asked) > turn)  # noqa: B023 - awaited at once
    assert [o.observed_at for o in asked[1].observations] == [after(5)]


# -- in the worker's process ------------------------------------------------------------------------------------------------


def asked_in_process(monkeypatch: pytest.MonkeyPatch, plan: Callable[..., PlanReply], seconds: float) -> dict[str, int]:
    """A turn in which the planner `threshold` is `plan`; who gave no answer."""
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


def test_one_that_hangs_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it catches every exception: its turn is without an answer, and the others have had theirs."""

    def hangs(_request: PlanRequest) -> PlanReply:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001, S112 - that is the story
                continue

    assert asked_in_process(monkeypatch, hangs, 3.0) == {"rate": 0, "threshold": 1, "bold": 0, "observed": 0}


def test_without_time_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of the budget: no answers, and it is counted."""
    plan = installed()["threshold"].planner._plan
    found = asked_in_process(monkeypatch, plan, 0.0)
    assert found == {"rate": 1, "threshold": 1, "bold": 1, "observed": 0}


def test_one_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are asked as always."""

    def fails(_request: PlanRequest) -> PlanReply:
        raise ZeroDivisionError("of mine")

    assert asked_in_process(monkeypatch, fails, 30.0) == {"rate": 0, "threshold": 1, "bold": 0, "observed": 0}


async def test_it_works_in_a_real_process() -> None:
    """Text goes in and comes out, from a pool of its own that is made when it is first needed."""
    process = WorkerProcess(lower_priority)
    try:
        text = json.dumps({"before": None, "request": question(0).model_dump_json(), "elsewhere": [], "seconds": 30.0})
        found = json.loads(await process.run(shell.run_cycle, text, timeout_seconds=60.0))
        assert Shadows.model_validate_json(found["after"]).application == APP
    finally:
        process.close()


# -- beside the planner -----------------------------------------------------------------------------------------------------


async def test_the_loop_offers_what_it_has_planned() -> None:
    """Plans go out while the shadows are stuck; freed, they are told of the newest turn."""
    desk = Desk()
    stuck = InProcess()
    stuck.gate.clear()
    runner = ShadowRunner(desk.bus, desk.clock, stuck, partitions=PARTITIONS)
    stop = Stop()
    task = asyncio.create_task(runner.run(stop))
    replica = desk.replica()
    replica.planner._shadows = runner
    for i in range(3):
        await desk.analysed(5 * i, spec={"shadows": BOLD})
        await desk.planned(i + 1)
    stuck.gate.set()
    await desk.until(lambda: stuck.done == 2)
    stop.request("the test is over")
    await asyncio.gather(task, replica.end())
    newest = Shadows.model_validate_json(desk.bus.records(SHADOWS.name)[-1].value or b"")
    assert newest.at == after(10)
