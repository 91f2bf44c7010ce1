"""The twin of Kafka's group: contenders of one process, in the order in which they asked, on the clock they are given."""

from dataclasses import replace

from .clock import Clock
from .lease import Claim, Standing, Terms


class MemoryGroup:
    """Gives the lease to the one who asked first, and to the next when that one leaves or is silent for as long as a lease lasts."""

    def __init__(self, clock: Clock, terms: Terms) -> None:
        self._clock = clock
        self._terms = terms
        self._waiting: list[MemoryLease] = []
        self._epoch = 0
        self.reachable = True
        """Whether anybody gets an answer."""

    def join(self, lease: "MemoryLease") -> None:
        """Ask for the lease."""
        lease.heard_at = self._clock.monotonic()
        self._waiting.append(lease)

    def has(self, lease: "MemoryLease") -> bool:
        """Whether it was not evicted."""
        return lease in self._waiting

    def leave(self, lease: "MemoryLease") -> None:
        """Give it back, or ask no more."""
        if lease in self._waiting:
            self._waiting.remove(lease)

    def turn(self) -> None:
        """What the group's coordinator does between two heartbeats: evict who is silent, hear the holder, tell the others."""
        if not self.reachable:
            return
        now = self._clock.monotonic()
        for lease in list(self._waiting):
            if lease.alive:
                lease.heard_at = now
            elif now - lease.heard_at >= self._terms.lease_seconds:
                self.leave(lease)
        if not self._waiting:
            return
        holder = self._waiting[0]
        if holder.alive:
            if holder.now.claim is None:
                self._epoch += 1
                holder.now = Standing(now, Claim(holder.name, self._clock.now(), self._epoch))
            holder.now = replace(holder.now, confirmed_at=now)
        for lease in self._waiting[1:]:
            if lease.alive:
                self._tell(lease, holder, now)

    @staticmethod
    def _tell(lease: "MemoryLease", holder: "MemoryLease", now: float) -> None:
        since = now if lease.now.claim is not None else lease.now.waits_since
        heard = now if holder.alive else lease.now.other_heard_at
        lease.now = Standing(since, other=holder.now.claim or lease.now.other, other_heard_at=heard)


class MemoryLease:
    """One contender. `alive = False` is a crash or a pause: it neither answers nor says good-bye."""

    def __init__(self, group: MemoryGroup, name: str, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self.name = name
        self.alive = True
        self.heard_at = clock.monotonic()
        self.now = Standing(clock.monotonic())
        self._open = False

    def open(self) -> None:
        """Ask for it."""
        if not self._open:
            self._open = True
            self.now = Standing(self._clock.monotonic())
            self._group.join(self)

    def standing(self) -> Standing:
        """What is known now; one that was evicted while it was silent hears of it as soon as it answers again."""
        if self.alive:
            self._group.turn()
            if self._open and self.now.claim is not None and not self._group.has(self):
                self.now = Standing(self._clock.monotonic())
                self._group.join(self)
                self._group.turn()
        return self.now

    def close(self) -> None:
        """Give it back."""
        self._open = False
        self._group.leave(self)
        self.now = Standing(self._clock.monotonic())
