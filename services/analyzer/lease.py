"""The lease as the service sees it. Kafka's group is one; tests have another."""

from typing import Protocol

from .core.lease import Standing


class LeaseLost(RuntimeError):
    """The stream's owner has no lease any more, so the stream was let go; says why."""


class Lease(Protocol):
    """One contender for the lease of a loop. Does not block, except `close`, briefly."""

    def open(self) -> None:
        """Ask for it, and from now on hold it or wait for it. May be called again; does nothing then."""
        ...

    def standing(self) -> Standing:
        """What is known now. From any thread."""
        ...

    def close(self) -> None:
        """Give it back, so that who waits need not wait for its end. From any thread; may be called again."""
        ...
