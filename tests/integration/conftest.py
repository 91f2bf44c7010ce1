"""The real parts, started once for all tests that need them, each test with its own topics, keys and jobs."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.flink import FlinkCluster
from testbed.jars import sample_job_jar
from testbed.kafka import KafkaBroker
from testbed.process import TestbedError
from testbed.register import reap_leftovers
from testbed.service import RedisServer


@pytest.fixture
def sockets_are_collected() -> Iterator[None]:
    """Collect the sockets that kafka-python leaves unclosed where a connection fails, so that no later test is blamed for
    them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs and data of this session's real parts. What an earlier session left running is ended first."""
    base = tmp_path_factory.getbasetemp()
    for session in base.parent.glob("pytest-*"):
        reap_leftovers(session / "testbed0")
    return tmp_path_factory.mktemp("testbed")


@pytest.fixture(scope="session")
def kafka(run_folder: Path) -> Iterator[KafkaBroker]:
    """A broker, shared: use topics and groups of your own, and do not stop it."""
    with KafkaBroker(run_folder / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_server(run_folder: Path) -> Iterator[RedisServer]:
    """A server, shared: use `new_database()`, and do not stop it."""
    with RedisServer(run_folder / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def flink_cluster(run_folder: Path) -> Iterator[FlinkCluster]:
    """A session cluster with 8 slots, shared: cancel your jobs and wait until they have ended."""
    with FlinkCluster(run_folder / "flink", task_managers=1, slots=8) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sample_job() -> Path:
    """The sample job's jar."""
    try:
        return sample_job_jar()
    except TestbedError as error:
        pytest.skip(str(error))
