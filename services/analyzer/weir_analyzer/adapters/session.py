"""Spark's session: its settings, its start and its warm-up, on one machine or on a cluster.

Machines of a cluster share nothing with Spark's driver but the place of its state. Executors get the connector's jars
and this code from the driver, so that they cannot run another version of it; they have its packages (pydantic, pyarrow,
pandas, PySpark) themselves, under the interpreter that `PYSPARK_PYTHON` names.
"""

import hashlib
import io
import os
import platform
import sys
import tempfile
import zipfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import weir_analyzer
import weir_contracts
import weir_runtime
from weir_analyzer.settings import AnalyzerSettings
from weir_runtime.messages import MAX_MESSAGE_BYTES

from .checkpoint import base_of, located

QUERY = "weir-analyzer"
_CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
_WARM_UP_SECONDS = 30.0

_JAVA_OPTIONS = (
    # a parallel collector has nothing to do in a small heap
    "-XX:+UseSerialGC -Xss512k -XX:MaxMetaspaceSize=256m "
    # Hadoop starts `chmod` for each new file: without the helper process in between
    "-Djdk.lang.Process.launchMechanism=VFORK "
    # small batches never earn back what the second compiler costs: 0.4 s of CPU a batch instead of 0.9
    "-XX:TieredStopAtLevel=1"
)
_LOCAL_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_PACKAGES = (weir_contracts, weir_runtime, weir_analyzer)
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


class SparkUnusable(RuntimeError):
    """Spark cannot be started or used as it is set; says what to do."""


def connector_jars(folder: Path | None) -> list[Path]:
    """The four jars that connect Spark to Kafka; `SparkUnusable` names the missing one."""
    folder = folder or Path(__file__).resolve().parents[4] / ".cache" / "jars" / "spark"
    jars = []
    for name in _CONNECTOR:
        jar = next(iter(sorted(folder.glob(f"{name}*.jar"))), None)
        if jar is None:
            raise SparkUnusable(f"{folder} has no {name}*.jar: run `make setup` or set WEIR_ANALYZER_JARS")
        jars.append(jar)
    return jars


def session_conf(settings: AnalyzerSettings) -> dict[str, str]:
    """Spark's settings, ours first, the user's own last. Made for small batches as often as there is something new."""
    python = sys.executable
    local = not on_cluster(settings)
    return {
        "spark.jars": ",".join(str(jar) for jar in connector_jars(settings.jars)),
        "spark.driver.memory": f"{settings.driver_memory_megabytes}m",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.driver.host": "127.0.0.1" if local else "",
        "spark.driver.bindAddress": "127.0.0.1" if local else "",
        "spark.pyspark.python": python,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Spark's own default leaves account keys in its web page and logs
        "spark.redaction.regex": "(?i)secret|password|passwd|token|credential|key",
        "spark.locality.wait": "0s",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # the default asks about links by starting `readlink`, for each file of the state and at each batch
        "spark.sql.streaming.checkpointFileManagerClass": "" if "://" in settings.checkpoint else _LOCAL_FILES,
        # One of the largest observations at a time; by default 64 MB of them, in Java's memory and in Python's
        "spark.sql.execution.arrow.maxBytesPerBatch": str(MAX_MESSAGE_BYTES),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.numRecentProgressUpdates": "50",
        "spark.sql.streaming.stopTimeout": "5s",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "weir_analyzer.adapters.daemon",
        "spark.cleaner.periodicGC.interval": "10min",
        **({} if local else _cluster_conf(settings)),
        **{name: value.get_secret_value() for name, value in settings.spark_conf.items()},
    }


def start_session(settings: AnalyzerSettings) -> Any:
    """Start Spark's driver (5 to 8 s) and connect to its master."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # glibc keeps freed memory apart for each of some 100 threads
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(QUERY).master(settings.spark_master)
    for name, value in session_conf(settings).items():
        if value:
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if on_cluster(settings):
        send_code(session)
    return session


def warm_up(session: Any, settings: AnalyzerSettings) -> None:
    """Run the stateful step once on an empty record: load classes and native code, start the Python workers.

    The first batch of a cold driver takes many times the usual; it should come before readiness.
    """
    from pyspark.sql import functions as f

    from .processor import OUTPUT_SCHEMA, ApplicationProcessor

    columns = {
        "application": f.lit("warm/up"),
        "value": f.lit(None).cast("binary"),
        "traceparent": f.lit(None).cast("string"),
        "type": f.lit(None).cast("string"),
        "partition": f.lit(0),
        "offset": f.col("value"),
        "timestamp": f.col("timestamp"),
    }
    ticks = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    outputs = (
        ticks.select(*[column.alias(name) for name, column in columns.items()])
        .groupBy("application")
        .transformWithState(
            statefulProcessor=ApplicationProcessor(settings.analysis(), {}),
            outputStructType=OUTPUT_SCHEMA,
            outputMode="append",
            timeMode="None",
        )
    )
    # a standby warms up at the same time as the active analyzer
    folder, files = located(session, f"{base_of(settings)}/warm-up-{uuid4().hex[:8]}")
    pattern, _ = located(session, f"{base_of(settings)}/warm-up*")
    old_before = session.sparkContext._jvm.System.currentTimeMillis() - 600_000
    for left in files.globStatus(pattern) or []:
        if left.getModificationTime() < old_before:  # its process was killed meanwhile
            files.delete(left.getPath(), True)
    query = (
        outputs.writeStream.format("noop")
        .option("checkpointLocation", folder.toString())
        .trigger(availableNow=True)
        .start()
    )
    # a machine that is slower starts cold
    if not query.awaitTermination(_WARM_UP_SECONDS):
        query.stop()
    files.delete(folder, True)


class View(NamedTuple):
    """A task's view of the driver's files and versions."""

    host: str
    sees: bool
    """Whether the task sees the place of the state; True for a URL."""
    code: str
    """Path of the code it runs."""


def on_cluster(settings: AnalyzerSettings) -> bool:
    """Whether executors are other processes than the driver, perhaps elsewhere."""
    return not settings.spark_master.startswith("local")


def _cluster_conf(settings: AnalyzerSettings) -> dict[str, str]:
    """Return Spark settings for clusters only."""
    return {
        "spark.executor.memory": f"{settings.executor_memory_megabytes}m",
        "spark.executor.cores": "" if settings.executor_cores is None else str(settings.executor_cores),
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        # Sent files land in an executor's working directory. Spark's factory of Python workers finds the code only by
        # this: files sent as Python files reach the workers alone.
        "spark.executorEnv.PYTHONPATH": code_name(),
        # A part of the state goes back to the executor that has it in memory: elsewhere it is read from the checkpoint
        # first.
        "spark.locality.wait": "500ms",
        # Spark replaces an executor whose machine vanished after this long, not after 2 min.
        "spark.network.timeout": "40s",
        # Spark refuses its own default with a shorter timeout.
        "spark.network.timeoutInterval": "10s",
        "spark.executor.heartbeatInterval": "5s",
    }


@cache
def _code() -> bytes:
    """Our modules as a zip, the same bytes for the same code."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            root = Path(str(package.__file__)).parent
            for path in sorted(root.rglob("*.py")):
                name = Path(root.name) / path.relative_to(root)
                archive.writestr(zipfile.ZipInfo(str(name), _LONG_AGO), path.read_bytes())
    return packed.getvalue()


def code_name() -> str:
    """The zip's name: another code has another."""
    return f"weir-analyzer-{hashlib.sha256(_code()).hexdigest()[:12]}.zip"


def send_code(session: Any) -> None:
    """Hand the zip to all executors that are there or come later."""
    with tempfile.NamedTemporaryFile(prefix="weir-", suffix=".zip", delete=False) as written:
        written.write(_code())
    # the driver serves it from there as long as it lives; another user could own a predictable name
    path = Path(tempfile.gettempdir()) / code_name()
    Path(written.name).replace(path)
    session.sparkContext.addFile(str(path))


def unfit(session: Any, base: str) -> str | None:
    """Return which machine does not see the place of the state, or runs other code; None if all workers can work.

    It runs on the executors that are there: one that comes later is not checked.
    """
    context = session.sparkContext
    marker = None if "://" in base else Path(base) / f".seen-{uuid4().hex[:8]}"
    if marker is not None:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    try:
        tasks = 2 * max(1, int(context.defaultParallelism))
        views = set(
            context.parallelize(range(tasks), tasks).map(Look(None if marker is None else str(marker))).collect()
        )
    finally:
        if marker is not None:
            marker.unlink(missing_ok=True)
    return judged(views, base)


def judged(views: Collection[View], base: str) -> str | None:
    """Return why the workers cannot work; None if they can."""
    unsighted = sorted({view.host for view in views if not view.sees})
    if unsighted:
        return (
            f"{base} is not the same on all machines ({', '.join(unsighted)} cannot see what the driver wrote there): "
            "WEIR_ANALYZER_CHECKPOINT must be a folder or a URL that the driver and all workers share"
        )
    other = sorted({f"{view.host}: {view.code}" for view in views if code_name() not in view.code})
    if other:
        return (
            f"workers run code that the driver did not send ({', '.join(other)}): spark.executorEnv.PYTHONPATH must begin with "
            f"{code_name()}"
        )
    return None


class Look:
    """The task that returns a worker's view."""

    def __init__(self, marker: str | None) -> None:
        self._marker = marker

    def __call__(self, _: int) -> View:
        sees = self._marker is None or Path(self._marker).exists()
        return View(platform.node(), sees, str(weir_analyzer.__file__))
