"""The executor's side of simulated applications: plans reach a simulation as they reach a cluster. A driver for Flink jobs;
coordinators and the scaling endpoint of Kafka Streams applications, whose driver is that of production."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import httpx
from pydantic import ValidationError

from weir_contracts import KafkaSignals, Parallelism, Subject, changes
from weir_contracts.plugins import EndpointRequest, EndpointRestart
from weir_engines.driver import (
    Accepted,
    DepartedMember,
    Fence,
    Refusal,
    Rejected,
    Snapshot,
    Unanswered,
    WithoutGroups,
    contested,
)
from weir_engines.kafka.members import GroupMember, GroupReading, GroupUnread
from weir_runtime.clock import Clock

from .simulator import Simulation, StreamsSimulation
from .simulator.observe import deployment_of
from .simulator.world import START, at
from .streams import SimulatedGroup

_MAX_ENDED = 100
"""Ended instances that an endpoint still names."""


class SimulatedDriver(WithoutGroups):
    """Simulations by the URL of their cluster and the name of their job, advanced to the clock's time when they are
    used."""

    def __init__(self, clock: Clock) -> None:
        self.accepted_at: list[datetime] = []
        """Times at which a rescale was accepted; a rollback is one of its own."""
        self._clock = clock
        self._jobs: dict[tuple[str, str], Simulation] = {}

    def add(self, subject: Subject, simulation: Simulation) -> None:
        """Let `subject` name a simulation."""
        self._jobs[_key(subject)] = simulation

    async def observe(self, subject: Subject) -> Snapshot:
        found = self._find(subject)
        if isinstance(found, Snapshot):
            return found
        now, is_running = self._clock.now(), found.state == "RUNNING"
        since, completed = at(found.running_since), found.checkpoint_completed_at
        return Snapshot(
            at=now,
            reachable=True,
            deployment=deployment_of(found),
            all_running=is_running,
            running_since=since,
            steady_since=since if is_running else now,
            checkpoint_completed_at=None if completed is None else at(completed),
            checkpoint_in_progress=found.checkpoint_in_progress,
            topology=found.topology,
            can_trigger_checkpoint=True,
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
    ) -> Accepted | Rejected | Unanswered | Refusal:
        found = self._find(subject)
        if isinstance(found, Snapshot):
            return Rejected(found.reason) if found.reachable else Unanswered(found.reason)
        if found.job_id != job_id:
            return Rejected(f"Could not find Flink job ({job_id})")
        before = found.requested
        if before not in (expected, parallelism):
            return contested(changes(expected, before))
        held = await fence.begin()
        if held is not None:
            return held
        refused = found.request(parallelism)
        if refused is not None:
            return Rejected(refused)
        if before != parallelism:
            self.accepted_at.append(self._clock.now())
        if found.conditions.lost_answers > 0:
            found.conditions.lost_answers -= 1
            return Unanswered("the answer was lost")
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        found = self._find(subject)
        if isinstance(found, Snapshot):
            return found.reason
        return found.trigger_checkpoint() if found.job_id == job_id else f"the cluster has no job {job_id}"

    async def close(self) -> None:
        return None

    def _find(self, subject: Subject) -> Simulation | Snapshot:
        """Return the simulation that a subject names as it is now, or the snapshot of one that is unreachable or not
        there."""
        url, name = _key(subject)
        now = self._clock.now()
        here = [(job, simulation) for (where, job), simulation in self._jobs.items() if where == url]
        if not here:
            return Snapshot(now, reachable=False, reason=f"nothing answers at {url}")
        away = next((simulation.conditions.away for _, simulation in here if simulation.conditions.away), None)
        if away is not None:
            return Snapshot(now, reachable=False, reason=away)
        found = next((simulation for job, simulation in here if name in (job, simulation.job_id)), None)
        if found is None:
            return Snapshot(now, reachable=True, reason=f"the cluster has no job {name!r}")
        found.advance((now - START).total_seconds())
        return found


def _key(subject: Subject) -> tuple[str, str]:
    return str(subject.flink.url).rstrip("/"), subject.flink.job


class SimulatedGroups:
    """Coordinators of all simulated groups, for the executor's driver."""

    def __init__(self) -> None:
        self.applications: dict[str, SimulatedGroup] = {}
        """By the name of the group."""

    async def read(self, kafka: KafkaSignals, group: str) -> GroupReading:
        if group not in self.applications:
            return GroupReading("Dead")
        simulation = self.applications[group].now()
        if simulation.conditions.away is not None:
            raise GroupUnread(simulation.conditions.away)
        members = simulation.group.members
        held = {task for member in members.values() for task in member.tasks}
        missing = len(set(simulation.application.tasks) - held) if simulation.group.state == "Stable" else 0
        listed = tuple(GroupMember(id, member.client_id) for id, member in members.items())
        return GroupReading(simulation.group.state, listed, missing)

    async def evict(
        self, kafka: KafkaSignals, group: str, members: Sequence[DepartedMember]
    ) -> tuple[DepartedMember, ...]:
        found = self.applications[group].now().evict([member.id for member in members])
        return tuple(member for member in members if member.id in found)

    async def close(self) -> None:
        return None


class SimulatedEndpoints(httpx.AsyncBaseTransport):
    """Endpoints of all simulated applications, by the path of their address."""

    def __init__(self) -> None:
        self.applications: dict[str, SimulatedGroup] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, _, instance = request.url.path.removesuffix("/restart").partition("/instances/")
        application = self.applications.get(path)
        if application is None:
            return httpx.Response(404, json={})
        simulation = application.now()
        if simulation.conditions.away is not None:
            raise httpx.ConnectError(simulation.conditions.away)
        if instance:
            return _restart(simulation, instance, await request.aread())
        if request.method == "GET":
            return httpx.Response(200, json=_state(simulation))
        return _put(simulation, await request.aread())


def _put(simulation: StreamsSimulation, content: bytes) -> httpx.Response:
    try:
        request = EndpointRequest.model_validate_json(content)
    except ValidationError:
        return httpx.Response(422, json={})
    if request.replicas != simulation.replicas:
        if request.version != f"v{simulation.version}":
            return httpx.Response(409, json={})
        if simulation.request(request.replicas) is not None:
            return httpx.Response(422, json={})
    if simulation.conditions.lost_answers > 0:
        simulation.conditions.lost_answers -= 1
        return httpx.Response(504, json={})
    return httpx.Response(200, json=_state(simulation))


def _restart(simulation: StreamsSimulation, instance: str, content: bytes) -> httpx.Response:
    try:
        request = EndpointRestart.model_validate_json(content)
    except ValidationError:
        return httpx.Response(422, json={})
    if request.version != f"v{simulation.version}":
        return httpx.Response(409, json={})
    if simulation.restart(instance) is not None:
        # Names are not used twice: one that has ended was restarted by an earlier try.
        return httpx.Response(200 if instance in simulation.group.ended else 404, json=_state(simulation))
    return httpx.Response(200, json=_state(simulation))


def _state(simulation: StreamsSimulation) -> dict[str, Any]:
    processes = simulation.group.processes
    return {
        "replicas": simulation.replicas,
        "ready": sum(p.joined and p.ends_at is None for p in processes.values()),
        "instances": [{"id": each, "metricsUrl": f"http://127.0.0.1:9404/{each}"} for each in processes],
        "ended": simulation.group.ended[-_MAX_ENDED:],
        "restarts": True,
        "version": f"v{simulation.version}",
    }
