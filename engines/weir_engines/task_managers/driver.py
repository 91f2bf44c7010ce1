"""Driver of Flink jobs that are rescaled in place, with TaskManagers that it brings and releases.

The job is Flink's own driver's. A TaskManager belongs to the pod with the address, or the name, that it registered with. In
reactive mode the number of TaskManagers is the request, and gives all operators one parallelism.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from weir_contracts import Deployment, Parallelism, Subject, Unit, counted, short_name
from weir_engines.driver import (
    Accepted,
    Driver,
    Fence,
    Refusal,
    Rejected,
    Snapshot,
    Steadiness,
    TargetChanged,
    TaskManagers,
    Unanswered,
    WithoutGroups,
    contested,
)
from weir_engines.flink.driver import RegisteredManagers
from weir_engines.flink.metrics import ManagerSlots
from weir_engines.kubernetes.reactive import complete_checkpoint, unfit
from weir_engines.kubernetes.state import unanswerable
from weir_engines.task_managers.pools import Answer, Pool, PoolReading, managers_of
from weir_runtime.clock import Clock

MAX_CHOSEN = 50
"""Pods that are marked one after another before a write."""


class Jobs(Driver, Protocol):
    """The driver of the jobs."""

    async def registered(self, subject: Subject) -> RegisteredManagers | str:
        """Return the TaskManagers that are registered at the job's cluster, or why they are unknown."""


class TaskManagersDriver(WithoutGroups):
    """All jobs whose policies name TaskManagers."""

    def __init__(self, clock: Clock, jobs: Jobs, pools: Mapping[str, Pool], *, checkpoint_seconds: float = 5.0) -> None:
        self._clock = clock
        self._jobs = jobs
        self._pools = pools
        self._checkpoint_seconds = checkpoint_seconds
        self._enough = Steadiness()

    async def close(self) -> None:
        """Do nothing: the engines that run the parts close them."""

    async def observe(self, subject: Subject) -> Snapshot:
        found, pool, registered = await asyncio.gather(
            self._jobs.observe(subject), self._pool(subject).read(subject), self._jobs.registered(subject)
        )
        unit = managers_of(subject).unit
        if unit is not None:
            return self._reactive(subject, unit, found, pool, registered)
        return replace(found, managers=_managers(subject, found.deployment, pool, registered))

    def _reactive(
        self, subject: Subject, unit: Unit, found: Snapshot, pool: PoolReading, registered: RegisteredManagers | str
    ) -> Snapshot:
        """Return the snapshot of a job that takes every slot: the TaskManagers are what is requested of it."""
        deployment, topology = found.deployment, found.topology
        if pool.wanted is None:
            return Snapshot(found.at, reachable=False, reason=pool.reason, refusal=pool.refusal)
        if deployment is None or topology is None:
            return replace(found, refusal=pool.refusal)
        requested = topology.uniform(unit.parallelism_of(topology, pool.wanted)) if pool.wanted else None
        each = () if isinstance(registered, str) else registered.each
        waits = deployment.observed != requested
        is_enough = sum(manager.slots for manager in each) >= pool.wanted * unit.slots
        since = self._enough.since(subject.id, (pool.wanted, waits, is_enough), found.at)
        workloads = [] if pool.workload is None else [pool.workload]
        return replace(
            found,
            deployment=deployment.model_copy(update={"requested": requested, "workloads": workloads}),
            all_running=found.all_running and pool.is_settled,
            resourced_at=since if waits and is_enough else None,
            refusal=_other_mode(deployment) or _mismatch(each, unit.slots) or pool.refusal,
            progress=pool.progress,
            writers={} if pool.writer is None else dict.fromkeys(topology.names, pool.writer),
        )

    async def request(
        self,
        subject: Subject,
        job_id: str,
        parallelism: Parallelism,
        expected: Parallelism,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Accepted | Rejected | TargetChanged | Unanswered | Refusal:
        unit = managers_of(subject).unit
        if unit is None:
            return await self._jobs.request(subject, job_id, parallelism, expected, fence, version=version)
        found, observed = await asyncio.gather(self._pool(subject).read(subject), self._jobs.observe(subject))
        missing = unanswerable(job_id, observed)
        if missing is not None:
            return missing
        problem, topology = unfit(parallelism, unit, observed), observed.topology
        if problem or topology is None:
            return Rejected(problem)
        before, wanted = (unit.instances_for(topology, max(vector.values())) for vector in (expected, parallelism))
        there = found.wanted
        if there is not None and topology.uniform(unit.parallelism_of(topology, there)) == expected:
            before = there  # more than are needed for its parallelism
        low, high = sorted((before, wanted))
        return await self.provide(subject, job_id, wanted, range(low, high + 1, max(1, high - low)), fence)

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        return await self._jobs.trigger_checkpoint(subject, job_id)

    async def provide(self, subject: Subject, job_id: str, managers: int, expected: range, fence: Fence) -> Answer:
        target, pool = managers_of(subject), self._pool(subject)
        found = await pool.read(subject)
        if found.wanted == managers:
            return Accepted(self._clock.now())
        if managers > max(target.max, found.wanted or 0):  # fewer than there are may still be too many
            return Rejected(f"{counted(managers, 'TaskManager')} are more than the policy's {target.max}")
        if found.refusal is not None:
            return found.refusal
        if found.wanted is None:
            return Unanswered(found.reason)
        if found.wanted not in expected:
            return contested(counted(found.wanted, "TaskManager"), found.writer or "")
        held = await fence.begin()
        if held is not None:
            return held
        if managers < found.wanted:
            kept = await self._choose(subject, job_id, found, managers, fence)
            if kept is not None:
                return kept
        return await pool.set(subject, found, managers, fence)

    async def _choose(
        self, subject: Subject, job_id: str, found: PoolReading, managers: int, fence: Fence
    ) -> TargetChanged | Unanswered | Refusal | None:
        """Choose the TaskManagers that go. Where slots in use may go, which is not known to be otherwise, complete a checkpoint:
        the job restores its last one. Return why none may go."""
        registered = await self._jobs.registered(subject)
        if isinstance(registered, str):
            return Unanswered(f"it is unknown which slots are free: {registered}")
        free, count = free_pods(found, registered), (found.wanted or 0) - managers
        if free is not None:
            count = max(0, len(found.pods) - managers)  # a replica without a pod has no slots
        if free is not None and managers_of(subject).unit is None:
            if len(free) < count:
                return TargetChanged("slots that were free are in use")
            if found.unready - set(free):
                return TargetChanged("a pod whose slots are in use is not ready: it would go first")
        chosen = await self._pool(subject).choose(found, (free or [])[: min(count, MAX_CHOSEN)], fence)
        if isinstance(chosen, Unanswered) or chosen == count:
            return chosen if isinstance(chosen, Unanswered) else None
        observed = await self._jobs.observe(subject)
        if not observed.reachable:
            return Unanswered(observed.reason)
        if not observed.can_trigger_checkpoint:
            return None
        held = await fence.go_on()
        if held is not None:
            return held
        await complete_checkpoint(self._jobs, subject, job_id, observed, self._checkpoint_seconds)
        return await fence.begin()  # it took a while

    def _pool(self, subject: Subject) -> Pool:
        return self._pools["endpoint" if managers_of(subject).kubernetes is None else "kubernetes"]


def free_pods(found: PoolReading, registered: RegisteredManagers) -> list[str] | None:
    """Return the pods whose TaskManager has only free slots, or has not registered; None: which ones go is not Weir's choice,
    or it is unknown which pod has which TaskManager."""
    used = [each for each in registered.each if each.free < each.slots]
    by_pod = {name: [each for each in used if _is_of(each, name, addresses)] for name, addresses in found.pods}
    if not by_pod or sum(map(len, by_pod.values())) < len(used):
        return None
    return [name for name, those in by_pod.items() if not those]


def _is_of(manager: ManagerSlots, pod: str, addresses: Sequence[str]) -> bool:
    """Return whether a TaskManager runs in a pod: by its address, or by its name in a headless service or as its id."""
    host = manager.host.partition(".")[0]
    return manager.host in addresses or pod in (host, manager.id)


def _managers(
    subject: Subject, deployment: Deployment | None, pool: PoolReading, registered: RegisteredManagers | str
) -> TaskManagers:
    target = managers_of(subject)
    found = TaskManagers(
        slots=target.slots,
        max=target.max,
        wanted=pool.wanted,
        is_settled=pool.is_settled,
        one_by_one=pool.workload is not None and pool.workload.one_by_one,
        refusal=pool.refusal,
        progress=pool.progress,
        reason=pool.reason,
    )
    if deployment is not None and deployment.rescale.max_slots is not None:
        sentence = "the cluster starts TaskManagers itself: remove target.flink.taskManagers"
        return replace(found, refusal=Refusal("unsupported", sentence))
    if isinstance(registered, str):
        return replace(found, releasable=0)
    chosen = free_pods(pool, registered)  # a replica without a pod has no slots either
    # A pod that is not ready goes before those that are chosen.
    is_safe = chosen is None or not pool.unready - set(chosen)
    total, free = sum(each.slots for each in registered.each), sum(each.free for each in registered.each)
    return replace(
        found,
        registered_slots=total,
        free_slots=free if registered.is_shared else None,
        others_slots=registered.others,
        releasable=None
        if chosen is None
        else min(MAX_CHOSEN if is_safe else 0, max(0, (pool.wanted or 0) - (len(pool.pods) - len(chosen)))),
        refusal=_mismatch(registered.each, target.slots) or found.refusal,
    )


def _other_mode(deployment: Deployment) -> Refusal | None:
    """Return the refusal of a policy that takes the cluster for one in reactive mode."""
    scheduler = deployment.rescale.scheduler
    if scheduler in (None, "reactive"):
        return None
    sentence = f"the cluster's scheduler is {scheduler}, not reactive: remove target.flink.taskManagers.reactive"
    return Refusal("unsupported", sentence)


def _mismatch(registered: Sequence[ManagerSlots], slots: int) -> Refusal | None:
    """Return the refusal of a policy that counts other slots than the TaskManagers have. One that has just registered has
    none until it reports them."""
    other = next((each for each in registered if each.slots not in (0, slots)), None)
    if other is None:
        return None
    has = f"TaskManager {short_name(other.id or other.host)} has {counted(other.slots, 'slot')}"
    return Refusal("slots-mismatch", f"{has}, target.flink.taskManagers.slots says {slots}")
