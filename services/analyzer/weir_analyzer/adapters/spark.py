"""The stream on Spark: its one query, and what it asks the brokers by itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types

from weir_analyzer.service import Batch, NotYet, StateUnusable, StreamDied
from weir_analyzer.settings import AnalyzerSettings
from weir_contracts.topics import ANALYSES, OBSERVATIONS
from weir_runtime.clock import Clock
from weir_runtime.kafka_client import connection, java_settings
from weir_runtime.messages import ENVELOPE_BYTES, MAX_MESSAGE_BYTES

from .checkpoint import base_of, checkpoint_of, is_damaged, located, lost_between, offsets_in, why_new
from .processing import Lost
from .session import QUERY, on_cluster, start_session, unfit, warm_up

LOOK_SECONDS = 10.0
_START_BACK = timedelta(minutes=10)
"""A new checkpoint reads observations from this long ago: enough for all windows, and no more than that to decode."""


_MAX_CAUSES = 30


@dataclass(frozen=True, slots=True)
class Start:
    """Where the query begins."""

    checkpoint: str
    lost: Mapping[int, Lost]
    now: datetime
    seeded: bool
    """The checkpoint is new: states come from the latest analyses. They cost at each batch, so only while needed."""


def start_query(session: Any, settings: AnalyzerSettings, begin: Start) -> Any:
    """Start the one query: observations in, analyses and dead letters out."""
    from pyspark.sql import functions as f

    from .processor import OUTPUT_SCHEMA, ApplicationProcessor

    kafka = {
        "kafka.bootstrap.servers": settings.kafka_bootstrap_servers,
        "failOnDataLoss": "false",
        # as all other groups of Weir, for brokers that give rights by prefix
        "groupIdPrefix": "weir-analyzer-stream",
        **{f"kafka.{name}": value for name, value in java_settings(settings.kafka_security).items()},
    }
    # a key or header that is not UTF-8 would end the query in Python, after every restart
    application = f.coalesce(f.make_valid_utf8(f.col("key").cast("string")), f.lit("")).alias("application")
    header = "try_validate_utf8(cast(get(filter(headers, h -> h.key = '{}'), 0).value as string))"
    trace, type_ = (
        f.expr(header.format("traceparent")).alias("traceparent"),
        f.expr(header.format("ce_type")).alias("type"),
    )
    observations = (
        session.readStream.format("kafka")
        .options(**kafka)
        .option("subscribe", OBSERVATIONS.name)
        # each batch requests the log's range on the connection where the last one's fetch still waits for more: that
        # wait (500 ms by default) would be added to every batch
        .option("kafka.fetch.max.wait.ms", "10")
        .option("kafka.fetch.max.bytes", str(MAX_MESSAGE_BYTES + ENVELOPE_BYTES))
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", str(settings.max_records_per_batch))
        .option("startingTimestamp", str(int((begin.now - _START_BACK).timestamp() * 1000)))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .load()
        .select(application, "value", trace, type_, "partition", "offset", "timestamp")
    )
    latest = (
        session.read.format("kafka")
        .options(**kafka)
        .option("subscribe", ANALYSES.name)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
        .where(f.col("key").isNotNull())
        .groupBy(application)
        .agg(f.max_by("value", "offset").alias("value"))
    )
    analyses = observations.groupBy("application").transformWithState(
        statefulProcessor=ApplicationProcessor(settings.analysis(), begin.lost),
        outputStructType=OUTPUT_SCHEMA,
        outputMode="append",
        timeMode="None",
        initialState=latest.groupBy("application") if begin.seeded else None,
    )
    writer = (
        analyses.writeStream.queryName(QUERY)
        .format("kafka")
        .options(**kafka)
        .option("kafka.acks", "all")
        .option("kafka.enable.idempotence", "true")
        # as in the other services: a first batch refused while the next one is accepted would be retried in vain for
        # minutes
        .option("kafka.max.in.flight.requests.per.connection", "1")
        .option("kafka.linger.ms", "0")
        # as large as envelope and topics accept; the client's own limit is 1 MB
        .option("kafka.max.request.size", str(MAX_MESSAGE_BYTES + ENVELOPE_BYTES))
        .option("includeHeaders", "true")
        .option("checkpointLocation", begin.checkpoint)
        .outputMode("append")
    )
    return writer.trigger(processingTime=f"{settings.trigger_milliseconds} milliseconds").start()


class Brokers:
    """Blocking requests, each with its own deadline; called from the stream's thread."""

    def __init__(self, bootstrap_servers: str, security: Mapping[str, str] | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._security = dict(security or {})

    def look(self, *topics: str) -> tuple[str, dict[str, dict[int, tuple[int, int]]]]:
        """Return the cluster's id, and first and next offset of each partition of `topics`; `NotYet` without a
        response."""
        group = {"group.id": "weir-analyzer-look", "enable.auto.commit": False}
        consumer = Consumer(connection(self._bootstrap_servers, {**self._security, **group}))
        marks: dict[str, dict[int, tuple[int, int]]] = {}
        try:
            for topic in topics:
                metadata = consumer.list_topics(topic, timeout=LOOK_SECONDS)
                marks[topic] = {
                    partition: consumer.get_watermark_offsets(
                        TopicPartition(topic, partition), timeout=LOOK_SECONDS, cached=False
                    )
                    for partition in metadata.topics[topic].partitions
                }
        except KafkaException as error:
            raise NotYet(f"{self._bootstrap_servers}: {error.args[0].str()}") from error
        finally:
            consumer.close()
        return str(metadata.cluster_id or "unknown"), marks


class SparkStream:
    """The stream on Spark: one session, one query, restarted from its checkpoint."""

    def __init__(self, settings: AnalyzerSettings, brokers: Brokers, clock: Clock) -> None:
        self._settings = settings
        self._brokers = brokers
        self._clock = clock
        self._session: Any = None
        self._query: Any = None
        self._begin: Start | None = None
        self._seen = -1

    def prepare(self) -> None:
        """Start the session, unless one lives; on a cluster check that its workers can work."""
        self._forget_dead_session()
        if self._session is None:
            self._session = start_session(self._settings)
            if on_cluster(self._settings) and (problem := unfit(self._session, base_of(self._settings))):
                self.stop()
                raise NotYet(problem)
            warm_up(self._session, self._settings)

    def start(self) -> str:
        from pyspark.errors import PySparkException

        cluster_id, marks = self._brokers.look(OBSERVATIONS.name, ANALYSES.name)
        checkpoint = checkpoint_of(self._settings, cluster_id)
        try:
            return self._start(checkpoint, marks)
        except (Py4JError, PySparkException) as error:
            raise self._death(error) from error

    def _start(self, checkpoint: str, marks: Mapping[str, Mapping[int, tuple[int, int]]]) -> str:
        self._begin = Start(checkpoint, {}, self._clock.now(), seeded=False)  # what `set_aside` may have to rename
        offsets = offsets_in(self._session, checkpoint)
        lost = lost_between(offsets, {p: start for p, (start, _) in marks[OBSERVATIONS.name].items()})
        learned = any(end > start for start, end in marks[ANALYSES.name].values())
        self._begin = Start(checkpoint, lost, self._clock.now(), seeded=offsets is None and learned)
        self._query = start_query(self._session, self._settings, self._begin)
        self._seen = -1
        return (
            checkpoint
            if offsets is not None
            else f"{checkpoint}, {why_new(self._session, checkpoint, seeded=self._begin.seeded)}"
        )

    def batches(self) -> list[Batch]:
        """Return the batches finished since the last call; raises `StreamDied` once the query has ended."""
        try:
            if not self._query.isActive:
                raise self._death(self._query.exception())
            last = self._query.lastProgress
            if last is None or last.batchId <= self._seen:
                return []
            finished = [p for p in self._query.recentProgress if p.batchId > self._seen and p.numInputRows > 0]
            if self._begin is not None and self._begin.seeded and finished:
                self._go_on_unseeded(self._begin)
        except (Py4JError, OSError) as error:
            raise StreamDied(f"Spark's driver does not answer: {_first_line(error)}") from error
        self._seen = last.batchId
        return [_batch(p) for p in finished]

    def _death(self, error: Any) -> StreamDied:
        """Return the error with its first line and innermost cause; `StateUnusable` if the checkpoint is damaged."""
        causes = _causes(error)
        first, inner = _first_line(error), _first_line(causes[-1]) if causes else ""
        sentence = first if inner in first else f"{first[:300]}: {inner}"[:500]
        checkpoint = self._begin.checkpoint if self._begin else ""
        return StateUnusable(sentence) if checkpoint and is_damaged(causes, checkpoint) else StreamDied(sentence)

    def _go_on_unseeded(self, begin: Start) -> None:
        """Continue from the checkpoint, which has all states now, without reading the analyses for each batch."""
        self._query.stop()
        self._begin = replace(begin, seeded=False)
        self._query = start_query(self._session, self._settings, self._begin)

    def set_aside(self) -> None:
        """Rename the checkpoint, and keep it for diagnosis."""
        if self._session is None or self._begin is None:
            return
        path, files = located(self._session, self._begin.checkpoint)
        aside, _ = located(self._session, f"{self._begin.checkpoint}.unusable-{self._clock.now():%Y%m%dT%H%M%S}")
        files.rename(path, aside)

    def suspend(self) -> None:
        """Stop the query; the session stays for the next one."""
        query, self._query = self._query, None
        if query is not None:
            query.stop()

    def abort(self) -> None:
        """Kill Spark's driver."""
        from pyspark import SparkContext

        driver = getattr(SparkContext._gateway, "proc", None)
        if driver is not None:
            driver.kill()

    def stop(self) -> None:
        """Stop query and driver."""
        try:
            if self._query is not None:
                self._query.stop()
            if self._session is not None:
                self._session.stop()
        except (Py4JError, OSError):
            return
        finally:
            self._query = self._session = None

    def _forget_dead_session(self) -> None:
        """Drop a session whose driver died, and make PySpark start another one."""
        if self._session is None:
            return
        try:
            if not self._session.sparkContext._jsc.sc().isStopped():
                return
        except (Py4JError, OSError):
            pass
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        gateway, SparkContext._gateway = SparkContext._gateway, None
        SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        self._session = None
        if gateway is not None and getattr(gateway, "proc", None) is not None:
            gateway.proc.kill()


def _batch(progress: Any) -> Batch:
    source = progress.sources[0]
    promised = _records_between(source.startOffset, source.endOffset)
    return Batch(
        id=progress.batchId,
        records=progress.numInputRows,
        seconds=progress.durationMs.get("triggerExecution", 0) / 1000,
        lost=0 if promised is None else max(0, promised - progress.numInputRows),
    )


def _records_between(start: str | None, end: str | None) -> int | None:
    """Records that two of Spark's offsets promise; None where one is missing (the first batch)."""
    try:
        first, last = json.loads(start or "")[OBSERVATIONS.name], json.loads(end or "")[OBSERVATIONS.name]
        return sum(int(last[partition]) - int(first[partition]) for partition in last)
    except (ValueError, TypeError, KeyError):
        return None


def _causes(error: Any) -> list[str]:
    """The exceptions that an error of PySpark stands for, outermost first, with their Java stack traces."""
    causes: list[str] = []
    while error is not None and len(causes) < _MAX_CAUSES:
        causes.append(f"{getattr(error, '_desc', None) or error}\n{getattr(error, '_stackTrace', '')}")
        error = getattr(error, "_cause", None)
    return causes


def _first_line(error: object) -> str:
    lines = (
        line.strip(": ") for line in str(error).splitlines() if not line.startswith("An error occurred while calling")
    )
    return next((line for line in lines if line), "no reason given")[:500]
