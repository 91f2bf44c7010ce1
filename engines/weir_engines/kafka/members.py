"""Consumer group as an action sees it: which instance each member belongs to, who is missing, who has departed.

The group is the one operator of its deployment, whatever runs its instances. Pure, with the port to coordinators.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weir_contracts import (
    Deployment,
    KafkaSignals,
    Operator,
    Parallelism,
    RescaleSettings,
    Subject,
    Topology,
    Unit,
    counted,
    short_name,
)
from weir_contracts.plugins import MAX_REQUESTED
from weir_engines.driver import DepartedMember, Progress, Refusal, RunningInstance

STABLE = "Stable"
MAX_REMEMBERED = 2_000
"""Instances of one application that are remembered; of more, the ones that were listed first are forgotten."""


@dataclass(frozen=True)
class GroupMember:
    """Member as the group's coordinator knows it."""

    id: str
    client_id: str
    static_id: str | None = None
    host: str = ""
    """Address that the coordinator sees. Empty: unknown."""
    instance: str = ""
    """Instance that has this address. Empty: unknown, or it has no address of its own."""


@dataclass(frozen=True)
class GroupReading:
    state: str
    """State as the coordinator names it."""
    members: tuple[GroupMember, ...] = ()
    unassigned: int = 0
    """Number of partitions of its topics without a member."""


def owner_of(member: GroupMember, instances: Iterable[str]) -> str | None:
    """Return the instance of a member, or None: the longest id that begins one of its names, up to the end or a `-`, else
    the one that has its address."""
    names = [name for name in (member.static_id, member.client_id) if name]
    listed = list(instances)
    owners = [each for each in listed if any(name == each or name.startswith(f"{each}-") for name in names)]
    if not owners and member.instance in listed:
        return member.instance
    return max(owners, key=len, default=None)


@dataclass(frozen=True)
class _Process:
    """Process of a listed instance, and its members by the readings of the group."""

    uid: str | None
    last: frozenset[str] = frozenset()
    """Members of the last reading: the process may have been replaced between the two readings of it."""
    earlier: frozenset[str] = frozenset()
    """Members of the readings before, after which the process was listed again."""

    def has(self, member: str) -> bool:
        """Return whether a reading showed this member."""
        return member in self.last or member in self.earlier


@dataclass
class InstanceMemory:
    """Instances of one application that were listed in earlier readings, by this process."""

    _listed: dict[str, None] = field(default_factory=dict)
    _ended: dict[str, frozenset[str]] = field(default_factory=dict)
    """Members of each ended instance in the first reading of the group after its end."""
    _processes: dict[str, _Process] = field(default_factory=dict)
    _replaced: dict[str, _Process] = field(default_factory=dict)
    """Earlier process of each instance whose id another process has now."""

    def departed(
        self, living: Mapping[str, str | None], ended: Collection[str], group: GroupReading
    ) -> tuple[DepartedMember, ...]:
        """Return the members whose instance has ended. `group` was read after the instances, which are by id with the uid
        of what runs them.

        A member that joined after its instance was said to have ended is of a living process, whatever is said. A member
        that first appears in the reading without its instance may be of a new process with the same id, which started
        after the instances were read: it counts once the next reading lacks the instance, too. Of an instance with
        another uid by now only members count that it had before its last reading.
        """
        self._listed.update(dict.fromkeys((*ended, *living)))
        for instance in living:
            self._ended.pop(instance, None)
        gone = self._listed.keys() - set(living)
        owners = {member: owner_of(member, self._listed) for member in group.members}
        members: dict[str, set[str]] = {}
        for member, owner in owners.items():
            members.setdefault(owner or "", set()).add(member.id)
        just_ended = gone - self._ended.keys()
        for instance in just_ended:
            self._ended[instance] = frozenset(members.get(instance, ()))
        for instance, uid in living.items():
            self._note(instance, uid, frozenset(members.get(instance, ())))
        self._forget()
        found = []
        for member, owner in owners.items():
            if owner is None:
                continue
            earlier, process = self._replaced.get(owner), self._processes.get(owner)
            is_new = owner in just_ended and process is not None and not process.has(member.id)
            if member.id in self._ended.get(owner, ()) and not is_new:
                found.append(DepartedMember(member.id, owner, member.static_id))
            elif owner in living and earlier is not None and member.id in earlier.earlier:
                found.append(DepartedMember(member.id, owner, member.static_id, earlier.uid))
        return tuple(found)

    def _note(self, instance: str, uid: str | None, members: frozenset[str]) -> None:
        before = self._processes.get(instance, _Process(uid))
        if before.uid == uid:
            self._processes[instance] = _Process(uid, members, (before.earlier | before.last) & members)
        else:
            self._replaced[instance] = before
            self._processes[instance] = _Process(uid, members - before.earlier)

    def _forget(self) -> None:
        for instance in list(self._listed)[: max(0, len(self._listed) - MAX_REMEMBERED)]:
            del self._listed[instance]
            for remembered in (self._ended, self._processes, self._replaced):
                remembered.pop(instance, None)


def running_instances(living: Mapping[str, str | None], group: GroupReading) -> tuple[RunningInstance, ...]:
    """Return the instances that run, by id with the uid of what runs them, with their members."""
    members: dict[str, list[str]] = {instance: [] for instance in living}
    for member in group.members:
        owner = owner_of(member, living)
        if owner is not None:
            members[owner].append(member.id)
    return tuple(RunningInstance(instance, tuple(members[instance]), uid) for instance, uid in living.items())


def without_members(living: Collection[str], group: GroupReading) -> int:
    """Return the number of instances without a member.

    If no member is named after any instance, only their number is known.
    """
    attended = {owner_of(member, living) for member in group.members} - {None}
    if attended:
        return len(set(living) - attended)
    return max(0, len(living) - len(group.members))


def group_progress(
    living: Collection[str], departed: Collection[object], group: GroupReading, threads: int
) -> Progress | None:
    """Return why the group does not process everything yet, or None: it is stable, every instance has a member and every
    partition, too, and there are as many members as `threads` of all instances."""
    missing = without_members(living, group)
    if departed:
        sentence = f"the group waits for {counted(len(departed), 'member')} of instances that have ended"
    elif group.state != STABLE:
        sentence = f"the group is {short_name(group.state)}"
    elif missing:
        sentence = f"{missing} {'instance has' if missing == 1 else 'instances have'} no member of the group"
    elif group.unassigned:
        noun = "partition has" if group.unassigned == 1 else "partitions have"
        sentence = f"{group.unassigned} {noun} no member of the group"
    elif len(group.members) != threads:
        sentence = f"the group has {counted(len(group.members), 'member')} instead of {threads}"
    else:
        return None
    return Progress("instances-pending", sentence)


def instances_ready(ready: int, wanted: int, running: int, noun: str = "instances") -> str:
    """Return the sentence about instances that are not ready, or too many."""
    more = "" if running <= wanted else f", and {running} run"
    return f"{ready} of {wanted} {noun} are ready{more}"


def threads_refusal(living: Collection[str], group: GroupReading, slots: int) -> Refusal | None:
    """Return the refusal of a policy that counts fewer threads than a ready instance has; None while the group moves."""
    owners = Counter(owner_of(member, living) for member in group.members)
    threads = min((owners[instance] for instance in living), default=0)
    if group.state != STABLE or threads <= slots:
        return None
    sentence = (
        f"each instance has {threads} members of the group or more, and the target's slots say {slots}: correct them"
    )
    return Refusal("unsupported", sentence)


_AT_ONCE = RescaleSettings(cooldown_seconds=0, stabilization_seconds=0, max_trigger_delay_seconds=0)


def kafka_of(subject: Subject) -> KafkaSignals:
    """Return the brokers of the group."""
    if subject.signals.kafka is None:
        raise ValueError(f"{subject.id}: a consumer group without signals.kafka")
    return subject.signals.kafka


def group_of(subject: Subject) -> str:
    """Return the group, which is the name of the application's only operator, too."""
    if subject.application.group_id is None:
        raise ValueError(f"{subject.id} is not a consumer group")
    return subject.application.group_id


def unit_of(subject: Subject) -> Unit:
    """Return the threads of one instance."""
    return subject.unit or Unit(1)


def topology_of(subject: Subject) -> Topology:
    """Return the graph of the one operator."""
    name = group_of(subject)
    return Topology(operators=[Operator(name=name, id=name)])


def deployment_of(subject: Subject, group: GroupReading, *, wanted: int, replicas: int) -> Deployment:
    """Return the deployment of a group with `wanted` requested instances, of which `replicas` exist."""
    name, topology = group_of(subject), topology_of(subject)
    return Deployment(
        engine=subject.application.engine,
        health="running" if group.state == STABLE else "restarting",
        job_id=name[:200],
        job_name=name,
        graph_hash=topology.graph_hash(),
        state=group.state[:50],
        requested={name: min(MAX_REQUESTED, wanted * unit_of(subject).slots)},
        observed={name: min(MAX_REQUESTED, max(1, len(group.members)))},
        replicas=replicas,
        rescale=_AT_ONCE,
    )


def unfit(subject: Subject, parallelism: Parallelism) -> str:
    """Return why no number of instances gives this parallelism; empty if one does."""
    name, unit = group_of(subject), unit_of(subject)
    if set(parallelism) != {name}:
        odd = sorted(set(parallelism) ^ {name})
        return f"the group and the request differ in operators: {', '.join(odd[:5])}"
    threads = parallelism[name]
    if threads > MAX_REQUESTED or threads < 1:
        return f"{threads} threads are not between 1 and {MAX_REQUESTED}"
    reached = -(-threads // unit.slots) * unit.slots
    if reached != threads:
        return f"no number of {unit.instance}s of {unit.slots} threads gives {threads}: the next is {reached}"
    return ""


class GroupUnread(Exception):
    """The brokers did not answer, or must not be asked; the sentence has the reason."""


class Groups(Protocol):
    """Consumer groups of any brokers. Calls raise `GroupUnread`."""

    async def read(self, kafka: KafkaSignals, group: str) -> GroupReading:
        """Return the group's state, its members and the partitions without one."""

    async def evict(
        self, kafka: KafkaSignals, group: str, members: Sequence[DepartedMember]
    ) -> tuple[DepartedMember, ...]:
        """Remove members; return those that the coordinator removed. A static one is removed only while its instance id
        still belongs to the member."""

    async def close(self) -> None: ...
