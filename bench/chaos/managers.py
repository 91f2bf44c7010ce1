"""Flink jobs whose TaskManagers Weir starts and ends: a simulated cluster for each job, and a scale endpoint for its TaskManagers."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

from testbed.kafka import KafkaBroker
from testbed.simulated_flink import ManyJobs
from testbed.supervisor.api import endpoints
from testbed.supervisor.fleet import Fleet
from weir_contracts import DeploymentRef

from .faults import points_of
from .simulated import JOBS, RESCALE_SECONDS, TwoOperators

SLOTS = 2
"""Of one TaskManager."""
START_SECONDS = 1.5
"""From a TaskManager's start until its slots are registered."""


class Manager:
    """A TaskManager, which has registered once it is ready."""

    metrics_url: str | None = None

    def __init__(self, id: str) -> None:
        self.id, self.running = id, False

    def start(self) -> None:
        self.running, self._ready_at = True, time.monotonic() + START_SECONDS

    def stop(self) -> None:
        self.running = False

    def ready(self) -> bool:
        return time.monotonic() >= self._ready_at


class ManagedJobs(TwoOperators):
    """A job on TaskManagers of two slots in each of two clusters."""

    points = points_of(
        ("kafka", "PRODUCE", "/preparing"),
        ("kafka", "PRODUCE", "/releasing"),
        ("flink", "GET", "/taskmanagers"),
        ("flink", "PUT", "/resource-requirements"),
        ("endpoint", "GET", r"/scale/[^/]+"),
        ("endpoint", "PUT", r"/scale/[^/]+"),
    )

    def __init__(self) -> None:
        self.urls: Mapping[str, Mapping[str, str]] = {}
        self._fleets: dict[str, Fleet] = {}
        self._clusters: dict[str, ManyJobs] = {}

    @asynccontextmanager
    async def serving(self, _kafka: KafkaBroker) -> AsyncIterator[None]:
        self._fleets = {name: _fleet(name) for name in JOBS}
        self._clusters = {name: ManyJobs([name], RESCALE_SECONDS, self._registered(name), SLOTS) for name in JOBS}
        async with AsyncExitStack() as parts:
            for cluster in self._clusters.values():
                await parts.enter_async_context(cluster.serving())
            urls = await parts.enter_async_context(endpoints(self._fleets, self._managers(self.max_parallelism)))
            self.urls = {name: {"flink": self._clusters[name].url, "endpoint": urls[name]} for name in JOBS}
            yield

    def spec(self, name: str, urls: Mapping[str, str]) -> dict[str, Any]:
        pool = {"endpoint": {"url": f"{urls['endpoint']}/scale/{name}"}}
        managers = {**pool, "slots": SLOTS, "max": self._managers(self.max_parallelism)}
        return {
            "application": {"flink": {"url": urls["flink"], "job": name}},
            "target": {"flink": {"taskManagers": managers}},
        }

    def deployment(self, name: str) -> DeploymentRef:
        cluster, ready = self._clusters[name], len(self._ready(name))
        job = cluster.jobs[name]
        job.settle(ready * SLOTS)
        return self.ref(job, job.id, cluster.graph_hash)

    def troubles(self, name: str, number: int) -> list[str]:
        """Return whether other TaskManagers run than the job needs."""
        there, needed = len(self._fleets[name].state().instances), self._managers(number)
        return [] if there == needed else [f"{name} has {there} TaskManagers and needs {needed}"]

    def _managers(self, number: int) -> int:
        return -(-number // SLOTS)

    def _ready(self, name: str) -> list[str]:
        return [each.id for each in self._fleets[name].state().instances if each.running and each.ready()]

    def _registered(self, name: str) -> Callable[[], Awaitable[list[tuple[str, str]]]]:
        async def registered() -> list[tuple[str, str]]:
            return [(each, each) for each in self._ready(name)]

        return registered


def _fleet(name: str) -> Fleet:
    numbers = count(1)
    return Fleet(lambda _ordinal: Manager(f"{name}-{next(numbers)}"), 1)
