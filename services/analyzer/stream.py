"""The stream as the service sees it: prepared, started, asked, let go, stopped. Spark is one; tests have another."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished micro-batch."""

    id: int
    records: int
    seconds: float
    lost: int
    """Records that had been promised by their offsets and were gone when read: retention overtook the stream."""


class StreamDied(RuntimeError):
    """The stream ended by itself; says why."""


class StateUnusable(StreamDied):
    """The stream ended because the state it was started from is damaged, incomplete or of another form; says in what way."""


class NotYet(RuntimeError):
    """The stream cannot be started yet: something it needs is away. Says what."""


class Stream(Protocol):
    """Blocking; called from one thread, but for `abort`."""

    def prepare(self) -> None:
        """Do what takes long and touches no state that another analyzer may be using. Returns at once if it is done already."""
        ...

    def start(self) -> str:
        """Start from where it was, or seeded from the latest analyses; returns where its state is kept.

        `NotYet` while the brokers are away, `StateUnusable`, `StreamDied`.
        """
        ...

    def batches(self) -> list[Batch]:
        """The batches finished since the last call; `StreamDied` if it is over, `StateUnusable` if its state is why."""
        ...

    def set_aside(self) -> None:
        """Give up the state it was started from: the next start is a new one, seeded from the latest analyses."""
        ...

    def suspend(self) -> None:
        """End the query and keep what was prepared."""
        ...

    def abort(self) -> None:
        """End everything that could still write, at once, from any thread, whatever else is under way."""
        ...

    def stop(self) -> None:
        """End it, and whatever it runs in."""
        ...
