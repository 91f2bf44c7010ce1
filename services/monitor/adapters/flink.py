"""Reads one Flink cluster through its REST API."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from weir_contracts import FlinkTarget, Problem

from services.monitor import flink_answers as answers
from services.monitor.core import FlinkReadings, Shares

T = TypeVar("T")

MOST_BYTES = 20_000_000
NAMES_PER_CALL = 80
"""Keeps a request's address below the 8 KiB that proxies accept."""
MOST_CALLS_AT_ONCE = 6
_GAUGES = ("busyTimeMsPerSecond", "backPressuredTimeMsPerSecond")


class Unanswered(Exception):
    """A call that gave no usable answer; `where` is the call."""

    def __init__(self, where: str, what: str) -> None:
        self.where = where
        self.what = what
        super().__init__(f"{where}: {what}")


@dataclass
class _KnownJob:
    """What does not change while a job id lives, so it is asked once."""

    job_id: str
    configuration: dict[str, str] | None = None
    checkpoint_interval_seconds: float | None = None


class FlinkCollector:
    """Scrapes one job of one cluster. Never raises: what cannot be read is a problem in the readings."""

    def __init__(self, target: FlinkTarget, timeout_seconds: float, client: httpx.AsyncClient | None = None) -> None:
        self._target = target
        self._client = client or httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_seconds),
            follow_redirects=False,
            limits=httpx.Limits(max_connections=MOST_CALLS_AT_ONCE),
        )
        self._base = str(target.url).rstrip("/")
        self._calls = asyncio.Semaphore(MOST_CALLS_AT_ONCE)
        self._known: _KnownJob | None = None

    async def close(self) -> None:
        await self._client.aclose()

    async def scrape(self) -> FlinkReadings:
        """The cluster's present answers."""
        problems: list[Problem] = []
        try:
            entry, odd = answers.find_job(answers.jobs(await self._get("/jobs/overview")), self._target.job)
        except (Unanswered, answers.Unreadable) as error:
            return FlinkReadings(reachable=False, message=str(error))
        if odd:
            problems.append(Problem(where="/jobs/overview", what=odd[:1000]))
        if entry is None:
            return FlinkReadings(message=f"the cluster has no job {self._target.job!r}", problems=tuple(problems))
        try:
            job = answers.job(await self._get(f"/jobs/{entry.id}"))
        except (Unanswered, answers.Unreadable) as error:
            # It was there a moment ago; the cluster answers, so this is no outage of it.
            return FlinkReadings(reachable=False, message=str(error), problems=tuple(problems))
        return await self._details(job, problems)

    async def _details(self, job: answers.Job, problems: list[Problem]) -> FlinkReadings:
        ask = _Asker(self, problems)
        if self._known is None or self._known.job_id != job.id:
            self._known = _KnownJob(job.id)
        known = self._known
        path = f"/jobs/{job.id}"
        async with asyncio.TaskGroup() as calls:
            live = job.vertices if job.all_running else ()
            fed = {source.id for source in job.sources}
            shares = [calls.create_task(self._shares(path, v.id, ask)) for v in live]
            sources = [calls.create_task(self._source(path, v.id, ask)) for v in live if v.id in fed]
            wanted = calls.create_task(ask(f"{path}/resource-requirements", answers.requirements))
            points = calls.create_task(ask(f"{path}/checkpoints", answers.checkpoints))
            overview = calls.create_task(ask("/overview", lambda d: answers.mapping(d, "/overview")))
            restarts = calls.create_task(ask(f"{path}/metrics?get=numRestarts", answers.plain_metrics))
            calls.create_task(self._learn(path, known, ask))
        slots = overview.result() or {}
        return FlinkReadings(
            job=job,
            shares=dict(task.result() for task in shares),
            sources=dict(task.result() for task in sources),
            requirements=wanted.result(),
            checkpoints=points.result(),
            checkpoint_interval_seconds=known.checkpoint_interval_seconds,
            slots_total=answers.count(slots.get("slots-total")),
            slots_available=answers.count(slots.get("slots-available")),
            restarts=answers.count((restarts.result() or {}).get("numRestarts")),
            configuration=known.configuration,
            problems=tuple(problems),
        )

    async def _learn(self, path: str, known: _KnownJob, ask: "_Asker") -> None:
        if known.configuration is None:
            known.configuration = await ask("/jobmanager/config", answers.configuration)
            known.checkpoint_interval_seconds = await ask(
                f"{path}/checkpoints/config", answers.checkpoint_interval_seconds
            )

    async def _shares(self, path: str, vertex_id: str, ask: "_Asker") -> tuple[str, Shares]:
        found = await ask(
            f"{path}/vertices/{vertex_id}/subtasks/metrics?get={','.join(_GAUGES)}&agg=avg,max", answers.aggregates
        )
        busy, blocked = ((found or {}).get(name, {}) for name in _GAUGES)
        return vertex_id, Shares(
            busy_mean=_share(busy.get("avg")),
            busy_max=_share(busy.get("max")),
            backpressure_mean=_share(blocked.get("avg")),
            backpressure_max=_share(blocked.get("max")),
        )

    async def _source(self, path: str, vertex_id: str, ask: "_Asker") -> tuple[str, answers.SourceOffsets]:
        metrics = f"{path}/vertices/{vertex_id}/subtasks/metrics"
        listed = answers.wanted_source_metrics(await ask(metrics, answers.metric_names) or [])
        parts = [listed[i : i + NAMES_PER_CALL] for i in range(0, len(listed), NAMES_PER_CALL)]
        found = await asyncio.gather(
            *(ask(f"{metrics}?get={quote(','.join(part))}&agg=max,sum", answers.aggregates) for part in parts)
        )
        return vertex_id, answers.source_offsets(
            {name: value for each in found for name, value in (each or {}).items()}
        )

    async def _get(self, path: str) -> Any:
        """The JSON answer; `Unanswered` for anything else, a body beyond the limit included."""
        where = f"GET {path.split('?', maxsplit=1)[0]}"[:300]
        try:
            async with self._calls, self._client.stream("GET", f"{self._base}{path}") as response:
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise Unanswered(where, f"the answer is larger than {MOST_BYTES} bytes")
        except httpx.TimeoutException:
            raise Unanswered(where, "no answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unanswered(where, str(error)[:300] or type(error).__name__) from None
        if response.status_code != 200:
            raise Unanswered(where, f"status {response.status_code}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise Unanswered(where, "the answer is not JSON") from None


@dataclass
class _Asker:
    """Asks for one thing; a failure becomes a problem and None, so that the rest of the scrape counts."""

    collector: FlinkCollector
    problems: list[Problem]

    async def __call__(self, path: str, parse: Callable[[Any], T]) -> T | None:
        try:
            return parse(await self._get(path))
        except Unanswered as error:
            self.problems.append(Problem(where=error.where, what=error.what[:1000]))
        except answers.Unreadable as error:
            self.problems.append(Problem(where=error.where[:300], what=error.what[:1000]))
        return None

    def _get(self, path: str) -> Awaitable[Any]:
        return self.collector._get(path)


def _share(milliseconds_per_second: float | None) -> float | None:
    return None if milliseconds_per_second is None else min(1.0, milliseconds_per_second / 1000)
