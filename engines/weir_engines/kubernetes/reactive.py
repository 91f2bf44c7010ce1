"""A Flink job in reactive mode, which the number of its TaskManagers scales: what the kubernetes driver asks of Flink."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from weir_contracts import Parallelism, Subject, Topology, Unit, sizes
from weir_engines.driver import Driver, Snapshot
from weir_engines.kubernetes import state
from weir_engines.kubernetes.service import merged
from weir_engines.kubernetes.state import Found
from weir_engines.scrape import Scrape
from weir_runtime.clock import Clock


class Cluster(Driver, Protocol):
    """The engine's driver."""

    async def slots(self, subject: Subject) -> int | None:
        """Return the registered slots; None if unknown."""


class ReactiveJob(state.Instances):
    """Observes and checkpoints the jobs of a `Cluster`."""

    def __init__(self, cluster: Cluster, clock: Clock, *, checkpoint_seconds: float = 5.0) -> None:
        self._cluster = cluster
        self._clock = clock
        self._checkpoint_seconds = checkpoint_seconds
        self._resourced: dict[str, tuple[int, datetime | None]] = {}

    async def observe(self, subject: Subject, found: Sequence[Found]) -> Snapshot:
        """Return the job's snapshot, in which the pods are the request."""
        (pods,) = found
        observed = await self._cluster.observe(subject)
        unit = state.target_of(subject).unit
        if observed.deployment is None or observed.topology is None or unit is None:
            return observed
        scrape = Scrape("running", "", deployment=observed.deployment, topology=observed.topology)
        deployment = merged(scrape, state.as_reading(found), state.target_of(subject), subject.namespace).deployment
        if deployment is None:
            return observed
        deployment = deployment.model_copy(update={"requested_lower": observed.deployment.requested_lower})
        waits = deployment.observed != deployment.requested
        slots = pods.reading.status.wanted * unit.slots
        return replace(
            observed,
            deployment=deployment,
            all_running=observed.all_running and pods.is_settled,
            resourced_at=await self._resourced_at(subject, slots, waits=waits),
            writers={} if pods.writer is None else dict.fromkeys(observed.topology.names, pods.writer),
        )

    async def requested(self, subject: Subject, found: Sequence[Found]) -> Snapshot:
        """Return the job's own state."""
        return await self._cluster.observe(subject)

    def unfit(self, subject: Subject, parallelism: Parallelism, observed: Snapshot) -> str:
        unit = state.target_of(subject).unit
        return "the workload has no slots" if unit is None else unfit(parallelism, unit, observed)

    async def _resourced_at(self, subject: Subject, slots: int, *, waits: bool) -> datetime | None:
        """Return when all `slots` were first observed registered, while the job does not use them."""
        previous = self._resourced.pop(subject.id, None)
        if not waits:
            return None
        at = previous[1] if previous is not None and previous[0] == slots else None
        if at is None and await self._cluster.slots(subject) == slots:
            at = self._clock.now()
        self._resourced[subject.id] = (slots, at)
        return at

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        return await self._cluster.trigger_checkpoint(subject, job_id)

    async def complete_checkpoint(self, subject: Subject, job_id: str, observed: Snapshot) -> None:
        await complete_checkpoint(self._cluster, subject, job_id, observed, self._checkpoint_seconds)


async def complete_checkpoint(
    cluster: Driver, subject: Subject, job_id: str, observed: Snapshot, seconds: float
) -> None:
    """Trigger a checkpoint just before slots are removed, since the job restores the last one; wait for it up to a limit in
    seconds."""
    if await cluster.trigger_checkpoint(subject, job_id) is not None:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                now = await cluster.observe(subject)
                if now.checkpoint_completed_at != observed.checkpoint_completed_at:
                    return
                await asyncio.sleep(0.25)


def unfit(parallelism: Parallelism, unit: Unit, observed: Snapshot) -> str:
    """Return why no number of instances gives this parallelism; empty if one does."""
    topology, deployment = observed.topology, observed.deployment
    if topology is None or deployment is None:
        return "the job's graph is unknown"
    if set(parallelism) != set(topology.names):
        odd = sorted(set(parallelism) ^ set(topology.names))
        return f"the job and the request differ in operators: {', '.join(odd[:5])}"
    return _unfit_level(parallelism, unit, topology) or _unfit_requirements(
        parallelism, deployment.rescale.scheduler, observed
    )


def _unfit_level(parallelism: Parallelism, unit: Unit, topology: Topology) -> str:
    level = max(parallelism.values())
    max_level = max(operator.max_parallelism or level for operator in topology.operators)
    if level > max_level:
        return f"{level} is above the largest maximum parallelism of any operator, {max_level}"
    if parallelism != topology.uniform(level):
        return f"all operators have the same parallelism here, and {sizes(parallelism)} is not one"
    reached = unit.parallelism_of(topology, unit.instances_for(topology, level))
    if reached != level:
        return f"no number of {unit.instance}s of {unit.slots} slots gives {level}: the next is {reached}"
    return ""


def _unfit_requirements(parallelism: Parallelism, scheduler: str | None, observed: Snapshot) -> str:
    """Return why the job would not use the slots: outside reactive mode its requirements limit it."""
    requested = observed.deployment.requested if observed.deployment else None
    if scheduler == "reactive" or requested is None:
        return ""
    short = [f"{name} {requested[name]}" for name, p in parallelism.items() if requested.get(name, p) < p]
    if not short:
        return ""
    return (
        f"the job requests no more than {', '.join(short[:5])}, however many slots there are: run it in reactive mode"
    )
