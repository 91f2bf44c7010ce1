"""A load generator process, and a reader of what the sample job has written."""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from testbed.process import ManagedProcess, NotInTime, free_port, wait_until

INPUT_PARTITIONS = 4
OUTPUT_PARTITIONS = 2
_NAMES = itertools.count(1)


class Topics:
    """An input and an output topic of one test's own."""

    def __init__(self, broker: KafkaBroker) -> None:
        number = next(_NAMES)
        self.bootstrap_servers = broker.bootstrap_servers
        self.input, self.output = f"workloads-{number}-orders", f"workloads-{number}-totals"
        broker.create_topic(self.input, INPUT_PARTITIONS)
        broker.create_topic(self.output, OUTPUT_PARTITIONS)

    def fill(self, records: int, *, keys: int = 10_000) -> None:
        """A backlog: so many orders over many keys, so that no subtask has much more than another."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        now = int(time.time() * 1000)
        for number in range(records):
            # A step that shares no factor with the number of keys visits all of them in mixed order.
            key = f"customer-{number * 7919 % keys:06d}"
            producer.produce(self.input, value=f"{now};{key};{'x' * 60}", key=key)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(30) == 0

    def put(self, *values: bytes | None) -> None:
        """Records as they are, without a key."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for value in values:
            producer.produce(self.input, value=value)
        assert producer.flush(10) == 0


class Totals:
    """Follows an output topic: orders per window, as the job says."""

    def __init__(self, topics: Topics) -> None:
        self.by_window: Counter[int] = Counter()
        self.lines: list[list[str]] = []
        self._topic = topics.output
        self._consumer = Consumer(
            {"bootstrap.servers": topics.bootstrap_servers, "group.id": "totals", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(topics.output, number, 0) for number in range(OUTPUT_PARTITIONS)])

    def read(self) -> None:
        """Take in what has come since; does not wait for an end where there is none."""
        until = time.monotonic() + 1.0
        while time.monotonic() < until and (messages := self._consumer.consume(5000, 0.2)):
            for message in messages:
                fields = message.value().decode().split(";")
                self.lines.append(fields)
                self.by_window[int(fields[5])] += int(fields[1])

    @property
    def orders(self) -> int:
        """All orders in all results."""
        return sum(self.by_window.values())

    def rate_since(self, millis: int, windows: int = 6) -> float | None:
        """Mean orders/s over the last complete one-second windows after a time; None before there are so many."""
        self.read()
        ends = sorted(end for end in self.by_window if end > millis + 1000)[:-1]
        return None if len(ends) < windows else sum(self.by_window[end] for end in ends[-windows:]) / windows

    def wait_rate(self, expected: float, *, within: float, since_millis: int, timeout_seconds: float = 45.0) -> None:
        """Wait until six windows in a row have the rate, to within a share of it; fails with the rates that it saw."""
        rates: list[float] = []

        def held() -> bool:
            rate = self.rate_since(since_millis)
            if rate is not None:
                rates.append(round(rate))
            return rate is not None and abs(rate - expected) <= within * expected

        try:
            wait_until(held, timeout_seconds=timeout_seconds, what=f"{expected:g} orders/s")
        except NotInTime as error:
            raise AssertionError(f"{error}; there were {rates}") from None

    def written(self) -> int:
        """Results in the output topic, by its end offsets."""
        return sum(
            self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=10)[1]
            for number in range(OUTPUT_PARTITIONS)
        )

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def topics(kafka: KafkaBroker) -> Topics:
    return Topics(kafka)


@pytest.fixture
def totals(topics: Topics) -> Iterator[Totals]:
    follower = Totals(topics)
    yield follower
    follower.close()


@pytest.fixture
def start_job(topics: Topics, flink_cluster: FlinkCluster, sample_job: Path) -> Iterator[Callable[..., str]]:
    """Starts the sample job between this test's topics; it is cancelled at the end."""
    jobs: list[str] = []

    def start(*arguments: str, parallelism: int | None = 1) -> str:
        job = flink_cluster.submit(
            sample_job,
            [
                *("--bootstrap-servers", topics.bootstrap_servers),
                *("--input-topic", topics.input),
                *("--output-topic", topics.output),
                *("--group-id", topics.input),
                *("--checkpoint-interval-ms", "1000"),
                *arguments,
            ],
            parallelism=parallelism,
        )
        jobs.append(job)
        flink_cluster.wait_running(job)
        return job

    yield start
    for job in jobs:
        flink_cluster.cancel(job)
        wait_until(
            lambda job=job: flink_cluster.job_state(job) in ("CANCELED", "FINISHED", "FAILED"),
            timeout_seconds=30,
            what=f"job {job} ended",
        )


class LoadGenerator:
    """A running `python -m workloads.loadgen`."""

    def __init__(self, process: ManagedProcess, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def state(self) -> dict[str, float]:
        answer = httpx.get(f"{self.url}/state", timeout=5)
        answer.raise_for_status()
        return dict(answer.json())

    def put(self, path: str, body: object) -> None:
        httpx.put(f"{self.url}{path}", json=body, timeout=5).raise_for_status()

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture
def start_loadgen(topics: Topics, tmp_path: Path) -> Iterator[Callable[..., LoadGenerator]]:
    """Starts a load generator for this test's input topic."""
    processes: list[ManagedProcess] = []

    def start(*arguments: str) -> LoadGenerator:
        port = free_port()
        command: Sequence[str] = [
            *(sys.executable, "-m", "workloads.loadgen", "--bootstrap", topics.bootstrap_servers),
            *("--topic", topics.input, "--port", str(port), *arguments),
        ]
        process = ManagedProcess("loadgen", command, tmp_path).start()
        processes.append(process)
        generator = LoadGenerator(process, port)
        process.wait_ready(generator.healthy, timeout_seconds=30)
        return generator

    yield start
    for process in processes:
        process.stop()
