"""Driver for a job in reactive mode, scaled by the containers of the compose service that runs its TaskManagers.

Flink in reactive mode takes no requirements: the number of containers is the request. They stay compose's containers: a new one
is a copy of its siblings with the next number, labels included, and the highest numbers are removed first.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Protocol

from weir_contracts import DockerTarget, Parallelism, Subject, Topology

from runtime.clock import Clock
from services.executor.core.messages import vector
from services.executor.core.observed import Accepted, Refusal, Rejected, Snapshot, Unanswered
from services.executor.driver import Driver, Fence

from .docker_scaling import Container, Containers, Daemon, DockerAway, DockerRefused, Held, no_containers

PROJECTS = "WEIR_EXECUTOR_DOCKER_PROJECTS"


class Cluster(Driver, Protocol):
    """The engine's driver."""

    async def slots(self, subject: Subject) -> int | None:
        """Return the registered slots; None if unknown."""
        ...


class DockerDriver:
    """Driver for compose services. Without a daemon, or for an unlisted project, every call reports the reason."""

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        daemon: Daemon | None,
        projects: Iterable[str] = (),
        *,
        checkpoint_seconds: float = 5.0,
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._containers = Containers(daemon)
        self._is_on = daemon is not None
        self._projects = frozenset(projects)
        self._checkpoint_seconds = checkpoint_seconds
        self._resourced: dict[tuple[str, str], tuple[int, datetime | None]] = {}

    async def close(self) -> None:
        self._containers.close()

    # -- observe --------------------------------------------------------------------------------------------------

    async def observe(self, subject: Subject) -> Snapshot:
        docker = _docker(subject)
        reason = self._forbidden(docker)
        if reason:
            return Snapshot(self._clock.now(), reachable=False, reason=reason, unsupported=reason)
        observed, found = await asyncio.gather(self._cluster.observe(subject), self._list(docker))
        if isinstance(found, DockerAway | DockerRefused):
            return Snapshot(observed.at, reachable=False, reason=str(found))
        if observed.deployment is None or observed.topology is None:
            return observed
        started = [container for container in found if container.state != "created"]
        if not started:
            return Snapshot(observed.at, reachable=True, reason=no_containers(docker.project, docker.service))
        requested = observed.topology.uniform(docker.unit.parallelism_of(observed.topology, len(started)))
        waits = observed.deployment.observed != requested
        return replace(
            observed,
            deployment=observed.deployment.model_copy(update={"requested": requested}),
            resourced_at=await self._resourced_at(subject, docker, len(started), waits=waits),
            restartable=any(container.state == "exited" for container in started),
        )

    async def _resourced_at(
        self, subject: Subject, docker: DockerTarget, containers: int, *, waits: bool
    ) -> datetime | None:
        """Return when the slots of all containers were first observed registered, while the job does not use them."""
        key = (docker.project, docker.service)
        previous = self._resourced.pop(key, None)
        if not waits:
            return None
        at = previous[1] if previous is not None and previous[0] == containers else None
        if at is None and await self._cluster.slots(subject) == containers * docker.slots:
            at = self._clock.now()
        self._resourced[key] = (containers, at)
        return at

    # -- request --------------------------------------------------------------------------------------------------

    async def request(
        self,
        subject: Subject,
        job_id: str,
        parallelism: Parallelism,
        expected: Parallelism,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Accepted | Rejected | Unanswered | Refusal:
        docker = _docker(subject)
        reason = self._forbidden(docker)
        if reason:
            return Rejected(reason)
        observed = await self._cluster.observe(subject)
        if not observed.reachable:
            return Unanswered(observed.reason)
        if observed.deployment is None or observed.topology is None or observed.deployment.job_id != job_id:
            return Rejected(f"job {job_id} is missing: {observed.reason or 'another job has its name'}")
        if observed.deployment.is_final:
            return Rejected(f"the job is {observed.deployment.state}")
        unfit = _unfit(parallelism, docker, observed)
        if unfit:
            return Rejected(unfit)
        before, count = (docker.unit.instances_for(observed.topology, max(p.values())) for p in (expected, parallelism))
        try:
            checkpoint = partial(self._checkpoint, subject, job_id, observed)
            await self._containers.scale(
                docker.project, docker.service, fence, expected=before, count=count, before_fewer=checkpoint
            )
        except Held as held:
            return held.answer
        except DockerRefused as error:
            return Rejected(str(error))
        except DockerAway as error:
            return Unanswered(str(error))
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        return await self._cluster.trigger_checkpoint(subject, job_id)

    async def _checkpoint(self, subject: Subject, job_id: str, observed: Snapshot) -> None:
        """Trigger a checkpoint just before slots are removed, since the job restores the last one; wait for it up to a limit."""
        if await self._cluster.trigger_checkpoint(subject, job_id) is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._checkpoint_seconds):
                while True:
                    now = await self._cluster.observe(subject)
                    if now.checkpoint_completed_at != observed.checkpoint_completed_at:
                        return
                    await asyncio.sleep(0.25)

    async def _list(self, docker: DockerTarget) -> list[Container] | DockerAway | DockerRefused:
        """Return the service's containers sorted by number, or the error."""
        try:
            return await self._containers.of(docker.project, docker.service)
        except (DockerAway, DockerRefused) as error:
            return error

    def _forbidden(self, docker: DockerTarget) -> str:
        if not self._is_on or not self._projects:
            return f"the docker driver is off: {PROJECTS} names no compose project"
        if docker.project not in self._projects:
            return f"compose project {docker.project!r} is not among those of {PROJECTS}"
        return ""


def _docker(subject: Subject) -> DockerTarget:
    if subject.target.docker is None:
        raise ValueError("target: the docker driver was given a target without docker")
    return subject.target.docker


def _unfit(parallelism: Parallelism, docker: DockerTarget, observed: Snapshot) -> str:
    """Return why no number of containers gives this parallelism; empty if one does."""
    topology, deployment = observed.topology, observed.deployment
    if topology is None or deployment is None:
        return "the job's graph is unknown"
    if set(parallelism) != set(topology.names):
        odd = sorted(set(parallelism) ^ set(topology.names))
        return f"the job and the request differ in operators: {', '.join(odd[:5])}"
    return _unfit_level(parallelism, docker, topology) or _unfit_requirements(
        parallelism, deployment.rescale.scheduler, observed
    )


def _unfit_level(parallelism: Parallelism, docker: DockerTarget, topology: Topology) -> str:
    level = max(parallelism.values())
    max_level = max(operator.max_parallelism or level for operator in topology.operators)
    if level > max_level:
        return f"{level} is above the largest maximum parallelism of any operator, {max_level}"
    if parallelism != topology.uniform(level):
        return f"all operators have the same parallelism here, and {vector(parallelism)} is not one"
    reached = docker.unit.parallelism_of(topology, docker.unit.instances_for(topology, level))
    if reached != level:
        return f"no number of containers of {docker.slots} slots gives {level}: the next is {reached}"
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
