"""The Kafka Streams sample on a real broker: the join and the totals, its metrics, and its supervisor."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from testbed.jars import class_path, jmx_exporter_jar
from testbed.kafka import KafkaBroker
from testbed.process import ManagedProcess, TestbedError, free_port, wait_until

from .conftest import INPUT_PARTITIONS, OUTPUT_PARTITIONS, LoadGenerator, Topics

APPLICATION = "streams-orders"
WAIT_SECONDS = 60.0
SESSION_MILLIS = 6000
"""The least that a broker accepts: an instance that is gone leaves the group by this alone."""


class PaidTopics(Topics):
    """Orders, payments and totals of one test's own."""

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker)
        self.payments = f"{self.input}-payments"
        broker.create_topic(self.payments, INPUT_PARTITIONS)


class Supervisor:
    """A running `python -m testbed.supervisor`."""

    def __init__(self, topics: PaidTopics, folder: Path, *arguments: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/scale/{APPLICATION}"
        self.process = ManagedProcess(
            "supervisor",
            [
                *(sys.executable, "-m", "testbed.supervisor", "--bootstrap", topics.bootstrap_servers),
                *("--application-id", APPLICATION, "--orders-topic", topics.input),
                *("--payments-topic", topics.payments, "--output-topic", topics.output),
                *("--session-timeout-ms", str(SESSION_MILLIS), "--commit-interval-ms", "500"),
                *("--folder", str(folder / "instances"), "--port", str(port), *arguments),
            ],
            folder,
            grace_seconds=20.0,
        )

    def state(self) -> dict[str, Any]:
        return dict(httpx.get(self.url, timeout=5).raise_for_status().json())

    def answers(self) -> bool:
        try:
            return bool(self.state())
        except httpx.HTTPError:
            return False

    def put(self, replicas: int, version: str) -> httpx.Response:
        return httpx.put(self.url, json={"replicas": replicas, "version": version}, timeout=5)

    def ids(self) -> list[str]:
        return [each["id"] for each in self.state()["instances"]]

    def wait_ready(self, replicas: int) -> list[str]:
        """Wait until so many instances run and are ready; return their ids."""

        def ready() -> bool:
            self.process.check()
            state = self.state()
            return state["ready"] == replicas == len(state["instances"])

        wait_until(ready, timeout_seconds=WAIT_SECONDS, what=f"{replicas} instances ready")
        return self.ids()


class CustomerTotals:
    """Highest number of orders of each customer, as the application has written it."""

    def __init__(self, topics: PaidTopics) -> None:
        self.orders: dict[str, int] = {}
        self._consumer = Consumer(
            {"bootstrap.servers": topics.bootstrap_servers, "group.id": "look", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(topics.output, number, 0) for number in range(OUTPUT_PARTITIONS)])

    def read(self) -> int:
        """Take in what has been written; return the number of orders of all customers."""
        while messages := self._consumer.consume(5000, 0.2):
            for message in messages:
                customer, count, *_ = message.value().decode().split(";")
                self.orders[customer] = max(self.orders.get(customer, 0), int(count))
            if len(messages) < 100:
                break  # the records of this moment, not those that arrive meanwhile
        return sum(self.orders.values())


@pytest.fixture
def topics(kafka: KafkaBroker) -> PaidTopics:
    return PaidTopics(kafka)


@pytest.fixture
def supervisor(topics: PaidTopics, tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    """Starts a supervisor for this test's topics."""
    started: list[Supervisor] = []
    try:
        class_path("kafka-streams")
        jmx_exporter_jar()
    except TestbedError as error:
        pytest.skip(str(error))

    def start(*arguments: str) -> Supervisor:
        started.append(Supervisor(topics, tmp_path, *arguments))
        started[-1].process.start_ready(started[-1].answers, timeout_seconds=30)
        return started[-1]

    yield start
    for each in started:
        each.process.stop()


def _metric(text: str, name: str) -> list[float]:
    """Values of a metric's samples in Prometheus' text format."""
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]


def _metrics_of_running(supervisor: Supervisor) -> list[str]:
    """Metrics of all instances, once each is RUNNING: a rebalance may follow another."""

    def running() -> list[str] | None:
        texts = [httpx.get(each["metricsUrl"], timeout=10).text for each in supervisor.state()["instances"]]
        states = [_metric(text, "kafka_streams_stream_metrics_client_state") for text in texts]
        return texts if all(state == [2.0] for state in states) else None

    return wait_until(running, timeout_seconds=WAIT_SECONDS, what="all instances RUNNING", poll_seconds=0.5)


def _members(topics: PaidTopics) -> list[str] | None:
    """Client ids of the group's members; None while it is not stable."""
    admin = AdminClient({"bootstrap.servers": topics.bootstrap_servers, "log_level": 0})
    try:
        group = admin.describe_consumer_groups([APPLICATION], request_timeout=10)[APPLICATION].result(10)
    except KafkaException:
        return None
    return [member.client_id for member in group.members] if group.state is ConsumerGroupState.STABLE else None


def _wait_stable(topics: PaidTopics, supervisor: Supervisor) -> None:
    """Wait until the group is stable and has the members of the running instances, all others removed."""

    def stable() -> bool:
        expected = sorted(f"{each}-StreamThread-1-consumer" for each in supervisor.ids())
        return sorted(_members(topics) or []) == expected

    wait_until(stable, timeout_seconds=WAIT_SECONDS, what="a stable group", poll_seconds=0.5)


def test_orders_flow_while_instances_come_and_go(
    topics: PaidTopics,
    supervisor: Callable[..., Supervisor],
    start_loadgen: Callable[..., LoadGenerator],
    tmp_path: Path,
) -> None:
    """2 -> 3, one killed and started again, -> 1: each order is paid and totalled, by any instance."""
    generator = start_loadgen(
        *("--payments-topic", topics.payments, "--peak-rate", "100", "--levels", "0:1"),
        *("--keys", "50", "--key-skew", "1"),
    )
    totals, fleet = CustomerTotals(topics), supervisor("--replicas", "2")
    first = fleet.wait_ready(2)

    def has_skewed_totals() -> bool:
        """Every partition is processed: the customer with the most orders by the load's skew leads in the totals."""
        return totals.read() > 200 and max(totals.orders, key=lambda each: totals.orders[each]) == "customer-000000"

    wait_until(has_skewed_totals, timeout_seconds=WAIT_SECONDS, what="totals, most of them of customer-000000")

    _wait_stable(topics, fleet)
    texts = _metrics_of_running(fleet)
    for text in texts:
        assert _metric(text, "kafka_streams_stream_thread_metrics_blocked_time_ns_total")[0] > 0
        assert _metric(text, "kafka_consumer_consumer_coordinator_metrics_last_rebalance_seconds_ago")
        assert _metric(text, "jvm_memory_used_bytes")
    assert sum(sum(_metric(text, "kafka_streams_stream_thread_metrics_process_total")) for text in texts) > 200

    version = fleet.state()["version"]
    assert fleet.put(3, version).json()["replicas"] == 3
    assert fleet.put(4, version).status_code == 409
    assert fleet.put(3, fleet.state()["version"]).json()["version"] == fleet.state()["version"]
    grown = fleet.wait_ready(3)
    assert grown[:2] == first

    register = (tmp_path / "instances" / "processes.jsonl").read_text().splitlines()
    killed = next(line for line in register if f'"name": "{APPLICATION}-1"' in line)
    _kill(killed)
    wait_until(lambda: grown[0] in fleet.state()["ended"], timeout_seconds=20, what="the killed instance noticed")
    again = fleet.wait_ready(3)
    assert again[1:] == grown[1:]
    assert again[0].startswith(f"{APPLICATION}-1-")

    assert fleet.put(1, fleet.state()["version"]).status_code == 200
    assert fleet.wait_ready(1) == again[:1]
    assert set(again[1:]) <= set(fleet.state()["ended"])
    _wait_stable(topics, fleet)
    generator.put("/load", {"paused": True})
    wait_until(lambda: generator.state()["rate"] == 0, timeout_seconds=10, what="silence")
    delivered = generator.state()["delivered"]
    wait_until(lambda: totals.read() >= delivered, timeout_seconds=WAIT_SECONDS, what="totals of all orders")


def _kill(line: str) -> None:
    """SIGKILL to the process of a line of the register."""
    os.kill(int(json.loads(line)["pid"]), signal.SIGKILL)
