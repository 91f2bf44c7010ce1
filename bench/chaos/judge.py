"""Judges a campaign by what was seen outside Weir: requests that arrived at the target, plans and group members at the
brokers, and policies as a user has put them. Pure. Times are seconds since the epoch on the campaign's clock."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from weir_contracts import Parallelism, changes
from weir_runtime.bus import SESSION_SECONDS

SLACK_SECONDS = 1.0
"""For a request that has passed the executor's fence to arrive at the target."""
MAX_READING_GAP_SECONDS = 2.0
"""Between two readings of the group, from which on the owner in between counts as unknown."""

Kind = Literal["double", "expired", "paused", "out-of-bounds", "not-owner", "no-plan", "unrecorded"]
LIES: Mapping[Kind, str] = {
    "double": "a rescale was requested twice",
    "expired": "a request after the expiry of its plan",
    "paused": "a request while the user had paused",
    "out-of-bounds": "a request outside the user's bounds",
    "not-owner": "a request by an executor that does not own the partition",
    "no-plan": "a request that no plan asked for",
    "unrecorded": "a change of the target's requirements without a request",
}


@dataclass(frozen=True)
class Request:
    """A request for another parallelism as it arrived. `sender`: the process, None if it was not found."""

    at: float
    sender: str | None
    job: str
    wanted: Parallelism
    accepted: bool
    begun_at: float | None = None
    """When its action stopped the job, from which on it has to go on. None: it stops none."""


@dataclass(frozen=True)
class PublishedPlan:
    """A plan to scale as it was handed to the brokers."""

    at: float
    id: str
    application: str
    wanted: Parallelism
    expires_at: float


@dataclass(frozen=True)
class PolicyChange:
    """A policy that a user has put. It is certain to be in force once it was answered, and may be from its sending."""

    sent_at: float
    answered_at: float
    application: str
    mode: str
    bounds: range


@dataclass(frozen=True)
class GroupReading:
    """Which executor owns which partition, by the group's coordinator."""

    at: float
    owners: Mapping[int, str]


@dataclass
class Record:
    """All that was seen. Lists are in the order of time."""

    partitions: Mapping[str, int] = field(default_factory=dict)
    """Partition of each application."""
    applications: dict[str, str] = field(default_factory=dict)
    """Application of each job."""
    at_start: dict[str, Parallelism] = field(default_factory=dict)
    """Requirements of each job before the first request, by the target."""
    at_end: dict[str, Parallelism] = field(default_factory=dict)
    """Requirements of each job after the last request, by the target."""
    requests: list[Request] = field(default_factory=list)
    plans: list[PublishedPlan] = field(default_factory=list)
    policies: list[PolicyChange] = field(default_factory=list)
    readings: list[GroupReading] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """When no broker was there, so that nothing could be confirmed."""


@dataclass(frozen=True)
class Finding:
    """One lie: what a request did that it must not."""

    kind: Kind
    at: float
    application: str
    sentence: str


def judge(record: Record) -> list[Finding]:
    """Return all that must not have happened, by application and in the order of time."""
    found: list[Finding] = []
    for job, application in record.applications.items():
        found += _Job(record, job, application).findings()
    return sorted(found, key=lambda finding: finding.at)


class _Job:
    """The requests of one job in their order, next to what was asked for."""

    def __init__(self, record: Record, job: str, application: str) -> None:
        self._record = record
        self._job = job
        self._application = application
        self._plans = [plan for plan in record.plans if plan.application == application]
        self._policies = [change for change in record.policies if change.application == application]
        self._reading_times = [reading.at for reading in record.readings]
        self._requested: set[str] = set()
        self._there = record.at_start.get(job)
        self._before: Parallelism | None = None
        """The requirements that a rollback would restore. None: there is nothing to roll back."""
        self._rolled_back = False

    def findings(self) -> list[Finding]:
        requests = [request for request in self._record.requests if request.job == self._job]
        found = []
        for request in requests:
            found += [
                Finding(kind, request.at, self._application, f"{LIES[kind]}: {self._line(request)}; {reason}")
                for kind, reason in self._lies(request)
            ]
            if request.accepted and request.wanted != self._there:
                self._before, self._there = (None if self._rolled_back else self._there), request.wanted
        at_end = self._record.at_end.get(self._job)
        certain = not requests or requests[-1].accepted
        if certain and at_end is not None and self._there is not None and at_end != self._there:
            sentence = f"{LIES['unrecorded']}: {changes(self._there, at_end)}"
            at = requests[-1].at if requests else 0.0
            found.append(Finding("unrecorded", at, self._application, sentence))
        return found

    def _line(self, request: Request) -> str:
        return f"{request.sender} requested {changes(self._there or {}, request.wanted) or 'what was there'}"

    def _lies(self, request: Request) -> Iterator[tuple[Kind, str]]:
        self._rolled_back = False
        if (stranger := self._stranger(request)) is not None:
            yield "not-owner", stranger
        if request.wanted == self._there:
            yield "double", "the target has these requirements already"
            return
        begun_at = request.at if request.begun_at is None else request.begun_at
        matching = [p for p in self._plans if p.wanted == request.wanted and p.at <= begun_at]
        plan = matching[-1] if matching else None
        fresh = [p for p in matching if begun_at <= p.expires_at + SLACK_SECONDS and p.id not in self._requested]
        if fresh:
            if request.accepted:
                self._requested.add(fresh[-1].id)
            yield from self._against_the_user(request, begun_at)
        elif request.wanted == self._before:
            self._rolled_back = True  # needs neither a plan nor the user
        elif plan is None:
            yield "no-plan", f"{len(self._plans)} plans want something else"
        elif begun_at > plan.expires_at + SLACK_SECONDS:
            yield "expired", f"plan {plan.id} expired {begun_at - plan.expires_at:.1f} s before"
        else:
            yield "double", f"plan {plan.id} was requested before"

    def _against_the_user(self, request: Request, begun_at: float) -> Iterator[tuple[Kind, str]]:
        """Compare with the policies that may have been in force when the action began to change the target."""
        sent = [change for change in self._policies if change.sent_at <= begun_at]
        certain = [at for at, change in enumerate(sent) if change.answered_at <= begun_at - SLACK_SECONDS]
        possible = sent[certain[-1] if certain else 0 :]
        if not possible:
            return
        if all(change.mode != "act" for change in possible):
            yield "paused", f"since {begun_at - possible[0].answered_at:.1f} s the policy is {possible[0].mode}"
        there = self._there or {}
        if not any(_within(change.bounds, there, request.wanted) for change in possible):
            bounds = possible[-1].bounds
            yield "out-of-bounds", f"the bounds are {bounds.start} to {bounds.stop - 1}"

    def _stranger(self, request: Request) -> str | None:
        """Return why the sender cannot own the partition; None if it may."""
        if request.sender is None:
            return None
        at, partition = request.at, self._record.partitions[self._application]
        for begin, end in self._record.outages:
            if begin + SESSION_SECONDS + SLACK_SECONDS < at < end:
                return f"no broker has confirmed anything for {at - begin:.1f} s"
        readings = self._recent(at)
        if not readings:
            return None
        newest_owner = readings[-1].owners.get(partition)
        if newest_owner == request.sender:
            return None
        unchanged = list(takewhile(lambda r: r.owners.get(partition) == newest_owner, reversed(readings)))
        if newest_owner is not None and at - unchanged[-1].at > SLACK_SECONDS:
            return f"{newest_owner} has owned partition {partition} for {at - unchanged[-1].at:.1f} s"
        covered = at - readings[0].at > SESSION_SECONDS + SLACK_SECONDS
        if covered and all(reading.owners.get(partition) != request.sender for reading in readings):
            return f"it has not owned partition {partition} for {at - readings[0].at:.1f} s"
        return None

    def _recent(self, at: float) -> Sequence[GroupReading]:
        """Return the readings of a session before `at`, without a gap."""
        readings = self._record.readings
        index = bisect_right(self._reading_times, at)
        found: list[GroupReading] = []
        later = at
        while index > 0 and later - readings[index - 1].at <= MAX_READING_GAP_SECONDS:
            index -= 1
            later = readings[index].at
            found.insert(0, readings[index])
            if at - later > SESSION_SECONDS + 2 * SLACK_SECONDS:
                break
        return found


def _within(bounds: range, there: Parallelism, wanted: Parallelism) -> bool:
    """Return whether each operator is within the bounds, or on its way back into them."""
    low, high = bounds.start, bounds.stop - 1
    return all(min(low, there.get(n, p)) <= p <= max(high, there.get(n, p)) for n, p in wanted.items())
