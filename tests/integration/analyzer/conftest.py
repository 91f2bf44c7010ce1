"""The analyzer as a process with a dedicated broker: these tests delete records and need all of the loop's topics."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testbed.kafka import KafkaBroker
from testbed.service import WeirService
from weir_contracts import Analysis, DeadLetter, Observation
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, TOPICS

PARTITIONS = 4
SLOW_MACHINE_SECONDS = 150.0
"""Deadline of whatever waits for Spark; on an idle machine it takes a tenth of it."""


class Broker(Protocol):
    """Wherever it runs."""

    @property
    def bootstrap_servers(self) -> str: ...


class Bench:
    """The broker, and everything that came out of the analyzer on it."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        listed = self.admin.list_topics(timeout=30).topics
        missing = [
            NewTopic(topic.name, topic.partitions or PARTITIONS, 1) for topic in TOPICS if topic.name not in listed
        ]
        for future in self.admin.create_topics(missing).values() if missing else ():
            future.result(30)
        self.producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 0}
        )
        self.consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "test", "auto.offset.reset": "earliest"}
        )
        outputs = (ANALYSES.name, DEAD_LETTERS.name)
        self.consumer.assign([TopicPartition(name, p, 0) for name in outputs for p in range(PARTITIONS)])
        self.analyses: list[Analysis] = []
        self.headers: list[dict[str, str]] = []
        self.letters: list[DeadLetter] = []
        self._services = 0

    def service(self, *, checkpoint: str = "state", shuffle_partitions: int = 2, **settings: str) -> WeirService:
        """A process of the analyzer; start and stop it."""
        self._services += 1
        environment = {
            "WEIR_KAFKA_BOOTSTRAP_SERVERS": self.broker.bootstrap_servers,
            "WEIR_PARTITIONS": str(PARTITIONS),
            "WEIR_ANALYZER_CHECKPOINT": str(self.folder / checkpoint),
            "WEIR_ANALYZER_SHUFFLE_PARTITIONS": str(shuffle_partitions),
            **settings,
        }
        return WeirService("analyzer", self.folder / f"analyzer-{self._services}", environment)

    def send(self, observations: Sequence[Observation]) -> None:
        """Publish observations as a monitor would."""
        for observation in observations:
            headers = {"traceparent": f"00-{observation.id.hex}-{'ab' * 8}-01"}
            self._produce(observation.application, observation.model_dump_json().encode(), headers)
        assert self.producer.flush(30) == 0

    def raw(self, key: str | None, value: bytes | None, headers: dict[str, str] | None = None) -> None:
        """Publish anything."""
        self._produce(key, value, headers)
        assert self.producer.flush(30) == 0

    def _produce(self, key: str | None, value: bytes | None, headers: dict[str, str] | None = None) -> None:
        pairs = [(name, text.encode()) for name, text in (headers or {}).items()]
        self.producer.produce(OBSERVATIONS.name, key=key, value=value, headers=pairs)

    def of(self, application: str) -> list[Analysis]:
        """The analyses of one application so far."""
        return [analysis for analysis in self.analyses if analysis.application == application]

    def wait(self, condition: Callable[[], bool], timeout_seconds: float = SLOW_MACHINE_SECONDS) -> None:
        """Take in what comes out until `condition` holds."""
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < deadline, f"{len(self.analyses)} analyses, {len(self.letters)} dead letters"
            message = self.consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            if message.topic() == ANALYSES.name:
                self.analyses.append(Analysis.model_validate_json(value))
                self.headers.append({name: text.decode() for name, text in message.headers() or []})
            else:
                self.letters.append(DeadLetter.model_validate(json.loads(value)))

    def wait_for(self, application: str, count: int) -> list[Analysis]:
        """Wait until `count` analyses of an application have come."""
        self.wait(lambda: len(self.of(application)) >= count)
        return self.of(application)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A broker and its topics for this module."""
    folder = tmp_path_factory.mktemp("analyzer")
    with KafkaBroker(folder / "kafka") as broker:
        made = Bench(broker, folder)
        yield made
        made.consumer.close()
