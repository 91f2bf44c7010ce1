"""Instances of an application as processes: their requested number, the pure steps that lead to it, and the fleet that takes
them and starts a failed one again."""

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from testbed.process import TestbedError

TICK_SECONDS = 0.2
MAX_ENDED = 100
"""Ids of ended instances that are reported."""


FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0


class StaleVersion(Exception):
    """A request names another version than the present one."""


@dataclass(frozen=True)
class Scale:
    """Requested number of instances and its version."""

    replicas: int
    start_token: str
    """Differs between starts of the supervisor, so that no version occurs twice."""
    number: int = 1
    """Counts the changes of `replicas`."""

    @property
    def version(self) -> str:
        return f"{self.start_token}.{self.number}"

    def check(self, version: str) -> None:
        """Raise `StaleVersion` unless this is the present version."""
        if version != self.version:
            raise StaleVersion(f"the version is {self.version}, the request has {version}: read the state again")

    def changed(self, replicas: int, version: str) -> "Scale":
        """Return the scale with `replicas`, the same if it has them; raises `StaleVersion`."""
        self.check(version)
        return self if replicas == self.replicas else replace(self, replicas=replicas, number=self.number + 1)


class Phase(StrEnum):
    """Phase of an ordinal's instance."""

    RUNNING = "running"
    """Its process runs, ready or not."""
    ENDING = "ending"
    """Its process was told to end and has not ended yet."""
    FAILED = "failed"
    """Its process ended by itself."""


@dataclass(frozen=True)
class Slot:
    """Instance of an ordinal: 1 is the oldest, the highest one ends first."""

    phase: Phase
    retry_at_seconds: float = 0.0
    """Monotonic time of the next start; of a failed instance."""


@dataclass(frozen=True)
class Start:
    ordinal: int


@dataclass(frozen=True)
class End:
    """End an instance: SIGTERM, then SIGKILL after a deadline."""

    ordinal: int


@dataclass(frozen=True)
class Forget:
    """Do not start a failed instance again."""

    ordinal: int


Step = Start | End | Forget


def steps(replicas: int, slots: Mapping[int, Slot], now_seconds: float) -> list[Step]:
    """Return the steps from these instances to `replicas` of them, the youngest ended first.

    An ordinal whose instance is ending is started again once its process has ended: both would use one state folder.
    """
    due: list[Step] = []
    for ordinal in sorted({*slots, *range(1, replicas + 1)}, reverse=True):
        slot = slots.get(ordinal)
        if ordinal > replicas and slot is not None and slot.phase is not Phase.ENDING:
            due.append(End(ordinal) if slot.phase is Phase.RUNNING else Forget(ordinal))
        elif ordinal <= replicas and (
            slot is None or (slot.phase is Phase.FAILED and slot.retry_at_seconds <= now_seconds)
        ):
            due.append(Start(ordinal))
    # Older instances start first, as their state folders hold more.
    return sorted(
        due, key=lambda step: (isinstance(step, Start), step.ordinal if isinstance(step, Start) else -step.ordinal)
    )


def backoff_seconds(failures: int) -> float:
    """Return the time from an instance's failure to its next start, after so many failures without being ready."""
    return min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 10))


class Instance(Protocol):
    """One process of the application."""

    id: str
    metrics_url: str | None

    def start(self) -> object:
        """Start the process; raises `TestbedError` if it cannot run."""

    def stop(self) -> None:
        """End the process, by SIGKILL after a deadline; blocks until it has ended."""

    @property
    def running(self) -> bool:
        """Whether the process runs."""

    def ready(self) -> bool:
        """Return whether the instance processes records or is ready to; takes a second at most."""


@dataclass(frozen=True)
class FleetState:
    """Requested and actual instances."""

    scale: Scale
    instances: tuple[Instance, ...]
    """Instances whose process has not ended, oldest first."""
    ready: int
    ended: tuple[str, ...]
    """Ids of the last instances that have ended, oldest first."""


@dataclass
class _Member:
    instance: Instance
    phase: Phase = Phase.RUNNING
    ready: bool = False
    failures: int = 0
    """Since it was ready for the last time."""
    retry_at_seconds: float = 0.0
    ending: threading.Thread | None = field(default=None, repr=False)

    @property
    def is_listed(self) -> bool:
        """Whether its process may run."""
        return self.phase is not Phase.FAILED


class Fleet:
    """Keeps the requested number of instances running. `tick` may be called by one thread, the rest by any."""

    def __init__(
        self,
        make: Callable[[int], Instance],
        replicas: int,
        *,
        report: Callable[[str], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._report = report
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._scale = Scale(replicas, secrets.token_hex(4))
        self._members: dict[int, _Member] = {}
        self._ended: deque[str] = deque(maxlen=MAX_ENDED)
        self._restarted: deque[UUID] = deque(maxlen=MAX_ENDED)
        """Actions that restarted an instance."""

    def state(self) -> FleetState:
        """Return the requested and actual instances."""
        with self._lock:
            living = [member for _, member in sorted(self._members.items()) if member.is_listed]
            ready = sum(member.ready and member.phase is Phase.RUNNING for member in living)
            return FleetState(self._scale, tuple(m.instance for m in living), ready, tuple(self._ended))

    def scale(self, replicas: int, version: str) -> FleetState:
        """Request so many instances; raises `StaleVersion`. Returns at once: `tick` starts and ends them."""
        with self._lock:
            before, self._scale = self._scale, self._scale.changed(replicas, version)
            if self._scale != before:
                self._report(f"{before.replicas} -> {replicas} instances requested")
        return self.state()

    def restart(self, instance: str, action: UUID, version: str) -> FleetState:
        """End an instance, so that `tick` starts another one in its place; once for an action.

        Raises `StaleVersion`, and `KeyError` for an instance that is not listed.
        """
        with self._lock:
            if action not in self._restarted:
                self._scale.check(version)
                ordinal = next((o for o, m in self._members.items() if m.instance.id == instance and m.is_listed), None)
                if ordinal is None:
                    raise KeyError(instance)
                self._restarted.append(action)
                self._report(f"{instance} is to be restarted")
                if self._members[ordinal].phase is Phase.RUNNING:
                    self._end(ordinal)
        return self.state()

    def run(self, stop: threading.Event) -> None:
        """Tick until `stop` is set, then end all instances."""
        try:
            while not stop.wait(TICK_SECONDS):
                self.tick()
        finally:
            self.close()

    def tick(self) -> None:
        """Take in what has changed and take the steps that are due."""
        self._look()
        with self._lock:
            slots = {ordinal: Slot(m.phase, m.retry_at_seconds) for ordinal, m in self._members.items()}
            due = steps(self._scale.replicas, slots, self._monotonic())
        for step in due:
            self._take(step)

    def close(self) -> None:
        """End all instances side by side."""
        with self._lock:
            running = [o for o, member in self._members.items() if member.phase is Phase.RUNNING]
        for ordinal in running:
            self._take(End(ordinal))
        for member in list(self._members.values()):
            if member.ending is not None:
                member.ending.join()
        self._look()

    def _look(self) -> None:
        for ordinal, member in list(self._members.items()):
            # Without the lock: a response may take a second.
            ready = member.phase is Phase.RUNNING and member.instance.running and member.instance.ready()
            with self._lock:
                self._note(ordinal, member, ready=ready)

    def _note(self, ordinal: int, member: _Member, *, ready: bool) -> None:
        if member.phase is Phase.FAILED:
            return
        if not member.instance.running:
            self._note_end(ordinal, member)
            return
        if ready and not member.ready:
            self._report(f"{member.instance.id} is ready")
        member.ready = ready
        member.failures = 0 if ready else member.failures

    def _note_end(self, ordinal: int, member: _Member) -> None:
        """Forget an instance that was to end; let one that failed wait for its next start."""
        if member.phase is Phase.ENDING:
            if member.ending is not None and member.ending.is_alive():
                return  # what the process started may still run
            del self._members[ordinal]
            self._report(f"{member.instance.id} has ended")
        else:
            self._fail(member, "ended by itself")
        self._ended.append(member.instance.id)

    def _fail(self, member: _Member, reason: str) -> None:
        member.phase, member.ready = Phase.FAILED, False
        member.failures += 1
        wait = backoff_seconds(member.failures)
        member.retry_at_seconds = self._monotonic() + wait
        self._report(f"{member.instance.id} {reason}: next start in {wait:g} s")

    def _take(self, step: Step) -> None:
        match step:
            case Start(ordinal):
                self._start(ordinal)
            case End(ordinal):
                with self._lock:
                    self._end(ordinal)
            case Forget(ordinal):
                with self._lock:
                    del self._members[ordinal]

    def _end(self, ordinal: int) -> None:
        """End an instance on a new thread; under the lock."""
        member = self._members[ordinal]
        if member.phase is Phase.ENDING:
            return
        member.phase = Phase.ENDING
        member.ending = threading.Thread(target=member.instance.stop, name=f"end-{ordinal}", daemon=True)
        member.ending.start()

    def _start(self, ordinal: int) -> None:
        earlier = self._members.get(ordinal)
        member = _Member(self._make(ordinal), failures=earlier.failures if earlier else 0)
        if earlier is not None:
            with contextlib.suppress(Exception):
                earlier.instance.stop()  # whatever the failed process has started
        try:
            member.instance.start()
        except TestbedError as error:
            self._fail(member, f"cannot start ({error})")
        with self._lock:
            self._members[ordinal] = member
