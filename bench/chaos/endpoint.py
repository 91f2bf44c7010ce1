"""Scale endpoints as a target: the supervisor of the testbed, whose instances are members of consumer groups in this
process."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from confluent_kafka import Consumer

from testbed.kafka import KafkaBroker
from testbed.supervisor.api import endpoints
from testbed.supervisor.fleet import Fleet
from weir_contracts import DeploymentRef, Operator, Parallelism, Topology

from .faults import points_of
from .proxy import Exchange
from .simulated import JOBS

SESSION_SECONDS = 10
"""Session time-out of the instances: after it the group continues without an instance that hangs."""


class Member:
    """An instance: a consumer on a dedicated thread, which is ready once it has partitions."""

    metrics_url: str | None = None

    def __init__(self, group: str, number: int, bootstrap_servers: str) -> None:
        self.id = f"{group}-{number}"
        self._group = group
        self._servers = bootstrap_servers
        self._stopped = threading.Event()
        self._assigned = threading.Event()
        self._thread = threading.Thread(target=self._poll, name=self.id, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def ready(self) -> bool:
        return self._assigned.is_set()

    def _poll(self) -> None:
        settings = {
            "bootstrap.servers": self._servers,
            "group.id": self._group,
            "client.id": self.id,
            "session.timeout.ms": SESSION_SECONDS * 1000,
            "heartbeat.interval.ms": 1000,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        consumer.subscribe(
            [self._group],
            on_assign=lambda _consumer, partitions: self._assigned.set() if partitions else None,
            on_revoke=lambda *_: self._assigned.clear(),
        )
        while not self._stopped.is_set():
            consumer.poll(0.2)
        consumer.close()


class Endpoints:
    """A group of instances behind each of two endpoints."""

    max_parallelism = 8
    points = points_of(("endpoint", "GET", r"/scale/[^/]+"), ("endpoint", "PUT", r"/scale/[^/]+"))

    def __init__(self) -> None:
        self.urls: Mapping[str, Mapping[str, str]] = {}
        self._servers = ""
        self._fleets: dict[str, Fleet] = {}

    @asynccontextmanager
    async def serving(self, kafka: KafkaBroker) -> AsyncIterator[None]:
        self._servers = kafka.bootstrap_servers
        for name in JOBS:
            await asyncio.to_thread(kafka.create_topic, name, self.max_parallelism)
        self._fleets = {name: self._fleet(name) for name in JOBS}
        async with endpoints(self._fleets, self.max_parallelism) as urls:
            self.urls = {name: {"endpoint": url} for name, url in urls.items()}
            yield

    def _fleet(self, name: str) -> Fleet:
        numbers = count(1)
        return Fleet(lambda _ordinal: Member(name, next(numbers), self._servers), 1)

    def spec(self, name: str, urls: Mapping[str, str]) -> dict[str, Any]:
        return {
            "application": {"consumerGroup": {"groupId": name}},
            "signals": {"kafka": {"bootstrapServers": self._servers}},
            "target": {"endpoint": {"url": f"{urls['endpoint']}/scale/{name}"}},
        }

    def parallelism(self, name: str, number: int) -> Parallelism:
        return {name: number}

    def deployment(self, name: str) -> DeploymentRef:
        """Return the replicas that the endpoint is to run, and the number of instances with partitions."""
        state, graph = self._fleets[name].state(), Topology(operators=[Operator(name=name, id=name)])
        observed = {name: max(1, state.ready)}
        return DeploymentRef(
            job_id=name, graph_hash=graph.graph_hash(), requested={name: state.scale.replicas}, observed=observed
        )

    def request_of(self, exchange: Exchange) -> tuple[str, Parallelism] | None:
        """Return what a `PUT /scale/NAME` asks for."""
        if (exchange.server, exchange.method) != ("endpoint", "PUT"):
            return None
        name = exchange.path.removeprefix("/scale/")
        return name, {name: exchange.body["replicas"]}

    def troubles(self, _name: str, _number: int) -> list[str]:
        return []
