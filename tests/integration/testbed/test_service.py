"""Weir's own services as processes: ready is measured, an early end is said, and a killed owner leaves no part behind."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from testbed.kafka import KafkaBroker
from testbed.process import NotInTime, TestbedError, free_port, wait_until
from testbed.register import living
from testbed.service import RedisServer, WeirService, wait_all_ready

PROJECT = Path(__file__).resolve().parents[3]


def test_a_service_becomes_ready_and_stops(kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> None:
    """Its readiness is its own word, over HTTP, and the time it took is kept."""
    environment = {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "WEIR_KNOWLEDGE_REDIS_URL": redis_server.url,
    }
    with WeirService("knowledge", tmp_path, environment) as service:
        wait_all_ready([service], timeout_seconds=60)
        assert service.ready_seconds is not None and service.ready_seconds > 0
        pid = service.pid
    assert not psutil.pid_exists(pid)
    assert not service.ready()


def test_a_service_that_ends_or_waits_is_named(tmp_path: Path) -> None:
    """A wrong setting ends it at once; a dependency that is away keeps it waiting, and the deadline names its log."""
    with (
        WeirService("knowledge", tmp_path / "wrong", {"WEIR_KNOWLEDGE_HISTORY_COUNT": "many"}) as wrong,
        pytest.raises(TestbedError, match="knowledge ended with code 2: ") as ended,
    ):
        wait_all_ready([wrong], timeout_seconds=30)
    assert "history_count" in str(ended.value).lower()

    nobody = f"127.0.0.1:{free_port()}"
    environment = {"WEIR_KAFKA_BOOTSTRAP_SERVERS": nobody, "WEIR_KNOWLEDGE_REDIS_URL": f"redis://{nobody}/0"}
    with (
        WeirService("knowledge", tmp_path / "waits", environment) as waits,
        pytest.raises(NotInTime, match=r"not ready within 6 s: knowledge: .*knowledge\.log\)"),
    ):
        wait_all_ready([waits], timeout_seconds=6)


_OWNER = """
import sys, threading
from pathlib import Path
from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from testbed.service import RedisServer
folder = Path(sys.argv[1])
KafkaBroker(folder / 'kafka', heap_megabytes=256).start()
RedisServer(folder / 'redis').start()
FlinkCluster(folder / 'flink', slots=2).start()
(folder / 'up').touch()
threading.Event().wait(120)
"""


def test_kill_9_of_the_owner_leaves_no_real_part(tmp_path: Path) -> None:
    """Kafka, Redis, JobManager and TaskManager all end with the process that started them."""
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], cwd=PROJECT)
    try:
        wait_until((tmp_path / "up").exists, timeout_seconds=90, what="all parts up")
        assert {entry.name for entry in living(tmp_path)} == {"kafka", "redis", "jobmanager", "taskmanager-1"}
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=10)
    wait_until(lambda: not living(tmp_path), timeout_seconds=10, what="end of all parts")
