"""Spark's session: its settings, its start and its warm-up."""

import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from services.analyzer.settings import AnalyzerSettings

from .checkpoint import base_of, located
from .cluster import cluster_conf, on_cluster, send_code

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


class SparkUnusable(RuntimeError):
    """Spark cannot be started or used as it is set; says what to do."""


def connector_jars(folder: Path | None) -> list[Path]:
    """The four jars that connect Spark to Kafka; `SparkUnusable` names the missing one."""
    folder = folder or Path(__file__).resolve().parents[3] / ".cache" / "jars" / "spark"
    found = []
    for name in _CONNECTOR:
        jar = next(iter(sorted(folder.glob(f"{name}*.jar"))), None)
        if jar is None:
            raise SparkUnusable(f"{folder} has no {name}*.jar: run `make setup` or set WEIR_ANALYZER_JARS")
        found.append(jar)
    return found


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
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.numRecentProgressUpdates": "50",
        "spark.sql.streaming.stopTimeout": "5s",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "services.analyzer.adapters.daemon",
        "spark.cleaner.periodicGC.interval": "10min",
        **({} if local else cluster_conf(settings, _JAVA_OPTIONS)),
        **{name: value.get_secret_value() for name, value in settings.spark_conf.items()},
    }


def start_session(settings: AnalyzerSettings) -> Any:
    """Start Spark's driver (5 to 8 s) and connect to its master."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
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
