"""A cluster in memory that rescales jobs in given time. It passes the suite of all drivers."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from weir_contracts import Checkpoints, Deployment, Parallelism, RescaleSettings, Subject, Topology, changes
from weir_engines.driver import (
    Accepted,
    Fence,
    Refusal,
    Rejected,
    Snapshot,
    TargetChanged,
    Unanswered,
    WithoutGroups,
    contested,
)
from weir_engines.flink.topology import health_of
from weir_runtime.clock import Clock

_CRASHES_AFTER_SECONDS = 1.0
"""Time until a crashing job crashes."""


@dataclass
class MemoryJob:
    """A job that the memory cluster runs. Change its fields to make it misbehave."""

    job_id: str
    name: str
    topology: Topology
    observed: Parallelism
    started_at: datetime
    requested: Parallelism = field(default_factory=dict)
    slots: int = 1000
    state: str = "RUNNING"
    restarts: int = 0
    rescale_seconds: float = 3.0
    """From the checkpoint that a rescale waits for until everything runs again."""
    waits_for_checkpoint: bool = True
    crash_above: int | None = None
    """Above this parallelism of any operator the job restarts continuously."""
    begun_at: datetime | None = None
    running_since: datetime | None = None
    checkpoint_at: datetime | None = None
    checkpoints_triggered: int = 0
    version: str | None = None
    """Version for conditional requests, if the cluster has versions."""

    def __post_init__(self) -> None:
        self.requested = self.requested or dict(self.observed)
        self.running_since = self.running_since or self.started_at

    def attainable(self) -> Parallelism:
        """Return the parallelism that the slots allow (one slot-sharing group)."""
        return {name: min(p, self.slots) for name, p in self.requested.items()}


class MemoryDriver(WithoutGroups):
    """Clusters by URL with jobs by name. `away[url] = reason` makes one unreachable."""

    def __init__(self, clock: Clock, rescale: RescaleSettings | None = None) -> None:
        self._clock = clock
        self._rescale = rescale or RescaleSettings(
            scheduler="adaptive", cooldown_seconds=1, stabilization_seconds=1, max_trigger_delay_seconds=0
        )
        self.jobs: dict[tuple[str, str], MemoryJob] = {}
        self.away: dict[str, str] = {}
        self.lost_answers = 0
        """Number of accepted requests whose response is lost."""
        self.requests: list[tuple[str, Parallelism]] = []

    def add(self, subject: Subject, topology: Topology, parallelism: Parallelism, job_id: str = "a" * 32) -> MemoryJob:
        """Start a job under the target's name, in place of another one of that name."""
        url, name = _key(subject)
        job = MemoryJob(job_id, name, topology, dict(parallelism), self._clock.now())
        self.jobs[url, name] = job
        return job

    async def observe(self, subject: Subject) -> Snapshot:
        url, name = _key(subject)
        now = self._clock.now()
        if url in self.away:
            return Snapshot(now, reachable=False, reason=self.away[url])
        job = self._find(url, name)
        if job is None:
            return Snapshot(now, reachable=True, reason=f"the cluster has no job {name!r}")
        self._advance(job, now)
        running = job.state == "RUNNING"
        return Snapshot(
            at=now,
            reachable=True,
            deployment=self._deployment(job),
            all_running=running,
            running_since=job.running_since,
            steady_since=job.running_since if running else now,
            checkpoint_completed_at=job.checkpoint_at,
            checkpoint_in_progress=False,
            topology=job.topology,
            can_trigger_checkpoint=True,
            version=job.version,
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
    ) -> Accepted | Rejected | TargetChanged | Unanswered | Refusal:
        url, name = _key(subject)
        if url in self.away:
            return Unanswered(self.away[url])
        job = self._find(url, name)
        if job is None or job.job_id != job_id or job.state in ("FAILED", "CANCELED", "FINISHED"):
            return Rejected(f"Could not find Flink job ({job_id})")
        if set(parallelism) != set(job.observed):
            odd = sorted(set(job.observed) ^ set(parallelism))
            return Rejected(f"the job and the request differ in operators: {', '.join(odd[:5])}")
        if job.requested == parallelism:
            return Accepted(self._clock.now())
        if job.requested != expected:
            return contested(changes(expected, job.requested))
        held = await fence.begin()
        if held is not None:
            return held
        if version is not None and version != job.version:
            return TargetChanged(f"{name} has version {job.version}, not {version}")
        for operator in job.topology.operators:
            limit, requested = operator.max_parallelism, parallelism[operator.name]
            if limit is not None and requested > limit:
                return Rejected(f"{operator.name}: {requested} exceeds its maximum parallelism {limit}")
        job.requested = dict(parallelism)
        self.requests.append((name, dict(parallelism)))
        if self.lost_answers > 0:
            self.lost_answers -= 1
            return Unanswered("the answer was lost")
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        url, name = _key(subject)
        job = self._find(url, name)
        if url in self.away or job is None or job.job_id != job_id:
            return self.away.get(url, f"the cluster has no job {job_id}")
        job.checkpoints_triggered += 1
        job.checkpoint_at = self._clock.now()
        return None

    async def close(self) -> None:
        return None

    def _find(self, url: str, wanted: str) -> MemoryJob | None:
        by_id = (job for (where, _), job in self.jobs.items() if where == url and job.job_id == wanted)
        return self.jobs.get((url, wanted)) or next(by_id, None)

    def _advance(self, job: MemoryJob, now: datetime) -> None:
        """Begin a requested rescale when a checkpoint allows it, and end it after its duration."""
        took = timedelta(seconds=job.rescale_seconds)
        if job.state == "RUNNING" and job.observed != job.attainable():
            if not job.waits_for_checkpoint or job.checkpoint_at is not None:
                job.begun_at = job.checkpoint_at or now
                job.state, job.checkpoint_at = "RESTARTING", None
                job.restarts += 1
        elif job.state == "RUNNING" and self._crashes(job):
            job.state, job.begun_at = "RESTARTING", now
            job.restarts += 1
        if job.state == "RESTARTING" and job.begun_at is not None and now >= job.begun_at + took:
            job.observed = job.attainable()
            job.state, job.running_since = "RUNNING", job.begun_at + took
            if self._crashes(job) and now - job.running_since > timedelta(seconds=_CRASHES_AFTER_SECONDS):
                # Not observed for a while: the job has crashed since.
                job.state, job.begun_at = "RESTARTING", now
                job.restarts += 1

    def _crashes(self, job: MemoryJob) -> bool:
        return job.crash_above is not None and max(job.observed.values()) > job.crash_above

    def _deployment(self, job: MemoryJob) -> Deployment:
        return Deployment(
            job_id=job.job_id,
            job_name=job.name,
            graph_hash=job.topology.graph_hash(),
            health=health_of(job.state),
            state=job.state,
            started_at=job.started_at,
            requested=dict(job.requested),
            requested_lower=dict.fromkeys(job.requested, 1),
            observed=dict(job.observed),
            restarts=job.restarts,
            checkpoints=Checkpoints(
                interval_seconds=10, last_completed_at=job.checkpoint_at, last_duration_seconds=0.2
            ),
            rescale=self._rescale,
        )


def _key(subject: Subject) -> tuple[str, str]:
    return str(subject.flink.url).rstrip("/"), subject.flink.job
