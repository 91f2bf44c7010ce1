"""Flink jobs that Weir stops with a savepoint and runs again: a simulated cluster of the default scheduler for each job."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from testbed.kafka import KafkaBroker
from testbed.simulated_flink import NAMES
from testbed.simulated_savepoints import ENTRY_CLASS, JAR_NAME, ResubmittedJobs
from weir_contracts import DeploymentRef, Parallelism
from weir_engines.driver import lineage_of
from weir_engines.flink_resubmit.responses import OVERRIDES

from .faults import points_of
from .proxy import Exchange
from .simulated import JOBS, TwoOperators


class ResubmittedTarget(TwoOperators):
    """A job in each of two clusters. A job and its successors are one to the judge, by what their ids have in common."""

    points = points_of(
        ("kafka", "PRODUCE", "/preparing"),
        ("flink", "GET", "/jobs/overview"),
        ("flink", "POST", "/stop"),
        ("flink", "GET", r"/savepoints/[0-9a-f]+"),
        ("flink", "POST", "/run"),
    )

    def __init__(self) -> None:
        self._clusters = {name: ResubmittedJobs([name], time.time) for name in JOBS}

    @asynccontextmanager
    async def serving(self, _kafka: KafkaBroker) -> AsyncIterator[None]:
        async with AsyncExitStack() as parts:
            for cluster in self._clusters.values():
                await parts.enter_async_context(cluster.serving())
            yield

    @property
    def urls(self) -> Mapping[str, Mapping[str, str]]:
        return {name: {"flink": cluster.url} for name, cluster in self._clusters.items()}

    def spec(self, name: str, urls: Mapping[str, str]) -> dict[str, Any]:
        jar = {"jar": JAR_NAME, "entryClass": ENTRY_CLASS, "savepointDirectory": "file:///state"}
        return {
            "application": {"flink": {"url": urls["flink"], "job": name}},
            "target": {"flink": {"resubmit": jar}},
        }

    def deployment(self, name: str) -> DeploymentRef:
        cluster = self._clusters[name]
        cluster.pass_time()
        job = (cluster.alive or cluster.all)[-1]
        return self.ref(job, lineage_of(job.id), cluster.graph_hash)

    def request_of(self, exchange: Exchange) -> tuple[str, Parallelism] | None:
        """Return what a `POST /jars/:id/run` asks for."""
        if exchange.method != "POST" or not exchange.path.endswith("/run"):
            return None
        pairs = (each.split(":") for each in exchange.body["flinkConfiguration"][OVERRIDES].split(","))
        return lineage_of(exchange.body["jobId"]), {NAMES[vertex]: int(p) for vertex, p in pairs}

    def troubles(self, name: str, _number: int) -> list[str]:
        """Return whether another number of jobs than one runs."""
        alive = self._clusters[name].alive
        return [] if len(alive) == 1 else [f"{len(alive)} jobs of the name {name} run"]
