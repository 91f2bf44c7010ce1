"""Shadows of a loop: their simulated applications, and how far their scores can be trusted."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from weir_contracts import CandidateScore, Shadows
from weir_contracts.topics import SHADOWS

from runtime.bus import Bus
from runtime.clock import Clock
from services.knowledge.scores import summarise_scores
from services.planner.shadows import ShadowLimits, ShadowRunner
from services.planner.workers import WorkerProcess
from simulator.observe import START
from tests.loop.world import WORK, World, job, policy

THRIFTY = {"name": "rate", "label": "thrifty", "parameters": {"target_utilization": 0.9}}
LAVISH = {"name": "rate", "label": "lavish", "parameters": {"target_utilization": 0.4}}
LAZY = {"name": "static", "label": "lazy", "parameters": {"parallelism": 1}}


class ThisProcess(WorkerProcess):
    """Runs what the shadows' process would run."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    async def run(self, work: Callable[..., str], *arguments: str, timeout_seconds: float) -> str:
        return work(*arguments)


def in_this_process(bus: Bus, clock: Clock) -> ShadowRunner:
    """Return the runner of shadows, which publishes them after each plan."""
    return ShadowRunner(bus, clock, ThisProcess(), partitions=1, limits=ShadowLimits(publish_seconds=0.0))


class Shadowed(World):
    """A loop with its shadows."""

    def __init__(self, shadows: list[dict[str, Any]], **options: Any) -> None:
        super().__init__(job(1), wave, policy=policy(shadows=shadows, **options), shadows=in_this_process)

    @property
    def shadows(self) -> Shadows:
        """Return the newest published ones."""
        return Shadows.model_validate_json(self.loop.bus.records(SHADOWS.name)[-1].value or b"")

    def scores(self) -> dict[str, CandidateScore]:
        return {score.label: score for score in self.shadows.hours[-1].scores}


def wave(seconds: float) -> float:
    """Between 200 and 1,600 records/s within 20 minutes."""
    return 900.0 - 700.0 * math.cos(2 * math.pi * seconds / 1200)


@pytest.mark.thorough
def test_shadows_differ_and_the_chosen_planners_simulation_matches_the_application() -> None:
    """A wave of 20 minutes. The simulated application of the chosen planner does nearly what the real one does, without
    observing it after the first minute. The lavish one holds more slots than needed, the one that never moves is late
    for most of the wave; the sentence names neither."""
    world = Shadowed([THRIFTY, LAVISH, LAZY], interval="10s")
    world.live(1200)
    scores = world.scores()
    chosen, real = scores["rate"], scores["observed"]
    assert chosen.error / chosen.compared_seconds < 0.1
    assert abs(chosen.slot_seconds - real.slot_seconds) < 0.15 * real.slot_seconds
    assert abs(chosen.rescales - real.rescales) <= 3
    assert scores["lavish"].spare > 2 * chosen.spare
    assert scores["lazy"].rescales == 0
    assert scores["lazy"].violation_seconds > 300 > chosen.violation_seconds
    assert scores["lazy"].short > 10 * chosen.short
    assert scores["lazy"].slot_seconds == scores["lazy"].simulated_seconds
    summary = summarise_scores("shop/orders", world.shadows.hours, world.policy.spec, START, world.loop.now)
    assert summary is not None
    assert summary.confidence is not None
    assert summary.confidence > 0.9
    assert summary.cheaper in (None, "thrifty")


@pytest.mark.thorough
def test_the_application_notices_nothing_of_its_shadows() -> None:
    """The same load with and without: the same plans."""
    with_them, without = Shadowed([LAVISH]), World(job(1), wave)
    for world in (with_them, without):
        world.live(240)
    assert [(p.kind, p.code, p.approved) for p in with_them.plans] == [
        (p.kind, p.code, p.approved) for p in without.plans
    ]
    assert with_them.p(WORK) == without.p(WORK)
