"""Flink through its REST API: resource requirements in place, a checkpoint to get them applied."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import httpx

from weir_contracts import Checkpoints, Deployment, Parallelism, RescaleSettings, Subject, Topology, changes, short_name
from weir_engines.driver import (
    Accepted,
    Fence,
    Refusal,
    Rejected,
    Snapshot,
    Steadiness,
    Unanswered,
    WithoutGroups,
    contested,
)
from weir_engines.flink import rescale
from weir_engines.flink.metrics import (
    MAX_TASK_MANAGERS,
    ManagerSlots,
    is_safe_id,
    manager_slots,
    plain_metrics,
    slots_of_others,
)
from weir_engines.flink.rescale import CheckpointStatistics, Requirements, bounds_by_name, rescale_settings
from weir_engines.flink.rest import CallFailed, Cluster, Unreadable, count, mapping
from weir_engines.flink.topology import TERMINAL, Job, JobEntry, find_job, job, running_jobs
from weir_runtime.clock import Clock
from weir_runtime.files import CredentialsRefused
from weir_runtime.policy_credentials import FLINK_SETTING, ClientsByCredential, HttpCredential
from weir_runtime.reach import TARGETS, Allowed

T = TypeVar("T")

MAX_ANSWER_BYTES = 2_000_000
LEAVING_SECONDS = 1.5
"""Limit of a connection, and of the wait for one: a request leaves while the fence that let it through still holds."""
SETTINGS_LIFE = timedelta(minutes=5)
"""A cluster's configuration changes with its processes only."""
_MAX_AGE = timedelta(days=40 * 365)
"""An instant further from now is invalid."""


@dataclass(frozen=True)
class _Settings:
    read_at: datetime
    interval_seconds: float | None
    rescale: RescaleSettings
    triggers_checkpoint: bool


@dataclass(frozen=True)
class RegisteredManagers:
    """TaskManagers that are registered at a cluster."""

    each: tuple[ManagerSlots, ...]
    is_shared: bool
    """Whether another job than this one runs on the cluster."""
    others: int | None = None
    """Slots that other jobs hold; None: unknown, or there is none."""


class FlinkDriver(WithoutGroups):
    """All Flink clusters. One connection pool for each credential; every call has a timeout and every response a size
    limit."""

    def __init__(
        self,
        clock: Clock,
        credentials: Mapping[str, HttpCredential] | None = None,
        *,
        timeout_seconds: float = 5.0,
        allowed: Allowed = TARGETS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._clock = clock
        self._answer_seconds = 2 * timeout_seconds
        self._leaving = httpx.Timeout(timeout_seconds, connect=LEAVING_SECONDS, pool=LEAVING_SECONDS)
        self._clients = ClientsByCredential(
            credentials,
            FLINK_SETTING,
            timeout_seconds=timeout_seconds,
            connect_seconds=min(2.0, timeout_seconds),
            answer_bytes=MAX_ANSWER_BYTES,
            connections=64,
            idle_connections=32,
            allowed=allowed,
            transport=transport,
        )
        self._settings: dict[tuple[str, str], _Settings] = {}
        self._enough = Steadiness()

    async def close(self) -> None:
        await self._clients.close()

    async def observe(self, subject: Subject) -> Snapshot:
        wanted = subject.flink.job
        try:
            cluster = self.cluster(subject)
            entry, _ = await cluster.get("/jobs/overview", lambda d: find_job(d, wanted))
            if entry is None:
                return Snapshot(self._clock.now(), reachable=True, reason=f"the cluster has no job {wanted!r}")
            try:
                return await self._with_slots(subject, cluster, await self._snapshot_of(cluster, entry))
            except Unreadable:
                if entry.state not in TERMINAL:
                    raise
                # Flink keeps no graph of a job that ended while it restarted.
                return Snapshot(self._clock.now(), reachable=True, reason=f"job {entry.id} is {entry.state}")
        except (CallFailed, Unreadable) as error:
            return Snapshot(self._clock.now(), reachable=False, reason=str(error))

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
        path = f"/jobs/{job_id}/resource-requirements"
        graph: Topology | None = None
        try:
            cluster = self.cluster(subject)
            graph = (await cluster.get(f"/jobs/{job_id}", job)).topology()
            if set(graph.names) != set(parallelism):
                odd = sorted(set(graph.names) ^ set(parallelism))
                return Rejected(f"the job and the request differ in operators: {', '.join(odd[:5])}")
            _, there = bounds_by_name(await cluster.get(path, rescale.requirements), graph)
            if there is None:
                return Unanswered(f"GET {path}: the requirements do not name every operator")
            if there == parallelism:
                return Accepted(self._clock.now())
            if there != expected:
                return contested(changes(expected, there))
            held = await fence.begin()
            if held is not None:
                return held
            await cluster.send("PUT", path, json=rescale.request_body(graph, parallelism), timeout=self._leaving)
        except CallFailed as error:
            return Rejected(_named(error.what, graph)) if error.is_final else Unanswered(str(error))
        except Unreadable as error:
            return Unanswered(str(error))
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        checkpoint = {"checkpointType": "CONFIGURED"}
        try:
            await self.cluster(subject).send("POST", f"/jobs/{job_id}/checkpoints", json=checkpoint)
        except CallFailed as error:
            return str(error)
        return None

    async def registered(self, subject: Subject) -> RegisteredManagers | str:
        """Return the TaskManagers that are registered at the cluster, or why they are unknown."""
        try:
            cluster = self.cluster(subject)
            wanted = subject.flink.job
            each, (own, running) = await asyncio.gather(
                cluster.get("/taskmanagers", manager_slots),
                cluster.get("/jobs/overview", lambda d: (find_job(d, wanted)[0], running_jobs(d))),
            )
        except (CallFailed, Unreadable) as error:
            return str(error)
        job_id = "" if own is None else own.id
        is_shared = any(job.id != job_id for job in running)
        others = await _slots_of_others(cluster, each, job_id) if is_shared else None
        return RegisteredManagers(tuple(each), is_shared, others)

    async def slots(self, subject: Subject) -> int | None:
        """Return the registered slots of the cluster, or None if unknown."""
        try:
            return await _slots(self.cluster(subject), "slots-total")
        except CallFailed:
            return None

    async def _with_slots(self, subject: Subject, cluster: Cluster, found: Snapshot) -> Snapshot:
        """Add since when there are the slots for which the cluster starts TaskManagers; the rescale waits for a
        checkpoint after that."""
        deployment, topology = found.deployment, found.topology
        if deployment is None or topology is None or deployment.rescale.max_slots is None:
            return found
        wanted, held = topology.slots(deployment.requested or {}), topology.slots(deployment.observed)
        if wanted <= held:
            return found
        free = await _slots(cluster, "slots-available")
        is_enough = free is not None and held + free >= wanted
        since = self._enough.since(subject.id, (wanted, held, is_enough), found.at)
        return replace(found, resourced_at=since if is_enough else None)

    def cluster(self, subject: Subject, answer_seconds: float | None = None) -> Cluster:
        """Return the cluster, each call of which ends within a time limit, by default the driver's own. Raises `CallFailed` without
        a right to the credentials that the policy names."""
        application = subject.flink
        try:
            client = self._clients.of(application.credentials, application.url)
        except CredentialsRefused as error:
            raise CallFailed("application.flink.credentials", str(error), httpx.codes.FORBIDDEN) from None
        return Cluster(client, str(application.url), answer_seconds or self._answer_seconds)

    async def _snapshot_of(self, cluster: Cluster, entry: JobEntry) -> Snapshot:
        path = f"/jobs/{entry.id}"
        settings, (details, at), wanted, points, metrics = await asyncio.gather(
            self._settings_of(cluster, entry.id),
            self._details(cluster, path),
            _get_or_none(cluster, f"{path}/resource-requirements", rescale.requirements),
            _get_or_none(cluster, f"{path}/checkpoints", rescale.checkpoints),
            _get_or_none(cluster, f"{path}/metrics?get=numRestarts", plain_metrics),
        )
        restarts = count((metrics or {}).get("numRestarts"))
        return _snapshot(
            entry,
            details,
            at,
            wanted=wanted,
            points=points or CheckpointStatistics(),
            restarts=restarts,
            settings=settings,
        )

    async def _details(self, cluster: Cluster, path: str) -> tuple[Job, datetime]:
        return await cluster.get(path, job), self._clock.now()

    async def _settings_of(self, cluster: Cluster, job_id: str) -> _Settings:
        cached = self._settings.get((cluster.url, job_id))
        if cached is not None and self._clock.now() - cached.read_at < SETTINGS_LIFE:
            return cached
        path = f"/jobs/{job_id}"
        configuration, interval, about = await asyncio.gather(
            _get_or_none(cluster, f"{path}/jobmanager/config", rescale.configuration),
            _get_or_none(cluster, f"{path}/checkpoints/config", rescale.checkpoint_interval_seconds),
            _get_or_none(cluster, "/config", lambda d: mapping(d, "/config")),
        )
        found = _Settings(
            self._clock.now(),
            interval,
            _rescale_settings(configuration, about or {}, interval),
            rescale.triggers_checkpoint(configuration),
        )
        if configuration is not None and about is not None:
            fresh = {k: s for k, s in self._settings.items() if found.read_at - s.read_at < SETTINGS_LIFE}
            self._settings = {**fresh, (cluster.url, job_id): found}
        return found


async def _slots_of_others(cluster: Cluster, each: Sequence[ManagerSlots], job_id: str) -> int | None:
    """Return the slots that other jobs hold; None if that is unknown, or takes too many requests. A job holds slots that it
    no longer uses for a while, so that its parallelism does not show how many are its own."""
    used = [manager for manager in each if manager.free < manager.slots]
    if len(used) > MAX_TASK_MANAGERS or not all(is_safe_id(manager.id) for manager in used):
        return None
    try:
        found = await asyncio.gather(
            *(cluster.get(f"/taskmanagers/{manager.id}", lambda d: slots_of_others(d, job_id)) for manager in used)
        )
    except (CallFailed, Unreadable):
        return None
    return sum(found)


async def _slots(cluster: Cluster, name: str) -> int | None:
    """Return a number of slots of the cluster's overview, or None if unknown."""
    try:
        return count((await cluster.get("/overview", lambda d: mapping(d, "/overview"))).get(name))
    except (CallFailed, Unreadable):
        return None


async def _get_or_none(cluster: Cluster, path: str, parse: Callable[[Any], T]) -> T | None:
    """Return None for a refused or unreadable response, which the snapshot can do without. Raises `CallFailed` without
    a response."""
    try:
        return await cluster.get(path, parse)
    except Unreadable:
        return None
    except CallFailed as error:
        if error.status is None:
            raise
        return None


def _named(reason: str, graph: Topology | None) -> str:
    """Return Flink's reason with the names of operators instead of their ids."""
    for operator in graph.operators if graph is not None else ():
        reason = reason.replace(operator.id, short_name(operator.name))
    return reason


def _rescale_settings(
    configuration: Mapping[str, str] | None, about: Mapping[str, Any], interval_seconds: float | None
) -> RescaleSettings:
    version, features = about.get("flink-version"), about.get("features")
    offered = features.get("web-rescale") if isinstance(features, dict) else None
    return rescale_settings(
        configuration,
        version if isinstance(version, str) else None,
        interval_seconds,
        web_rescale=offered if isinstance(offered, bool) else None,
    )


def _snapshot(
    entry: JobEntry,
    details: Job,
    at: datetime,
    *,
    wanted: Requirements | None,
    points: CheckpointStatistics,
    restarts: int | None,
    settings: _Settings,
) -> Snapshot:
    """Combine the responses. `at` is this process's time of Flink's `now`, by which its other instants are shifted."""
    now, graph = details.now, details.topology()
    if now is None:
        raise Unreadable("/jobs/:id now", "expected milliseconds since the epoch")

    def here(instant: datetime | None) -> datetime | None:
        return None if instant is None or abs(instant - now) > _MAX_AGE else at + (instant - now)

    checkpoints = Checkpoints(
        interval_seconds=settings.interval_seconds,
        last_completed_at=here(points.last_completed_at),
        last_duration_seconds=points.last_duration_seconds,
        completed=points.completed,
        failed=points.failed,
    )
    lower, upper = bounds_by_name(wanted, graph)
    deployment = Deployment(
        job_id=details.id,
        job_name=details.name[:300],
        graph_hash=graph.graph_hash(),
        engine="flink",
        health=details.health,
        state=details.state[:50],
        started_at=here(details.started_at),
        requested=upper,
        requested_lower=lower,
        observed=details.observed(),
        restarts=restarts,
        checkpoints=checkpoints,
        rescale=settings.rescale,
    )
    return Snapshot(
        at=at,
        reachable=True,
        deployment=deployment,
        all_running=_all_running(entry, details),
        running_since=here(details.running_since),
        steady_since=here(entry.last_modified_at),
        checkpoint_completed_at=checkpoints.last_completed_at,
        checkpoint_in_progress=None if points.in_progress is None else points.in_progress > 0,
        topology=graph,
        can_trigger_checkpoint=True,
        engine_triggers_checkpoint=settings.triggers_checkpoint,
    )


def _all_running(entry: JobEntry, details: Job) -> bool:
    """Return whether overview and details agree: details may be seconds old (`web.refresh-interval`), the overview is
    not."""
    if entry.state != "RUNNING" or not entry.tasks or entry.tasks_running != entry.tasks:
        return False
    return details.all_running and entry.tasks == sum(vertex.parallelism for vertex in details.vertices)
