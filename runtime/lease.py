"""Who works: of all contenders of a role exactly one, for as long as its lease lasts. `judge` is pure: what a contender knows -> what it
may do. `kafka_lease` and `memory_lease` keep leases."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Terms:
    """What the lease is for, how long it lasts unless it is confirmed again, and how long a contender waits for that of another."""

    role: str
    """Names its holder in messages, and its group: one lease for each role of a loop."""
    lease_seconds: float = 10.0
    patience_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What the holder of the lease writes beside it, for those who wait."""

    holder: str
    since: datetime
    epoch: int
    """Grows with each holder: no two have the same, also where the brokers forgot the last one."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a contender knows at an instant; times are its own monotonic seconds, so no two clocks are ever compared."""

    waits_since: float
    """Since it asked for the lease, or lost it."""
    claim: Claim | None = None
    """Its own, while it owns the lease."""
    confirmed_at: float | None = None
    """When it sent the last claim that was accepted: before, not after, the answer, so that it never counts longer than others do."""
    other: Claim | None = None
    """The last claim that was read of somebody else."""
    other_heard_at: float | None = None
    """When that claim was last seen to change: its holder lives. None: it was read once, and may be of one long dead."""
    other_alive_since: float | None = None
    """Since when it has been seen to change without a gap as long as a lease. None: since one waits."""
    why_not: str = ""
    """What stood in the way at the last attempt."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a contender may do now, and why."""

    kind: Literal["works", "waits", "refused"]
    because: str


def judge(standing: Standing, now: float, terms: Terms) -> Verdict:
    """What the one who knows this may do at `now`.

    It works while its claim was confirmed within the lease. Whoever has waited longer than its patience is refused, but only for
    a holder that lived all that time: while the brokers are away, or a dead one's lease runs out, it goes on waiting.
    """
    if standing.claim is not None:
        if standing.confirmed_at is None:
            return Verdict("waits", f"its claim is not confirmed yet{_reason(standing)}")
        age = now - standing.confirmed_at
        if age < terms.lease_seconds:
            return Verdict("works", f"its claim was confirmed {age:.1f} s ago")
        return Verdict("waits", f"its claim was last confirmed {age:.1f} s ago{_reason(standing)}")
    other = standing.other
    if other is None:
        return Verdict("waits", f"the group has not answered yet{_reason(standing)}")
    who = f"another {terms.role} of this loop is at work: {other.holder}, since {other.since:%Y-%m-%d %H:%M:%S} UTC"
    if standing.other_heard_at is None:
        return Verdict("waits", f"{who}; not known yet whether it lives{_reason(standing)}")
    silent = now - standing.other_heard_at
    if silent >= terms.lease_seconds:
        return Verdict("waits", f"{who}; not heard of for {silent:.0f} s{_reason(standing)}")
    waited = now - max(standing.waits_since, standing.other_alive_since or standing.waits_since)
    if waited >= terms.patience_seconds:
        return Verdict("refused", f"{who}; waited {waited:.0f} s for it to end")
    return Verdict("waits", f"stands by: {who}")


def heard(standing: Standing, claim: Claim, now: float, terms: Terms) -> Standing:
    """After another's claim was seen to change at `now`."""
    last = standing.other_heard_at
    unbroken = last is not None and now - last < terms.lease_seconds
    since = standing.other_alive_since if unbroken else now
    return replace(standing, other=claim, other_heard_at=now, other_alive_since=since, why_not="")


def _reason(standing: Standing) -> str:
    return f": {standing.why_not}" if standing.why_not else ""


class Lease(Protocol):
    """One contender for the lease of a role. Does not block, except `close`, briefly."""

    def open(self) -> None:
        """Ask for it, and from now on hold it or wait for it. May be called again; does nothing then."""
        ...

    def standing(self) -> Standing:
        """What is known now. From any thread."""
        ...

    def close(self) -> None:
        """Give it back, so that who waits need not wait for its end. From any thread; may be called again."""
        ...
