"""A Flink job in reactive mode: how many TaskManagers give which parallelism, and when they have come."""

from dataclasses import replace

import pytest

from tests.unit.engines.kubernetes.rig import FlinkRig, reactive_policy
from tests.unit.executor.builders import TOPOLOGY, after, analysis, deployment, policy, snapshot
from weir_contracts import Operator, Parallelism, RescaleSettings, Topology, Unit
from weir_engines.driver import Rejected
from weir_engines.kubernetes.reactive import unfit
from weir_executor.core.in_flight import checkpoint_is_due, rescale_limit
from weir_executor.core.parameters import Rules


@pytest.mark.parametrize(
    ("wanted", "slots", "expected_text"),
    [
        ({"orders": 1, "enrich": 4, "sink": 2}, 1, "all operators have the same parallelism"),
        (TOPOLOGY.uniform(5), 2, "the next is 6"),
        (dict.fromkeys(TOPOLOGY.names, 121), 1, "121"),
        ({"orders": 3, "sink": 3}, 1, "differ in operators: enrich"),
    ],
)
async def test_a_parallelism_that_pods_cannot_give_is_refused(
    wanted: Parallelism, slots: int, expected_text: str
) -> None:
    """One parallelism for all operators, a multiple of what a pod brings, and nothing is written."""
    rig = FlinkRig(slots=slots)
    answer = await rig.ask(wanted)
    assert isinstance(answer, Rejected) and expected_text in answer.reason
    assert rig.written() == 0
    await rig.driver.close()


def test_a_job_with_lower_requirements_is_refused() -> None:
    """Outside reactive mode its own requirements are the limit."""
    two = TOPOLOGY.uniform(2)
    found = replace(snapshot(two), topology=TOPOLOGY)
    reason = unfit(TOPOLOGY.uniform(3), Unit(1, "pod"), found)
    assert "the job requests no more than orders 2" in reason and "run it in reactive mode" in reason
    assert unfit(two, Unit(1, "pod"), found) == ""


@pytest.mark.parametrize(
    ("number", "slots", "parallelism", "instances", "reached"),
    [(1, 1, 3, 3, 3), (1, 4, 5, 2, 8), (2, 1, 3, 6, 3), (2, 4, 3, 2, 4), (3, 2, 1, 3, 2), (2, 3, 1, 2, 3)],
)
def test_slot_sharing_groups_share_evenly(
    number: int, slots: int, parallelism: int, instances: int, reached: int
) -> None:
    """So many instances that each group gets the same number of slots."""
    operators = [
        Operator(name=f"o{i}", id=f"v{i}", max_parallelism=120, slot_sharing_group=f"g{i}") for i in range(number)
    ]
    unit, topology = Unit(slots), Topology(operators=operators)
    assert unit.instances_for(topology, parallelism) == instances
    assert unit.parallelism_of(topology, instances) == reached


async def test_a_checkpoint_is_due_when_the_slots_have_registered() -> None:
    """A pod takes seconds to be ready; an earlier checkpoint does not count."""
    rig = FlinkRig()
    rig.job.waits_for_checkpoint, rig.job.checkpoint_at = True, None
    await rig.ask(TOPOLOGY.uniform(3))
    assert (await rig.driver.observe(rig.subject)).resourced_at is None
    found = await rig.until(lambda s: s.resourced_at is not None)
    assert found.resourced_at == rig.clock.now()
    registered = snapshot(checkpoint_completed_at=after(5))
    assert not checkpoint_is_due(registered, after(0), after(9))
    assert checkpoint_is_due(replace(registered, resourced_at=after(8)), after(0), after(9))
    await rig.driver.close()


def test_pods_get_time_to_start() -> None:
    """In addition to the time limit of a rescale with existing slots."""
    rules = Rules(deadline_floor_seconds=60.0, container_start_seconds=45.0)
    here = rescale_limit(deployment(), analysis(policy=policy()), rules)
    there = rescale_limit(deployment(), analysis(policy=reactive_policy()), rules)
    assert (there - here).total_seconds() == 45.0


def test_task_managers_that_the_cluster_starts_get_time_to_start() -> None:
    """As pods that Weir starts."""
    rules = Rules(deadline_floor_seconds=60.0, container_start_seconds=45.0)
    starting = deployment(rescale=RescaleSettings(scheduler="adaptive", max_slots=2**31 - 1))
    standalone = deployment(rescale=RescaleSettings(scheduler="adaptive"))
    limits = [rescale_limit(each, analysis(policy=policy()), rules) for each in (starting, standalone)]
    assert (limits[0] - limits[1]).total_seconds() == 45.0
