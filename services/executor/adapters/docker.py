"""A job that takes every slot it finds, scaled by the containers of the compose service that runs its TaskManagers.

Flink in reactive mode takes no requirements: what is requested is how many containers there are. They are compose's own, and stay
so: a new one is a copy of its siblings with the next number, labels included, and the highest numbers go first.

What is half done must not look like somebody else's doing after a crash. So containers are all made before the first is started, and
all stopped before the first is removed; those that were made and never started do not count as requested.
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
from weir_contracts import DockerTarget, Parallelism, Target, Topology

from runtime.clock import Clock
from services.executor.core import Accepted, Refusal, Rejected, Snapshot, Unanswered, changes, contested, vector
from services.executor.core.gate import ENDED
from services.executor.driver import Driver, Fence

T = TypeVar("T")

PROJECTS = "WEIR_EXECUTOR_DOCKER_PROJECTS"
NUMBERS_TRIED = 20
"""Names that may be taken by others before a copy is given up."""
MAX_CONCURRENT_CALLS = 16
_STOPPED = frozenset({"created", "exited"})


@dataclass(frozen=True)
class Container:
    """One container of a compose service. `state` as Docker tells it: created, running, restarting, paused, exited."""

    id: str
    name: str
    number: int
    state: str


class DockerAway(Exception):
    """No usable answer: it may have been done or not."""


class DockerRefused(Exception):
    """An answer that says no, for good."""


class NameTaken(DockerRefused):
    """Another container has that name."""


class _Held(DockerRefused):
    """The fence let nothing through. What was begun is undone, as far as the fence lets that through."""

    def __init__(self, answer: Refusal | Unanswered) -> None:
        self.answer = answer
        super().__init__(answer.sentence if isinstance(answer, Refusal) else answer.reason)


class Daemon(Protocol):
    """Docker, as far as the containers of compose services need it. Calls block; they raise `DockerAway` or `DockerRefused`.

    What is to be stopped or removed and is not there any more is done.
    """

    def containers(self, project: str, service: str) -> list[Container]:
        """All of a service, those that are being removed left out."""
        ...

    def copy(self, original: Container, number: int) -> Container:
        """Another one like `original`, not started; `NameTaken` if somebody has its name."""
        ...

    def start(self, container: Container) -> None: ...

    def stop(self, container: Container) -> None:
        """SIGTERM, and after the container's own grace SIGKILL."""
        ...

    def remove(self, container: Container) -> None: ...

    def close(self) -> None: ...


class Cluster(Driver, Protocol):
    """The engine, watched as any."""

    async def slots(self, target: Target) -> int | None:
        """Slots that are registered; None: unknown."""
        ...


class DockerDriver:
    """Compose services by project and name. Without a daemon, or for a project that is not listed, it only says why it does nothing."""

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

    # -- what is there ---------------------------------------------------------------------------------------------

    async def observe(self, target: Target) -> Snapshot:
        docker = _docker(target)
        why = self._forbidden(docker)
        if why:
            return Snapshot(self._clock.now(), reachable=False, because=why, unsupported=why)
        seen, found = await asyncio.gather(self._cluster.observe(target), self._containers(docker))
        if isinstance(found, DockerAway | DockerRefused):
            return Snapshot(seen.at, reachable=False, because=str(found))
        if seen.deployment is None or seen.topology is None:
            return seen
        started = [container for container in found if container.state != "created"]
        if not started:
            return Snapshot(seen.at, reachable=True, because=_none_of(docker))
        requested = seen.topology.uniform(docker.parallelism_of(seen.topology, len(started)))
        return Snapshot(
            at=seen.at,
            reachable=True,
            deployment=seen.deployment.model_copy(update={"requested": requested}),
            all_running=seen.all_running,
            running_since=seen.running_since,
            steady_since=seen.steady_since,
            checkpoint_completed_at=seen.checkpoint_completed_at,
            checkpoint_in_progress=seen.checkpoint_in_progress,
            topology=seen.topology,
            resourced_at=await self._resourced_at(
                target, docker, len(started), waits=seen.deployment.observed != requested
            ),
            restartable=any(container.state == "exited" for container in started),
        )

    async def _resourced_at(
        self, target: Target, docker: DockerTarget, containers: int, *, waits: bool
    ) -> datetime | None:
        """When the slots of so many containers were first seen to be registered, as long as the job does not use them."""
        key = (docker.project, docker.service)
        known = self._resourced.pop(key, None)
        if not waits:
            return None
        at = known[1] if known is not None and known[0] == containers else None
        if at is None and await self._cluster.slots(target) == containers * docker.slots:
            at = self._clock.now()
        self._resourced[key] = (containers, at)
        return at

    # -- what is asked for -----------------------------------------------------------------------------------------

    async def request(
        self, target: Target, job_id: str, parallelism: Parallelism, expected: Parallelism, fence: Fence
    ) -> Accepted | Rejected | Unanswered | Refusal:
        docker = _docker(target)
        why = self._forbidden(docker)
        if why:
            return Rejected(why)
        seen = await self._cluster.observe(target)
        if not seen.reachable:
            return Unanswered(seen.because)
        if seen.deployment is None or seen.topology is None or seen.deployment.job_id != job_id:
            return Rejected(f"job {job_id} is not there any more: {seen.because or 'another one has its name'}")
        if seen.deployment.state in ENDED:
            return Rejected(f"the job is {seen.deployment.state}")
        unfit = _unfit(parallelism, docker, seen)
        if unfit:
            return Rejected(unfit)
        before, count = (docker.containers_for(seen.topology, max(p.values())) for p in (expected, parallelism))
        try:
            async with self._locks.setdefault((docker.project, docker.service), asyncio.Lock()):
                checkpoint = partial(self._checkpoint, target, job_id, seen)
                await self._scale(docker, before, count, fence, before_fewer=checkpoint)
        except _Held as held:
            return held.answer
        except DockerRefused as error:
            return Rejected(str(error))
        except DockerAway as error:
            return Unanswered(str(error))
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, target: Target, job_id: str) -> str | None:
        return await self._cluster.trigger_checkpoint(target, job_id)

    async def _checkpoint(self, target: Target, job_id: str, seen: Snapshot) -> None:
        """Have one taken just before slots go away, since the job goes back to the last: as far as it comes in time."""
        if await self._cluster.trigger_checkpoint(target, job_id) is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._checkpoint_seconds):
                while True:
                    now = await self._cluster.observe(target)
                    if now.checkpoint_completed_at != seen.checkpoint_completed_at:
                        return
                    await asyncio.sleep(0.25)

    def _forbidden(self, docker: DockerTarget) -> str:
        if self._daemon is None or not self._projects:
            return f"the docker driver is off: {PROJECTS} names no compose project"
        if docker.project not in self._projects:
            return f"compose project {docker.project!r} is not among those of {PROJECTS}"
        return ""

    # -- how many there are ----------------------------------------------------------------------------------------

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
        """Stopped together, for each that goes alone restarts the job once more."""
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

    # -- in threads ------------------------------------------------------------------------------------------------

    @property
    def _of(self) -> Daemon:
        if self._daemon is None:
            raise DockerRefused("the docker driver is off")
        return self._daemon

    async def _containers(self, docker: DockerTarget) -> list[Container] | DockerAway | DockerRefused:
        """Of a service by their numbers; or why they cannot be told."""
        try:
            found = await self._call(self._of.containers, docker.project, docker.service)
        except (DockerAway, DockerRefused) as error:
            return error
        return sorted(found, key=lambda container: (container.number, container.name))

    async def _change(self, fence: Fence, call: Callable[..., T], *arguments: object) -> T:
        """A call that changes something, directly behind the fence."""
        async with self._calls:
            held = await fence.go_on()
            if held is not None:
                raise _Held(held)
            return await _in_thread(lambda: call(*arguments))

    async def _call(self, call: Callable[..., T], *arguments: object) -> T:
        async with self._calls:
            return await _in_thread(lambda: call(*arguments))


async def _in_thread(call: Callable[[], T]) -> T:
    """In a thread that nobody waits for at the end: a container takes longer to stop than this process may."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(tell, result, error)

    Thread(target=run, name="docker", daemon=True).start()
    return await future


def _docker(target: Target) -> DockerTarget:
    if target.docker is None:
        raise ValueError("target: the docker driver was given a target without docker")
    return target.docker


def _none_of(docker: DockerTarget) -> str:
    return f"compose project {docker.project!r} has no container of service {docker.service!r} to go by: start it with docker compose"


def _unfit(parallelism: Parallelism, docker: DockerTarget, seen: Snapshot) -> str:
    """Why so many containers do not make this parallelism; empty: they do."""
    topology, deployment = seen.topology, seen.deployment
    if topology is None or deployment is None:
        return "the job's graph is unknown"
    if set(parallelism) != set(topology.names):
        odd = sorted(set(parallelism) ^ set(topology.names))
        return f"the job and the request differ in operators: {', '.join(odd[:5])}"
    return _unfit_level(parallelism, docker, topology) or _unfit_requirements(
        parallelism, deployment.rescale.scheduler, seen
    )


def _unfit_level(parallelism: Parallelism, docker: DockerTarget, topology: Topology) -> str:
    level = max(parallelism.values())
    most = max(operator.max_parallelism or level for operator in topology.operators)
    if level > most:
        return f"{level} is above the largest maximum parallelism of any operator, {most}"
    if parallelism != topology.uniform(level):
        return f"all operators have the same parallelism here, and {vector(parallelism)} is not one"
    reached = docker.parallelism_of(topology, docker.containers_for(topology, level))
    if reached != level:
        return f"no whole number of containers of {docker.slots} slots gives {level}: the next is {reached}"
    return ""


def _unfit_requirements(parallelism: Parallelism, scheduler: str | None, seen: Snapshot) -> str:
    """Outside reactive mode a job asks for what it was told to at most, however many slots there are."""
    told = seen.deployment.requested if seen.deployment else None
    if scheduler == "reactive" or told is None:
        return ""
    short = [f"{name} {told[name]}" for name, p in parallelism.items() if told.get(name, p) < p]
    if not short:
        return ""
    return (
        f"the job asks for no more than {', '.join(short[:5])}, however many slots there are: run it in reactive mode"
    )
