"""Containers of one compose service, scaled by copies of a sibling: the part of the docker driver that changes
containers.

Invariant: all containers are created before the first is started, and all are stopped before the first is removed;
containers that were never started do not count as requested. So a change that a crash interrupts never looks like
another client's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Protocol, TypeVar

import structlog
from weir_contracts import changes

from services.executor.core.observed import Refusal, Unanswered, contested
from services.executor.driver import Fence

T = TypeVar("T")

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


class Held(DockerRefused):
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

    def copy(self, original: Container, number: int) -> Container:
        """Create a copy of `original` without starting it; raise `NameTaken` if its name is in use."""

    def start(self, container: Container) -> None: ...

    def stop(self, container: Container) -> None:
        """Send SIGTERM, and SIGKILL after the container's grace period."""

    def remove(self, container: Container) -> None: ...

    def close(self) -> None: ...


class Containers:
    """Calls to a daemon that may be None: then the driver is off."""

    def __init__(self, daemon: Daemon | None) -> None:
        self._daemon = daemon
        self._calls = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._log = structlog.get_logger("executor")

    def close(self) -> None:
        if self._daemon is not None:
            self._daemon.close()

    async def of(self, project: str, service: str) -> list[Container]:
        """Return a service's containers sorted by number."""
        async with self._calls:
            found = await _in_thread(lambda: self._api.containers(project, service))
        return sorted(found, key=lambda container: (container.number, container.name))

    async def scale(
        self,
        project: str,
        service: str,
        fence: Fence,
        *,
        expected: int,
        count: int,
        fits: Callable[[int], bool],
        before_fewer: Callable[[], Awaitable[None]],
    ) -> None:
        """Scale from `expected` to `count` containers, all of them started; if that fails, back to as many as before.

        `fits` returns whether another number of them gives the job the same parallelism, and so is no other client's
        change. Awaits `before_fewer` before the first container stops. Raises `Held`, `DockerRefused` or `DockerAway`.
        """
        async with self._locks.setdefault((project, service), asyncio.Lock()):
            found = await self.of(project, service)
            if not found:
                raise DockerRefused(no_containers(project, service))
            there = sum(container.state != "created" for container in found)
            if there not in (expected, count) and not fits(there):
                raise Held(contested(changes({service: expected}, {service: there})))
            held = await fence.begin()
            if held is not None:
                raise Held(held)
            spare = found[count:]
            if any(container.state not in _STOPPED for container in spare):
                await before_fewer()
            made = await self._replace(found, count, fence)
        if made or spare:
            names = {"made": [each.name for each in made], "removed": [each.name for each in spare]}
            self._log.info(
                "containers-scaled", project=project, service=service, before=len(found), containers=count, **names
            )

    @property
    def _api(self) -> Daemon:
        if self._daemon is None:
            raise DockerRefused("the docker driver is off")
        return self._daemon

    async def _change(self, fence: Fence, call: Callable[..., T], *arguments: object) -> T:
        """Make a changing call directly after the fence's check."""
        async with self._calls:
            held = await fence.go_on()
            if held is not None:
                raise Held(held)
            return await _in_thread(lambda: call(*arguments))

    async def _replace(self, found: Sequence[Container], count: int, fence: Fence) -> list[Container]:
        """Have `count` started containers instead of `found`; return the new ones."""
        kept = found[:count]
        made = await self._create(found, count - len(kept), fence)
        try:
            for container in (*kept, *made):
                if container.state in _STOPPED:
                    await self._change(fence, self._api.start, container)
            await self._drop(found[count:], fence)
        except (DockerRefused, DockerAway):
            await self._undo(made, fence)
            raise
        return made

    async def _create(self, siblings: Sequence[Container], missing: int, fence: Fence) -> list[Container]:
        original = min(siblings, key=lambda each: (each.state != "running", each.number))
        number, refused, made = max(each.number for each in siblings), 0, list[Container]()
        try:
            while len(made) < missing:
                number += 1
                try:
                    made.append(await self._change(fence, self._api.copy, original, number))
                except NameTaken:
                    refused += 1
                    if refused == NUMBERS_TRIED:
                        raise
        except (DockerRefused, DockerAway):
            await self._undo(made, fence)
            raise
        return made

    async def _undo(self, made: Sequence[Container], fence: Fence) -> None:
        for container in made:
            try:
                await self._change(fence, self._api.stop, container)
                await self._change(fence, self._api.remove, container)
            except (DockerRefused, DockerAway) as error:
                self._log.warning("container-left", container=container.name, reason=str(error))

    async def _drop(self, spare: Sequence[Container], fence: Fence) -> None:
        """Stop containers together, since each one that stops alone restarts the job once more."""
        stopped = await self._each(fence, self._api.stop, [c for c in spare if c.state not in _STOPPED])
        failed = [problem for _, problem in stopped if problem is not None]
        if failed:
            await self._each(fence, self._api.start, [container for container, problem in stopped if problem is None])
            raise failed[0]
        for _, problem in await self._each(fence, self._api.remove, spare):
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


def no_containers(project: str, service: str) -> str:
    return f"compose project {project!r} has no container of service {service!r} to copy: start it with docker compose"


async def _in_thread(call: Callable[[], T]) -> T:
    """Call in a daemon thread: a container may take longer to stop than this process."""
    future = Future[T]()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            future.set_exception(error)

    Thread(target=run, name="docker", daemon=True).start()
    return await asyncio.wrap_future(future)
