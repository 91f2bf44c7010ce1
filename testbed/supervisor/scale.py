"""Requested number of instances, and the steps that lead to it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

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
