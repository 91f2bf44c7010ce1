"""The load generator on a real broker, and the probe at a real sink."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from testbed.flink import FlinkCluster
from testbed.process import free_port, wait_until
from workloads.probe import Probe, ProbeError

from .conftest import INPUT_PARTITIONS, LoadGenerator, Topics

CHEAP = "parse=0,enrich=0,aggregate=0,sink=0"


@pytest.fixture
def probe(topics: Topics) -> Iterator[Probe]:
    """At this test's output topic, with an eye on its input."""
    running = Probe(topics.bootstrap_servers, topics.output, input_topic=topics.input).start()
    yield running
    running.stop()


def _orders_in(topics: Topics) -> list[tuple[int, bytes, bytes]]:
    """Kafka's timestamp, key and value of every record of the input topic."""
    consumer = Consumer(
        {"bootstrap.servers": topics.bootstrap_servers, "group.id": "look", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topics.input, number, 0) for number in range(INPUT_PARTITIONS)])
    found = []
    while messages := consumer.consume(10_000, 1.0):
        found += [(message.timestamp()[1], message.key(), message.value()) for message in messages]
    consumer.close()
    return found


def _delivered_per_second(generator: LoadGenerator, seconds: float) -> tuple[float, float]:
    """Return bounds of the rate: each count was taken some time between its request and its response."""
    requested, first = time.monotonic(), generator.state()["delivered"]
    answered = time.monotonic()
    wait_until(
        lambda: time.monotonic() - requested >= seconds, timeout_seconds=2 * seconds, what="time", poll_seconds=0.05
    )
    asked_again, more = time.monotonic(), generator.state()["delivered"] - first
    return more / (time.monotonic() - requested), more / (asked_again - answered)


def test_five_thousand_a_second_are_held(start_loadgen: Callable[..., LoadGenerator], topics: Topics) -> None:
    """The rate is exact to 2 % over ten seconds, by the broker's acknowledgements; one of three tries is enough."""
    generator = start_loadgen("--peak-rate", "5000", "--levels", "0:1")
    wait_until(lambda: generator.state()["delivered"] > 15_000, timeout_seconds=20, what="records")
    held = [_delivered_per_second(generator, 10) for _ in range(3)]
    assert any(low < 5100 and high > 4900 for low, high in held), held
    generator.put("/load", {"paused": True})
    wait_until(lambda: generator.state()["rate"] == 0, timeout_seconds=10, what="silence")
    state = generator.state()
    assert (state["failed"], state["let_go"], state["produced"]) == (0, 0, state["delivered"])
    records = _orders_in(topics)
    assert len(records) == state["delivered"]
    at, key, value = records[0]
    assert value.startswith(b"%d;%s;" % (at, key))
    assert {len(value) for _, _, value in records} == {160}


def test_it_ends_at_once_when_stopped(start_loadgen: Callable[..., LoadGenerator]) -> None:
    """SIGTERM: exit code 0 within seconds, nothing left to be delivered."""
    generator = start_loadgen("--peak-rate", "1000")
    generator.process.signal_group(signal.SIGTERM)
    wait_until(lambda: not generator.process.running, timeout_seconds=8, what="the end")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "stap"], "argument --trace: trace 'stap' is none of"),
        (["--peak-rate", "0"], "argument --trace: peak_rate"),
        (["--record-bytes", "5"], "argument --record-bytes"),
        (["--keys", "0"], "argument --keys"),
        (["--trace", "sine", "--levels", "0:1"], "levels are for the step trace"),
    ],
)
def test_wrong_options_are_named_before_anything_starts(arguments: list[str], message: str) -> None:
    """Exit code 2, without waiting for a broker."""
    command = [sys.executable, "-m", "workloads.loadgen", "--bootstrap", "127.0.0.1:1", "--topic", "orders"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_missing_topic_or_a_taken_port_is_one_line(topics: Topics) -> None:
    """Before anything is produced."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "workloads.loadgen", "--bootstrap", topics.bootstrap_servers]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=40, check=False)

    missing = run("--topic", "no-such-topic", "--port", str(free_port()))
    assert missing.returncode == 1
    assert missing.stderr == f"loadgen: {topics.bootstrap_servers}: topic 'no-such-topic' does not exist\n"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        busy = run("--topic", topics.input, "--port", port)
        assert busy.returncode == 2
        assert busy.stderr == f"loadgen: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_the_probe_sees_a_job_become_late_and_fresh_again(
    topics: Topics,
    probe: Probe,
    start_job: Callable[..., str],
    start_loadgen: Callable[..., LoadGenerator],
    flink_cluster: FlinkCluster,
) -> None:
    """Unknown before the first result; a window's worth while the job keeps up; growing when it stops; 0 without input."""
    assert probe.lag_seconds() is None
    generator = start_loadgen("--peak-rate", "300", "--levels", "0:1")
    job = start_job("--service-time-us", CHEAP)

    def fresh() -> bool:
        lag = probe.lag_seconds()
        return lag is not None and lag < 2.5

    wait_until(fresh, timeout_seconds=40, what="a fresh job")
    flink_cluster.cancel(job)
    wait_until(lambda: (probe.lag_seconds() or 0) > 6, timeout_seconds=30, what="a growing lag")
    start_job("--service-time-us", CHEAP)
    wait_until(fresh, timeout_seconds=40, what="fresh again")
    generator.put("/load", {"paused": True})
    wait_until(lambda: probe.lag_seconds() == 0, timeout_seconds=20, what="nothing to be late with")
    assert (probe.unreadable, probe.problem) == (0, None)


def test_a_probe_without_its_topic_reports_it(topics: Topics) -> None:
    """Instead of waiting for results that cannot come."""
    with pytest.raises(ProbeError, match="no-such-topic"):
        Probe(topics.bootstrap_servers, "no-such-topic").start(timeout_seconds=1)
