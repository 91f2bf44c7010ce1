"""The executor as the process that it is: waits for what is missing, says so, ends in time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from testbed.kafka import KafkaBroker
from testbed.process import free_port, wait_until
from testbed.service import WeirService


def environment(kafka: str, knowledge_port: int) -> dict[str, str]:
    return {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka,
        "WEIR_KNOWLEDGE_URL": f"http://127.0.0.1:{knowledge_port}",
        "WEIR_EXECUTOR_GROUP": f"process-{knowledge_port}",
    }


def ready(service: WeirService) -> dict[str, bool]:
    answer = httpx.get(f"{service.url}/health/ready", timeout=5.0).json()["dependencies"]
    return {name: state["ok"] for name, state in answer.items()}


def lives(service: WeirService) -> bool:
    try:
        return httpx.get(f"{service.url}/health/live", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def test_it_waits_for_knowledge_and_ends_in_time(own_kafka: KafkaBroker, tmp_path: Path) -> None:
    """Kafka is there, knowledge is not: everything else is ready, and readiness names what is missing."""
    with WeirService("executor", tmp_path, environment(own_kafka.bootstrap_servers, free_port())) as service:
        wait_until(lambda: lives(service), timeout_seconds=30, what="the listener")
        expected = {"kafka": True, "topics": True, "knowledge": False, "plans": True}
        wait_until(lambda: ready(service) == expected, timeout_seconds=40, what=f"readiness as {expected}")
        metrics = httpx.get(f"{service.url}/metrics", timeout=5.0).text
        assert "weir_executor_actions_in_flight 0.0" in metrics
        began = time.monotonic()
        service.stop()
        assert time.monotonic() - began < 15


def test_it_waits_for_kafka(tmp_path: Path) -> None:
    """It does not crash-loop, and a stop still ends it."""
    with WeirService("executor", tmp_path, environment(f"127.0.0.1:{free_port()}", free_port())) as service:
        wait_until(lambda: lives(service), timeout_seconds=30, what="the listener")
        wait_until(lambda: ready(service)["kafka"] is False, timeout_seconds=20, what="kafka missing")
        began = time.monotonic()
        service.stop()
        assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("name", "value"), [("WEIR_EXECUTOR_MAX_ACTIONS", "0"), ("WEIR_KAFKA_BOOTSTRAP_SERVERS", "nonsense")]
)
def test_a_wrong_setting_is_one_line(name: str, value: str) -> None:
    """It names the variable, and the process ends with code 2."""
    ended = subprocess.run(
        [sys.executable, "-m", "weir_executor"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"settings: {name}: ")
    assert ended.stderr.count("\n") == 1
