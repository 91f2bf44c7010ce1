"""A simulated monitor, for the benchmarks of many applications: it publishes observations of applications of ten operators,
each at its own time within the interval, to the bus of the loop that is measured."""

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from bench.cost import OPERATORS, observation
from weir_contracts import LoopResult, derive_id, observation_id
from weir_contracts.topics import OBSERVATIONS, POLICIES
from weir_knowledge.store import Batch, Store
from weir_runtime.bus import VERSION_HEADER, Bus
from weir_runtime.messages import new_traceparent

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

    def __init__(self, bus: Bus, applications: int, interval_seconds: float) -> None:
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


async def remember_the_past(store: Store, applications: int) -> None:
    """Fill knowledge with as much history of each application as it keeps."""
    now = datetime.now(UTC)
    parallelism = {f"operator-{n}": 4 for n in range(OPERATORS)}
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
