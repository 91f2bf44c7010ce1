"""A whole engine in one file: jobs whose workers take records from a queue, and a number that says how many there are.

It borrows the document `application.flink` (a cluster's address and a job's name), since a policy's documents stand in
contracts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from weir_contracts import Deployment, Operator, OperatorReading, Parallelism, Run, Subject, Topology
from weir_engines.driver import NO_CHECKPOINTS, Accepted, Fence, Refusal, Snapshot, Unanswered, WithoutGroups, contested
from weir_engines.registry import Claim, Engine
from weir_engines.scrape import Collector, Scrape
from weir_runtime.clock import Clock

WORK = "work"
RECORDS_PER_SECOND = 100.0
"""Of one worker."""
TOPOLOGY = Topology(operators=[Operator(name=WORK, id=WORK)])
JOBS: dict[str, "Job"] = {}
"""The cluster: jobs by name."""


@dataclass
class Job:
    """Job with a constant load. A change of its workers is a restart, which takes no time."""

    arrivals_per_second: float
    at: datetime
    workers: int = 1
    running_since: datetime = field(init=False)
    waiting: float = 0.0
    processed: float = 0.0
    busy_ms: float = 0.0
    passed_ms: float = 0.0

    def __post_init__(self) -> None:
        self.running_since = self.at

    def advance(self, now: datetime) -> None:
        """Process what has arrived until `now`."""
        seconds, self.at = (now - self.at).total_seconds(), now
        self.waiting += self.arrivals_per_second * seconds
        done = min(self.waiting, RECORDS_PER_SECOND * self.workers * seconds)
        self.waiting -= done
        self.processed += done
        self.busy_ms += done / RECORDS_PER_SECOND * 1000
        self.passed_ms += self.workers * seconds * 1000

    def rescale(self, workers: int, now: datetime) -> None:
        """Start again with other workers, whose counters begin at 0."""
        self.advance(now)
        self.workers, self.running_since = workers, now
        self.processed = self.busy_ms = self.passed_ms = 0.0

    def deployment(self, name: str) -> Deployment:
        """Return the job as Weir describes one."""
        parallelism = {WORK: self.workers}
        return Deployment(
            engine="tiny",
            health="running",
            job_id=name,
            job_name=name,
            graph_hash=TOPOLOGY.graph_hash(),
            state="UP",
            requested=parallelism,
            observed=parallelism,
        )


class TinyCollector:
    """Collector of one job."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock

    async def scrape(self) -> Scrape:
        job = JOBS[self._name]
        job.advance(self._clock.now())
        reading = OperatorReading(
            operator=WORK,
            parallelism=job.workers,
            records_in=int(job.processed),
            records_out=int(job.processed),
            busy_ms=job.busy_ms,
            idle_ms=max(0.0, job.passed_ms - job.busy_ms),
            backpressured_ms=0.0,
            pending_records=int(job.waiting),
        )
        return Scrape(
            status="running",
            message="the job runs",
            source_time=job.at,
            run=Run(key=f"{self._name} {job.running_since.isoformat()}", running_since=job.running_since),
            deployment=job.deployment(self._name),
            topology=TOPOLOGY,
            operators=(reading,),
            sources={WORK: {}},
        )

    async def close(self) -> None:
        return None


class TinyDriver(WithoutGroups):
    """Driver of all jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def observe(self, subject: Subject) -> Snapshot:
        name, now = subject.flink.job, self._clock.now()
        job = JOBS.get(name)
        if job is None:
            return Snapshot(now, reachable=True, reason=f"there is no job {name}")
        return Snapshot(
            now,
            reachable=True,
            deployment=job.deployment(name),
            all_running=True,
            running_since=job.running_since,
            steady_since=job.running_since,
            topology=TOPOLOGY,
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
    ) -> Accepted | Unanswered | Refusal:
        job, now = JOBS[job_id], self._clock.now()
        if {WORK: job.workers} not in (expected, parallelism):
            return contested(f"{job.workers} workers")
        if job.workers != parallelism[WORK]:
            held = await fence.begin()
            if held is not None:
                return held
            job.rescale(parallelism[WORK], now)
        return Accepted(now)

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        return NO_CHECKPOINTS

    async def close(self) -> None:
        return None


class TinyEngine(Engine):
    """The engine, as the registry names it."""

    reads = frozenset({"flink"})
    scales = "flink"

    @staticmethod
    def claims(subject: Subject) -> Iterable[Claim]:
        return [("tiny-job", subject.flink.job)]

    def collector(self, subject: Subject) -> Collector:
        return TinyCollector(subject.flink.job, self.resources.clock)

    @cached_property
    def driver(self) -> TinyDriver:
        return TinyDriver(self.resources.clock)
