"""Driver for a job in reactive mode, scaled by the containers of the compose service that runs its TaskManagers.

Flink in reactive mode takes no requirements: the number of containers is the request. They stay compose's containers: a
new one is a copy of its siblings with the next number, labels included, and the highest numbers are removed first.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from weir_contracts import DockerTarget, Parallelism, Subject

from runtime.clock import Clock
from services.executor.core.observed import Accepted, Refusal, Rejected, Snapshot, Unanswered
from services.executor.driver import Fence, WithoutGroups

from .docker_scaling import Container, Containers, Daemon, DockerAway, DockerRefused, Held, no_containers
from .reactive import Cluster, ReactiveJob, unanswerable, unfit

PROJECTS = "WEIR_EXECUTOR_DOCKER_PROJECTS"


class DockerDriver(WithoutGroups):
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
        self._job = ReactiveJob(cluster, clock, checkpoint_seconds=checkpoint_seconds)
        self._containers = Containers(daemon)
        self._is_on = daemon is not None
        self._projects = frozenset(projects)

    async def close(self) -> None:
        self._containers.close()

    # -- observe --------------------------------------------------------------------------------------------------

    async def observe(self, subject: Subject) -> Snapshot:
        docker = _docker(subject)
        reason = self._forbidden(docker)
        if reason:
            return Snapshot(self._clock.now(), reachable=False, reason=reason, refusal=Refusal("unsupported", reason))
        observed, found = await asyncio.gather(self._job.observe(subject), self._list(docker))
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
            resourced_at=await self._job.resourced_at(subject, len(started) * docker.slots, waits=waits),
            restartable=any(container.state == "exited" for container in started),
        )

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
        observed = await self._job.observe(subject)
        missing = unanswerable(job_id, observed)
        if missing is not None or observed.topology is None:
            return missing or Unanswered("the job's graph is unknown")
        reason = unfit(parallelism, docker.unit, observed)
        if reason:
            return Rejected(reason)
        before, count = (docker.unit.instances_for(observed.topology, max(p.values())) for p in (expected, parallelism))
        topology = observed.topology

        def fits(containers: int) -> bool:
            return topology.uniform(docker.unit.parallelism_of(topology, containers)) in (expected, parallelism)

        try:
            checkpoint = partial(self._job.complete_checkpoint, subject, job_id, observed)
            await self._containers.scale(
                docker.project, docker.service, fence, expected=before, count=count, fits=fits, before_fewer=checkpoint
            )
        except Held as held:
            return held.answer
        except DockerRefused as error:
            return Rejected(str(error))
        except DockerAway as error:
            return Unanswered(str(error))
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        return await self._job.trigger_checkpoint(subject, job_id)

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
