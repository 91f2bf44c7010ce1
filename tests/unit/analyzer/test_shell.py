"""The shell around the stream, and checks of Spark's settings without starting it."""

import asyncio
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.analyzer.memory_analyzer import MemoryAnalyzer
from tests.unit.analyzer.story import Job
from tests.unit.runtime.memory_lease import MemoryGroup, MemoryLease
from weir_analyzer.adapters.checkpoint import checkpoint_of, is_damaged, lost_between, parse_offsets
from weir_analyzer.adapters.processing import Lost
from weir_analyzer.adapters.session import SparkUnusable, connector_jars, session_conf
from weir_analyzer.core import STATE_VERSION
from weir_analyzer.service import Analyzer, Batch, NotRunning, NotYet, StateUnusable, StreamDied
from weir_analyzer.settings import AnalyzerSettings
from weir_contracts import Analysis
from weir_contracts.topics import ANALYSES, OBSERVATIONS
from weir_runtime.clock import SystemClock
from weir_runtime.lease import Terms
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.service import topic_specs
from weir_runtime.settings import load


class FakeStream:
    """A stream that follows its script at each start."""

    def __init__(self, script: list[str]) -> None:
        self.script = script
        self.starts = 0
        self.set_asides = 0
        self.stopped = False
        self._life = ""

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def start(self) -> str:
        self._life = self.script[min(self.starts, len(self.script) - 1)]
        self.starts += 1
        if self._life == "not-yet":
            raise NotYet("the brokers are away")
        if self._life == "cannot":
            raise RuntimeError("no such class")
        return "checkpoint"

    def batches(self) -> list[Batch]:
        if self._life == "dies":
            raise StreamDied("No space left on device")
        if self._life == "damaged":
            raise StateUnusable("[MALFORMED_LOG_FILE] Log file was malformed")
        return [Batch(1, 3, 0.4, 0)] if self._life == "works" else []

    def set_aside(self) -> None:
        self.set_asides += 1

    def suspend(self) -> None:
        """A start follows."""

    def abort(self) -> None:
        self.stopped = True

    def stop(self) -> None:
        self.stopped = True


def _analyzer(stream: FakeStream) -> Analyzer:
    """Without contenders: it holds the lease."""
    clock = SystemClock()
    terms = Terms("analyzer")
    return Analyzer(stream, MemoryLease(MemoryGroup(clock, terms), "only"), clock, terms)


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


async def _reason(analyzer: Analyzer) -> str:
    """Why it is not ready; empty if it is."""
    try:
        await analyzer.ping()
    except NotRunning as error:
        return str(error)
    return ""


async def _becomes(analyzer: Analyzer, pattern: str) -> None:
    """Wait until the reason matches; the empty pattern: until it is ready."""
    async with asyncio.timeout(10):
        while not re.fullmatch(pattern, await _reason(analyzer)):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


async def test_a_dead_stream_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies once, waits a little, and works; readiness follows it."""
    stream = FakeStream(["dies", "works"])
    analyzer, stop = _analyzer(stream), Stop()
    monkeypatch.setattr("weir_analyzer.service._POLL_SECONDS", 0.02)
    monkeypatch.setattr("weir_analyzer.service._MIN_BACKOFF_SECONDS", 0.02)
    assert await _reason(analyzer)
    running = asyncio.create_task(analyzer.run(stop))
    await _until(lambda: stream.starts == 2)
    await _becomes(analyzer, "")
    stop.request("test")
    await asyncio.wait_for(running, 5)
    assert stream.stopped
    assert await _reason(analyzer)


async def test_a_state_that_cannot_be_used_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three deaths of it without a finished batch: the next start is a new one; brokers that are away do not count."""
    stream = FakeStream(["not-yet", "damaged", "damaged", "damaged", "works"])
    analyzer, stop = _analyzer(stream), Stop()
    monkeypatch.setattr("weir_analyzer.service._POLL_SECONDS", 0.02)
    monkeypatch.setattr("weir_analyzer.service._MIN_BACKOFF_SECONDS", 0.02)
    monkeypatch.setattr("weir_analyzer.service.MAX_BACKOFF_SECONDS", 0.05)
    running = asyncio.create_task(analyzer.run(stop))
    await _until(lambda: stream.starts == 5)
    assert stream.set_asides == 1
    stop.request("test")
    await asyncio.wait_for(running, 5)


async def test_a_good_state_is_kept_whatever_else_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often: it is started again with back-off, and readiness gives the reason; no death between them is
    attributed to the state."""
    stream = FakeStream(["damaged", *["dies", "cannot"] * 4, "damaged", "dies", "works"])
    analyzer, stop = _analyzer(stream), Stop()
    monkeypatch.setattr("weir_analyzer.service._POLL_SECONDS", 0.02)
    monkeypatch.setattr("weir_analyzer.service._MIN_BACKOFF_SECONDS", 0.02)
    monkeypatch.setattr("weir_analyzer.service.MAX_BACKOFF_SECONDS", 0.05)
    running = asyncio.create_task(analyzer.run(stop))
    await _becomes(analyzer, r"the stream died: (No space left on device|no such class)")
    await _becomes(analyzer, "")
    assert stream.set_asides == 0
    stop.request("test")
    await asyncio.wait_for(running, 5)


FOLDER = "/var/lib/weir/checkpoint/cluster-p4-s2-v3"


@pytest.mark.parametrize(
    ("damaged", "causes"),
    [
        (True, ["[STREAM_FAILED] Query terminated", "SparkException: [MALFORMED_LOG_FILE] Log file was malformed"]),
        (True, ["IllegalStateException: [STREAMING_CHECKPOINT_MISSING_METADATA_FILE] Checkpoint location is in an inconsistent state"]),
        (True, [f"java.lang.IllegalStateException: Incomplete log file {FOLDER}/offsets/7"]),
        (True, ["SparkException: [CANNOT_LOAD_STATE_STORE.UNEXPECTED_FILE_SIZE] Copied a to b, expected 5 bytes, found 0 bytes."]),
        (True, ["SparkException: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED]", "java.io.EOFException: reached end of stream"]),
        (True, [f"java.io.FileNotFoundException: File {FOLDER}/state/0/1/7.changelog does not exist"]),
        (True, ["org.rocksdb.RocksDBException: Corruption: block checksum mismatch"]),
        (True, ["NoSuchElementException: next on empty iterator\na.b.OffsetSeqLog.deserialize(OffsetSeqLog.scala:70)"]),
        (False, ["NoSuchElementException: next on empty iterator\na.b.Optimizer.apply(Optimizer.scala:7)"]),
        (False, ["SparkException: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED]", "java.io.IOException: No space left on device"]),
        (False, ["SparkException: [CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY] Could not load"]),
        (False, ["SparkException: [CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] RocksDB instance could not be acquired"]),
        (False, ["SparkException: [CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Cannot perform commit", "java.io.IOException: disk"]),
        (False, ["SparkException: Python worker exited unexpectedly (crashed)", f"java.io.EOFException: {FOLDER}"]),
        (False, ["java.io.FileNotFoundException: /tmp/blockmgr-1/0c/shuffle_0_0_0.data (No such file or directory)"]),
        (False, [f"java.io.FileNotFoundException: {FOLDER}/offsets/7 (Too many open files)"]),
        (False, ["org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment"]),
        (False, ["SparkException: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log"]),
        (False, []),
    ],
)  # fmt: skip
def test_only_what_names_the_state_is_its_own_fault(damaged: bool, causes: list[str]) -> None:
    """As Spark 4.2 writes them; in doubt the checkpoint is kept."""
    assert is_damaged(causes, FOLDER) is damaged


async def test_the_twin_analyses_what_is_on_the_bus() -> None:
    """Observations in, analyses out, in order; a second one started later goes on from what was published."""
    bus, job, stop = MemoryBus(), Job(), Stop()
    await bus.start()
    await bus.ensure_topics(topic_specs(4))
    first = asyncio.create_task(MemoryAnalyzer(bus).run(stop))
    for _ in range(5):
        job.run_for(2)
        observed = job.observe()
        await bus.publish(OBSERVATIONS.name, observed.application, observed.model_dump_json().encode())
    await _until(lambda: len(bus.records(ANALYSES.name)) == 5)
    stop.request("test")
    await asyncio.wait_for(first, 5)
    stop = Stop()
    twin = MemoryAnalyzer(bus)
    second = asyncio.create_task(twin.run(stop))
    job.run_for(2)
    observed = job.observe()
    await bus.publish(OBSERVATIONS.name, observed.application, observed.model_dump_json().encode())
    await _until(lambda: len(bus.records(ANALYSES.name)) == 6)
    stop.request("test")
    await asyncio.wait_for(second, 5)
    analyses = [Analysis.model_validate_json(r.value or b"") for r in bus.records(ANALYSES.name)]
    assert [a.observed_at for a in analyses] == sorted(a.observed_at for a in analyses)
    assert analyses[-1].observed_at - analyses[0].observed_at == timedelta(seconds=10)
    await bus.close()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Master, place, trigger and resources are settings; a wrong one is named and ends the start."""
    monkeypatch.setenv("WEIR_ANALYZER_SPARK_MASTER", "spark://host:7077")
    monkeypatch.setenv("WEIR_ANALYZER_SHUFFLE_PARTITIONS", "8")
    monkeypatch.setenv("WEIR_ANALYZER_SPARK_CONF", '{"spark.executor.memory": "1g"}')
    settings = load(AnalyzerSettings)
    assert (settings.spark_master, settings.shuffle_partitions) == ("spark://host:7077", 8)
    monkeypatch.setenv("WEIR_ANALYZER_CAPACITY_WINDOW_SECONDS", "20")
    assert load(AnalyzerSettings).analysis().capacity_window_seconds == 20


SPARK_SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": "hunter2",
    "spark.ssl.keyPassword": "hunter2",
    "spark.hadoop.fs.azure.account.key.weir.dfs.core.windows.net": "hunter2",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:x:user=ada;pw=hunter2",
    "spark.executorEnv.PLAIN_NAME": "hunter2",
}


def test_of_sparks_settings_only_harmless_ones_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In the line at start, by `--print-settings`, in an error and in a traceback. Spark gets the values."""
    for name in ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2"):
        (tmp_path / f"{name}-1.jar").touch()
    monkeypatch.setenv("WEIR_ANALYZER_JARS", str(tmp_path))
    monkeypatch.setenv("WEIR_ANALYZER_SPARK_CONF", json.dumps({**SPARK_SECRETS, "spark.executor.memory": "1g"}))
    settings = load(AnalyzerSettings)
    shown = {**dict.fromkeys(SPARK_SECRETS, "***"), "spark.executor.memory": "1g"}
    assert settings.describe()["spark_conf"] == shown
    assert "hunter2" not in repr(settings)
    assert session_conf(settings)["spark.ssl.keyPassword"] == "hunter2"
    with pytest.raises(SystemExit):
        load(AnalyzerSettings, ["--print-settings"])
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    assert json.loads(printed)["WEIR_ANALYZER_SPARK_CONF"]["value"] == shown
    monkeypatch.setenv("WEIR_ANALYZER_SPARK_CONF", json.dumps({**SPARK_SECRETS, "memory": "1g"}))
    with pytest.raises(SystemExit):
        load(AnalyzerSettings)
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SHUFFLE_PARTITIONS", "0", "greater than or equal to 1"),
        ("SPARK_MASTER", "here", "must be local[CORES]"),
        ("SPARK_MASTER", "local[x]", "must be local[CORES]"),
        ("SPARK_MASTER", "local[0]", "must be local[CORES]"),
        ("SPARK_MASTER", "spark://host", "spark://HOST:PORT"),
        ("SPARK_MASTER", "spark://host:70770", "the port of host:70770"),
        ("SPARK_CONF", "notjson", "WEIR_ANALYZER_SPARK_CONF: must be JSON (Expecting value"),
        ("SPARK_CONF", '{"memory": "1g"}', "begin with 'spark.'"),
        ("CAPACITY_WINDOW_SECONDS", "1", "greater than or equal to 5"),
    ],
)
def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, message: str
) -> None:
    """One line that names the variable and what is wrong with it; exit code 2."""
    monkeypatch.setenv(f"WEIR_ANALYZER_{name}", value)
    with pytest.raises(SystemExit) as ended:
        load(AnalyzerSettings)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"WEIR_ANALYZER_{name}" in error
    assert message in error


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[2]",
        "local[*]",
        "local[*,3]",
        "spark://one:7077,two:7077",
        "spark://[::1]:7077",
        "yarn",
        "k8s://https://api:6443",
    ],
)
def test_every_master_that_spark_knows_is_taken(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """As it is."""
    monkeypatch.setenv("WEIR_ANALYZER_SPARK_MASTER", master)
    assert load(AnalyzerSettings).spark_master == master


def test_another_split_is_another_checkpoint(tmp_path: Path) -> None:
    """Cluster, partitions, split of the state and version name the folder: none can be read as another."""
    settings = AnalyzerSettings(checkpoint=str(tmp_path), shuffle_partitions=2, partitions=4)
    assert checkpoint_of(settings, "a/b c") == f"{tmp_path}/a_b_c-p4-s2-v{STATE_VERSION}"
    remote = AnalyzerSettings(checkpoint="s3a://bucket/weir/", shuffle_partitions=2, partitions=8)
    assert checkpoint_of(remote, "x") == f"s3a://bucket/weir/x-p8-s2-v{STATE_VERSION}"


def test_sparks_offset_log_is_read(tmp_path: Path) -> None:
    """Version, metadata, offsets of each source; anything else is no offset."""
    text = 'v1\n{"batchWatermarkMs":0}\n{"weir.observations.v1alpha1":{"0":12,"3":7}}'
    assert parse_offsets(text) == {0: 12, 3: 7}
    assert parse_offsets("v1\n{}\n-") is None
    assert parse_offsets("") is None


def test_lost_is_what_lies_before_the_logs_start() -> None:
    """Offsets the checkpoint still wants and the broker no longer has."""
    assert lost_between({0: 12, 3: 7}, {0: 12, 3: 20}) == {3: Lost(7, 20)}
    assert lost_between(None, {0: 12}) == {}


def test_a_missing_connector_is_named(tmp_path: Path) -> None:
    """The first jar that is not there, and what to do about it."""
    (tmp_path / "spark-sql-kafka-0-10_2.13-4.2.0.jar").touch()
    with pytest.raises(SparkUnusable, match=r"spark-token-provider-kafka\*\.jar: run `make setup`"):
        connector_jars(tmp_path)


def test_the_users_spark_settings_win(tmp_path: Path) -> None:
    """Whatever we think is best can be overridden."""
    for name in ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2"):
        (tmp_path / f"{name}-1.jar").touch()
    settings = AnalyzerSettings(jars=tmp_path, spark_conf={"spark.ui.enabled": "true"})
    assert session_conf(settings)["spark.ui.enabled"] == "true"
    assert session_conf(settings)["spark.sql.shuffle.partitions"] == "4"
