"""Consumer groups whose instances are the pods of one Kubernetes workload.

A member belongs to the pod that its client id or static id names, else to the pod that has its address. The pods are
read first: a member of a pod that does not exist any more has ended before the group is read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weir_contracts import Parallelism, Subject
from weir_engines.driver import (
    MAX_OBSERVED,
    DepartedMember,
    Evicted,
    Progress,
    Refusal,
    Snapshot,
    Steadiness,
    Unanswered,
)
from weir_engines.kafka.members import (
    GroupReading,
    Groups,
    GroupUnread,
    InstanceMemory,
    deployment_of,
    group_of,
    group_progress,
    instances_ready,
    kafka_of,
    running_instances,
    threads_refusal,
    topology_of,
    unfit,
    unit_of,
)
from weir_engines.kubernetes import state
from weir_engines.kubernetes.pods import PodReading
from weir_engines.kubernetes.service import merged
from weir_engines.kubernetes.state import Found
from weir_engines.scrape import Scrape
from weir_runtime.clock import Clock

MAX_EVICTED_PODS = 20
"""Pods whose members are evicted at a time, each after a request for the pod; the others follow."""
MAX_ADDRESSES = 2_000
_UNREAD = GroupReading("Unknown")


@dataclass
class _Memory:
    """Pods of one application in earlier readings, by this process."""

    instances: InstanceMemory = field(default_factory=InstanceMemory)
    addresses: dict[str, str] = field(default_factory=dict)
    """Name of the pod that had an address last."""
    restarts: state.Restarts | None = None


@dataclass(frozen=True)
class _Read:
    """Workload, the group that was read after its pods, and the members whose pod was deleted."""

    found: Found
    group: GroupReading
    departed: tuple[DepartedMember, ...]

    @property
    def pods(self) -> list[str]:
        """Names of the pods that are to stay."""
        return [each.pod.name for each in self.found.replicas]

    @property
    def processes(self) -> dict[str, str | None]:
        """Uids of the pods whose process may run, by name."""
        return _processes(self.found)

    def progress(self, threads: int) -> Progress | None:
        """Return why the requested pods do not process everything yet, or None. `threads` are those of all pods."""
        ending = sum(1 for each in self.found.pods if each.ends and not each.is_final)
        if ending:
            noun = "pod has" if ending == 1 else "pods have"
            return Progress("instances-pending", f"{ending} {noun} not ended yet")
        if not self.found.is_settled:
            status = self.found.reading.status
            ready = self.found.own.ready
            return Progress("pods-pending", instances_ready(ready, status.wanted, len(self.pods), "pods"))
        return group_progress(self.pods, self.departed, self.group, threads)

    def refusal(self, slots: int) -> Refusal | None:
        """Return the refusal of a policy that counts fewer threads than a pod has."""
        return threads_refusal(self.pods, self.group, slots) if self.found.is_settled else None


class GroupPods(state.Instances):
    """Groups at their coordinators, and the pods of their members."""

    def __init__(self, groups: Groups, clock: Clock) -> None:
        self._groups = groups
        self._clock = clock
        self._memories: dict[str, _Memory] = {}
        self._steadiness = Steadiness()

    async def observe(self, subject: Subject, found: Sequence[Found]) -> Snapshot:
        workload = found[0]
        try:
            read = await self._read(subject, workload)
        except GroupUnread as error:
            return Snapshot(self._clock.now(), reachable=False, reason=str(error))
        now, slots = self._clock.now(), unit_of(subject).slots
        waits = read.progress(workload.reading.status.wanted * slots)
        snapshot = self._snapshot(subject, workload, read.group)
        members = tuple(sorted(member.id for member in read.group.members))
        present = (workload.reading.status.wanted, tuple(read.pods), members, read.group.state, waits is None)
        return replace(
            snapshot,
            all_running=waits is None,
            steady_since=self._steadiness.since(subject.id, present, now),
            progress=waits,
            refusal=read.refusal(slots),
            departed=read.departed,
            can_restart_instances=state.target_of(subject).restart_instances,
            instances=running_instances(read.processes, read.group),
        )

    async def requested(self, subject: Subject, found: Sequence[Found]) -> Snapshot:
        """Return the workload's state alone, which has the request: the group's coordinator need not answer for it."""
        return self._snapshot(subject, found[0], _UNREAD)

    def unfit(self, subject: Subject, parallelism: Parallelism, observed: Snapshot) -> str:
        return unfit(subject, parallelism)

    def _snapshot(self, subject: Subject, found: Found, group: GroupReading) -> Snapshot:
        own = deployment_of(subject, group, wanted=found.reading.status.wanted, replicas=len(found.replicas))
        memory = self._memory(subject)
        memory.restarts = state.Restarts.of([found], found.reading.status.uid, memory.restarts)
        scrape = Scrape("running", "", deployment=own, topology=topology_of(subject))
        deployment = merged(scrape, state.as_reading([found]), state.target_of(subject), subject.namespace).deployment
        writers = {} if found.writer is None else {group_of(subject): found.writer}
        return Snapshot(
            at=self._clock.now(),
            reachable=True,
            deployment=(deployment or own).model_copy(update={"restarts": memory.restarts.total}),
            topology=scrape.topology,
            writers=writers,
        )

    async def evict(
        self, subject: Subject, found: Found, members: Sequence[DepartedMember], pods: state.Pods
    ) -> Evicted | Unanswered:
        """Remove those of the members whose pod is still missing, by the API server's word at this time."""
        try:
            read = await self._read(subject, found)
            wanted = {member.id for member in members}  # a pod of the same name may have come since
            evictable = [member for member in read.departed if member.id in wanted]
            names = sorted({member.instance: member.uid for member in evictable}.items())[:MAX_EVICTED_PODS]
            ended = await pods.ended(subject.namespace, dict(names)) if names else frozenset()
            evictable = [member for member in evictable if member.instance in ended]
            if not evictable:
                return Unanswered("no member is left whose pod was deleted")
            evicted = await self._groups.evict(kafka_of(subject), group_of(subject), evictable)
        except GroupUnread as error:
            return Unanswered(str(error))
        return Evicted(evicted) if evicted else Unanswered("the coordinator removed no member")

    async def _read(self, subject: Subject, found: Found) -> _Read:
        group = await self._groups.read(kafka_of(subject), group_of(subject))
        memory = self._memory(subject)
        group = _with_pods(group, _addresses(memory.addresses, found.pods))
        living = _processes(found)
        ended = [each.pod.name for each in found.pods if each.is_final]
        if found.reading.kind.kind == "StatefulSet" and found.reading.kind.group == "apps":
            ended += sorted(ordinals(found.name, group) - {*living, *ended})
        own = {address for each in found.pods if not each.is_final for address in each.addresses}
        hosts = {member.id: member.host for member in group.members}
        departed = memory.instances.departed(living, ended, group)
        # A member at the address of a pod that exists is of that pod's process, whichever had the name before.
        departed = tuple(each for each in departed if each.uid is None or hosts[each.id] not in own)
        return _Read(found, group, departed)

    def _memory(self, subject: Subject) -> _Memory:
        if subject.id not in self._memories and len(self._memories) >= MAX_OBSERVED:
            self._memories.clear()
        return self._memories.setdefault(subject.id, _Memory())


def _processes(found: Found) -> dict[str, str | None]:
    return {each.pod.name: each.uid for each in found.pods if not each.is_final}


def ordinals(name: str, group: GroupReading) -> frozenset[str]:
    """Return the pods of a StatefulSet that the members are named after.

    An executor that starts during an action thereby finds the members of pods that it never saw. Ordinals have at most
    five digits, so that a random id such as Kafka Streams' default of a client id is none.
    """
    pod = re.compile(rf"({re.escape(name)}-(?:0|[1-9][0-9]{{0,4}}))(?:-|$)")
    names = (each for member in group.members for each in (member.static_id, member.client_id) if each)
    return frozenset(match[1] for each in names if (match := pod.match(each)) is not None)


def _addresses(remembered: dict[str, str], pods: Sequence[PodReading]) -> Mapping[str, str]:
    """Return the pod of each address, those of deleted pods included; an address of several pods is no one's."""
    there: dict[str, list[str]] = {}
    for each in pods:
        for address in each.addresses:
            there.setdefault(address, []).append(each.pod.name)
    for address, names in there.items():
        remembered.pop(address, None)
        remembered[address] = names[0] if len(names) == 1 else ""
    for address in list(remembered)[: max(0, len(remembered) - MAX_ADDRESSES)]:
        del remembered[address]
    return remembered


def _with_pods(group: GroupReading, addresses: Mapping[str, str]) -> GroupReading:
    """Return the group with the pod of each member that has the address of one."""
    members = tuple(replace(each, instance=addresses.get(each.host, "")) for each in group.members)
    return replace(group, members=members)
