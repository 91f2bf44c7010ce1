"""Flink through its REST API: resource requirements in place, a checkpoint to get them applied."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter
from weir_contracts import Parallelism, RescaleSettings, Target

from runtime.addresses import TARGETS, Allowed
from runtime.clock import Clock
from runtime.http_client import async_client
from services.executor.core import Accepted, Refusal, Rejected, Snapshot, Unanswered, changes, contested
from services.executor.driver import Fence

from . import flink_answers as answers
from .flink_answers import Malformed

A = TypeVar("A")

MAX_ANSWER_BYTES = 20_000_000
SETTINGS_LIFE = timedelta(minutes=5)
"""A cluster's configuration changes with its processes only."""

_OVERVIEW = TypeAdapter(answers.Overview)
_JOB = TypeAdapter(answers.Job)
_STATISTICS = TypeAdapter(answers.CheckpointStatistics)
_CHECKPOINT_CONFIG = TypeAdapter(answers.CheckpointConfig)
_CLUSTER_CONFIG = TypeAdapter(answers.ClusterConfig)
_CLUSTER_OVERVIEW = TypeAdapter(answers.ClusterOverview)


class _Away(Exception):
    """No usable answer; the sentence names the call."""


class _Refused(Exception):
    """An answer that says no."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


@dataclass(frozen=True)
class _Settings:
    read_at: datetime
    interval_seconds: float | None
    rescale: RescaleSettings


class FlinkDriver:
    """All Flink clusters. One connection pool; every call has a timeout and an answer a size limit."""

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_seconds: float = 5.0,
        allowed: Allowed = TARGETS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._clock = clock
        self._answer_seconds = 2 * timeout_seconds
        # A request leaves within 3 s, while the fence that let it through still holds.
        self._leaving = httpx.Timeout(timeout_seconds, connect=1.5, pool=1.5)
        self._client = async_client(
            timeout_seconds=timeout_seconds,
            connect_seconds=min(2.0, timeout_seconds),
            answer_bytes=MAX_ANSWER_BYTES,
            connections=64,
            idle_connections=32,
            allowed=allowed,
            transport=transport,
        )
        self._settings: dict[tuple[str, str], _Settings] = {}

    async def close(self) -> None:
        await self._client.aclose()

    async def observe(self, target: Target) -> Snapshot:
        url, wanted = _address(target)
        try:
            line = answers.find(await self._get(url, "/jobs/overview", _OVERVIEW), wanted)
            if line is None:
                return Snapshot(self._clock.now(), reachable=True, because=f"the cluster has no job {wanted!r}")
            return await self._look(url, line)
        except (_Away, Malformed, _Refused) as error:
            return Snapshot(self._clock.now(), reachable=False, because=str(error))

    async def request(
        self, target: Target, job_id: str, parallelism: Parallelism, expected: Parallelism, fence: Fence
    ) -> Accepted | Rejected | Unanswered | Refusal:
        url, _ = _address(target)
        path = f"/jobs/{job_id}/resource-requirements"
        try:
            graph = answers.topology(await self._get(url, f"/jobs/{job_id}", _JOB))
            if set(graph.names) != set(parallelism):
                odd = sorted(set(graph.names) ^ set(parallelism))
                return Rejected(f"the job and the request differ in operators: {', '.join(odd[:5])}")
            requirements = await self._get(url, path, answers.Requirements)
            there = answers.by_name(graph, requirements)
            if there is None:
                return Unanswered(f"GET {path}: the requirements do not name every operator")
            if there == parallelism:
                return Accepted(self._clock.now())
            if there != expected:
                return contested(changes(expected, there))
            held = await fence.begin()
            if held is not None:
                return held
            # A lower bound above 1 would make the next restart wait for slots, and fail without.
            bounds = {o.id: {"lowerBound": 1, "upperBound": parallelism[o.name]} for o in graph.operators}
            body = {id: {"parallelism": bound} for id, bound in bounds.items()}
            await self._call("PUT", url, path, json=body, timeout=self._leaving)
        except _Refused as error:
            return Rejected(str(error)) if _is_final(error) else Unanswered(str(error))
        except (_Away, Malformed) as error:
            return Unanswered(str(error))
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, target: Target, job_id: str) -> str | None:
        url, _ = _address(target)
        try:
            await self._call("POST", url, f"/jobs/{job_id}/checkpoints", json={"checkpointType": "CONFIGURED"})
        except (_Away, _Refused) as error:
            return str(error)
        return None

    async def slots(self, target: Target) -> int | None:
        """Slots that are registered at the cluster; None: unknown."""
        url, _ = _address(target)
        try:
            return (await self._get(url, "/overview", _CLUSTER_OVERVIEW)).slots_total
        except (_Away, Malformed, _Refused):
            return None

    async def _look(self, url: str, line: answers.JobLine) -> Snapshot:
        path = f"/jobs/{line.jid}"
        requirements_read = self._get_or_none(url, f"{path}/resource-requirements", answers.Requirements)
        statistics_read = self._get_or_none(url, f"{path}/checkpoints", _STATISTICS)
        metrics_read = self._get_or_none(url, f"{path}/metrics?get=numRestarts", answers.Metrics)
        settings, (job, at), requirements, statistics, metrics = await asyncio.gather(
            self._settings_of(url, line.jid), self._job(url, path), requirements_read, statistics_read, metrics_read
        )
        return answers.snapshot(
            line,
            job,
            requirements,
            statistics,
            next((m.value for m in metrics or () if m.id == "numRestarts"), None),
            interval=settings.interval_seconds,
            rescale=settings.rescale,
            at=at,
        )

    async def _job(self, url: str, path: str) -> tuple[answers.Job, datetime]:
        return await self._get(url, path, _JOB), self._clock.now()

    async def _settings_of(self, url: str, job_id: str) -> _Settings:
        known = self._settings.get((url, job_id))
        if known is not None and self._clock.now() - known.read_at < SETTINGS_LIFE:
            return known
        entries_read = self._get_or_none(url, f"/jobs/{job_id}/jobmanager/config", answers.Configuration)
        config_read = self._get_or_none(url, f"/jobs/{job_id}/checkpoints/config", _CHECKPOINT_CONFIG)
        cluster_read = self._get_or_none(url, "/config", _CLUSTER_CONFIG)
        entries, config, cluster = await asyncio.gather(entries_read, config_read, cluster_read)
        interval = answers.interval_seconds(config)
        features = cluster.features if cluster else answers.Features()
        found = _Settings(self._clock.now(), interval, answers.settings(entries or [], features, interval))
        if entries is not None and cluster is not None:
            self._forget_old_settings()
            self._settings[url, job_id] = found
        return found

    def _forget_old_settings(self) -> None:
        now = self._clock.now()
        self._settings = {k: s for k, s in self._settings.items() if now - s.read_at < SETTINGS_LIFE}

    async def _get_or_none(self, url: str, path: str, adapter: TypeAdapter[A]) -> A | None:
        """What is not needed to see the job: a refusal or nonsense is `unknown`, silence is still silence."""
        try:
            return await self._get(url, path, adapter)
        except (_Refused, Malformed):
            return None

    async def _get(self, url: str, path: str, adapter: TypeAdapter[A]) -> A:
        return answers.parse(adapter, await self._call("GET", url, path), f"GET {path}")

    async def _call(self, method: str, url: str, path: str, **arguments: Any) -> bytes:
        try:
            # httpx bounds each wait for bytes; the whole is bounded here, or a trickle would hold the action.
            async with asyncio.timeout(self._answer_seconds):
                response = await self._client.request(method, f"{url}{path}", **arguments)
        except TimeoutError:
            raise _Away(f"{method} {url}{path}: no whole answer within {self._answer_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _Away(f"{method} {url}{path}: {str(error) or type(error).__name__}") from None
        status = response.status_code
        if status >= 300:
            why = answers.reason(response.content) or httpx.codes.get_reason_phrase(status)
            raise _Refused(status, f"{method} {path}: {status} {why}")
        return response.content


def _address(target: Target) -> tuple[str, str]:
    return str(target.job.url).rstrip("/"), target.job.job


def _is_final(error: _Refused) -> bool:
    """Whether asking again is useless. Flink answers 500 also for what will never work: the default scheduler, a job that
    is not there; other 5xx may be a JobManager in the middle of an election."""
    if 400 <= error.status < 500:
        return error.status not in (408, 429)
    text = str(error)
    return "does not support changing the parallelism" in text or "Could not find Flink job" in text
