"""Collector of one Flink job through the REST API.

A request for metrics makes Flink's JobManager gather them from its TaskManagers, but the response has the values that
were gathered before. So a scrape requests one metric, waits for the TaskManagers, and then reads everything else.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from weir_contracts import FlinkApplication, Pod, Problem
from weir_engines.flink import metrics, rescale, topology
from weir_engines.flink import metrics as taskmanagers
from weir_engines.flink.readings import FlinkReadings, Shares, scrape_of
from weir_engines.flink.rest import CallFailed, Cluster, Unreadable, count, mapping
from weir_engines.flink.topology import TERMINAL
from weir_engines.scrape import Scrape
from weir_runtime.files import CredentialsRefused
from weir_runtime.policy_credentials import FLINK_SETTING, ClientsByCredential, HttpCredential
from weir_runtime.reach import TARGETS, Allowed

T = TypeVar("T")

MAX_RESPONSE_BYTES = 2_000_000
NAMES_PER_CALL = 60
"""Keeps the URL of a request below the 8 KiB that proxies accept."""
MAX_CONCURRENT_CALLS = 6
GATHER_SECONDS = 0.1
"""Time until the JobManager has the TaskManagers' metrics (40-100 ms on a busy two-core machine)."""
TASK_MANAGER_SECONDS = 15.0
MAX_MS_PER_SECOND = 1100.0
"""Gauges of time may be a little above a second, as they are means of intervals that are not exact."""
_GAUGES = ("busyTimeMsPerSecond", "backPressuredTimeMsPerSecond")


@dataclass
class _CachedJob:
    """Properties that do not change during the life of a job id, requested once."""

    id: str
    configuration: dict[str, str] | None = None
    checkpoint_interval_seconds: float | None = None
    checkpointing_off: bool = False
    interval_read: bool = False
    run: datetime | None = None
    gauges: dict[str, list[str]] = field(default_factory=dict)
    """Names of the gauges in this run, by id of a vertex that is not a source."""


class FlinkCollector:
    """Collector of one job of one cluster. It reports failures as problems in the readings and does not raise them."""

    def __init__(
        self,
        application: FlinkApplication,
        timeout_seconds: float,
        allowed: Allowed = TARGETS,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        credentials: Mapping[str, HttpCredential] | None = None,
        reads_task_managers: bool = True,
    ) -> None:
        self._application = application
        self.job = application.job
        """Name or id of the job; a target that starts jobs itself sets the id of the one that runs."""
        self._clients = ClientsByCredential(
            credentials,
            FLINK_SETTING,
            timeout_seconds=timeout_seconds,
            answer_bytes=MAX_RESPONSE_BYTES,
            connections=MAX_CONCURRENT_CALLS,
            allowed=allowed,
            transport=transport,
        )
        self._answer_seconds = 2 * timeout_seconds
        self._cached: _CachedJob | None = None
        self._reads_task_managers = reads_task_managers
        self._workers: tuple[float, tuple[Pod, ...]] | None = None

    async def close(self) -> None:
        await self._clients.close()

    async def scrape(self) -> Scrape:
        """Return the job as the cluster reports it now."""
        return scrape_of(await self.read())

    async def read(self) -> FlinkReadings:
        try:
            client = self._clients.of(self._application.credentials, self._application.url)
        except CredentialsRefused as error:
            return FlinkReadings(reachable=False, message=f"application.flink.credentials: {error}")
        self._cluster = Cluster(client, str(self._application.url), self._answer_seconds, MAX_CONCURRENT_CALLS)
        problems: list[Problem] = []
        if self._cached is not None:
            found, _ = await asyncio.gather(self._find(problems), self._gather_metrics(self._cached.id))
        else:
            found = await self._find(problems)
        if isinstance(found, FlinkReadings):
            return found
        if self._cached is None or self._cached.id != found.id:
            self._cached = _CachedJob(found.id)
            await self._gather_metrics(found.id)
        return await self._read(self._cached, found.state, problems)

    async def _find(self, problems: list[Problem]) -> topology.JobEntry | FlinkReadings:
        try:
            entry, warning = await self._cluster.get("/jobs/overview", lambda d: topology.find_job(d, self.job))
        except (CallFailed, Unreadable) as error:
            return FlinkReadings(reachable=False, message=str(error))
        if warning:
            problems.append(Problem(where="/jobs/overview", what=warning))
        if entry is None:
            self._cached = None
            return FlinkReadings(message=f"the cluster has no job {self.job!r}")
        return entry

    async def _gather_metrics(self, job_id: str) -> None:
        """Make the JobManager gather the metrics. The response has older values and is ignored."""
        try:
            await self._cluster.send("GET", f"/jobs/{job_id}/metrics?get=numRestarts")
        except CallFailed:
            return  # the calls that follow report the failure

    async def _read(self, cached: _CachedJob, state: str, problems: list[Problem]) -> FlinkReadings:
        ask = _Caller(self._cluster, problems)
        path = f"/jobs/{cached.id}"
        async with asyncio.TaskGroup() as calls:
            wanted = calls.create_task(ask(f"{path}/resource-requirements", rescale.requirements))
            points = calls.create_task(ask(f"{path}/checkpoints", rescale.checkpoints))
            cluster = calls.create_task(ask("/overview", lambda d: mapping(d, "/overview")))
            workers = calls.create_task(self._task_managers(ask))
            calls.create_task(self._fill(cached, path, ask))
            calls.create_task(asyncio.sleep(GATHER_SECONDS))
        try:
            job = await self._cluster.get(path, topology.job)
        except (CallFailed, Unreadable) as error:
            if isinstance(error, Unreadable) and state in TERMINAL:
                # Flink keeps no graph of a job that ended while it restarted.
                return FlinkReadings(message=f"the job is {state}", problems=tuple(problems))
            # The overview listed the job: its state is now unknown.
            return FlinkReadings(reachable=False, message=str(error), problems=tuple(problems))
        restarts, shares, sources = await self._metrics(path, cached, job, ask)
        slots = cluster.result() or {}
        version = slots.get("flink-version")
        return FlinkReadings(
            job=job,
            shares=shares,
            sources=sources,
            requirements=wanted.result(),
            checkpoints=points.result(),
            checkpoint_interval_seconds=cached.checkpoint_interval_seconds,
            checkpointing_off=cached.checkpointing_off,
            slots_total=count(slots.get("slots-total")),
            slots_available=count(slots.get("slots-available")),
            restarts=restarts,
            configuration=cached.configuration,
            version=version if isinstance(version, str) else None,
            task_managers=workers.result(),
            problems=tuple(problems),
        )

    async def _task_managers(self, ask: "_Caller") -> tuple[Pod, ...]:
        """Return the TaskManagers, read every 15 s: CPU load is an average, and each of them costs a request."""
        now = asyncio.get_running_loop().time()
        if not self._reads_task_managers:
            return ()
        if self._workers is None or now >= self._workers[0]:
            listed = await ask("/taskmanagers", taskmanagers.task_managers) or []
            names = ",".join(taskmanagers.METRICS)
            paths = [f"/taskmanagers/{quote(each.id)}/metrics?get={names}" for each in listed]
            found = await asyncio.gather(*(ask(path, metrics.plain_metrics) for path in paths))
            pods = tuple([each.pod(values or {}) for each, values in zip(listed, found, strict=True)])
            # the first request makes Flink gather the metrics, so that the next scrape reads them
            is_known = all(pod.cpu_cores is not None for pod in pods)
            self._workers = (now + (TASK_MANAGER_SECONDS if is_known else 1.0), pods)
        return self._workers[1]

    async def _fill(self, cached: _CachedJob, path: str, ask: "_Caller") -> None:
        if cached.configuration is None:
            cached.configuration = await ask(f"{path}/jobmanager/config", rescale.configuration)
        if not cached.interval_read:
            before = len(ask.problems)
            interval = await ask(f"{path}/checkpoints/config", rescale.checkpoint_interval_seconds)
            cached.interval_read = len(ask.problems) == before
            cached.checkpoint_interval_seconds = interval
            cached.checkpointing_off = cached.interval_read and interval is None

    async def _metrics(
        self, path: str, cached: _CachedJob, job: topology.Job, ask: "_Caller"
    ) -> tuple[int | None, dict[str, Shares], dict[str, metrics.SourceOffsets]]:
        """Return the number of restarts, and gauges and source offsets by vertex id (none unless the job runs)."""
        if cached.run != job.running_since:
            cached.run = job.running_since
            cached.gauges.clear()
        running = job.vertices if job.all_running else ()
        source_ids = {source.id for source in job.sources}
        async with asyncio.TaskGroup() as calls:
            restarts = calls.create_task(ask(f"{path}/metrics?get=numRestarts", metrics.plain_metrics))
            vertices = {
                v.id: calls.create_task(
                    self._vertex(f"{path}/vertices/{v.id}/subtasks/metrics", v.id, cached, source_ids, ask)
                )
                for v in running
            }
        read = {vertex_id: task.result() for vertex_id, task in vertices.items()}
        sources = {
            source.id: metrics.source_offsets(found, source.name)
            for source in job.sources
            if (found := read.get(source.id)) is not None
        }
        for source_id, source in sources.items():
            if source.pending_refused:
                ask.problems.append(Problem(where=f"vertex {source_id} pendingRecords", what=source.pending_refused))
        return (
            count((restarts.result() or {}).get("numRestarts")),
            {
                vertex_id: _shares(found, vertex_id, ask.problems)
                for vertex_id, found in read.items()
                if found is not None
            },
            sources,
        )

    async def _vertex(
        self, path: str, vertex_id: str, cached: _CachedJob, sources: set[str], ask: "_Caller"
    ) -> metrics.Aggregates | None:
        """Return the aggregated metrics of a vertex; None if they could not be read.

        Only listed names are requested: an unlisted one makes Flink's response empty. A source's metrics are listed at
        every scrape, since its partitions change.
        """
        wanted = cached.gauges.get(vertex_id)
        if wanted is None:
            names = await ask(path, metrics.metric_names)
            if names is None:
                return None
            listed = set(names)
            wanted = [name for name in _GAUGES if name in listed]
            if vertex_id in sources:
                wanted += metrics.wanted_source_metrics(names)
            elif len(wanted) == len(_GAUGES):
                cached.gauges[vertex_id] = wanted
        found = await self._aggregates(path, wanted, ask)
        if found is None or any(name not in found for name in wanted):
            cached.gauges.pop(vertex_id, None)  # a missing gauge means that a new run begins
            return None
        return found

    async def _aggregates(self, path: str, names: Sequence[str], ask: "_Caller") -> metrics.Aggregates | None:
        parts = [names[i : i + NAMES_PER_CALL] for i in range(0, len(names), NAMES_PER_CALL)]
        calls = [ask(f"{path}?get={quote(','.join(part))}&agg=min,avg,max,sum", metrics.aggregates) for part in parts]
        found: metrics.Aggregates = {}
        for each in await asyncio.gather(*calls):
            if each is None:
                return None
            found.update(each)
        return found


@dataclass
class _Caller:
    """Calls the cluster and parses the response. A failure becomes a problem and None, and the scrape continues."""

    cluster: Cluster
    problems: list[Problem]

    async def __call__(self, path: str, parse: Callable[[Any], T]) -> T | None:
        try:
            return await self.cluster.get(path, parse)
        except (CallFailed, Unreadable) as error:
            self.problems.append(Problem(where=error.where, what=error.what))
        return None


def _shares(found: metrics.Aggregates, vertex_id: str, problems: list[Problem]) -> Shares:
    """Return the gauges as shares; one of clearly more than a second in a second is unknown, and a problem."""
    shares = []
    for name in _GAUGES:
        values = [found.get(name, {}).get(of) for of in ("avg", "max")]
        beyond = max((each for each in values if each is not None), default=0.0)
        if beyond > MAX_MS_PER_SECOND:
            what = f"is {beyond:,.0f} ms/s, more than there are in a second"
            problems.append(Problem(where=f"vertex {vertex_id} {name}", what=what))
            values = [None, None]
        shares += [None if each is None else min(1.0, each / 1000) for each in values]
    return Shares(*shares)
