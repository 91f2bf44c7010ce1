"""The analyzer's image as a whole Spark cluster: driver and workers in containers that share the state's volume and nothing else."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from docker.models.containers import Container
from weir_contracts import Observation

from testbed.process import free_port, wait_until
from tests.integration.analyzer.conftest import Bench
from tests.integration.analyzer.test_stream import observations

from .conftest import MARK, Run

START_SECONDS = 300.0
"""Of a machine that builds images beside it; an idle one takes a tenth."""
STATE = "/var/lib/weir/analyzer"
APPLICATIONS = [f"shop/boxed-{n}" for n in range(6)]


@dataclass
class Broker:
    """A broker in a container, published to this machine's loopback."""

    port: int

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            return bool(
                AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
                .list_topics(timeout=2)
                .brokers
            )
        except KafkaException:
            return False


class Boxes:
    """What runs in the network, with the volume."""

    def __init__(self, name: str, run: Run, settings: Mapping[str, str]) -> None:
        self.name, self._run, self._settings = name, run, settings

    def broker(self) -> Broker:
        """Kafka, with one listener for the containers and one for this machine."""
        broker = Broker(free_port())
        environment = {
            "CLUSTER_ID": "d2VpcndlaXJ3ZWlyd2Vpcg",
            "KAFKA_HEAP_OPTS": "-Xms256m -Xmx384m",
            "KAFKA_NODE_ID": "1",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093,HERE://:9094",
            "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{self.host('kafka')}:9092,HERE://127.0.0.1:{broker.port}",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,HERE:PLAINTEXT",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
            "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
            "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        ports = {"9094/tcp": ("127.0.0.1", broker.port)}
        # the official image writes its own configuration
        self._start("kafka", "WEIR_KAFKA_IMAGE", environment=environment, ports=ports, read_only=False)
        wait_until(broker.answers, timeout_seconds=START_SECONDS, what="kafka in its container", poll_seconds=1.0)
        return broker

    def master(self) -> Container:
        """The cluster's master."""
        return self._spark("spark-master", ["master", "--host", self.host("spark-master"), "--port", "7077"])

    def worker(self, name: str, *, shares: bool = True) -> Container:
        """A worker of one core."""
        arguments = ["--host", self.host(name), "--cores", "1", "--memory", "1g", "--work-dir", "/tmp/work"]  # noqa: S108 - in the container
        return self._spark(name, ["worker", *arguments, f"spark://{self.host('spark-master')}:7077"], shares=shares)

    def analyzer(self) -> Container:
        """The driver."""
        environment = {
            "WEIR_KAFKA_BOOTSTRAP_SERVERS": f"{self.host('kafka')}:9092",
            "WEIR_PARTITIONS": "4",
            "WEIR_ANALYZER_SPARK_MASTER": f"spark://{self.host('spark-master')}:7077",
            "WEIR_ANALYZER_SHUFFLE_PARTITIONS": "2",
            "WEIR_ANALYZER_EXECUTOR_MEMORY_MEGABYTES": "512",
        }
        return self._start("analyzer", "WEIR_ANALYZER_IMAGE", environment=environment, volumes=self._state())

    def _spark(self, name: str, command: Sequence[str], *, shares: bool = True) -> Container:
        environment = {"SPARK_DAEMON_MEMORY": "192m", "SPARK_LOCAL_DIRS": "/tmp", "HOME": "/tmp"}  # noqa: S108 - in the container
        volumes = self._state() if shares and name != "spark-master" else {}
        return self._start(name, "WEIR_ANALYZER_IMAGE", command, environment=environment, volumes=volumes)

    def _state(self) -> dict[str, dict[str, str]]:
        return {self.name: {"bind": STATE, "mode": "rw"}}

    def _start(self, name: str, image: str, command: Sequence[str] = (), **more: Any) -> Container:
        full = self.host(name)
        return self._run(self._settings[image], command, name=full, hostname=full, network_mode=self.name, **more)

    def host(self, name: str) -> str:
        """What a container is called in the network, and on the daemon, where names are unique."""
        return f"{self.name}-{name}"


@pytest.fixture
def place(docker_client: docker.DockerClient) -> Iterator[str]:
    """The name of a network and of a volume."""
    name = f"weir-spark-{uuid4().hex[:6]}"
    network = docker_client.networks.create(name, labels={MARK: "1"})
    volume = docker_client.volumes.create(name, labels={MARK: "1"})
    yield name
    network.remove()
    volume.remove()


@pytest.fixture
def boxes(place: str, run: Run, image_settings: Mapping[str, str]) -> Boxes:
    # `place` goes before `run`, so that it is removed after the containers
    return Boxes(place, run, image_settings)


def _says(container: Container, text: str) -> bool:
    return text in container.logs().decode(errors="replace")


def _send_and_wait(bench: Bench, sent: Mapping[str, list[Observation]]) -> None:
    for several in zip(*sent.values(), strict=True):
        bench.send(several)
    bench.wait(
        lambda: all({a.observation_id for a in bench.of(n)} >= {o.id for o in sent[n]} for n in sent), START_SECONDS
    )


def test_driver_and_workers_share_nothing_but_the_volume(boxes: Boxes, tmp_path: Path) -> None:
    """A worker without the volume is named and nothing is analysed; with two that have it all is; one killed, nothing is lost."""
    bench = Bench(boxes.broker(), tmp_path)
    boxes.master()
    blind = boxes.worker("worker-blind", shares=False)
    analyzer = boxes.analyzer()
    wait_until(
        lambda: _says(analyzer, "worker-blind cannot see what the driver wrote there"),
        timeout_seconds=START_SECONDS,
        what="the worker without the volume named",
        poll_seconds=1.0,
    )
    blind.remove(force=True, v=True)
    first = boxes.worker("worker-1")
    boxes.worker("worker-2")
    wait_until(
        lambda: _says(analyzer, "stream-running"), timeout_seconds=START_SECONDS, what="the stream", poll_seconds=1.0
    )
    sent = {name: observations(name, 20) for name in APPLICATIONS}
    _send_and_wait(bench, sent)
    for name in APPLICATIONS:
        assert [a.observation_id for a in bench.of(name)] == [o.id for o in sent[name]]

    first.kill()
    killed = time.monotonic()
    later = {name: observations(name, 40)[10:] for name in APPLICATIONS}
    _send_and_wait(bench, later)
    assert time.monotonic() - killed < START_SECONDS
    for name in APPLICATIONS:
        once = list({a.id: a.observation_id for a in bench.of(name)}.values())
        assert once == [o.id for o in [*sent[name], *later[name]]]
    assert not bench.letters
    bench.consumer.close()
