"""A cluster in memory whose TaskManagers the driver brings and releases."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tests.unit.engines.memory_jobs import MemoryDriver
from weir_contracts import Subject
from weir_engines.driver import (
    Accepted,
    Fence,
    Refusal,
    Rejected,
    Snapshot,
    TargetChanged,
    TaskManagers,
    Unanswered,
    contested,
)
from weir_runtime.clock import Clock


@dataclass
class Pool:
    """TaskManagers of a cluster. Change its fields to make it misbehave."""

    wanted: int = 1
    slots: int = 1
    max: int = 16
    start_seconds: float = 5.0
    come: int = 1000
    """Number that ever registers."""
    stays: int = 0
    """Number that cannot be released, because their slots are in use."""
    refusal: Refusal | None = None
    away: str = ""
    registered: int = 1
    since: datetime | None = None
    """When the last change of the number was requested."""
    provided: list[int] = field(default_factory=list)
    """Each number that was requested."""
    lost_answers: int = 0
    """Number of accepted changes whose response is lost."""


class ManagedMemory(MemoryDriver):
    """Clusters whose TaskManagers `pool` counts; one job on each."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.pool = Pool()

    def _pass_time(self, now: datetime) -> None:
        pool = self.pool
        if pool.registered > pool.wanted:
            pool.registered = pool.wanted
        elif pool.since is not None and now >= pool.since + timedelta(seconds=pool.start_seconds):
            pool.registered = max(pool.registered, min(pool.wanted, pool.come))
        for job in self.jobs.values():
            job.slots = pool.registered * pool.slots

    async def observe(self, subject: Subject) -> Snapshot:
        pool = self.pool
        self._pass_time(self._clock.now())
        found = await super().observe(subject)
        if pool.away:
            return replace(found, managers=TaskManagers(slots=pool.slots, max=pool.max, reason=pool.away))
        used = 0
        if found.deployment is not None and found.topology is not None and found.all_running:
            used = found.topology.slots(found.deployment.observed)
        total = pool.registered * pool.slots
        managers = TaskManagers(
            slots=pool.slots,
            max=pool.max,
            wanted=pool.wanted,
            registered_slots=total,
            free_slots=max(0, total - used),
            is_settled=pool.registered == pool.wanted,
            releasable=max(0, pool.wanted - pool.stays) if pool.stays else None,
            refusal=pool.refusal,
        )
        return replace(found, managers=managers)

    async def provide(
        self, subject: Subject, job_id: str, managers: int, expected: range, fence: Fence
    ) -> Accepted | Rejected | TargetChanged | Unanswered | Refusal:
        pool = self.pool
        if pool.away:
            return Unanswered(pool.away)
        if managers > pool.max:
            return Rejected(f"{managers} TaskManagers are more than the policy's {pool.max}")
        if pool.wanted == managers:
            return Accepted(self._clock.now())
        if pool.wanted not in expected:
            return contested(f"{pool.wanted} TaskManagers")
        held = await fence.begin()
        if held is not None:
            return held
        pool.wanted, pool.since = managers, self._clock.now()
        pool.provided.append(managers)
        if pool.lost_answers > 0:
            pool.lost_answers -= 1
            return Unanswered("the answer was lost")
        return Accepted(self._clock.now())
