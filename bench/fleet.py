"""How many applications one loop carries on this machine: `make bench-fleet`, results in bench/results/fleet.json.

A simulated monitor publishes the observations of many applications of ten operators, each at its own time within the
interval; analyzer, planner, executor and knowledge are the real services on a real Kafka and Redis. Measured: from the
observation to the plan at the broker, and each process's memory and processor time.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from bench.cost import OPERATORS, observation
from bench.results_file import distribution, write
from bench.running import PlanLatencies, usage_over
from testbed.kafka import KafkaBroker
from testbed.process import free_port
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from weir_contracts import LoopResult, derive_id, observation_id
from weir_contracts.topics import OBSERVATIONS, POLICIES
from weir_knowledge.adapters.redis import RedisStore
from weir_knowledge.store import Batch
from weir_runtime.bus import VERSION_HEADER
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import new_traceparent

PARTITIONS = 2
PLANNER_WORKERS = 2
"""As many as there are cores here."""
WARM_UP_SECONDS = 45.0
MEASURED_SECONDS = 60.0
HISTORY = 500
"""Past cycles of each application that knowledge has at the start: as many as it keeps."""


def name_of(number: int) -> str:
    """An application's name."""
    return f"fleet/app-{number:04}"


@dataclass
class Application:
    """One simulated application: its last observation as JSON, moved on at each interval."""

    name: str
    interval_seconds: float
    document: dict[str, Any]
    due: float
    started: datetime
    count: int = 0

    @classmethod
    def make(cls, number: int, interval_seconds: float, due: float, now: datetime) -> "Application":
        # Minutes old: its operators have long been warmed up.
        started = now - timedelta(minutes=5)
        name = name_of(number)
        first = observation(0, application=name, interval_seconds=interval_seconds, start=started)
        return cls(name, interval_seconds, first.model_dump(mode="json"), due, started)

    def next(self, now: datetime) -> tuple[UUID, bytes]:
        """The observation of this moment, with every counter grown steadily."""
        seconds = (now - self.started).total_seconds()
        id = observation_id(self.name, now)
        self.document |= {"id": str(id), "observed_at": now.isoformat()}
        for reading in self.document["operators"]:
            reading["records_in"] = reading["records_out"] = round(5000 * seconds)
            reading |= {"busy_ms": 2400.0 * seconds, "backpressured_ms": 100.0 * seconds, "idle_ms": 1500.0 * seconds}
        for partition in self.document["partitions"]:
            partition["log_end_offset"] = round(420 * seconds)
            partition["current_offset"] = round(420 * seconds) - 40
        self.due += self.interval_seconds
        self.count += 1
        return id, json.dumps(self.document).encode()


def headers_of(id: UUID, at: datetime) -> dict[str, str]:
    """An observation's envelope."""
    return {
        "ce_specversion": "1.0",
        "ce_id": str(id),
        "ce_type": OBSERVATIONS.type,
        "ce_source": "/weir/bench",
        "ce_time": at.isoformat(),
        "content-type": "application/json",
        "traceparent": new_traceparent(id),
    }


class Fleet:
    """The simulated monitor."""

    def __init__(self, bus: KafkaBus, applications: int, interval_seconds: float) -> None:
        self._bus = bus
        begin, now = time.monotonic() + 1.0, datetime.now(UTC)
        self.applications = [
            Application.make(n, interval_seconds, begin + interval_seconds * n / applications, now)
            for n in range(applications)
        ]
        self.late_seconds = 0.0

    async def publish_policies(self) -> None:
        """Publish each application's policy: knowledge shows only applications with one."""
        for application in self.applications:
            body = json.dumps(application.document["policy"]).encode()
            headers = {"ce_type": POLICIES.type, VERSION_HEADER: "1"}
            await self._bus.publish(POLICIES.name, application.name, body, headers)

    async def run(self, until: float) -> None:
        """Publish each application's observations at their times."""
        queue = list(self.applications)
        while time.monotonic() < until:
            for application in queue:
                wait = application.due - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                self.late_seconds = max(self.late_seconds, -wait)
                await self._publish(application)

    async def _publish(self, application: Application) -> None:
        now = datetime.now(UTC)
        id, body = application.next(now)
        await self._bus.publish(OBSERVATIONS.name, application.name, body, headers_of(id, now))


async def measured(
    kafka: KafkaBroker, services: list[WeirService], applications: int, interval_seconds: float
) -> dict[str, Any]:
    """One size of fleet at one interval."""
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    try:
        latencies = PlanLatencies(kafka.bootstrap_servers, PARTITIONS)
        fleet = Fleet(bus, applications, interval_seconds)
        await fleet.publish_policies()
        publishing = asyncio.create_task(fleet.run(time.monotonic() + WARM_UP_SECONDS + MEASURED_SECONDS))
        await asyncio.sleep(WARM_UP_SECONDS)
        before = len(latencies.seconds)
        published = sum(a.count for a in fleet.applications)
        processes = [kafka.process, *(s.process for s in services)]
        usage = await asyncio.to_thread(usage_over, processes, MEASURED_SECONDS - 2.0)
        await publishing
        waited = (await asyncio.to_thread(latencies.stop))[before:]
        published = sum(a.count for a in fleet.applications) - published
    finally:
        await bus.close()
    return {
        "applications": applications,
        "operators_each": OPERATORS,
        "interval_seconds": interval_seconds,
        "planner_workers": PLANNER_WORKERS,
        "past_cycles_each": HISTORY,
        "observations_per_second": round(published / MEASURED_SECONDS, 1),
        "plans_per_observation": round(len(waited) / published, 3) if published else None,
        "observation_to_plan_seconds": distribution(waited),
        "monitor_late_seconds": round(fleet.late_seconds, 3),
        "usage": usage,
    }


async def remember_the_past(redis: RedisServer, applications: int) -> None:
    """Fill knowledge with as much history of each application as it keeps."""
    store, now = RedisStore(SecretStr(redis.url), history_kept=HISTORY), datetime.now(UTC)
    parallelism = {f"operator-{n}": 4 for n in range(OPERATORS)}
    try:
        for number in range(applications):
            name = name_of(number)
            lines = [
                LoopResult(
                    at=now - timedelta(seconds=10 * age),
                    plan_id=derive_id(observation_id(name, now), f"plan-{age}"),
                    kind="hold",
                    code="objective-held",
                    current=parallelism,
                    lag_seconds=0.2,
                    arrival_rate=420.0,
                )
                for age in range(HISTORY, 0, -1)
            ]
            await store.apply(Batch({}, {}, entries=[(name, line) for line in lines]))
    finally:
        await store.close()


def scenario(applications: int, interval_seconds: float) -> dict[str, Any]:
    """Fresh parts for each, so that no backlog of one is another's burden."""
    with tempfile.TemporaryDirectory(prefix="weir-fleet-") as name:
        folder = Path(name)
        with KafkaBroker(folder / "kafka") as kafka, RedisServer(folder / "redis") as redis:
            asyncio.run(remember_the_past(redis, applications))
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            environment = loop_settings(kafka.bootstrap_servers, PARTITIONS, url, redis.url, folder)
            environment |= {"WEIR_LOG_LEVEL": "WARNING", "WEIR_PLANNER_WORKERS": str(PLANNER_WORKERS)}
            services = [
                WeirService(name, folder, environment, port=port if name == "knowledge" else None)
                for name in ("knowledge", "analyzer", "planner", "executor")
            ]
            try:
                for service in services:
                    service.start()
                wait_all_ready(services)
                return asyncio.run(measured(kafka, services, applications, interval_seconds))
            finally:
                for service in services:
                    service.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--applications", type=int, nargs="*", default=[200, 1000], help="sizes of the fleet")
    parser.add_argument("--intervals", type=float, nargs="*", default=[10.0, 5.0], help="seconds between observations")
    arguments = parser.parse_args()
    results = []
    for applications in arguments.applications:
        for interval in arguments.intervals:
            results.append(scenario(applications, interval))
            print(json.dumps(results[-1]), flush=True)
    print(write("fleet", "make bench-fleet", {"fleets": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
