"""Two replicas of knowledge on a real Kafka and Redis: the one that publishes is stopped in mid-send, and goes on when
it is too late."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from testbed.kafka import KafkaBroker
from testbed.process import ManagedProcess, free_port, wait_until
from testbed.service import RedisServer, WeirService
from tests.integration.knowledge.test_process import World
from tests.unit.knowledge.builders import document
from weir_contracts import Observation
from weir_contracts.topics import OBSERVATIONS
from weir_runtime.bus import Record, version_of
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import decode

LEASE_SECONDS = 6
SLEEPER = """
import os, signal, sys
from weir_contracts.topics import POLICIES
from weir_runtime import settings
from weir_runtime.kafka_bus import KafkaBus
from weir_knowledge import __main__ as knowledge

class SleepingBus(KafkaBus):
    slept = False

    async def publish(self, topic, key, *record):
        if topic == POLICIES.name and key == os.environ["SLEEPS_AT"] and not self.slept:
            self.slept = True
            os.kill(os.getpid(), signal.SIGSTOP)  # its lease was just looked at
        await super().publish(topic, key, *record)

settings.KafkaBus = SleepingBus
sys.argv = ["knowledge"]
sys.exit(knowledge.main())
"""


class Replicas:
    """One that will stop when it sends the application's policy, and one that serves."""

    def __init__(self, kafka: KafkaBroker, redis_server: RedisServer, folder: Path) -> None:
        self.world = World(kafka, redis_server, folder)
        self.environment = {**self.world.environment, "WEIR_KNOWLEDGE_LEASE_SECONDS": str(LEASE_SECONDS)}
        port = free_port()
        self._sleeper_url = f"http://127.0.0.1:{port}"
        self.sleeper = ManagedProcess(
            "sleeper",
            [sys.executable, "-c", SLEEPER],
            folder / "sleeper",
            environment={
                **self.environment,
                "SLEEPS_AT": self.world.application,
                "WEIR_HTTP_PORT": str(port),
                "WEIR_HTTP_HOST": "127.0.0.1",
            },
            grace_seconds=10.0,
        )
        self.serving = WeirService("knowledge", folder / "serving", self.environment)
        self.monitor = WeirService("monitor", folder / "monitor", self.environment)

    @property
    def policy_url(self) -> str:
        return f"{self.serving.url}/v1/policies/{self.world.application}"

    def start(self) -> None:
        self.sleeper.folder.mkdir(parents=True, exist_ok=True)
        self.sleeper.start()
        wait_until(lambda: self.sleeper_holds(1), timeout_seconds=60, what="the first publisher")
        self.serving.start()
        self.serving.wait_ready()

    def sleeper_holds(self, wanted: int) -> bool:
        """Whether its own metric says that it holds the lease (1), or not (0)."""
        try:
            text = httpx.get(f"{self._sleeper_url}/metrics", timeout=2.0).text
        except httpx.HTTPError:
            return False
        return re.findall(r"^weir_knowledge_lease_held (\S+)$", text, re.MULTILINE) == [f"{wanted}.0"]

    def sleeps(self) -> bool:
        """Whether the kernel says that it is stopped."""
        stat = Path(f"/proc/{self.sleeper.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def versions(self) -> list[tuple[int, int]]:
        """Version and epoch of each record of the policy."""
        found = [version_of(record.headers) for record in self.world.published()]
        return [(version.number, version.epoch) for version in found if version is not None]

    def observations(self) -> list[Observation]:
        """Return the observations of the application."""

        async def read() -> list[Record]:
            bus = KafkaBus(self.world.kafka.bootstrap_servers)
            await bus.start()
            reader = bus.reader(OBSERVATIONS.name)
            found: list[Record] = []
            async with asyncio.timeout(30):
                while not await reader.caught_up():
                    found += await reader.receive(timeout_seconds=0.2)
            await bus.close()
            return [record for record in found if record.key == self.world.application]

        return [decode(record, Observation).message for record in asyncio.run(read())]


@pytest.fixture
def replicas(kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(kafka, redis_server, tmp_path)
    try:
        yield made
    finally:
        if made.sleeper.running:
            made.sleeper.signal_group(signal.SIGCONT)
        for process in (made.sleeper, made.serving.process, made.monitor.process):
            process.stop()
        made.world.redis.flushdb()
        made.world.redis.close()


def sent_too_late(replicas: Replicas) -> int:
    """Let the sleeping one go on once the other has published all, and wait until its record is in the topic and
    mended; its version."""
    first = httpx.put(replicas.policy_url, json=document(replicas.world.application, mode="act"), timeout=5.0)
    assert first.status_code == 201, first.text
    wait_until(replicas.sleeps, timeout_seconds=20, what="the publisher stopped in mid-send")
    return int(first.json()["metadata"]["version"])


def goes_on(replicas: Replicas, late: int, newest: int) -> None:
    """The other has published everything; the sleeper wakes, sends, and what it sent is not the topic's last word for
    long."""
    wait_until(lambda: newest in dict(replicas.versions()), timeout_seconds=40, what="the other publisher's records")
    epoch = dict(replicas.versions())[newest]
    replicas.sleeper.signal_group(signal.SIGCONT)
    wait_until(
        lambda: any(number == late and each < epoch for number, each in replicas.versions()),
        timeout_seconds=20,
        what="the late record",
    )
    wait_until(lambda: replicas.versions()[-1] == (newest, epoch), timeout_seconds=20, what="the newest record again")
    wait_until(lambda: replicas.sleeper_holds(0), timeout_seconds=20, what="the woken one knows that it holds no lease")


def test_a_late_record_does_not_undo_a_pause(replicas: Replicas) -> None:
    """The topic has [act v1, paused v2, act v1]: the monitor never acts by v1 again, and an emptied Redis comes back
    paused."""
    replicas.start()
    replicas.monitor.start()
    late = sent_too_late(replicas)
    paused = httpx.post(f"{replicas.policy_url}/pause", timeout=5.0).json()
    newest = int(paused["metadata"]["version"])
    goes_on(replicas, late, newest)
    replicas.world.redis.flushdb()
    replicas.sleeper.stop()
    wait_until(
        lambda: httpx.get(replicas.policy_url, timeout=5.0).status_code == 200,
        timeout_seconds=30,
        what="the rebuilt policy",
    )
    assert httpx.get(replicas.policy_url, timeout=5.0).json()["metadata"] == paused["metadata"]
    count = len(replicas.observations())
    wait_until(lambda: len(replicas.observations()) > count, timeout_seconds=40, what="an observation after it")
    modes = [observation.policy.spec.mode for observation in replicas.observations()]
    assert modes[-1] == "paused" and modes == sorted(modes), modes


def test_a_late_record_does_not_undo_a_deletion(replicas: Replicas) -> None:
    """The topic has [v1, tombstone v2, v1]: the policy stays deleted, also in an emptied Redis; without a monitor its
    application's end is published nevertheless."""
    replicas.start()
    late = sent_too_late(replicas)
    assert httpx.delete(replicas.policy_url, timeout=5.0).status_code == 204
    newest = int(replicas.world.redis.hget("weir:deletions", replicas.world.application))
    goes_on(replicas, late, newest)
    assert replicas.world.published()[-1].value is None
    assert [observation.status for observation in replicas.observations()] == ["ended"]
    replicas.world.redis.flushdb()
    replicas.sleeper.stop()
    deletions = "weir:deletions"
    wait_until(
        lambda: replicas.world.redis.hexists(deletions, replicas.world.application),
        timeout_seconds=30,
        what="the rebuilt deletion",
    )
    assert httpx.get(replicas.policy_url, timeout=5.0).status_code == 404
    value = json.dumps(document(replicas.world.application))
    again = httpx.put(replicas.policy_url, content=value, timeout=5.0)
    assert again.json()["metadata"]["version"] > newest
