"""`make bench-backlog`: how fast the analyzer works a backlog off, and what limits it; results in bench/results/backlog.json.

A simulated fleet's observations (ten operators each) wait in Kafka before the analyzer starts. Measured from the first analysis at the
broker to the last, so that Spark's start is not counted; once for each of the settings that could matter. The core alone, in one
process without Kafka and Spark, is what `make bench-advance` measures.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Message
from weir_contracts.topics import ANALYSES, OBSERVATIONS

from bench.advance import OPERATORS
from bench.fleet import Application, headers_of
from bench.follower import TopicFollower
from bench.results_file import write
from runtime.kafka_bus import KafkaBus
from runtime.records import Outgoing
from runtime.service import topic_specs
from testbed.jars import spark_jars
from testbed.kafka import KafkaBroker
from testbed.process import Usage
from testbed.service import WeirService

PARTITIONS = 4
INTERVAL_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""So long without an analysis, and what is still missing will not come."""
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "shuffle-1": {"WEIR_ANALYZER_SHUFFLE_PARTITIONS": "1"},
    "shuffle-2": {"WEIR_ANALYZER_SHUFFLE_PARTITIONS": "2"},
    "shuffle-8": {"WEIR_ANALYZER_SHUFFLE_PARTITIONS": "8"},
    "batch-500": {"WEIR_ANALYZER_MAX_RECORDS_PER_BATCH": "500"},
    "batch-10000": {"WEIR_ANALYZER_MAX_RECORDS_PER_BATCH": "10000"},
    "one-core": {"WEIR_ANALYZER_SPARK_MASTER": "local[1]"},
}
"""Each against the defaults, one thing changed at a time."""

Moment = tuple[int, Usage | None, Usage | None]
"""Analyses so far, and what the analyzer and the broker had used."""


async def fill(bootstrap_servers: str, applications: int, each: int) -> None:
    """Create the topics and publish the backlog: `each` observations of every application, up to now, in the order of time."""
    bus = KafkaBus(bootstrap_servers)
    await bus.start()
    try:
        await bus.ensure_topics(topic_specs(PARTITIONS))
        began = datetime.now(UTC) - timedelta(seconds=INTERVAL_SECONDS * (each + 1))
        fleet = [Application.make(n, INTERVAL_SECONDS, 0.0, began) for n in range(applications)]
        for i in range(1, each + 1):
            at = began + timedelta(seconds=INTERVAL_SECONDS * i)
            batch = []
            for application in fleet:
                id, body = application.next(at)
                batch.append(Outgoing(OBSERVATIONS.name, application.name, body, headers_of(id, at)))
            await bus.publish_many(batch)
    finally:
        await bus.close()


class Analyses:
    """Counts what comes out, with the broker's times."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.at: list[float] = []
        """When each analysis was written, in s of the epoch."""
        self.twice = 0
        self._seen: set[str] = set()
        self._follower = TopicFollower(bootstrap_servers, [ANALYSES.name], PARTITIONS, self._take)

    def stop(self) -> None:
        """Nothing is read any more."""
        self._follower.stop()

    def _take(self, message: Message) -> None:
        id = json.loads(message.value() or b"")["observation_id"]
        self.twice += id in self._seen
        self._seen.add(id)
        self.at.append(message.timestamp()[1] / 1000)

    def wait(self, count: int) -> None:
        """Until so many have come, or nothing has come for a minute."""
        last, since = 0, time.monotonic()
        while len(self.at) < count and time.monotonic() - since < SILENCE_SECONDS:
            if len(self.at) > last:
                last, since = len(self.at), time.monotonic()
            time.sleep(0.1)


def measured(
    name: str,
    settings: Mapping[str, str],
    applications: int,
    each: int,
    executors_cpu_seconds: Callable[[], float] = lambda: 0.0,
) -> dict[str, Any]:
    """One backlog under one group of settings. `executors_cpu_seconds`: what a cluster beside the analyzer's process has used."""
    total = applications * each
    with tempfile.TemporaryDirectory(prefix="weir-backlog-") as temporary:
        folder = Path(temporary)
        with KafkaBroker(folder / "kafka") as kafka:
            asyncio.run(fill(kafka.bootstrap_servers, applications, each))
            environment = {
                "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
                "WEIR_PARTITIONS": str(PARTITIONS),
                "WEIR_ANALYZER_CHECKPOINT": str(folder / "spark"),
                "WEIR_ANALYZER_JARS": str(spark_jars()[0].parent),
                "WEIR_LOG_LEVEL": "WARNING",
                **settings,
            }
            analyses = Analyses(kafka.bootstrap_servers)
            analyzer = WeirService("analyzer", folder, environment).start()
            try:
                analyses.wait(1)
                used = executors_cpu_seconds()
                before = (len(analyses.at), analyzer.process.usage(), kafka.process.usage())
                analyses.wait(total)
                after = (len(analyses.at), analyzer.process.usage(), kafka.process.usage())
                used = executors_cpu_seconds() - used
            finally:
                analyzer.stop()
                analyses.stop()
    figures = _figures(analyses, total, before, after)
    if used and after[0] > before[0]:
        figures["executors_cpu_milliseconds_each"] = round(1000 * used / (after[0] - before[0]), 2)
    return {"name": name, "settings": settings, **figures}


def _figures(analyses: Analyses, total: int, before: Moment, after: Moment) -> dict[str, Any]:
    came = sorted(analyses.at)
    seconds = came[-1] - came[0] if len(came) > 1 else None
    # The first batch's work was done before its first analysis came: only what followed is counted.
    first_batch = sum(1 for at in came if at - came[0] < 1.0)
    rate = (len(came) - first_batch) / seconds if seconds else None
    return {
        "observations": total,
        "analyses": len(came),
        "analyses_twice": analyses.twice,
        "seconds": None if seconds is None else round(seconds, 2),
        "observations_per_second": None if rate is None else round(rate, 1),
        "operator_readings_per_second": None if rate is None else round(rate * OPERATORS),
        "analyzer_cpu_milliseconds_each": _cpu_each(before[1], after[1], after[0] - before[0]),
        "analyzer_rss_megabytes": None if after[1] is None else round(after[1].rss_bytes / 1e6),
        "broker_cpu_milliseconds_each": _cpu_each(before[2], after[2], after[0] - before[0]),
    }


def _cpu_each(before: Usage | None, after: Usage | None, analyses: int) -> float | None:
    if before is None or after is None or analyses < 1:
        return None
    return round(1000 * (after.cpu_seconds - before.cpu_seconds) / analyses, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--applications", type=int, default=200, help="size of the fleet (default 200)")
    parser.add_argument("--each", type=int, default=60, help="observations of each (default 60: ten minutes)")
    parser.add_argument("--only", nargs="*", choices=tuple(SETTINGS), default=list(SETTINGS), help="which settings")
    arguments = parser.parse_args()
    results = []
    for name in arguments.only:
        results.append(measured(name, SETTINGS[name], arguments.applications, arguments.each))
        print(json.dumps(results[-1]), flush=True)
    print(write("backlog", "make bench-backlog", {"operators_each": OPERATORS, "runs": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
