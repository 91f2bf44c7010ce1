"""A real job to scale: the sample job on a separate small cluster with 4 slots."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from testbed.process import free_port
from tests.unit.executor.builders import policy, subject
from weir_contracts import Bounds, Parallelism, ScalingPolicy, Subject
from weir_engines.driver import Snapshot, Unfenced
from weir_engines.flink.driver import FlinkDriver
from weir_runtime.clock import SystemClock

SLOTS = 4
OPERATORS = ("Source: orders", "parse", "enrich", "aggregate", "sink: Writer")


def vector(enrich: int = 1, others: int = 1) -> Parallelism:
    """The sample job's operators, `enrich` apart."""
    return {name: enrich if name == "enrich" else others for name in OPERATORS}


class RealJob:
    """The sample job and its cluster; `until` waits in real time."""

    def __init__(self, cluster: FlinkCluster, job_id: str, name: str) -> None:
        self.cluster = cluster
        self.job_id = job_id
        self.name = name
        self.policy: ScalingPolicy = policy("shop/orders", url=cluster.rest_url)
        self.subject = self.aim(name)
        # Wider than the job's max parallelism, so that it is Flink that refuses more.
        changed = {"application": self.subject.application, "target": self.subject.target, "bounds": Bounds(max=200)}
        self.spec_policy = self.policy.model_copy(update={"spec": self.policy.spec.model_copy(update=changed)})

    def aim(self, job: str, url: str | None = None) -> Subject:
        return subject(job, url or self.cluster.rest_url)


async def until(
    driver: FlinkDriver, subject: Subject, condition: Callable[[Snapshot], bool], *, seconds: float = 60.0
) -> Snapshot:
    """The first snapshot that fulfils a condition."""
    try:
        async with asyncio.timeout(seconds):
            while not condition(found := await driver.observe(subject)):  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {found}") from None
    return found


async def reset(driver: FlinkDriver, job: RealJob, parallelism: Parallelism) -> None:
    """Back to where every test begins."""
    found = await driver.observe(job.subject)
    if not found.runs(parallelism) or (found.deployment and found.deployment.requested != parallelism):
        assert found.deployment is not None and found.deployment.requested is not None
        await driver.request(job.subject, job.job_id, parallelism, found.deployment.requested, Unfenced())
        await driver.trigger_checkpoint(job.subject, job.job_id)
    await until(driver, job.subject, lambda s: s.runs(parallelism))


# The longest wait for a checkpoint is part of the deadline; by default it would be three intervals.
OPTIONS = {"jobmanager.adaptive-scheduler.rescale-trigger.max-delay": "8 s"}


def prepared(kafka: KafkaBroker, name: str, checkpoint_interval_ms: int) -> list[str]:
    """Create the topics of a sample job; return its arguments."""
    for topic in (f"{name}-in", f"{name}-out"):
        kafka.create_topic(topic, 4)
    return [
        *("--bootstrap-servers", kafka.bootstrap_servers),
        *("--input-topic", f"{name}-in"),
        *("--output-topic", f"{name}-out"),
        *("--group-id", name),
        *("--job-name", name),
        *("--checkpoint-interval-ms", str(checkpoint_interval_ms)),
    ]


@contextmanager
def sample_job_on(cluster: FlinkCluster, kafka: KafkaBroker, jar: Path) -> Iterator[RealJob]:
    """Checkpoints every 2 min: without a triggered checkpoint a rescale waits, here for the longest it may (8 s)."""
    name = f"executor-{uuid.uuid4().hex[:8]}"
    arguments = prepared(kafka, name, 120_000)
    job_id = cluster.submit(jar, arguments, parallelism=1)
    try:
        cluster.wait_running(job_id)
        yield RealJob(cluster, job_id, name)
    finally:
        cluster.cancel(job_id)
        cluster.wait_ended(job_id)


@pytest.fixture(scope="session")
def small_cluster(run_folder: Path) -> Iterator[FlinkCluster]:
    """Four slots, so that a fifth is missing."""
    with FlinkCluster(run_folder / "flink-executor", task_managers=1, slots=SLOTS, options=OPTIONS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_job(small_cluster: FlinkCluster, kafka: KafkaBroker, sample_job: Path) -> Iterator[RealJob]:
    with sample_job_on(small_cluster, kafka, sample_job) as job:
        yield job


@pytest.fixture
def job_of_a_growing_cluster(tmp_path: Path, kafka: KafkaBroker, sample_job: Path) -> Iterator[RealJob]:
    """The sample job on a cluster that says that it starts TaskManagers itself; the test starts them in its place."""
    options = {**OPTIONS, "execution.target": "kubernetes-session"}
    with (
        FlinkCluster(tmp_path / "flink", task_managers=1, slots=SLOTS, options=options) as cluster,
        sample_job_on(cluster, kafka, sample_job) as job,
    ):
        yield job


@pytest.fixture(scope="session")
def own_kafka(run_folder: Path) -> Iterator[KafkaBroker]:
    """A separate broker, since an executor answers every plan on the loop's topics, other tests' plans included."""
    with KafkaBroker(run_folder / "kafka-executor") as broker:
        yield broker


@pytest.fixture
def closed_port() -> int:
    """An address without a listener."""
    return free_port()


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()
