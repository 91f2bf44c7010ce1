"""The sample job on the shared cluster, one at a time, between dedicated topics."""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from tests.unit.engines.flink.collector_suite import PROCESSED
from tests.unit.monitor.builders import policy
from weir_contracts import ScalingPolicy

PARTITIONS = 4


class Log:
    """Writes records to chosen partitions, with chosen times."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        )

    def append(self, topic: str, partition: int, *at_milliseconds: int) -> None:
        """One order for each time, which is its append time, too."""
        for number, at in enumerate(at_milliseconds):
            order = f"{at};customer-{number % 500};{'x' * 40}"
            self._producer.produce(topic, order.encode(), partition=partition, timestamp=at)
            if number % 1000 == 0:
                self._producer.poll(0)
        assert self._producer.flush(30) == 0


class RealJob:
    """A running sample job. Its input topic has a dot, which Flink's metrics write as `_`."""

    def __init__(self, cluster: FlinkCluster, broker: KafkaBroker, jar: Path, arguments: tuple[str, ...]) -> None:
        self.cluster, self.broker = cluster, broker
        self.name = f"monitor-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.name}.orders"
        self.log = Log(broker)
        self.untouched = False
        broker.create_topic(self.topic, PARTITIONS)
        broker.create_topic(f"{self.name}.totals", 1)
        self.id = cluster.submit(
            jar,
            [
                *("--bootstrap-servers", broker.bootstrap_servers),
                *("--input-topic", self.topic),
                *("--output-topic", f"{self.name}.totals"),
                *("--group-id", self.name),
                *("--job-name", self.name),
                *arguments,
            ],
            parallelism=1,
        )

    def process(self, records: int) -> None:
        """Let it have so many more records, spread over all partitions."""
        now = int(time.time() * 1000)
        for partition in range(PARTITIONS):
            share = records // PARTITIONS + (partition < records % PARTITIONS)
            self.log.append(self.topic, partition, *[now] * share)

    def rescale(self, parallelism: int) -> None:
        """Another parallelism of everything but the source, at once."""
        self.untouched = False
        wanted = self.cluster.get(f"/jobs/{self.id}/resource-requirements")
        for vertex in self.cluster.get(f"/jobs/{self.id}")["vertices"]:
            if not vertex["name"].startswith("Source"):
                wanted[vertex["id"]]["parallelism"]["upperBound"] = parallelism
        url = f"{self.cluster.rest_url}/jobs/{self.id}"
        httpx.put(f"{url}/resource-requirements", json=wanted, timeout=10).raise_for_status()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Ask for one now."""
        url = f"{self.cluster.rest_url}/jobs/{self.id}/checkpoints"
        httpx.post(url, json={"checkpointType": "FULL"}, timeout=10).raise_for_status()

    def policy(self, application: str = "shop/orders", job: str | None = None, interval: str = "2s") -> ScalingPolicy:
        """A policy that aims at it, or at another `job` of its cluster."""
        signals = {"bootstrapServers": self.broker.bootstrap_servers, "groupId": self.name}
        return policy(
            application,
            url=self.cluster.rest_url,
            job=job or self.name,
            kafka=signals,
            interval=interval,
            mode="advise",
        )

    def end(self) -> None:
        """Cancel it and wait until its slots are free."""
        self.cluster.cancel(self.id)
        self.cluster.wait_ended(self.id)


class Stage:
    """One job at a time: the next one begins when the last has ended."""

    def __init__(self, start: Callable[..., RealJob]) -> None:
        self._start = start
        self._job: RealJob | None = None

    def start(self, *arguments: str) -> RealJob:
        self.clear()
        self._job = job = self._start(arguments)
        job.cluster.wait_running(job.id)
        return job

    def untouched(self) -> RealJob:
        """A job that has processed `PROCESSED` records and nothing else."""
        if self._job is None or not self._job.untouched:
            job = self.start()
            job.process(PROCESSED)
            job.untouched = True
        assert self._job is not None
        return self._job

    def any(self) -> RealJob:
        return self._job or self.untouched()

    def clear(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.end()


@pytest.fixture(scope="package")
def stage(flink_cluster: FlinkCluster, kafka: KafkaBroker, sample_job: Path) -> Iterator[Stage]:
    made = Stage(lambda arguments: RealJob(flink_cluster, kafka, sample_job, arguments))
    yield made
    made.clear()
