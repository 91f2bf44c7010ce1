"""Driver for a job in reactive mode, scaled by the containers of the compose service that runs its TaskManagers.

Flink in reactive mode takes no requirements: the number of containers is the request. They stay compose's containers: a new one
is a copy of its siblings with the next number, labels included, and the highest numbers are removed first.

After a crash a half-done change must not look like another client's. So all containers are created before the first is started,
and all are stopped before the first is removed; containers that were never started do not count as requested.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import Thread
from typing import Protocol, TypeVar, cast

import structlog
from weir_contracts import DockerTarget, Parallelism, Subject, Topology

from runtime.clock import Clock
from services.executor.core import Accepted, Refusal, Rejected, Snapshot, Unanswered, changes, contested, vector
from services.executor.driver import Driver, Fence

T = TypeVar("T")

PROJECTS = "WEIR_EXECUTOR_DOCKER_PROJECTS"
NUMBERS_TRIED = 20
"""Occupied names that are tried before a copy fails."""
MAX_CONCURRENT_CALLS = 16
_STOPPED = frozenset({"created", "exited"})


@dataclass(frozen=True)
class Container:
    """One container of a compose service. `state` is Docker's: created, running, restarting, paused, exited."""

    id: str
    name: str
    number: int
    state: str


class DockerAway(Exception):
    """No usable response: the call may have taken effect or not."""


class DockerRefused(Exception):
    """A permanent refusal."""


class NameTaken(DockerRefused):
    """Another container has that name."""


class _Held(DockerRefused):
    """The fence refused. Changes already made are undone as far as the fence allows."""

    def __init__(self, answer: Refusal | Unanswered) -> None:
        self.answer = answer
        super().__init__(answer.sentence if isinstance(answer, Refusal) else answer.reason)


class Daemon(Protocol):
    """Docker's calls for containers of compose services. Calls block, and raise `DockerAway` or `DockerRefused`.

    To stop or remove a missing container succeeds.
    """

    def containers(self, project: str, service: str) -> list[Container]:
        """List a service's containers, except those being removed."""
        ...

    def copy(self, original: Container, number: int) -> Container:
        """Create a copy of `original` without starting it; raise `NameTaken` if its name is in use."""
        ...

    def start(self, container: Container) -> None: ...

    def stop(self, container: Container) -> None:
        """Send SIGTERM, and SIGKILL after the container's grace period."""
        ...

    def remove(self, container: Container) -> None: ...

    def close(self) -> None: ...


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
        self._daemon = daemon
        self._projects = frozenset(projects)
        self._checkpoint_seconds = checkpoint_seconds
        self._calls = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._resourced: dict[tuple[str, str], tuple[int, datetime | None]] = {}
        self._log = structlog.get_logger("executor")

    async def close(self) -> None:
        if self._daemon is not None:
            self._daemon.close()

    # -- observe --------------------------------------------------------------------------------------------------

    async def observe(self, subject: Subject) -> Snapshot:
        docker = _docker(subject)
        reason = self._forbidden(docker)
        if reason:
            return Snapshot(self._clock.now(), reachable=False, because=reason, unsupported=reason)
        observed, found = await asyncio.gather(self._cluster.observe(subject), self._containers(docker))
        if isinstance(found, DockerAway | DockerRefused):
            return Snapshot(observed.at, reachable=False, because=str(found))
        if observed.deployment is None or observed.topology is None:
            return observed
        started = [container for container in found if container.state != "created"]
        if not started:
            return Snapshot(observed.at, reachable=True, because=_none_of(docker))
        requested = observed.topology.uniform(docker.unit.parallelism_of(observed.topology, len(started)))
        return Snapshot(
            at=observed.at,
            reachable=True,
            deployment=observed.deployment.model_copy(update={"requested": requested}),
            all_running=observed.all_running,
            running_since=observed.running_since,
            steady_since=observed.steady_since,
            checkpoint_completed_at=observed.checkpoint_completed_at,
            checkpoint_in_progress=observed.checkpoint_in_progress,
            topology=observed.topology,
            resourced_at=await self._resourced_at(
                subject, docker, len(started), waits=observed.deployment.observed != requested
            ),
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
        self, subject: Subject, job_id: str, parallelism: Parallelism, expected: Parallelism, fence: Fence
    ) -> Accepted | Rejected | Unanswered | Refusal:
        docker = _docker(subject)
        reason = self._forbidden(docker)
        if reason:
            return Rejected(reason)
        observed = await self._cluster.observe(subject)
        if not observed.reachable:
            return Unanswered(observed.because)
        if observed.deployment is None or observed.topology is None or observed.deployment.job_id != job_id:
            return Rejected(f"job {job_id} is missing: {observed.because or 'another job has its name'}")
        if observed.deployment.is_final:
            return Rejected(f"the job is {observed.deployment.state}")
        unfit = _unfit(parallelism, docker, observed)
        if unfit:
            return Rejected(unfit)
        before, count = (docker.unit.instances_for(observed.topology, max(p.values())) for p in (expected, parallelism))
        try:
            async with self._locks.setdefault((docker.project, docker.service), asyncio.Lock()):
                checkpoint = partial(self._checkpoint, subject, job_id, observed)
                await self._scale(docker, before, count, fence, before_fewer=checkpoint)
        except _Held as held:
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

    def _forbidden(self, docker: DockerTarget) -> str:
        if self._daemon is None or not self._projects:
            return f"the docker driver is off: {PROJECTS} names no compose project"
        if docker.project not in self._projects:
            return f"compose project {docker.project!r} is not among those of {PROJECTS}"
        return ""

    # -- scale -----------------------------------------------------------------------------------------------------

    async def _scale(
        self,
        docker: DockerTarget,
        expected: int,
        count: int,
        fence: Fence,
        before_fewer: Callable[[], Awaitable[None]],
    ) -> None:
        """Scale from `expected` to `count` containers, all of them started; if that fails, back to as many as before."""
        found = await self._containers(docker)
        if isinstance(found, DockerAway | DockerRefused):
            raise found
        if not found:
            raise DockerRefused(_none_of(docker))
        there = sum(container.state != "created" for container in found)
        if there not in (expected, count):
            raise _Held(contested(changes({docker.service: expected}, {docker.service: there})))
        held = await fence.begin()
        if held is not None:
            raise _Held(held)
        kept, spare = found[:count], found[count:]
        if any(container.state not in _STOPPED for container in spare):
            await before_fewer()
        made = await self._make(found, count - len(kept), fence)
        try:
            for container in (*kept, *made):
                if container.state in _STOPPED:
                    await self._change(fence, self._of.start, container)
            await self._drop(spare, fence)
        except (DockerRefused, DockerAway):
            await self._unmake(made, fence)
            raise
        if made or spare:
            self._log.info(
                "containers-scaled",
                project=docker.project,
                service=docker.service,
                before=len(found),
                containers=count,
                made=[container.name for container in made],
                removed=[container.name for container in spare],
            )

    async def _make(self, siblings: Sequence[Container], missing: int, fence: Fence) -> list[Container]:
        original = min(siblings, key=lambda each: (each.state != "running", each.number))
        number, refused, made = max(each.number for each in siblings), 0, list[Container]()
        try:
            while len(made) < missing:
                number += 1
                try:
                    made.append(await self._change(fence, self._of.copy, original, number))
                except NameTaken:
                    refused += 1
                    if refused == NUMBERS_TRIED:
                        raise
        except (DockerRefused, DockerAway):
            await self._unmake(made, fence)
            raise
        return made

    async def _unmake(self, made: Sequence[Container], fence: Fence) -> None:
        for container in made:
            try:
                await self._change(fence, self._of.stop, container)
                await self._change(fence, self._of.remove, container)
            except (DockerRefused, DockerAway) as error:
                self._log.warning("container-left", container=container.name, reason=str(error))

    async def _drop(self, spare: Sequence[Container], fence: Fence) -> None:
        """Stop containers together, since each one that stops alone restarts the job once more."""
        stopped = await self._each(fence, self._of.stop, [c for c in spare if c.state not in _STOPPED])
        failed = [problem for _, problem in stopped if problem is not None]
        if failed:
            await self._each(fence, self._of.start, [container for container, problem in stopped if problem is None])
            raise failed[0]
        for _, problem in await self._each(fence, self._of.remove, spare):
            if problem is not None:
                raise problem

    async def _each(
        self, fence: Fence, call: Callable[[Container], None], containers: Sequence[Container]
    ) -> list[tuple[Container, DockerRefused | DockerAway | None]]:
        async def one(container: Container) -> DockerRefused | DockerAway | None:
            try:
                await self._change(fence, call, container)
            except (DockerRefused, DockerAway) as error:
                return error
            return None

        return list(zip(containers, await asyncio.gather(*map(one, containers)), strict=True))

    # -- threads ---------------------------------------------------------------------------------------------------

    @property
    def _of(self) -> Daemon:
        if self._daemon is None:
            raise DockerRefused("the docker driver is off")
        return self._daemon

    async def _containers(self, docker: DockerTarget) -> list[Container] | DockerAway | DockerRefused:
        """Return a service's containers sorted by number, or the error."""
        try:
            found = await self._call(self._of.containers, docker.project, docker.service)
        except (DockerAway, DockerRefused) as error:
            return error
        return sorted(found, key=lambda container: (container.number, container.name))

    async def _change(self, fence: Fence, call: Callable[..., T], *arguments: object) -> T:
        """Make a changing call directly after the fence's check."""
        async with self._calls:
            held = await fence.go_on()
            if held is not None:
                raise _Held(held)
            return await _in_thread(lambda: call(*arguments))

    async def _call(self, call: Callable[..., T], *arguments: object) -> T:
        async with self._calls:
            return await _in_thread(lambda: call(*arguments))


async def _in_thread(call: Callable[[], T]) -> T:
    """Call in a daemon thread: a container may take longer to stop than this process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", result))

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - it is raised where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(resolve, result, error)

    Thread(target=run, name="docker", daemon=True).start()
    return await future


def _docker(subject: Subject) -> DockerTarget:
    if subject.target.docker is None:
        raise ValueError("target: the docker driver was given a target without docker")
    return subject.target.docker


def _none_of(docker: DockerTarget) -> str:
    return f"compose project {docker.project!r} has no container of service {docker.service!r} to go by: start it with docker compose"


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
