"""One application as the monitor observes it: a real job that falls behind, is drained, and ends.

Oracles independent of Weir: the append time and number of records, and the capacity of enrich.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.monitor.conftest import PARTITIONS, RealJob, Stage
from tests.unit.engines.flink.collector_suite import PROCESSED
from weir_contracts import Observation, OperatorReading, PartitionReading, ScalingPolicy
from weir_engines.registry import Engines, Resources
from weir_monitor.applications import ApplicationCollector, Collectors
from weir_monitor.core import observe
from weir_runtime.clock import SystemClock

RECORDS = 6000
"""In each partition."""
ENRICH_PER_SECOND = 500.0
BEHIND = ("--service-time-us", "parse=0,enrich=2000,aggregate=0,sink=0", "--max-parallelism", "60")
OLDEST = timedelta(hours=2)


class Eye:
    """Observes one policy again and again, as a watch does."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._clock = SystemClock()
        self._policy = policy
        self._collector: ApplicationCollector = Collectors(Engines(Resources(self._clock))).new(policy)

    async def look(self) -> Observation:
        return observe(await self._collector.read(self._policy), self._clock.now())

    async def until(self, condition: Callable[[Observation], object], seconds: float = 30.0) -> Observation:
        observation: Observation | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    observation = await self.look()
                    if condition(observation):
                        return observation
                    await asyncio.sleep(0.3)
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s: {observation}") from None

    async def close(self) -> None:
        await self._collector.close()


@pytest.fixture
async def look_at() -> AsyncIterator[Callable[[ScalingPolicy], Eye]]:
    """Eyes that are closed at the end."""
    opened: list[Eye] = []

    def open_eye(policy: ScalingPolicy) -> Eye:
        opened.append(Eye(policy))
        return opened[-1]

    yield open_eye
    await asyncio.gather(*(eye.close() for eye in opened))


def readings(observation: Observation) -> dict[str, OperatorReading]:
    return {reading.operator: reading for reading in observation.operators}


def seconds_between(before: Observation, after: Observation) -> float:
    """By the cluster's clock."""
    assert before.source_time is not None and after.source_time is not None
    return (after.source_time - before.source_time).total_seconds()


def appended_at(beginning: int, offset: int) -> datetime:
    """Records of a partition are a second apart."""
    return datetime.fromtimestamp((beginning + offset * 1000) / 1000, UTC)


def begun(partition: PartitionReading) -> bool:
    """Its source is in the middle of it."""
    return partition.current_offset is not None and partition.current_offset < RECORDS


def ages_are_reported(observation: Observation) -> bool:
    """Whether every begun partition has an append time. One not looked up in time is left out of a scrape, and a
    busy machine may take longer over one partition than over the next."""
    middle = [partition for partition in observation.partitions if begun(partition)]
    return bool(middle) and all(partition.position_appended_at is not None for partition in middle)


async def test_a_job_that_falls_behind(stage: Stage, look_at: Callable[[ScalingPolicy], Eye]) -> None:
    """24,000 records from two hours ago on and enrich at 500/s: graph, backlog, age and counters are what was produced."""
    job = await asyncio.to_thread(stage.start, *BEHIND)
    beginning = int((time.time() - OLDEST.total_seconds()) * 1000)
    for partition in range(PARTITIONS):
        times = [beginning + offset * 1000 for offset in range(RECORDS)]
        await asyncio.to_thread(job.log.append, job.topic, partition, *times)
    eye = look_at(job.policy())
    first = await eye.until(
        lambda o: is_complete(o) and ages_are_reported(o) and knows_what_is_pending(o) and adds_up(o)
    )

    check_graph(first, job)
    check_backlog(first, job, beginning)
    check_counters(first, await eye.until(lambda o: is_complete(o) and seconds_between(first, o) > 6))
    # Flink's gauges look back a minute: those of a young run still hold the source's first burst.
    await eye.until(lambda o: is_complete(o) and busiest(o) == "enrich")


async def test_a_group_that_the_job_does_not_commit_to(stage: Stage, look_at: Callable[[ScalingPolicy], Eye]) -> None:
    """A wrong name in the policy is a problem once the job has made a checkpoint; the right one is none."""
    job = await asyncio.to_thread(stage.any)
    right = job.policy()
    kafka = right.spec.signals.kafka
    assert kafka is not None
    signals = right.spec.signals.model_copy(update={"kafka": kafka.model_copy(update={"group_id": "nobodys"})})
    wrong = right.model_copy(update={"spec": right.spec.model_copy(update={"signals": signals})})
    await asyncio.to_thread(job.process, 40)
    await asyncio.to_thread(job.checkpoint)
    observation = await look_at(wrong).until(lambda o: [p for p in o.problems if p.where == "group nobodys"])
    (problem,) = (p for p in observation.problems if p.where == "group nobodys")
    assert job.topic in problem.what
    committed = await look_at(right).until(lambda o: any(p.committed_offset for p in o.partitions))
    assert not [p for p in committed.problems if p.where.startswith("group")]


def is_complete(observation: Observation) -> bool:
    """Every operator's subtasks have answered in this scrape."""
    return (
        observation.source_time is not None
        and bool(observation.operators)
        and all(reading.complete for reading in observation.operators)
    )


def busiest(observation: Observation) -> str:
    """Return the operator with the highest busy share by Flink's own gauges."""
    busy = {name: reading.busy_share_mean or 0.0 for name, reading in readings(observation).items()}
    return max(busy, key=lambda name: busy[name])


def knows_what_is_pending(observation: Observation) -> bool:
    """The source reports only partitions it has begun: none at first, then perhaps one fetched completely."""
    return bool(readings(observation)["Source: orders"].pending_records)


def adds_up(observation: Observation) -> bool:
    """Counter and positions come in two responses of Flink, perhaps of two moments."""
    counted = readings(observation)["Source: orders"].records_in
    return counted is not None and abs(counted - processed(observation)) <= 20


def processed(observation: Observation) -> int:
    """Records before the positions."""
    return sum(p.current_offset or 0 for p in observation.partitions)


def check_graph(observation: Observation, job: RealJob) -> None:
    assert (observation.status, observation.problems) == ("running", [])
    assert observation.topology is not None and observation.deployment is not None and observation.run is not None
    operators = {operator.name: operator for operator in observation.topology.operators}
    assert list(operators) == ["Source: orders", "parse", "enrich", "aggregate", "sink: Writer"]
    assert [edge.ship_strategy for edge in observation.topology.edges] == ["REBALANCE", "HASH", "HASH", "REBALANCE"]
    assert [(edge.source, edge.target) for edge in observation.topology.edges] == list(
        zip(list(operators)[:-1], list(operators)[1:], strict=True)
    )
    assert {operator.max_parallelism for operator in operators.values()} == {60}
    (group,) = {operator.slot_sharing_group for operator in operators.values()}
    assert group is not None
    assert [operator.source_partitions for operator in operators.values()] == [PARTITIONS, None, None, None, None]
    deployment = observation.deployment
    assert (deployment.job_id, deployment.job_name, deployment.state) == (job.id, job.name, "RUNNING")
    assert deployment.observed == deployment.requested == dict.fromkeys(operators, 1)
    assert deployment.slots is not None
    assert (deployment.slots.total, deployment.slots.available) == (8, 7)
    assert observation.run.running_since <= observation.observed_at


def check_backlog(observation: Observation, job: RealJob, beginning: int) -> None:
    """Lag in records adds up, lag in seconds is the age of the very record that comes next. (The source reads one
    partition after the other, by the batch: of those that it has not begun with there is no position, which is not
    0.)"""
    assert sorted((p.topic, p.partition) for p in observation.partitions) == [(job.topic, n) for n in range(PARTITIONS)]
    assert {(p.log_start_offset, p.log_end_offset) for p in observation.partitions} == {(0, RECORDS)}
    for partition in observation.partitions:
        next_one = appended_at(beginning, partition.current_offset or 0)
        assert partition.position_appended_at == (next_one if begun(partition) else None)
    pending = readings(observation)["Source: orders"].pending_records
    assert pending is not None and 0 < pending <= PARTITIONS * RECORDS - processed(observation)


def check_counters(before: Observation, after: Observation) -> None:
    """Counters are of one run, and grow by what enrich can; its time is busy time, the source's is backpressure."""
    assert before.run == after.run
    assert all(reading.complete for reading in [*before.operators, *after.operators])
    seconds = seconds_between(before, after)
    old, new = readings(before), readings(after)

    def grew(operator: str, counter: str) -> float:
        was, now = getattr(old[operator], counter), getattr(new[operator], counter)
        assert was is not None and now is not None, (operator, counter)
        return float(now - was)

    assert grew("enrich", "records_in") == pytest.approx(ENRICH_PER_SECOND * seconds, rel=0.35)
    assert grew("enrich", "busy_ms") == pytest.approx(1000 * seconds, rel=0.35)
    assert grew("parse", "backpressured_ms") > 500 * seconds
    assert grew("aggregate", "idle_ms") > 500 * seconds
    for operator in new:
        spent = sum(grew(operator, counter) for counter in ("busy_ms", "backpressured_ms", "idle_ms"))
        assert spent == pytest.approx(1000 * seconds, rel=0.35), operator
    assert new["enrich"].busy_share_mean == new["enrich"].busy_share_max, "one subtask"


async def test_a_drained_job_has_no_lag(stage: Stage, look_at: Callable[[ScalingPolicy], Eye]) -> None:
    """Positions and commits are at the ends, nothing waits, by name as by id; commits agree with Kafka."""
    job = await asyncio.to_thread(stage.untouched)
    by_name, by_id = look_at(job.policy()), look_at(job.policy(job=job.id))

    def drained(observation: Observation) -> bool:
        ends = [(p.log_end_offset, p.log_end_offset) for p in observation.partitions]
        return bool(ends) and ends == [(p.current_offset, p.committed_offset) for p in observation.partitions]

    await by_name.until(lambda o: processed(o) == PROCESSED)
    await asyncio.to_thread(job.checkpoint)
    observation = await by_name.until(drained)  # an idle source sends its commit with its next poll, up to 10 s later
    assert sum(p.log_end_offset or 0 for p in observation.partitions) == PROCESSED
    assert {p.position_appended_at for p in observation.partitions} == {None}
    assert all(p.committed_at is not None and p.committed_at <= observation.observed_at for p in observation.partitions)
    assert {p.partition: p.committed_offset for p in observation.partitions} == await asyncio.to_thread(committed, job)
    assert readings(observation)["Source: orders"].pending_records == 0
    assert observation.deployment is not None and observation.deployment.checkpoints is not None
    assert (observation.deployment.checkpoints.completed or 0) >= 1

    other = await by_id.until(drained)
    assert other.deployment is not None and other.deployment.job_id == observation.deployment.job_id == job.id
    assert other.partitions and drained(other)


def committed(job: RealJob) -> dict[int, int]:
    """Return the group's committed offsets by partition."""
    consumer = Consumer({"bootstrap.servers": job.broker.bootstrap_servers, "group.id": job.name})
    try:
        places = [TopicPartition(job.topic, number) for number in range(PARTITIONS)]
        return {place.partition: place.offset for place in consumer.committed(places, timeout=10)}
    finally:
        consumer.close()


async def test_a_job_that_is_not_there_or_has_ended(stage: Stage, look_at: Callable[[ScalingPolicy], Eye]) -> None:
    """Two observations report it, each with its own text; neither is an outage."""
    job = await asyncio.to_thread(stage.any)
    absent = await look_at(job.policy(job="missing")).look()
    assert (absent.status, absent.deployment, absent.operators) == ("not_found", None, [])
    assert absent.message == "the cluster has no job 'missing'"

    eye = look_at(job.policy())
    assert (await eye.look()).status == "running"
    await asyncio.to_thread(stage.clear)
    # Flink shows a job's details as they were up to its `web.refresh-interval` ago.
    ended = await eye.until(lambda o: o.status != "running")
    assert (ended.status, ended.message, ended.run) == ("not_running", "the job is CANCELED", None)
    assert ended.deployment is not None and ended.deployment.job_id == job.id
