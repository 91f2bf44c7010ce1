"""The real parts, started once for all tests that need them, each test with topics, keys and jobs of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from testbed.redis import RedisServer


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs and data of this session's real parts."""
    return tmp_path_factory.mktemp("testbed")


@pytest.fixture(scope="session")
def kafka(run_folder: Path) -> Iterator[KafkaBroker]:
    """A broker; use topics of your own."""
    with KafkaBroker(run_folder / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_server(run_folder: Path) -> Iterator[RedisServer]:
    """A server; use keys or a database of your own."""
    with RedisServer(run_folder / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def flink_cluster(run_folder: Path) -> Iterator[FlinkCluster]:
    """A session cluster with 8 slots; cancel your jobs."""
    with FlinkCluster(run_folder / "flink", task_managers=1, slots=8) as cluster:
        yield cluster
