"""The lease in memory, on the clock it gets: contenders of one process, in the order in which they opened it."""

from dataclasses import replace

from weir_runtime.clock import Clock
from weir_runtime.lease import Holder, LeaseState, Terms


class MemoryGroup:
    """Gives the lease to the first contender, and to the next when that one leaves or is silent for the duration of a
    lease."""

    def __init__(self, clock: Clock, terms: Terms) -> None:
        self.clock = clock
        self._terms = terms
        self._contenders: list[MemoryLease] = []
        self._epoch = 0
        self.reachable = True
        """False simulates an outage of the brokers."""

    def join(self, lease: "MemoryLease") -> None:
        """Add a contender."""
        lease.seen_at = self.clock.monotonic()
        self._contenders.append(lease)

    def has(self, lease: "MemoryLease") -> bool:
        """Return whether the contender was not evicted."""
        return lease in self._contenders

    def leave(self, lease: "MemoryLease") -> None:
        """Remove a contender, and release its lease."""
        if lease in self._contenders:
            self._contenders.remove(lease)

    def heartbeat(self) -> None:
        """Act as the coordinator between two heartbeats: evict silent contenders, confirm the holder, notify the
        others."""
        if not self.reachable:
            return
        now = self.clock.monotonic()
        for lease in list(self._contenders):
            if lease.alive:
                lease.seen_at = now
            elif now - lease.seen_at >= self._terms.lease_seconds:
                self.leave(lease)
        if not self._contenders:
            return
        holder = self._contenders[0]
        if holder.alive:
            if holder.now.own is None:
                self._epoch += 1
                holder.now = LeaseState(now, Holder(holder.name, self.clock.now(), self._epoch))
            holder.now = replace(holder.now, confirmed_at=now)
        for lease in self._contenders[1:]:
            if lease.alive:
                since = now if lease.now.own is not None else lease.now.waits_since
                renewed_at = now if holder.alive else lease.now.other_renewed_at
                other = holder.now.own or lease.now.other
                lease.now = LeaseState(since, other=other, other_renewed_at=renewed_at)


class MemoryLease:
    """One contender. `alive = False` simulates a crash or a pause: it neither responds nor leaves."""

    def __init__(self, group: MemoryGroup, name: str) -> None:
        self._group = group
        self.name = name
        self.alive = True
        self.seen_at = group.clock.monotonic()
        self._open = False
        self._reset()

    def _reset(self) -> None:
        self.now = LeaseState(self._group.clock.monotonic())

    def open(self) -> None:
        """Contend for the lease."""
        if not self._open:
            self._open = True
            self._reset()
            self._group.join(self)

    def state(self) -> LeaseState:
        """Return the current state; a contender that was evicted while it was silent joins again."""
        if self.alive:
            self._group.heartbeat()
            if self._open and self.now.own is not None and not self._group.has(self):
                self._reset()
                self._group.join(self)
                self._group.heartbeat()
        return self.now

    def close(self) -> None:
        """Release the lease."""
        self._open = False
        self._group.leave(self)
        self._reset()
