"""The analyzer's image as a complete Spark cluster: driver and workers in containers that share the state's volume.

Master and workers are started with the commands of docs/how-to/scale-the-analyzer.md.
"""

import json
import shlex
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

from testbed.bootstrap import PROJECT
from testbed.process import free_port, wait_until
from tests.integration.analyzer.conftest import Bench
from tests.integration.analyzer.test_stream import observations
from weir_contracts import Observation

from .conftest import MARK, Run

START_SECONDS = 300.0
"""For a machine that builds images meanwhile; an idle one takes a tenth."""
STATE = "/var/lib/weir/analyzer"
APPLICATIONS = [f"shop/boxed-{n}" for n in range(12)]
SPLIT = 4
MASTER = "spark-master"
DOCUMENTED_IMAGE = "weir-analyzer:dev"
"""What `make images` builds."""
_WHO_DID_WHAT = """
import json, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def ask(path):
    return json.load(opener.open('http://127.0.0.1:4040/api/v1/applications' + path, timeout=20))
app = '/' + ask('')[0]['id']
keyed = set()
for stage in ask(app + '/stages?status=complete'):
    if stage['shuffleReadRecords']:
        tasks = ask(f"{app}/stages/{stage['stageId']}/{stage['attemptId']}/taskList?length={sys.argv[1]}")
        keyed |= {t['executorId'] for t in tasks
                  if t['status'] == 'SUCCESS' and t['taskMetrics']['shuffleReadMetrics']['recordsRead']}
hosts = {e['id']: e['hostPort'].rpartition(':')[0] for e in ask(app + '/executors') if e['id'] != 'driver'}
print(json.dumps({'there': sorted(hosts.values()), 'keyed': sorted(hosts.get(each, '') for each in keyed)}))
"""
"""Run inside the driver's container, as Spark is unreachable from outside. Hosts of all executors, and of those that
finished tasks which read shuffled records, as those do that keep the state."""


def documented(role: str) -> tuple[list[str], list[str]]:
    """Return the options of `docker run` and the arguments after the image for `master` or `worker`, as documented in
    docs/how-to/scale-the-analyzer.md."""
    lines = (PROJECT / "docs" / "how-to" / "scale-the-analyzer.md").read_text().splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("docker run ")]
    (found,) = [arguments for arguments in commands if arguments[arguments.index(DOCUMENTED_IMAGE) + 1] == role]
    place = found.index(DOCUMENTED_IMAGE)
    return found[2:place], found[place + 1 :]


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
    """Containers in the network, with the volume."""

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
        return self._spark(MASTER, "master")

    def worker(self, name: str, *, shares: bool = True) -> Container:
        """One of the documented size."""
        return self._spark(name, "worker", shares=shares)

    def analyzer(self) -> Container:
        """The driver."""
        environment = {
            "WEIR_KAFKA_BOOTSTRAP_SERVERS": f"{self.host('kafka')}:9092",
            "WEIR_PARTITIONS": "4",
            "WEIR_ANALYZER_SPARK_MASTER": f"spark://{self.host(MASTER)}:7077",
            "WEIR_ANALYZER_SHUFFLE_PARTITIONS": str(SPLIT),
            "WEIR_ANALYZER_EXECUTOR_MEMORY_MEGABYTES": "512",
            # It reports tasks by executor.
            "WEIR_ANALYZER_SPARK_CONF": '{"spark.ui.enabled": "true"}',
        }
        return self._start("analyzer", "WEIR_ANALYZER_IMAGE", environment=environment, volumes=self._state())

    def _spark(self, name: str, role: str, *, shares: bool = True) -> Container:
        """Run with the documented arguments and options; only the names are this network's."""
        options, arguments = documented(role)
        command = [word.replace(MASTER, self.host(MASTER)) for word in arguments]
        more: dict[str, Any] = {"environment": {"SPARK_DAEMON_MEMORY": "192m"}}
        if "--no-healthcheck" in options:
            more["healthcheck"] = {"test": ["NONE"]}
        if f"state:{STATE}" in options and shares:
            more["volumes"] = self._state()
        return self._start(name, "WEIR_ANALYZER_IMAGE", command, **more)

    def _state(self) -> dict[str, dict[str, str]]:
        return {self.name: {"bind": STATE, "mode": "rw"}}

    def _start(self, name: str, image: str, command: Sequence[str] = (), **more: Any) -> Container:
        full = self.host(name)
        return self._run(self._settings[image], command, name=full, hostname=full, network_mode=self.name, **more)

    def host(self, name: str) -> str:
        """Return a container's name in the network and on the daemon, where names are unique."""
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


def who_did_what(analyzer: Container) -> Mapping[str, list[str]]:
    """Return hosts as Spark reports them; empty while the driver does not answer."""
    done = analyzer.exec_run(["python", "-c", _WHO_DID_WHAT, str(SPLIT)])
    return json.loads(done.output) if done.exit_code == 0 else {}


def addresses(*containers: Container) -> list[str]:
    """In their one network, which is how Spark calls them."""
    for container in containers:
        container.reload()
    networks = [next(iter(container.attrs["NetworkSettings"]["Networks"].values())) for container in containers]
    return sorted(str(network["IPAddress"]) for network in networks)


def _logged(container: Container, text: str) -> bool:
    return text in container.logs().decode(errors="replace")


def _send_and_wait(bench: Bench, sent: Mapping[str, list[Observation]]) -> None:
    for several in zip(*sent.values(), strict=True):
        bench.send(several)
    bench.wait(
        lambda: all({a.observation_id for a in bench.of(n)} >= {o.id for o in sent[n]} for n in sent), START_SECONDS
    )


def test_driver_and_workers_share_nothing_but_the_volume(boxes: Boxes, tmp_path: Path) -> None:
    """A worker without the volume is named and nothing is analysed; with two that have it all is, and both keep a share
    of the state; one killed, nothing is lost. Neither master nor worker has the analyzer's health check."""
    bench = Bench(boxes.broker(), tmp_path)
    master = boxes.master()
    isolated = boxes.worker("worker-blind", shares=False)
    analyzer = boxes.analyzer()
    wait_until(
        lambda: _logged(analyzer, "worker-blind cannot see what the driver wrote there"),
        timeout_seconds=START_SECONDS,
        what="the worker without the volume named",
        poll_seconds=1.0,
    )
    isolated.remove(force=True, v=True)
    first = boxes.worker("worker-1")
    second = boxes.worker("worker-2")
    wait_until(
        lambda: _logged(analyzer, "stream-running"), timeout_seconds=START_SECONDS, what="the stream", poll_seconds=1.0
    )
    both = addresses(first, second)
    wait_until(
        lambda: who_did_what(analyzer).get("there") == both,
        timeout_seconds=START_SECONDS,
        what=f"executors on {both}",
        poll_seconds=1.0,
    )
    sent = {name: observations(name, 20) for name in APPLICATIONS}
    _send_and_wait(bench, sent)
    for name in APPLICATIONS:
        assert [a.observation_id for a in bench.of(name)] == [o.id for o in sent[name]]
    # Spark reports a stage when its batch is over.
    wait_until(
        lambda: who_did_what(analyzer).get("keyed") == both,
        timeout_seconds=60,
        what=f"keyed work on {both}",
        poll_seconds=1.0,
    )
    for container in (master, first, second):
        container.reload()
        assert (container.status, container.attrs["State"].get("Health")) == ("running", None)

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
