"""What goes wrong around the loop: readings, jobs, rescales, policies, messages. The loop holds, says why, and goes on by itself."""

import asyncio
from typing import Any

import pytest
from weir_contracts import Edge, Observation, Topology
from weir_contracts.topics import ANALYSES

from services.executor.core import PolicyReading, Rejected
from tests.loop.world import SOURCE, TOPOLOGY, WORK, World, settled


def without(observation: Observation, *fields: str) -> Observation:
    """The observation with these readings of every operator missing, as a collector leaves out what is no number."""
    operators = [o.model_copy(update=dict.fromkeys(fields)) for o in observation.operators]
    return observation.model_copy(update={"operators": operators})


def test_a_spike_shorter_than_a_rescale_makes_no_zigzag() -> None:
    """Six times the load for 4 s, which nobody can know beforehand: answered at most once, and given back step by step."""
    world = settled(350.0)
    world.job.arrivals = 2100.0
    world.run(4)
    world.job.arrivals = 350.0
    world.run(100)
    ups = [wanted > current for current, wanted in world.scaled()]
    assert sum(ups) <= 1
    assert ups == sorted(ups, reverse=True)
    assert max(world.lags) < 30
    assert world.lag_seconds < 2


@pytest.mark.parametrize("fields", [("busy_ms", "busy_share_mean", "busy_share_max"), ("records_in", "records_out")])
def test_a_metric_that_is_gone_never_shrinks_the_job(fields: tuple[str, ...]) -> None:
    """A NaN or a missing metric reaches the loop as unknown, and unknown is not zero."""
    world = settled(1200.0, start=4)
    world.edit = lambda observation: without(observation, *fields)
    world.run(150)
    assert all(wanted >= current for current, wanted in world.scaled())
    assert world.lag_seconds < 30


def test_frozen_counters_never_shrink_the_job() -> None:
    """Flink shows the same operator readings for two minutes while the offsets go on."""
    world = settled(1200.0, start=4)
    frozen = []

    def freeze(observation: Observation) -> Observation:
        frozen.append(observation.operators)
        return observation.model_copy(update={"operators": frozen[0]})

    world.edit = freeze
    world.run(120)
    assert all(wanted >= current for current, wanted in world.scaled())
    assert world.work >= 4


def test_an_unknown_lag_is_said_and_nothing_shrinks() -> None:
    """Neither commits nor positions: how old the oldest record is cannot be known."""
    world = settled(1200.0, start=4)

    def blind(observation: Observation) -> Observation:
        update = {"committed_offset": None, "current_offset": None}
        partitions = [p.model_copy(update=update) for p in observation.partitions]
        return observation.model_copy(update={"partitions": partitions})

    world.edit = blind
    world.run(120)
    assert all(wanted >= current for current, wanted in world.scaled())
    assert world.analysis is not None
    assert world.analysis.lag_seconds.value is None


def test_an_input_that_collapses_shrinks_nothing_for_a_while() -> None:
    """Upstream is away for 5 minutes and then sends everything at once: there was no scale-down. If it stays away, there is."""
    world = settled(1200.0, start=4)
    before = len(world.scaled())
    world.job.arrivals = 2.0
    world.run(300)
    assert len(world.scaled()) == before
    assert "input-collapse" in world.codes()
    assert "outage upstream" in next(plan.sentence for plan in world.plans if plan.code == "input-collapse")
    world.job.arrivals = 1300.0
    world.run(60)
    assert max(world.lags[-30:]) < 5
    world.job.arrivals = 2.0
    world.run(900)
    assert world.work == 1


def test_a_job_that_vanishes_is_found_again_under_its_name() -> None:
    """Gone for a minute, then resubmitted with another id and one subtask: held, then scaled again."""
    world = settled(1200.0, start=4)
    world.driver.jobs.clear()
    world.run(60)
    assert world.plans[-1].kind == "hold"
    assert "no job" in world.plans[-1].sentence
    resubmit(world, TOPOLOGY)
    world.run(150)
    assert world.work >= 3
    assert {o.action.deployment.job_id for o in world.outcomes if o.action and o.before[WORK] == 1} == {"b" * 32}


def test_another_graph_under_the_same_name_is_learnt_anew() -> None:
    """The new version of the job shuffles otherwise and allows less: no plan of the old graph reaches it."""
    world = settled(1200.0, start=4)
    other = TOPOLOGY.model_copy(
        update={
            "operators": [TOPOLOGY.operators[0], TOPOLOGY.operators[1].model_copy(update={"max_parallelism": 6})],
            "edges": [Edge(source=SOURCE, target=WORK, ship_strategy="REBALANCE")],
        }
    )
    resubmit(world, other)
    world.job.arrivals = 2000.0
    world.run(200)
    assert world.work in (5, 6)
    assert "graph-changed" not in {o.code for o in world.outcomes if o.phase == "applying"}


def resubmit(world: World, topology: Topology) -> None:
    """The job starts again under its name with one subtask of everything."""
    world.cluster = world.driver.add(world.policy.spec.target, topology, {SOURCE: 1, WORK: 1}, job_id="b" * 32)
    world.cluster.slots = world.slots


def test_a_cluster_that_does_not_answer_is_waited_for() -> None:
    """Its last reading is no reason to act on anything."""
    world = settled()
    url = "http://127.0.0.1:8081"
    world.driver.away[url] = "connection refused"
    world.job.arrivals = 1200.0
    world.run(60)
    assert world.scaled() == []
    assert world.plans[-1].code == "unreachable"
    del world.driver.away[url]
    world.run(100)
    assert world.work >= 3


def test_a_refused_rescale_is_said_and_tried_again_later() -> None:
    """The engine says no for a while; no storm of requests, and one that passes ends it."""
    world = settled()
    accept = world.driver.request
    asked = []

    async def refuse(*arguments: Any) -> Rejected:
        asked.append(arguments)
        return Rejected("the job is being stopped with a savepoint")

    world.driver.request = refuse  # type: ignore[method-assign]
    world.job.arrivals = 1200.0
    world.run(40)
    assert {o.phase for o in world.outcomes if o.phase in ("refused", "failed")}
    assert any("savepoint" in o.sentence for o in world.outcomes)
    assert len(asked) <= 20
    world.driver.request = accept  # type: ignore[method-assign]
    world.run(100)
    assert world.work >= 3


def test_a_rescale_that_never_begins_times_out_and_is_said() -> None:
    """No checkpoint completes, so the engine never rescales: after its deadline the action ends, and nothing hangs."""
    world = settled()

    async def no_checkpoint(*_arguments: Any) -> str:
        return "the checkpoint was declined"

    world.driver.nudge = no_checkpoint  # type: ignore[method-assign]
    world.job.arrivals = 1200.0
    world.run(200)
    assert {"failed", "rolled-back"} & {o.phase for o in world.outcomes}
    assert world.work == 1


def test_a_slow_rescale_is_waited_for_and_its_price_is_known_from_then_on() -> None:
    """45 s from checkpoint to running: nothing is asked for meanwhile, and another one comes only if it pays."""
    world = settled()
    world.cluster.rescale_seconds = 45.0
    world.job.arrivals = 1200.0
    world.run(40)
    assert len(world.scaled()) == 1
    world.run(160)
    assert "verified" in {o.phase for o in world.outcomes}
    assert max(o.restart_seconds or 0.0 for o in world.outcomes) >= 40
    assert len(world.scaled()) <= 2
    assert world.lag_seconds < 5


def test_a_policy_deleted_in_the_middle_of_an_action_ends_it() -> None:
    """What was asked for is not taken back; nothing more is asked for."""
    world = settled()
    world.job.arrivals = 1200.0
    while not world.scaled():
        world.run(2)
    world.gate = lambda: PolicyReading(reachable=True, policy=None)
    requests = len(world.driver.requests)
    world.job.arrivals = 4000.0
    world.run(120)
    assert len(world.driver.requests) == requests
    assert world.executor.action is None or world.executor.action.terminal


def test_a_gate_that_cannot_be_asked_lets_nothing_new_through() -> None:
    """Knowledge is away: no new action; the next one comes when it is back."""
    world = settled()
    world.gate = lambda: PolicyReading(reachable=False, because="connection refused")
    world.job.arrivals = 1200.0
    world.run(30)
    assert world.driver.requests == []
    world.gate = lambda: PolicyReading(reachable=True, policy=world.policy)
    world.run(60)
    assert world.work >= 3


def test_checkpoints_every_ten_minutes_cost_no_ten_minutes() -> None:
    """The engine rescales at the next checkpoint: the executor triggers one."""
    world = settled()
    world.cluster.checkpoint_at = None
    world.job.arrivals = 1200.0
    world.run(30)
    assert world.cluster.nudges >= 1
    assert world.work >= 3


def test_an_outage_of_the_planner_is_followed_by_one_current_decision() -> None:
    """Half an hour of analyses waits in the topic: the newest counts, the others are history."""
    world = settled()
    kept = world._plan
    missed = []

    async def away(analysis: Any) -> None:
        missed.append(analysis)

    world._plan = away  # type: ignore[method-assign]
    world.run(600)
    world._plan = kept  # type: ignore[method-assign]
    plans = len(world.plans)
    world.job.arrivals = 1200.0
    for analysis in missed[-30:]:
        asyncio.run(world._say(ANALYSES, analysis, analysis.id))
    world.run(2)
    assert len(world.plans) - plans <= 2
    world.run(60)
    assert world.work >= 3


def test_a_plan_that_waited_too_long_is_not_acted_on() -> None:
    """It sat in Kafka for ten minutes while nobody executed: refused as expired, and a fresh one is acted on."""
    world = settled()
    held = []
    consider = world._consider

    async def wait(plan: Any) -> None:
        if plan.kind == "scale":
            held.append(plan)

    world._consider = wait  # type: ignore[method-assign]
    world.job.arrivals = 1200.0
    world.run(10)
    assert held
    world.clock.advance(600)
    asyncio.run(consider(held[0]))
    world._consider = consider  # type: ignore[method-assign]
    world.run(60)
    assert "expired" in {o.code for o in world.outcomes}
    assert world.work >= 3
