"""Reads one Flink cluster through its REST API.

Flink's JobManager gathers the metrics from its TaskManagers only when it is asked for some, and answers that question from
what it had before. So a scrape first asks for one metric, gives the answers of the TaskManagers a moment to
come in, and reads everything else after that: what it reads is then of this scrape and not of the one before.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from weir_contracts import FlinkApplication, Problem

from engines.flink import metrics, rescale, topology
from engines.flink.readings import FlinkReadings, Shares, scrape_of
from engines.flink.rest import CallFailed, Cluster
from engines.flink.values import Unreadable, count, mapping
from engines.scrape import Scrape
from runtime.addresses import TARGETS, Allowed
from runtime.http_client import async_client

T = TypeVar("T")

MOST_BYTES = 20_000_000
NAMES_PER_CALL = 60
"""Keeps a request's address below the 8 KiB that proxies accept."""
MOST_CALLS_AT_ONCE = 6
GATHER_SECONDS = 0.1
"""What the TaskManagers' answers take to come in (40-100 ms on a busy two-core machine)."""
_GAUGES = ("busyTimeMsPerSecond", "backPressuredTimeMsPerSecond")


def new_client(
    timeout_seconds: float, allowed: Allowed = TARGETS, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """A client for one cluster."""
    return async_client(
        timeout_seconds=timeout_seconds,
        answer_bytes=MOST_BYTES,
        connections=MOST_CALLS_AT_ONCE,
        allowed=allowed,
        transport=transport,
    )


@dataclass
class _KnownJob:
    """What does not change while a job id lives, so it is asked once."""

    id: str
    configuration: dict[str, str] | None = None
    checkpoint_interval_seconds: float | None = None
    checkpointing_off: bool = False
    interval_known: bool = False
    run: datetime | None = None
    gauges: dict[str, list[str]] = field(default_factory=dict)
    """By vertex that is no source: the gauges it lists in this run."""


class FlinkCollector:
    """Scrapes one job of one cluster. Never raises: what cannot be read is a problem in the readings."""

    def __init__(self, application: FlinkApplication, timeout_seconds: float, client: httpx.AsyncClient) -> None:
        self._application = application
        self._client = client
        self._cluster = Cluster(client, str(application.url), 2 * timeout_seconds, MOST_CALLS_AT_ONCE)
        self._known: _KnownJob | None = None

    async def close(self) -> None:
        await self._client.aclose()

    async def scrape(self) -> Scrape:
        """Return the job as the cluster reports it now."""
        return scrape_of(await self.read())

    async def read(self) -> FlinkReadings:
        """Return the cluster's current answers."""
        problems: list[Problem] = []
        if self._known is not None:
            found, _ = await asyncio.gather(self._find(problems), self._wake(self._known.id))
        else:
            found = await self._find(problems)
        if isinstance(found, FlinkReadings):
            return found
        if self._known is None or self._known.id != found.id:
            self._known = _KnownJob(found.id)
            await self._wake(found.id)
        return await self._read(self._known, problems)

    async def _find(self, problems: list[Problem]) -> topology.JobEntry | FlinkReadings:
        try:
            entry, odd = await self._cluster.get(
                "/jobs/overview", lambda d: topology.find_job(d, self._application.job)
            )
        except (CallFailed, Unreadable) as error:
            return FlinkReadings(reachable=False, message=str(error))
        if odd:
            problems.append(Problem(where="/jobs/overview", what=odd[:1000]))
        if entry is None:
            self._known = None
            return FlinkReadings(message=f"the cluster has no job {self._application.job!r}")
        return entry

    async def _wake(self, job_id: str) -> None:
        """Let the JobManager gather the metrics. What it answers is from before, and of no interest."""
        try:
            await self._cluster.send("GET", f"/jobs/{job_id}/metrics?get=numRestarts")
        except CallFailed:
            return  # whatever is wrong shows in the calls whose answers count

    async def _read(self, known: _KnownJob, problems: list[Problem]) -> FlinkReadings:
        ask = _Asker(self._cluster, problems)
        path = f"/jobs/{known.id}"
        async with asyncio.TaskGroup() as calls:
            wanted = calls.create_task(ask(f"{path}/resource-requirements", rescale.requirements))
            points = calls.create_task(ask(f"{path}/checkpoints", rescale.checkpoints))
            cluster = calls.create_task(ask("/overview", lambda d: mapping(d, "/overview")))
            calls.create_task(self._learn(path, known, ask))
            calls.create_task(asyncio.sleep(GATHER_SECONDS))
        try:
            job = await self._cluster.get(path, topology.job)
        except (CallFailed, Unreadable) as error:
            # It was there a moment ago: nothing can be said of it now.
            return FlinkReadings(reachable=False, message=str(error), problems=tuple(problems))
        restarts, shares, sources = await self._metrics(path, known, job, ask)
        slots = cluster.result() or {}
        version = slots.get("flink-version")
        return FlinkReadings(
            job=job,
            shares=shares,
            sources=sources,
            requirements=wanted.result(),
            checkpoints=points.result(),
            checkpoint_interval_seconds=known.checkpoint_interval_seconds,
            checkpointing_off=known.checkpointing_off,
            slots_total=count(slots.get("slots-total")),
            slots_available=count(slots.get("slots-available")),
            restarts=restarts,
            configuration=known.configuration,
            version=version if isinstance(version, str) else None,
            problems=tuple(problems),
        )

    async def _learn(self, path: str, known: _KnownJob, ask: "_Asker") -> None:
        if known.configuration is None:
            known.configuration = await ask(f"{path}/jobmanager/config", rescale.configuration)
        if not known.interval_known:
            before = len(ask.problems)
            interval = await ask(f"{path}/checkpoints/config", rescale.checkpoint_interval_seconds)
            known.interval_known = len(ask.problems) == before
            known.checkpoint_interval_seconds = interval
            known.checkpointing_off = known.interval_known and interval is None

    async def _metrics(
        self, path: str, known: _KnownJob, job: topology.Job, ask: "_Asker"
    ) -> tuple[int | None, dict[str, Shares], dict[str, metrics.SourceOffsets]]:
        """Count of restarts; gauges and, of sources, offsets by vertex id. Of a job that does not run there are none."""
        if known.run != job.running_since:
            known.run = job.running_since
            known.gauges.clear()
        live = job.vertices if job.all_running else ()
        fed = {source.id for source in job.sources}
        async with asyncio.TaskGroup() as calls:
            restarts = calls.create_task(ask(f"{path}/metrics?get=numRestarts", metrics.plain_metrics))
            vertices = {
                v.id: calls.create_task(self._vertex(f"{path}/vertices/{v.id}/subtasks/metrics", v.id, known, fed, ask))
                for v in live
            }
        read = {vertex_id: task.result() for vertex_id, task in vertices.items()}
        return (
            count((restarts.result() or {}).get("numRestarts")),
            {vertex_id: _shares(found) for vertex_id, found in read.items() if found is not None},
            {i: metrics.source_offsets(found) for i, found in read.items() if i in fed and found is not None},
        )

    async def _vertex(
        self, path: str, vertex_id: str, known: _KnownJob, sources: set[str], ask: "_Asker"
    ) -> metrics.Aggregates | None:
        """A vertex's aggregated metrics; None if they could not be had.

        Only listed names are asked for: one that nobody knows makes Flink answer with none at all. A source is listed every
        time, because partitions come and go.
        """
        wanted = known.gauges.get(vertex_id)
        if wanted is None:
            names = await ask(path, metrics.metric_names)
            if names is None:
                return None
            listed = set(names)
            wanted = [name for name in _GAUGES if name in listed]
            if vertex_id in sources:
                wanted += metrics.wanted_source_metrics(names)
            elif len(wanted) == len(_GAUGES):
                known.gauges[vertex_id] = wanted
        found = await self._aggregates(path, wanted, ask)
        if found is None or any(name not in found for name in wanted):
            known.gauges.pop(vertex_id, None)  # one of them is gone, so a new run begins
            return None
        return found

    async def _aggregates(self, path: str, names: Sequence[str], ask: "_Asker") -> metrics.Aggregates | None:
        parts = [names[i : i + NAMES_PER_CALL] for i in range(0, len(names), NAMES_PER_CALL)]
        asked = [ask(f"{path}?get={quote(','.join(part))}&agg=avg,max,sum", metrics.aggregates) for part in parts]
        found: metrics.Aggregates = {}
        for each in await asyncio.gather(*asked):
            if each is None:
                return None
            found.update(each)
        return found


@dataclass
class _Asker:
    """Asks for one thing; a failure becomes a problem and None, so that the rest of the scrape counts."""

    cluster: Cluster
    problems: list[Problem]

    async def __call__(self, path: str, parse: Callable[[Any], T]) -> T | None:
        try:
            return await self.cluster.get(path, parse)
        except (CallFailed, Unreadable) as error:
            self.problems.append(Problem(where=error.where[:300], what=error.what[:1000]))
        return None


def _shares(found: metrics.Aggregates) -> Shares:
    busy, blocked = (found.get(name, {}) for name in _GAUGES)
    return Shares(
        busy_mean=_share(busy.get("avg")),
        busy_max=_share(busy.get("max")),
        backpressure_mean=_share(blocked.get("avg")),
        backpressure_max=_share(blocked.get("max")),
    )


def _share(milliseconds_per_second: float | None) -> float | None:
    return None if milliseconds_per_second is None else min(1.0, milliseconds_per_second / 1000)
