"""Consumer group as an action sees it: which instance each member belongs to, who is missing, who has departed. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from services.executor.core import messages
from services.executor.core.observed import DepartedMember, Progress

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
    """Group at its coordinator."""

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


@dataclass
class InstanceMemory:
    """Instances of one application that were listed in earlier readings, by this process."""

    _listed: dict[str, None] = field(default_factory=dict)
    _ended: dict[str, frozenset[str]] = field(default_factory=dict)
    """Members of each ended instance in the first reading of the group after its end."""

    def departed(
        self, living: Collection[str], ended: Collection[str], group: GroupReading
    ) -> tuple[DepartedMember, ...]:
        """Return the members whose instance has ended. `group` was read after the instances.

        A member that joined after its instance was said to have ended is of a living process, whatever is said.
        """
        self._listed.update(dict.fromkeys((*ended, *living)))
        for instance in living:
            self._ended.pop(instance, None)
        gone = self._listed.keys() - set(living)
        owners = {member: owner_of(member, self._listed) for member in group.members}
        for instance in sorted(gone - self._ended.keys()):
            self._ended[instance] = frozenset(member.id for member, owner in owners.items() if owner == instance)
        self._forget()
        return tuple(
            DepartedMember(member.id, owner, member.static_id)
            for member, owner in owners.items()
            if owner is not None and owner in gone and member.id in self._ended.get(owner, ())
        )

    def _forget(self) -> None:
        for instance in list(self._listed)[: max(0, len(self._listed) - MAX_REMEMBERED)]:
            del self._listed[instance]
            self._ended.pop(instance, None)


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
