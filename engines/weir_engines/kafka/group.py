"""Consumer group as its coordinator describes it, and its members with their tasks."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from weir_contracts import Instance, Problem
from weir_engines.kafka.assignment import (
    Place,
    StreamsAssignment,
    Task,
    Undecodable,
    assigned,
    process_of,
    subscribed,
    tasks_of,
)

Protocol = Literal["classic", "consumer", "streams"]
MAX_MEMBERS = 5_000
_THREAD = "-StreamThread-"
_MAX_PROBLEMS = 3
"""Undecodable members that are named; others are usually of the same version."""


@dataclass(frozen=True)
class DescribedMember:
    """Member as the brokers report it. `assignment` and `subscription` are bytes of the classic protocol."""

    id: str
    client_id: str
    host: str = ""
    static_id: str = ""
    places: tuple[Place, ...] | None = None
    """Its partitions, for a protocol whose assignment the brokers decode. None: not reported."""
    assignment: bytes = b""
    subscription: bytes = b""


@dataclass(frozen=True)
class DescribedGroup:
    """Group as its coordinator reports it. A group that does not exist is in state Dead."""

    id: str
    state: str
    protocol: Protocol | None = None
    type: str = "consumer"
    """Type of the classic protocol: consumer, connect or another."""
    assignor: str = ""
    members: tuple[DescribedMember, ...] = ()

    @property
    def rebalances(self) -> bool:
        """Whether members join or receive assignments, so that the reported assignment may be empty."""
        return self.state in ("PreparingRebalance", "CompletingRebalance")


@dataclass(frozen=True)
class Member:
    """Member with its decoded assignment. None is unknown."""

    id: str
    client_id: str
    process: str
    """Process that it belongs to."""
    host: str
    static_id: str
    places: tuple[Place, ...] | None
    topics: tuple[str, ...]
    tasks: StreamsAssignment | None


@dataclass(frozen=True)
class Membership:
    """Decoded members of a group in which every member has its assignment."""

    members: tuple[Member, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that the members read."""
        named = {topic for member in self.members for topic in member.topics}
        return tuple(sorted(named | {topic for member in self.members for topic, _ in member.places or ()}))

    @property
    def tasks(self) -> int | None:
        """Number of active tasks of all members; None if a member's are unknown."""
        found: set[Task] = set()
        for member in self.members:
            if member.tasks is None:
                return None
            found.update(member.tasks.active)
        return len(found) or None

    @property
    def probing_at(self) -> datetime | None:
        """Time of the next probing rebalance: one member carries it."""
        times = [m.tasks.probing_at for m in self.members if m.tasks is not None and m.tasks.probing_at is not None]
        return min(times, default=None)

    def key(self) -> str:
        """Return a hash of which member processes what; standby tasks and warm-ups do not change it."""
        lines = [f"{m.id}\t{sorted(m.tasks.active if m.tasks else m.places or ())}" for m in self.members]
        return f"group {hashlib.sha256(chr(10).join(sorted(lines)).encode()).hexdigest()[:32]}"

    def process_of_thread(self, thread: str) -> str | None:
        """Return the process of a stream thread by its id; None if it is no member."""
        client_id = f"{thread}-consumer"
        return next((member.process for member in self.members if member.client_id == client_id), None)

    def owners(self) -> dict[Place, str]:
        """Return the process of each assigned partition."""
        return {place: member.process for member in self.members for place in member.places or ()}

    def instances(self) -> list[Instance]:
        """Return the processes with the sums of their members' tasks, at most 1,000."""
        by_process: dict[str, list[Member]] = {}
        for member in self.members:
            by_process.setdefault(member.process, []).append(member)
        probing = self.probing_at is not None
        return [_instance(process, members, probing) for process, members in sorted(by_process.items())[:1000]]


def membership(group: DescribedGroup, *, is_streams: bool) -> Membership:
    """Decode the members. What cannot be decoded is unknown, and a problem says why."""
    found, failed = [], []
    for described in group.members[:MAX_MEMBERS]:
        member, reasons = _member(described, is_streams=is_streams)
        found.append(member)
        failed += reasons
    problems = [Problem(where=f"group {group.id}", what=what) for what in dict.fromkeys(failed)][:_MAX_PROBLEMS]
    if len(group.members) > MAX_MEMBERS:
        what = f"{len(group.members):,} members are more than the {MAX_MEMBERS:,} that are read"
        problems.append(Problem(where=f"group {group.id}", what=what))
    return Membership(tuple(found), tuple(problems))


def _member(described: DescribedMember, *, is_streams: bool) -> tuple[Member, list[str]]:
    problems: list[str] = []
    places = described.places
    topics: tuple[str, ...] = ()
    tasks: StreamsAssignment | None = None
    process = described.client_id.partition(_THREAD)[0] if is_streams else described.id
    try:
        subscription = subscribed(described.subscription)
        topics = subscription.topics
        if is_streams and subscription.user_data:
            process = str(process_of(subscription.user_data))
    except Undecodable as error:
        problems.append(str(error))
    try:
        assignment = assigned(described.assignment)
        places = assignment.places if places is None else places
        if is_streams and assignment.user_data:
            tasks = tasks_of(assignment.user_data)
        elif is_streams:
            problems.append("no tasks: its members are not of Kafka Streams' classic protocol")
    except Undecodable as error:
        problems.append(f"tasks, warm-ups and the next probing rebalance are unknown: {error}")
    host = described.host.removeprefix("/")[:300]
    static_id = described.static_id[:300]
    member = Member(
        described.id[:400],
        described.client_id[:300],
        (process or described.id)[:300],
        host,
        static_id,
        places,
        topics,
        tasks,
    )
    return member, problems


def _instance(process: str, members: Sequence[Member], probing: bool) -> Instance:
    assignments = [member.tasks for member in members]
    known = [tasks for tasks in assignments if tasks is not None]
    decoded = len(known) == len(assignments)
    standby = sum(len(tasks.standby) for tasks in known) if decoded else None
    return Instance(
        id=process,
        host=members[0].host,
        threads=len(members),
        members=[member.id for member in members][:1000],
        static_ids=[member.static_id for member in members if member.static_id][:1000],
        active_tasks=sum(len(tasks.active) for tasks in known) if decoded else _places(members),
        standby_tasks=standby,
        # the format does not distinguish them from standby tasks while a probing rebalance of the group is due
        warm_up_tasks=0 if decoded and not (probing and standby) else None,
    )


def _places(members: Iterable[Member]) -> int | None:
    counts = [None if member.places is None else len(member.places) for member in members]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
