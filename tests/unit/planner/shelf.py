"""Registered planners without a bus, and requests to the API without processes."""

from collections.abc import Callable
from typing import Any

from weir_contracts import PlannerRegistration
from weir_planner.pool import Answer, Pool
from weir_planner.remote import Registrations
from weir_planner.workers import Workers
from weir_runtime.clock import FakeClock
from weir_runtime.memory_bus import MemoryBus


class FixedRegistrations(Registrations):
    """Registrations that exist from the start."""

    def __init__(self, clock: FakeClock, *kept: PlannerRegistration) -> None:
        super().__init__(MemoryBus(partitions=1, clock=clock), clock)
        self._kept = {each.name: each for each in kept}

    @property
    def ready(self) -> bool:
        return True

    @property
    def latest(self) -> dict[str, PlannerRegistration]:
        return self._kept

    async def remove(self, name: str) -> None:
        self._kept = {other: kept for other, kept in self._kept.items() if other != name}


class _Here(Pool):
    async def start(self) -> None:
        return

    async def run(self, work: Callable[..., Answer], *arguments: Any, **limits: Any) -> Answer:
        return work(*arguments)


class RequestsHere(Workers):
    """Checks parameters and judges in this process."""

    def __init__(self) -> None:
        super().__init__(1)
        self._requests = _Here(1)
