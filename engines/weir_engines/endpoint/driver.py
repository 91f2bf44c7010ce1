"""Driver for the instances of a consumer group behind an HTTP endpoint, which reads and sets their number.

The endpoint knows which processes run, the group's coordinator which members it waits for. The endpoint is read first:
a member of an instance that it does not list any more has ended before the group is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import httpx
import structlog
from pydantic import AnyHttpUrl

from weir_contracts import InstanceRef, Parallelism, Subject, Unit, changes
from weir_contracts.plugins import EndpointState
from weir_engines.driver import (
    MAX_OBSERVED,
    NO_CHECKPOINTS,
    Accepted,
    DepartedMember,
    Evicted,
    Fence,
    Progress,
    Refusal,
    Rejected,
    Snapshot,
    Steadiness,
    TargetChanged,
    Unanswered,
    WithoutManagers,
    contested,
)
from weir_engines.endpoint.rest import MAX_ANSWER_BYTES, Endpoint, EndpointFailed
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
from weir_runtime.clock import Clock
from weir_runtime.files import CredentialsRefused
from weir_runtime.policy_credentials import ClientsByCredential, HttpCredential
from weir_runtime.reach import TARGETS, Allowed

Answer = Accepted | Rejected | TargetChanged | Unanswered | Refusal


ENDPOINT_SETTING = "WEIR_EXECUTOR_ENDPOINT_CREDENTIALS"
_WITHOUT_APPLICATION = "the endpoint does not know the application (404)"
_NO_INSTANCES = "the endpoint has 0 replicas: scale it to 1 by hand"


@dataclass(frozen=True)
class _Found:
    """Instances, the group that was read after them, and the members whose instance has ended."""

    instances: EndpointState
    group: GroupReading
    departed: tuple[DepartedMember, ...]

    @property
    def ids(self) -> list[str]:
        return [instance.id for instance in self.instances.instances]

    @property
    def is_settled(self) -> bool:
        """Whether exactly the requested instances run and are ready."""
        return self.instances.replicas == self.instances.ready == len(self.ids)

    def progress(self, unit: Unit) -> Progress | None:
        """Return why the requested instances do not process everything yet, or None."""
        there = self.instances
        if not self.is_settled:
            return Progress("instances-pending", instances_ready(there.ready, there.replicas, len(self.ids)))
        return group_progress(self.ids, self.departed, self.group, there.replicas * unit.slots)

    def refusal(self, unit: Unit) -> Refusal | None:
        """Return the refusal of a policy that counts fewer threads than an instance has."""
        return threads_refusal(self.ids, self.group, unit.slots) if self.is_settled else None


class EndpointDriver(WithoutManagers):
    """All endpoints. Every call has a timeout and every response a size limit; a token goes to its own origin only."""

    def __init__(
        self,
        clock: Clock,
        groups: Groups,
        credentials: Mapping[str, HttpCredential] | None = None,
        *,
        timeout_seconds: float = 5.0,
        allowed: Allowed = TARGETS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._clock = clock
        self._groups = groups
        self._answer_seconds = timeout_seconds
        # A request leaves within 3 s, while the fence that let it through still holds.
        self._leaving = httpx.Timeout(timeout_seconds, connect=1.5, pool=1.5)
        self._clients = ClientsByCredential(
            credentials,
            ENDPOINT_SETTING,
            timeout_seconds=timeout_seconds,
            connect_seconds=min(2.0, timeout_seconds),
            answer_bytes=MAX_ANSWER_BYTES,
            allowed=allowed,
            transport=transport,
        )
        self._instances: dict[str, InstanceMemory] = {}
        self._steadiness = Steadiness()
        self._log = structlog.get_logger("executor")

    async def close(self) -> None:
        await self._clients.close()
        await self._groups.close()

    async def observe(self, subject: Subject) -> Snapshot:
        try:
            found = await self._read(subject)
        except CredentialsRefused as error:
            return self._away(str(error), denied=True)
        except EndpointFailed as error:
            if error.is_missing:
                return Snapshot(self._clock.now(), reachable=True, reason=_WITHOUT_APPLICATION)
            return self._away(str(error), denied=error.is_denied)
        except GroupUnread as error:
            return self._away(str(error))
        if found.instances.replicas == 0:
            return Snapshot(self._clock.now(), reachable=True, reason=_NO_INSTANCES)
        return self._snapshot(subject, found)

    def _away(self, reason: str, *, denied: bool = False) -> Snapshot:
        refusal = Refusal("forbidden", reason) if denied else None
        return Snapshot(self._clock.now(), reachable=False, reason=reason, refusal=refusal)

    def _snapshot(self, subject: Subject, found: _Found) -> Snapshot:
        now, there = self._clock.now(), found.instances
        unit, group = unit_of(subject), found.group
        progress = found.progress(unit)
        members = tuple(sorted(member.id for member in group.members))
        state = (there.replicas, there.ready, tuple(sorted(found.ids)), members, group.state, progress is None)
        return Snapshot(
            at=now,
            reachable=True,
            deployment=deployment_of(subject, group, wanted=there.replicas, replicas=len(found.ids)),
            all_running=progress is None,
            steady_since=self._steadiness.since(subject.id, state, now),
            topology=topology_of(subject),
            refusal=found.refusal(unit),
            progress=progress,
            version=there.version,
            departed=found.departed,
            can_restart_instances=there.restarts and subject.target.restarts_instances,
            instances=running_instances(dict.fromkeys(found.ids), found.group),
        )

    async def request(
        self,
        subject: Subject,
        job_id: str,
        parallelism: Parallelism,
        expected: Parallelism,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Answer:
        name, unit = group_of(subject), unit_of(subject)
        if job_id != name[:200]:
            return Rejected(f"job {job_id[:100]} is missing: the application is group {name[:100]}")
        problem = unfit(subject, parallelism)
        if problem:
            return Rejected(problem)
        replicas = parallelism[name] // unit.slots
        try:
            endpoint = self._endpoint(subject)
            there = await endpoint.read()
            if there.replicas == replicas:
                return Accepted(self._clock.now())
            now = {name: there.replicas * unit.slots}
            if now != expected:
                return contested(changes(expected, now))
            if version is not None and version != there.version:
                return TargetChanged("the endpoint's version changed since it was observed")
            held = await fence.begin()
            if held is not None:
                return held
            await endpoint.scale(replicas, there.version, self._leaving)
        except CredentialsRefused as error:
            return Rejected(str(error))
        except EndpointFailed as error:
            if error.is_conflict:
                return TargetChanged("the endpoint's version changed since it was read")
            text = f"{replicas} instances: {error}"
            return Rejected(text) if error.is_final else Unanswered(text)
        self._log.info("endpoint-scaled", application=subject.id, before=there.replicas, replicas=replicas)
        return Accepted(self._clock.now())

    async def restart(
        self,
        subject: Subject,
        job_id: str,
        instance: InstanceRef,
        action_id: UUID,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Answer:
        try:
            endpoint = self._endpoint(subject)
            there = await endpoint.read()
            if all(each.id != instance.id for each in there.instances):
                return Accepted(self._clock.now())
            if version is not None and version != there.version:
                return TargetChanged("the endpoint's version changed since it was observed")
            held = await fence.begin()
            if held is not None:
                return held
            await endpoint.restart(instance.id, action_id, there.version, self._leaving)
        except CredentialsRefused as error:
            return Rejected(str(error))
        except EndpointFailed as error:
            if error.is_conflict:
                return TargetChanged("the endpoint's version changed since it was read")
            return Rejected(str(error)) if error.is_final else Unanswered(str(error))
        self._log.info("endpoint-restarted", application=subject.id, instance=instance.id)
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        return NO_CHECKPOINTS

    async def evict(self, subject: Subject, members: Sequence[DepartedMember]) -> Evicted | Unanswered:
        try:
            found = await self._read(subject)  # an instance may have come back since the snapshot
            evictable = [member for member in members if member in found.departed]
            if not evictable:
                return Unanswered("no member is left whose instance has ended")
            evicted = await self._groups.evict(kafka_of(subject), group_of(subject), evictable)
        except (CredentialsRefused, EndpointFailed, GroupUnread) as error:
            return Unanswered(str(error))
        return Evicted(evicted) if evicted else Unanswered("the coordinator removed no member")

    async def _read(self, subject: Subject) -> _Found:
        instances = await self._endpoint(subject).read()
        group = await self._groups.read(kafka_of(subject), group_of(subject))
        if subject.id not in self._instances and len(self._instances) >= MAX_OBSERVED:
            self._instances.clear()
        memory = self._instances.setdefault(subject.id, InstanceMemory())
        departed = memory.departed(dict.fromkeys(each.id for each in instances.instances), instances.ended, group)
        return _Found(instances, group, departed)

    def _endpoint(self, subject: Subject) -> Endpoint:
        target = subject.target.endpoint
        if target is None:
            raise ValueError("target: the endpoint driver was given a target without endpoint")
        return self.endpoint(target.credentials, target.url)

    def endpoint(self, credentials: str | None, url: AnyHttpUrl) -> Endpoint:
        """Return an endpoint, with its credentials. Raises `CredentialsRefused`."""
        return Endpoint(self._clients.of(credentials, url), str(url), self._answer_seconds)
