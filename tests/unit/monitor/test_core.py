"""`observe`: readings in, one observation out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engines.memory_sources import JOB_ID, MAP, SOURCE, MemoryFlink
from tests.unit.monitor.builders import kafka_signals, policy
from weir_contracts import Observation, Problem, ended_observation, parse_policy
from weir_engines.flink.metrics import SourceOffsets
from weir_engines.flink.readings import FlinkReadings, scrape_of
from weir_engines.flink.rescale import CheckpointStatistics
from weir_engines.scrape import PartitionOffsets
from weir_monitor.core import Readings, next_due, observe
from weir_runtime.clock import FakeClock

NAME = "Source: orders"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def flink(clock: FakeClock) -> MemoryFlink:
    """A running job that has processed 30 records of two partitions."""
    cluster = MemoryFlink(clock, partitions=2)
    cluster.process(0, 20)
    cluster.process(1, 10)
    return cluster


async def observed(
    flink: MemoryFlink,
    now: datetime = NOON,
    previous: Observation | None = None,
    partitions: tuple[tuple[str, PartitionOffsets], ...] = (),
    **changes: Any,
) -> Observation:
    """Observe a cluster, some of its readings replaced."""
    readings = replace(await flink.read(), **changes)
    return observe(Readings(policy(), scrape_of(readings), partitions, scrape_seconds=0.1, previous=previous), now)


async def test_a_running_job_is_observed_completely(flink: MemoryFlink) -> None:
    """Topology, run, deployment, readings, policy in one message; requested and observed parallelism are separate."""
    flink.requested[MAP] = 4
    observation = await observed(flink)
    assert (observation.status, observation.application) == ("running", "shop/orders")
    assert observation.run is not None
    assert (observation.run.attempt, observation.run.running_since) == (0, NOON)
    assert observation.topology is not None and observation.topology.names == ["Source: orders", "map"]
    assert observation.topology.is_keyed("map")
    assert [o.source_partitions for o in observation.topology.operators] == [2, None]
    deployment = observation.deployment
    assert deployment is not None and deployment.checkpoints is not None and deployment.slots is not None
    assert deployment.requested == {"Source: orders": 1, "map": 4}
    assert deployment.requested_lower == {"Source: orders": 1, "map": 1}
    assert deployment.observed == {"Source: orders": 1, "map": 1}
    assert deployment.graph_hash == observation.topology.graph_hash()
    assert (deployment.job_id, deployment.slots.total, deployment.slots.available) == (JOB_ID, 8, 7)
    assert deployment.checkpoints.interval_seconds == 10.0
    assert observation.scrape_seconds == 0.1
    source, operator = observation.operators
    assert (source.records_in, source.records_out, operator.records_in) == (30, 30, 30)
    assert (operator.busy_share_mean, operator.busy_share_max) == (0.5, 0.6)
    assert (source.pending_records, operator.pending_records) == (0, None)


async def test_one_instant_has_one_id(flink: MemoryFlink) -> None:
    """Published twice, it is the same message; another instant is another."""
    assert (await observed(flink)).id == (await observed(flink)).id
    assert (await observed(flink)).id != (await observed(flink, NOON + timedelta(seconds=1))).id


async def test_an_unreachable_cluster_is_unknown(flink: MemoryFlink) -> None:
    """No job is reported missing, and no number is invented."""
    flink.away = True
    observation = await observed(flink)
    assert (observation.status, observation.message) == ("unreachable", "GET /jobs/overview: connection refused")
    assert (observation.run, observation.deployment, observation.topology) == (None, None, None)
    assert observation.operators == [] and observation.partitions == []


async def test_a_job_that_is_not_there_is_another_thing(flink: MemoryFlink) -> None:
    """The cluster answers and has none."""
    flink.absent = True
    observation = await observed(flink)
    assert observation.status == "not_found" and "orders" in observation.message


async def test_a_job_that_is_deploying_does_not_run(flink: MemoryFlink) -> None:
    """RUNNING with tasks that do not run yet: its graph is known, but it is in no run."""
    flink.deploying = True
    observation = await observed(flink)
    assert observation.status == "not_running"
    assert observation.message == "the job is RUNNING, 2 of 2 vertices do not run yet"
    assert observation.run is None and observation.topology is not None and observation.deployment is not None


async def test_a_cancelled_job_is_reported(flink: MemoryFlink) -> None:
    """Its state is Flink's own word."""
    flink.cancel()
    observation = await observed(flink)
    assert (observation.status, observation.message) == ("not_running", "the job is CANCELED")
    assert observation.deployment is not None and observation.deployment.state == "CANCELED"


async def test_an_ended_application_keeps_its_policy() -> None:
    """Services that keep state of it may delete it."""
    observation = ended_observation(policy(), NOON)
    assert (observation.status, observation.policy, observation.topology) == ("ended", policy(), None)


# --- runs


async def test_a_rescale_is_another_run(flink: MemoryFlink, clock: FakeClock) -> None:
    """Same job, another beginning."""
    before = await observed(flink)
    clock.advance(20)
    flink.rescale(MAP, 3)
    after = await observed(flink, clock.now(), before)
    assert before.run is not None and after.run is not None
    assert after.run.running_since > before.run.running_since
    assert after.run.attempt == 1
    assert after.deployment is not None and after.deployment.observed["map"] == 3
    assert all(reading.complete for reading in after.operators), "counters of a new run begin again, and that is right"


async def test_a_late_count_of_restarts_makes_no_second_run(flink: MemoryFlink, clock: FakeClock) -> None:
    """The count comes with the metrics, seconds after the run began."""
    first = await observed(flink, restarts=0)
    clock.advance(2)
    second = await observed(flink, clock.now(), first, restarts=1)
    third = await observed(flink, clock.now(), second, restarts=None)
    assert first.run == second.run == third.run
    assert second.deployment is not None and second.deployment.restarts == 1, "the deployment has the truth"


async def test_counters_that_fall_within_a_run_are_no_sample(flink: MemoryFlink, clock: FakeClock) -> None:
    """The job's details are cached: for a second an old graph is shown with counters of the new run."""
    before = await observed(flink)
    flink.processed = [3, 0]
    after = await observed(flink, clock.advance(2), before)
    assert [reading.complete for reading in after.operators] == [False, False]
    assert "within a run" in next(p.what for p in after.problems if p.where.startswith("counters of"))
    flink.processed = [9, 9]
    later = await observed(flink, clock.advance(2), after)
    assert [reading.complete for reading in later.operators] == [True, True]


# --- unknown is not zero


async def test_a_source_whose_counters_could_not_be_read_is_unknown(flink: MemoryFlink) -> None:
    """0 read records of a source mean nothing; another counter must not stand in for one scrape."""
    observation = await observed(flink, sources={})
    assert observation.operators[0].records_in is None
    assert observation.operators[0].pending_records is None
    assert observation.operators[1].records_in == 30


async def test_a_source_that_counts_nothing_as_read_counts_what_it_sent(flink: MemoryFlink) -> None:
    """Where there is no other counter, always the same one."""
    observation = await observed(flink, sources={SOURCE: SourceOffsets()})
    assert observation.operators[0].records_in == 30


async def test_readings_of_a_failed_call_are_unknown(flink: MemoryFlink) -> None:
    """Requirements, slots, checkpoints, restarts, configuration: each may be missing alone."""
    observation = await observed(
        flink, requirements=None, slots_total=None, checkpoints=None, restarts=None, configuration=None, shares={}
    )
    deployment = observation.deployment
    assert deployment is not None
    assert (deployment.requested, deployment.requested_lower, deployment.slots) == (None, None, None)
    assert (deployment.checkpoints, deployment.restarts, deployment.rescale.scheduler) == (None, None, None)
    assert observation.operators[0].busy_share_mean is None
    assert observation.status == "running"


async def test_what_was_requested_of_pods_is_unknown_to_flink(flink: MemoryFlink) -> None:
    """A job in reactive mode requests all slots; the workload's number of replicas is read from Kubernetes."""
    document = policy().to_document()
    document["spec"]["target"] = {"kubernetes": {"kind": "Deployment", "name": "taskmanager"}}
    observation = observe(Readings(parse_policy(document), await flink.scrape()), NOON)
    deployment = observation.deployment
    assert deployment is not None and deployment.slots is not None
    assert (deployment.requested, deployment.requested_lower) == (None, None)
    assert deployment.observed == {"Source: orders": 1, "map": 1}


@pytest.mark.parametrize("bounds", [{SOURCE: (1, 1)}, {SOURCE: (1, 1), MAP: (1, None)}, {}])
async def test_half_a_vector_is_none(flink: MemoryFlink, bounds: dict[str, tuple[int, int | None]]) -> None:
    """A plan must not be compared with requirements of which a vertex is missing."""
    observation = await observed(flink, requirements=bounds)
    assert observation.deployment is not None and observation.deployment.requested is None


# --- partitions

ENDS = {"log_start_offset": 0, "log_end_offset": 25}


async def test_partitions_carry_the_source_s_own_position(flink: MemoryFlink) -> None:
    """The brokers' offsets are next to it; a partition that the source has not read from has none."""
    partitions = tuple((NAME, PartitionOffsets("orders", "orders", n, **ENDS)) for n in range(3))
    observation = await observed(flink, partitions=partitions)
    assert [(p.partition, p.current_offset, p.log_end_offset) for p in observation.partitions] == [
        (0, 20, 25),
        (1, 10, 25),
        (2, None, 25),
    ]
    assert observation.topology is not None
    assert observation.topology.operator("Source: orders").source_partitions == 3


async def test_a_source_has_as_many_partitions_while_it_restarts(flink: MemoryFlink) -> None:
    """It names none then; to call that unknown would change what parallelism is useful."""
    before = await observed(flink)
    flink.deploying = True
    during = await observed(flink, NOON + timedelta(seconds=2), before)
    assert during.topology is not None
    assert during.topology.operator("Source: orders").source_partitions == 2


async def test_more_partitions_than_a_message_holds_are_reported(flink: MemoryFlink) -> None:
    """It carries the first ten thousand and reports the omission."""
    many = tuple((NAME, PartitionOffsets("orders", "orders", n)) for n in range(10_001))
    observation = await observed(
        flink, partitions=many, problems=tuple(Problem(where="x", what="y") for _ in range(150))
    )
    assert len(observation.partitions) == 10_000
    assert len(observation.problems) == 100
    assert "10001 partitions" in observation.problems[0].what


READ = SourceOffsets({("orders", 0): 20, ("orders", 1): None})
UNREAD = SourceOffsets({("orders", 0): None, ("orders", 1): None})
DONE, NONE_DONE = CheckpointStatistics(completed=3), CheckpointStatistics(completed=0)
ONE_DONE = CheckpointStatistics(completed=1)


@pytest.mark.parametrize(
    ("committed", "group", "changes", "message"),
    [
        (None, "ordres", {}, "after 3 checkpoints"),
        (None, "ordres", {"sources": {SOURCE: SourceOffsets()}}, "after 3 checkpoints"),
        (None, "ordres", {"checkpoints": NONE_DONE, "checkpointing_off": True}, "the job makes no checkpoints"),
        (20, "orders", {}, None),
        (None, None, {}, None),
        (None, "young", {"checkpoints": NONE_DONE}, None),
        (None, "committing", {"checkpoints": ONE_DONE}, None),
        (None, "not-told", {"checkpoints": None}, None),
        (None, "idle", {"sources": {SOURCE: UNREAD}}, None),
    ],
)
async def test_a_group_that_nothing_is_committed_to_is_a_problem(
    flink: MemoryFlink, committed: int | None, group: str | None, changes: dict[str, Any], message: str | None
) -> None:
    """Once the job would have committed: a wrong name is reported. A young or an idle job's group may be right."""
    offsets = PartitionOffsets("orders", "orders", 0, 0, 30, committed)
    empty = replace(offsets, partition=1, committed_offset=None)
    readings = replace(await flink.read(), **{"checkpoints": DONE, "sources": {SOURCE: READ}, **changes})
    wanted = policy(kafka=kafka_signals(**({"groupId": group} if group else {})))
    problems = observe(Readings(wanted, scrape_of(readings), ((NAME, offsets), (NAME, empty))), NOON).problems
    assert [problem.where for problem in problems] == ([f"group {group}"] if message else [])
    assert all("check spec.signals.kafka.groupId" in p.what and str(message) in p.what for p in problems)
    assert all(len(f"{p.where}: {p.what}") <= 160 for p in problems)


async def test_commits_that_could_not_be_read_are_one_problem(flink: MemoryFlink) -> None:
    """Then it is unknown whether the group exists."""
    away = Problem(where="commits of group orders", what="no answer within 2 s")
    readings = Readings(
        policy(kafka=kafka_signals(groupId="orders")),
        scrape_of(replace(await flink.read(), sources={SOURCE: READ}, checkpoints=DONE)),
        ((NAME, PartitionOffsets("orders", "orders", 0, 0, 30)),),
        (away,),
    )
    assert observe(readings, NOON).problems == [away]


# --- the cluster's own timings

P = "jobmanager.adaptive-scheduler."


@pytest.mark.parametrize(
    ("version", "config", "interval", "expected"),
    [
        ("2.2.1", {}, 10.0, ("default", 30.0, 60.0, 30.0)),
        ("2.2.1", {"jobmanager.scheduler": "Adaptive"}, None, ("adaptive", 30.0, 60.0, None)),
        ("2.2.1", {f"{P}executing.cooldown-after-rescaling": "1 s"}, 10.0, ("default", 1.0, 60.0, 30.0)),
        ("2.2.1", {f"{P}executing.resource-stabilization-timeout": "2min"}, 10.0, ("default", 30.0, 120.0, 30.0)),
        ("2.2.1", {f"{P}rescale-trigger.max-checkpoint-failures": "4"}, 10.0, ("default", 30.0, 60.0, 50.0)),
        ("2.2.1", {f"{P}rescale-trigger.max-delay": "8 s"}, 10.0, ("default", 30.0, 60.0, 8.0)),
        ("2.2.1", {f"{P}executing.cooldown-after-rescaling": "soon"}, 10.0, ("default", None, 60.0, 30.0)),
        ("1.20.5", {"jobmanager.scheduler": "adaptive"}, 10.0, ("adaptive", 30.0, None, 0.0)),
        (
            "1.20.5",
            {f"{P}scaling-interval.min": "5 s", f"{P}scaling-interval.max": "9 s"},
            10.0,
            ("default", 5.0, 9.0, 0.0),
        ),
        (
            "2.2.1",
            {"scheduler-mode": "reactive", "jobmanager.scheduler": "adaptive"},
            10.0,
            ("reactive", 30.0, 60.0, 30.0),
        ),
        (None, {}, 10.0, ("default", 30.0, 60.0, 30.0)),
    ],
)
async def test_what_is_not_set_has_the_default_of_its_version(
    flink: MemoryFlink,
    version: str | None,
    config: dict[str, str],
    interval: float | None,
    expected: tuple[str, float | None, float | None, float | None],
) -> None:
    """Flink lists only what was set. From 2.0 on options have other names, and a rescale waits for a checkpoint."""
    observation = await observed(flink, version=version, configuration=config, checkpoint_interval_seconds=interval)
    assert observation.deployment is not None
    read = observation.deployment.rescale
    assert (
        read.scheduler,
        read.cooldown_seconds,
        read.stabilization_seconds,
        read.max_trigger_delay_seconds,
    ) == expected


@pytest.mark.parametrize(
    ("config", "slots"),
    [
        ({}, None),
        ({"execution.target": "remote", "kubernetes.cluster-id": "orders"}, None),
        ({"execution.target": "kubernetes-application"}, 2**31 - 1),
        ({"execution.target": "kubernetes-session", "slotmanager.number-of-slots.max": "12"}, 12),
        ({"execution.target": "yarn-application", "slotmanager.number-of-slots.max": "many"}, 2**31 - 1),
    ],
)
@pytest.mark.parametrize("version", ["1.20.5", "2.2.1"])
async def test_a_cluster_that_starts_task_managers_has_more_slots_than_registered(
    flink: MemoryFlink, config: dict[str, str], slots: int | None, version: str
) -> None:
    """Flink on Kubernetes in native mode and on YARN; in standalone mode the operator sets the target `remote`."""
    observation = await observed(flink, version=version, configuration=config)
    assert observation.deployment is not None
    assert observation.deployment.rescale.max_slots == slots


async def test_without_checkpoints_a_rescale_waits_for_none(flink: MemoryFlink) -> None:
    """Off is not unknown."""
    observation = await observed(flink, checkpoint_interval_seconds=None, checkpointing_off=True)
    assert observation.deployment is not None
    assert observation.deployment.rescale.max_trigger_delay_seconds == 0.0


# --- the cadence


@pytest.mark.parametrize(
    ("now", "expected"), [(0.3, (2.0, 0)), (1.99, (2.0, 0)), (2.0, (4.0, 1)), (2.1, (4.0, 1)), (7.5, (8.0, 3))]
)
def test_missed_scrapes_are_left_out(now: float, expected: tuple[float, int]) -> None:
    """Due at 0 every 2 s: a scrape that took 7.5 s missed three, and the next is at 8, not at once three times."""
    assert next_due(0.0, now, 2.0) == expected


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(1, 600))
def test_the_next_scrape_is_ahead_and_within_an_interval(due: float, took: float, interval: float) -> None:
    """Whatever came before, no application is scraped twice at once or forgotten."""
    upcoming, missed = next_due(due, due + took, interval)
    assert missed >= 0
    assert due + took - 1e-6 <= upcoming <= due + took + interval + 1e-6


def test_an_observation_of_nothing_at_all_is_still_one() -> None:
    """Every default reading fits the contract."""
    assert observe(Readings(policy(), scrape_of(FlinkReadings())), NOON).status == "not_found"
