"""The decider on a real Kafka, and two replicas as processes: the one that decides is stopped in mid-transaction, and goes on
when it is too late."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from testbed.kafka import KafkaBroker
from testbed.process import ManagedProcess, free_port, wait_until
from testbed.service import RedisServer, WeirService
from tests.integration.knowledge.test_process import World
from tests.unit.knowledge.builders import document
from tests.unit.knowledge.decider_suite import DeciderSuite, records
from weir_contracts import ChangeRecord
from weir_contracts.topics import CHANGES
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.reading import readable
from weir_runtime.service import topic_specs

PARTITIONS = 4
SLEEPER = """
import os, signal, sys
from weir_contracts.topics import POLICIES
from weir_runtime import kafka_bus
from weir_knowledge import __main__ as knowledge

class SleepingTransactions(kafka_bus.KafkaTransactions):
    slept = False

    async def commit(self, records, place, position):
        if not self.slept and any((r.topic, r.key) == (POLICIES.name, os.environ["SLEEPS_AT"]) for r in records):
            SleepingTransactions.slept = True
            os.kill(os.getpid(), signal.SIGSTOP)
        await super().commit(records, place, position)

kafka_bus.KafkaTransactions = SleepingTransactions
sys.argv = ["knowledge"]
sys.exit(knowledge.main())
"""


class TestKafkaDecider(DeciderSuite):
    """The promises."""

    @pytest.fixture
    async def bus(self, kafka: KafkaBroker) -> AsyncIterator[KafkaBus]:
        bus = KafkaBus(kafka.bootstrap_servers)
        await bus.start()
        await bus.ensure_topics(topic_specs(PARTITIONS))
        yield bus
        await bus.close()


class Replicas:
    """One that will stop when it has decided the application's policy, and one that serves."""

    def __init__(self, kafka: KafkaBroker, redis_server: RedisServer, folder: Path) -> None:
        self.world = World(kafka, redis_server, folder)
        port = free_port()
        self._sleeper_url = f"http://127.0.0.1:{port}"
        self.sleeper = ManagedProcess(
            "sleeper",
            [sys.executable, "-c", SLEEPER],
            folder / "sleeper",
            environment={
                **self.world.environment,
                "SLEEPS_AT": self.world.application,
                "WEIR_HTTP_PORT": str(port),
                "WEIR_HTTP_HOST": "127.0.0.1",
            },
            grace_seconds=10.0,
        )
        self.serving = WeirService("knowledge", folder / "serving", self.world.environment)

    @property
    def policy_url(self) -> str:
        return f"{self.serving.url}/v1/policies/{self.world.application}"

    def start(self) -> None:
        self.sleeper.folder.mkdir(parents=True, exist_ok=True)
        self.sleeper.start()
        wait_until(lambda: self.sleeper_decides(1), timeout_seconds=60, what="the first decider")
        self.serving.start()
        self.serving.wait_ready()

    def sleeper_decides(self, wanted: int) -> bool:
        """Whether its own metric says that it decides (1), or not (0)."""
        try:
            text = httpx.get(f"{self._sleeper_url}/metrics", timeout=2.0).text
        except httpx.HTTPError:
            return False
        return re.findall(r"^weir_knowledge_decides (\S+)$", text, re.MULTILINE) == [f"{wanted}.0"]

    def sleeps(self) -> bool:
        """Whether the kernel says that it is stopped."""
        stat = Path(f"/proc/{self.sleeper.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def answers(self) -> list[str | None]:
        """Return what was decided of the application's changes."""

        async def read() -> list[str | None]:
            bus = KafkaBus(self.world.kafka.bootstrap_servers)
            await bus.start()
            found = [readable(r, ChangeRecord) for r in await records(bus, CHANGES.name, self.world.application)]
            await bus.close()
            return [each.answer.refused for each in found if each is not None and each.answer is not None]

        return asyncio.run(read())


@pytest.fixture
def replicas(kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(kafka, redis_server, tmp_path)
    try:
        yield made
    finally:
        if made.sleeper.running:
            made.sleeper.signal_group(signal.SIGCONT)
        for process in (made.sleeper, made.serving.process):
            process.stop()
        made.world.redis.flushdb()
        made.world.redis.close()


def test_a_decider_that_wakes_too_late_decides_nothing(replicas: Replicas) -> None:
    """It is stopped between its decision and its transaction. The other replica takes over, decides the same change and the
    next one; what the first one then commits is refused, and it stands by until the other one leaves."""
    replicas.start()
    first = httpx.put(replicas.policy_url, json=document(replicas.world.application, mode="act"), timeout=15.0)
    assert replicas.sleeps()
    assert first.status_code in (201, 503), first.text
    wait_until(
        lambda: httpx.get(replicas.policy_url, timeout=5.0).status_code == 200, timeout_seconds=30, what="the policy"
    )
    paused = httpx.post(f"{replicas.policy_url}/pause", timeout=15.0)
    assert paused.status_code == 200, paused.text
    assert replicas.answers() == [None, None]
    replicas.sleeper.signal_group(signal.SIGCONT)
    wait_until(lambda: replicas.sleeper_decides(0), timeout_seconds=30, what="the first one knows of its loss")
    assert replicas.answers() == [None, None]
    assert len(replicas.world.published()) == 2
    shown = httpx.get(replicas.policy_url, timeout=5.0).json()
    assert shown["metadata"]["version"] == paused.json()["metadata"]["version"]
    replicas.serving.process.stop()
    wait_until(lambda: replicas.sleeper_decides(1), timeout_seconds=30, what="the first one decides again")
