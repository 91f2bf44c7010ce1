"""Checks of a cluster without one: settings, code sent, and workers that do not share the state."""

import io
import zipfile
from pathlib import Path

import pytest

from weir_analyzer.adapters import session
from weir_analyzer.adapters.session import Look, View, code_name, judged, session_conf
from weir_analyzer.settings import AnalyzerSettings


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    for name in ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2"):
        (tmp_path / f"{name}-1.jar").touch()
    return tmp_path


def test_only_a_cluster_gets_settings_of_executors(jars: Path) -> None:
    """Their memory, cores and code; and the driver listens where workers can reach it."""
    local = session_conf(AnalyzerSettings(jars=jars))
    assert not any(name.startswith("spark.executor") for name in local)
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    settings = AnalyzerSettings(
        jars=jars,
        spark_master="spark://host:7077",
        executor_memory_megabytes=2048,
        executor_cores=2,
        spark_conf={"spark.network.timeout": "60s"},
    )
    conf = session_conf(settings)
    assert (conf["spark.executor.memory"], conf["spark.executor.cores"]) == ("2048m", "2")
    assert conf["spark.executorEnv.PYTHONPATH"] == code_name()
    assert conf["spark.driver.bindAddress"] == ""
    assert conf["spark.network.timeout"] == "60s"


def test_what_is_sent_is_all_that_a_worker_imports_of_ours() -> None:
    """Contracts, runtime and the analyzer with its core; no other service."""
    with zipfile.ZipFile(io.BytesIO(session._code())) as archive:
        names = set(archive.namelist())
    assert {
        "weir_contracts/__init__.py",
        "weir_runtime/messages.py",
        "weir_analyzer/__init__.py",
        "weir_analyzer/adapters/daemon.py",
        "weir_analyzer/core/advance.py",
    } <= names
    assert not any(name.startswith(("weir_planner", "weir_monitor")) for name in names)


def test_a_worker_that_does_not_share_the_state_is_named(tmp_path: Path) -> None:
    """Or one with other code; without a problem there is no message."""
    code = f"/work/app-1/0/{code_name()}/weir_analyzer/__init__.py"
    assert judged({View("a", True, code), View("b", True, code)}, "/state") is None
    assert "b cannot see what the driver wrote there" in str(
        judged({View("a", True, code), View("b", False, code)}, "/state")
    )
    assert "a: /usr/lib/weir_analyzer" in str(judged({View("a", True, "/usr/lib/weir_analyzer/__init__.py")}, "/state"))
    (tmp_path / "marker").touch()
    assert Look(str(tmp_path / "marker"))(0).sees
    assert not Look(str(tmp_path / "gone"))(0).sees
    assert Look(None)(0).sees
