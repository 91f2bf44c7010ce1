"""The lease of a role: exactly one contender holds it, for as long as it confirms it. `judge` is pure; `kafka_lease`
keeps leases."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Terms:
    """Role and duration of a lease, and how long a contender stands by for another holder."""

    role: str
    """Names its holder in messages, and its group: one lease for each role of a loop."""
    lease_seconds: float = 10.0
    standby_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of the lease as the other contenders read it."""

    name: str
    since: datetime
    epoch: int
    """Grows with each holder: no two have the same, even if the brokers forgot the last one."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """One contender's view at an instant. Times are its own monotonic seconds, so clocks of two processes are never
    compared."""

    waits_since: float
    """When it requested or lost the lease."""
    own: Holder | None = None
    """This contender, while it owns the lease."""
    confirmed_at: float | None = None
    """When it sent the last confirmation that was accepted: the sending, so that it never counts longer than others do.
    """
    other: Holder | None = None
    """The last other holder that was read."""
    other_renewed_at: float | None = None
    """When the other holder's record last changed. None: it was read once, and its holder may have ended long ago."""
    other_alive_since: float | None = None
    """Start of the other holder's renewals without a gap as long as a lease. None: `waits_since`."""
    problem: str = ""
    """Reason why the last attempt failed."""


@dataclass(frozen=True, slots=True)
class LeaseDecision:
    """Permission to work, with its reason."""

    kind: Literal["works", "waits", "refused"]
    reason: str


def judge(state: LeaseState, now: float, terms: Terms) -> LeaseDecision:
    """Decide whether a contender may work at `now`.

    It works while its lease was confirmed within `lease_seconds`. It is refused after `standby_seconds` next to a
    holder that renewed its lease all that time; while the brokers are away, or the lease of a dead holder runs out, it
    goes on waiting.
    """
    because_of = f": {state.problem}" if state.problem else ""
    if state.own is not None:
        if state.confirmed_at is None:
            return LeaseDecision("waits", f"its lease is not confirmed yet{because_of}")
        age = now - state.confirmed_at
        if age < terms.lease_seconds:
            return LeaseDecision("works", f"its lease was confirmed {age:.1f} s ago")
        return LeaseDecision("waits", f"its lease was last confirmed {age:.1f} s ago{because_of}")
    other = state.other
    if other is None:
        return LeaseDecision("waits", f"the group has not answered yet{because_of}")
    holder = f"another {terms.role} of this loop is at work: {other.name}, since {other.since:%Y-%m-%d %H:%M:%S} UTC"
    if state.other_renewed_at is None:
        return LeaseDecision("waits", f"{holder}; unknown whether it is alive{because_of}")
    silent = now - state.other_renewed_at
    if silent >= terms.lease_seconds:
        return LeaseDecision("waits", f"{holder}; not renewed for {silent:.0f} s{because_of}")
    waited = now - max(state.waits_since, state.other_alive_since or state.waits_since)
    if waited >= terms.standby_seconds:
        return LeaseDecision("refused", f"{holder}; waited {waited:.0f} s for it to end")
    return LeaseDecision("waits", f"stands by: {holder}")


def renewed_by_other(state: LeaseState, other: Holder, now: float, terms: Terms) -> LeaseState:
    """Return the state after another holder's record changed at `now`."""
    last = state.other_renewed_at
    unbroken = last is not None and now - last < terms.lease_seconds
    since = state.other_alive_since if unbroken else now
    return replace(state, other=other, other_renewed_at=now, other_alive_since=since, problem="")


class Lease(Protocol):
    """One contender for the lease of a role. Does not block, except `close`, briefly."""

    def open(self) -> None:
        """Contend for the lease. May be called again; does nothing then."""

    def state(self) -> LeaseState:
        """Return the current state. From any thread."""

    def close(self) -> None:
        """Release the lease, so that others need not wait until it expires. From any thread; may be called again."""
