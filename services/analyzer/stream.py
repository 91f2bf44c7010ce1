"""The stream that the service runs: prepare, start, poll, suspend, stop. Spark is one; tests have another."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished micro-batch."""

    id: int
    records: int
    seconds: float
    lost: int
    """Records between the batch's offsets that retention had deleted before they were read."""


class StreamDied(RuntimeError):
    """The stream ended by itself; holds the reason."""


class StateUnusable(StreamDied):
    """The stream ended because its state is damaged, incomplete or of another format."""


class NotYet(RuntimeError):
    """The stream cannot be started yet: something it needs is away."""


class Stream(Protocol):
    """Blocking; called from one thread, but for `abort`."""

    def prepare(self) -> None:
        """Do what takes long and touches no state that another analyzer may use. Returns at once if it is done already."""

    def start(self) -> str:
        """Start from the checkpoint, or seeded from the latest analyses; returns where the state is kept.

        `NotYet` while the brokers are away, `StateUnusable`, `StreamDied`.
        """

    def batches(self) -> list[Batch]:
        """Return the batches finished since the last call; `StreamDied` if it ended, `StateUnusable` if by its state."""

    def set_aside(self) -> None:
        """Rename the state: the next start is a new one, seeded from the latest analyses."""

    def suspend(self) -> None:
        """End the query and keep the session."""

    def abort(self) -> None:
        """End everything that could still write, at once, from any thread."""

    def stop(self) -> None:
        """End the query and the session."""
