"""Consumer group as an action sees it: which instance each member belongs to, who is missing, who has departed. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from weir_executor.core import messages
from weir_executor.core.observed import DepartedMember, Progress, RunningInstance

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


def fewest_members(living: Collection[str], group: GroupReading) -> int:
    """Return the number of members of the instance that has the fewest, by their names."""
    owners = Counter(owner_of(member, living) for member in group.members)
    return min((owners[instance] for instance in living), default=0)


def group_progress(living: Collection[str], departed: Collection[object], group: GroupReading) -> Progress | None:
    """Return why the group does not process everything yet, or None: it is stable, every instance has a member and every
    partition, too."""
    missing = without_members(living, group)
    if departed:
        sentence = messages.group_waits(len(departed))
    elif group.state != STABLE:
        sentence = messages.group_is(group.state)
    elif missing:
        sentence = messages.without_member(missing)
    elif group.unassigned:
        sentence = messages.unassigned(group.unassigned)
    else:
        return None
    return Progress("instances-pending", sentence)
