"""A cluster in memory whose jobs are stopped with a savepoint and run again from it."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from tests.unit.engines.memory_jobs import MemoryDriver, MemoryJob
from weir_contracts import Parallelism, Resubmission, Subject
from weir_engines.driver import (
    Accepted,
    Fence,
    Jobs,
    Refusal,
    Rejected,
    Snapshot,
    Stopped,
    Unanswered,
    contested,
    lineage_of,
)
from weir_engines.flink.topology import TERMINAL
from weir_runtime.clock import Clock

JAR = "0f0f_orders.jar"


@dataclass
class Savepoints:
    """Behaviour of the cluster. Change its fields to make it misbehave."""

    seconds: float = 3.0
    """From the stop until the savepoint is complete."""
    failure: str = ""
    """Reason why each savepoint fails."""
    refusal: Refusal | None = None
    run_failure: str = ""
    """Reason why each run is refused."""
    unreadable: bool = False
    """Whether a job that starts from a savepoint at another parallelism fails."""
    start_seconds: float = 2.0
    """From a run until all tasks run."""
    lost_answers: int = 0
    """Number of accepted stops and runs whose response is lost."""
    stops: list[str] = field(default_factory=list)
    """Job of each stop that was accepted."""
    runs: list[tuple[str, Parallelism]] = field(default_factory=list)
    """Id and parallelism of each job that was started."""
    most_at_once: int = 0
    """Largest number of jobs of one name that ran at once."""


class ResubmittingMemory(MemoryDriver):
    """Clusters whose jobs cannot be rescaled in place."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.savepoints = Savepoints()
        self.all: list[MemoryJob] = []
        """Every job that was ever run, oldest first."""
        self._under_way: dict[UUID, tuple[MemoryJob, datetime]] = {}

    def add(self, *given: object, **named: object) -> MemoryJob:
        job = super().add(*given, **named)  # type: ignore[arg-type]
        job.waits_for_checkpoint = False
        self.all.append(job)
        return job

    def _pass_time(self) -> None:
        now = self._clock.now()
        for job, at in self._under_way.values():
            if job.state == "RUNNING" and now >= at and not self.savepoints.failure:
                job.state = "FINISHED"
        for job in self.all:
            self._advance(job, now)
        alive = [job for job in self.all if job.state not in TERMINAL]
        self.savepoints.most_at_once = max(self.savepoints.most_at_once, len(alive))

    async def observe(self, subject: Subject) -> Snapshot:
        self._pass_time()
        found = await super().observe(subject)
        there = found.deployment
        if not found.reachable:
            return found
        if there is None:
            return replace(found, jobs=Jobs(jar=JAR))
        jobs = Jobs(there.job_id, there.state, there.is_final, JAR, 1, refusal=self.savepoints.refusal)
        running = there.model_copy(
            update={
                "job_id": lineage_of(there.job_id),
                "requested": there.observed,
                "rescale": there.rescale.model_copy(update={"by_restart": True}),
            }
        )
        return replace(found, deployment=running, jobs=jobs, can_trigger_checkpoint=False)

    async def stop(
        self, subject: Subject, job: Resubmission, action_id: UUID, fence: Fence, *, begins: bool = True
    ) -> Accepted | Stopped | Rejected | Unanswered | Refusal:
        self._pass_time()
        if away := self.away.get(str(subject.flink.url).rstrip("/")):
            return Unanswered(away)
        if action_id not in self._under_way:
            if not begins:
                return Refusal("unreachable", "the stop was not accepted in time")
            found = next((each for each in self.all if each.job_id == job.stopped_job), None)
            if found is None or found.state in TERMINAL:
                return Refusal("other-deployment", "the job has ended")
            held = await fence.begin()
            if held is not None:
                return held
            self._under_way[action_id] = (found, self._clock.now() + timedelta(seconds=self.savepoints.seconds))
            self.savepoints.stops.append(found.job_id)
            if self._answer_lost():
                return Unanswered("the answer was lost")
            return Accepted(self._clock.now())
        stopped, at = self._under_way[action_id]
        if self._clock.now() < at:
            return Accepted(self._clock.now())
        if self.savepoints.failure:
            return Rejected(self.savepoints.failure)
        return Stopped(self._clock.now(), f"file:///savepoints/savepoint-{stopped.job_id[:6]}")

    async def run(
        self, subject: Subject, job: Resubmission, parallelism: Parallelism, fence: Fence, *, former: bool = False
    ) -> Accepted | Rejected | Unanswered | Refusal:
        self._pass_time()
        if away := self.away.get(str(subject.flink.url).rstrip("/")):
            return Unanswered(away)
        wanted = job.restored if former else job.successor
        known = {each.job_id: each for each in self.all}
        if wanted in known:
            return Accepted(self._clock.now())
        alive = [each for each in self.all if each.state not in TERMINAL]
        if any(each.job_id not in (job.stopped_job, job.successor, job.restored) for each in alive):
            return contested(f"job {alive[-1].job_id} runs")
        held = await fence.begin()
        if held is not None:
            return held
        if former and job.successor in known and known[job.successor].state not in TERMINAL:
            known[job.successor].state = "CANCELED"
        if any(each.state not in TERMINAL for each in self.all):
            return Unanswered("the job has not ended yet")
        if self.savepoints.run_failure:
            return Rejected(self.savepoints.run_failure)
        template = known[job.stopped_job]
        now = self._clock.now()
        made = replace(
            template,
            job_id=wanted,
            observed=dict(parallelism),
            requested=dict(parallelism),
            state="RESTARTING",
            begun_at=now,
            started_at=now,
            rescale_seconds=self.savepoints.start_seconds,
            restarts=0,
            running_since=None,
            checkpoint_at=None,
        )
        if self.savepoints.unreadable and not former:
            made.state = "FAILED"
        self.jobs[str(subject.flink.url).rstrip("/"), template.name] = made
        self.all.append(made)
        self.savepoints.runs.append((wanted, dict(parallelism)))
        if self._answer_lost():
            return Unanswered("the answer was lost")
        return Accepted(now)

    def _answer_lost(self) -> bool:
        lost = self.savepoints.lost_answers > 0
        self.savepoints.lost_answers -= lost
        return lost
