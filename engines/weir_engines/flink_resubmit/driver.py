"""Driver of Flink jobs that cannot be rescaled in place: it stops a job with a savepoint and runs its jar again from there.

The job is observed by Flink's own driver, under the part of its id that it shares with the successors that Weir runs. Stop and
runs have ids that follow from the action's, and Flink itself refuses a second one.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar
from urllib.parse import quote
from uuid import UUID

import httpx

from weir_contracts import Deployment, Parallelism, Resubmission, ResubmitTarget, Subject, derive_id, listed, short_name
from weir_engines.driver import (
    Accepted,
    Fence,
    Jobs,
    Refusal,
    Rejected,
    Snapshot,
    Stopped,
    Unanswered,
    WithoutGroups,
    lineage_of,
)
from weir_engines.flink.driver import LEAVING_SECONDS, FlinkDriver
from weir_engines.flink.rest import CallFailed, Cluster, Unreadable
from weir_engines.flink.topology import TERMINAL, JobEntry, find_job, jobs_named
from weir_runtime.clock import Clock

from . import responses

T = TypeVar("T")
RUN_SECONDS = 60.0
"""Limit of a run: the JobManager executes the jar's main method before it answers."""
_LEAVING = httpx.Timeout(RUN_SECONDS, connect=LEAVING_SECONDS, pool=LEAVING_SECONDS)
IN_PLACE = "the job is stopped and run again, not rescaled"


def target_of(subject: Subject) -> ResubmitTarget:
    """Return how a policy's job is run again."""
    if subject.target.resubmit is None:
        raise ValueError("target: the driver that runs jobs again was given a target without resubmit")
    return subject.target.resubmit


def as_lineage(deployment: Deployment) -> Deployment:
    """Return a job's deployment as that of its lineage: it goes on in successors, and costs a restart of the job to change."""
    quick = {"cooldown_seconds": 0.0, "stabilization_seconds": 0.0, "max_trigger_delay_seconds": 0.0}
    return deployment.model_copy(
        update={
            "job_id": lineage_of(deployment.job_id),
            "requested": deployment.requested or deployment.observed,
            "rescale": deployment.rescale.model_copy(update={"by_restart": True, **quick}),
        }
    )


class FlinkResubmitDriver(WithoutGroups):
    """All jobs whose policies say how they are run again."""

    def __init__(self, clock: Clock, jobs: FlinkDriver) -> None:
        self._clock = clock
        self._jobs = jobs

    async def close(self) -> None:
        """Do nothing: the engine that observes the jobs closes its driver."""

    async def observe(self, subject: Subject) -> Snapshot:
        found, newest = await asyncio.gather(self._jobs.observe(subject), self._newest(subject))
        if isinstance(newest, str):
            return replace(found, reachable=False, deployment=None, reason=newest)
        entry, several = newest
        if entry is None:
            return Snapshot(found.at, reachable=True, reason="the cluster has no job of the name", jobs=Jobs())
        jobs = Jobs(entry.id, entry.state, entry.state in TERMINAL)
        running = found.deployment
        if not found.reachable and entry.state == "RUNNING":
            return replace(found, jobs=jobs)
        # A job that starts or ends may have no graph yet, or no more.
        if running is None or running.job_id != entry.id:
            reason = (
                await self._failure(subject, entry) if entry.state == "FAILED" else f"job {entry.id} is {entry.state}"
            )
            return Snapshot(found.at, reachable=True, reason=reason, jobs=jobs)
        if jobs.is_over:
            reason = await self._failure(subject, entry) if entry.state == "FAILED" else found.reason
            return replace(
                found, deployment=as_lineage(running), can_trigger_checkpoint=False, reason=reason, jobs=jobs
            )
        jobs = await self._with_jar(subject, jobs, entry, running)
        if several is not None:
            jobs = replace(jobs, refusal=Refusal("other-deployment", several))
        return replace(found, deployment=as_lineage(running), can_trigger_checkpoint=False, jobs=jobs)

    async def request(
        self, subject: Subject, job_id: str, parallelism: Parallelism, *_: object, **__: object
    ) -> Rejected:
        return Rejected(IN_PLACE)

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str:
        return IN_PLACE

    async def stop(
        self, subject: Subject, job: Resubmission, action_id: UUID, fence: Fence, *, begins: bool = True
    ) -> Accepted | Stopped | Rejected | Unanswered | Refusal:
        target, trigger, is_sent = target_of(subject), derive_id(action_id, "stop").hex, False
        try:
            cluster = self._jobs.cluster(subject)
            answer = await self._stop_status(cluster, job, trigger) or await self._end_of(cluster, subject, job)
            if answer is not None:
                return answer
            if not begins:
                return Refusal("unreachable", "the stop was not sent in time, or is not under way any more")
            held = await fence.begin()
            if held is not None:
                return held
            is_sent, body = True, responses.stop_body(target, job, trigger)
            await cluster.send(
                "POST", f"/jobs/{job.stopped_job}/stop", json=body, timeout=_LEAVING, explain=responses.known_failure
            )
        except CallFailed as error:
            return Rejected(error.reason or str(error)) if error.is_final else Unanswered(str(error), is_sent=is_sent)
        except Unreadable as error:
            return Unanswered(str(error))
        return Accepted(self._clock.now())

    async def _stop_status(
        self, cluster: Cluster, job: Resubmission, trigger: str
    ) -> Accepted | Stopped | Rejected | None:
        """Return how far the stop is; None: none is under way, or it is forgotten."""
        try:
            status = await cluster.get(f"/jobs/{job.stopped_job}/savepoints/{trigger}", responses.savepoint_status)
        except CallFailed as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise
        if status.failure is not None:
            return Rejected(status.failure)
        return Accepted(self._clock.now()) if status.location is None else Stopped(self._clock.now(), status.location)

    async def _end_of(self, cluster: Cluster, subject: Subject, job: Resubmission) -> Stopped | Refusal | None:
        """Return how the job has ended, if it has: Flink forgets a stop 5 min after its end, and with its JobManager."""
        entry = next((each for each in await _jobs_of(cluster, subject) if each.id == job.stopped_job), None)
        if entry is None:
            return Refusal("other-deployment", "the cluster does not know the job any more")
        if entry.state not in TERMINAL:
            return None
        location = await cluster.get(f"/jobs/{job.stopped_job}/checkpoints", responses.last_savepoint)
        # Flink qualifies the path: `file:///state` comes back as `file:/state`.
        if entry.state == "FINISHED" and location is not None and f"/{job.folder}/" in location:
            return Stopped(self._clock.now(), location)
        return Refusal("other-deployment", f"the job is {entry.state}, and not by Weir")

    async def run(
        self, subject: Subject, job: Resubmission, parallelism: Parallelism, fence: Fence, *, former: bool = False
    ) -> Accepted | Rejected | Unanswered | Refusal:
        target, job_id = target_of(subject), job.restored if former else job.successor
        if not responses.is_jar(job.jar, target):
            return Rejected(f"the policy names another jar than {short_name(job.jar)}")
        try:
            cluster = self._jobs.cluster(subject)
            entries, each_operator = await asyncio.gather(
                _jobs_of(cluster, subject), cluster.get("/config", responses.sets_each_operator)
            )
            if any(entry.id == job_id for entry in entries):
                return Accepted(self._clock.now())
            if former and any(entry.id == job.successor for entry in entries) and await self._progressed(cluster, job):
                sentence = "not rolled back: a return would repeat what the successor's checkpoints hold"
                return Refusal("not-rolled-back", sentence)
            waits = await self._make_way(cluster, job, entries, fence, former=former)
            if waits is not None:
                return waits
            body = responses.run_body(target, job, job_id, parallelism, each_operator=each_operator)
            await self._jobs.cluster(subject, RUN_SECONDS).send(
                "POST",
                f"/jars/{quote(job.jar, safe='')}/run",
                json=body,
                timeout=_LEAVING,
                explain=responses.known_failure,
            )
        except CallFailed as error:
            return self._refused(error)
        except Unreadable as error:
            return Unanswered(str(error))
        return Accepted(self._clock.now())

    async def _progressed(self, cluster: Cluster, job: Resubmission) -> bool:
        try:
            return await cluster.get(f"/jobs/{job.successor}/checkpoints", responses.has_progressed)
        except CallFailed as error:
            if error.status == httpx.codes.NOT_FOUND:
                return False
            raise

    async def _make_way(
        self, cluster: Cluster, job: Resubmission, entries: Sequence[JobEntry], fence: Fence, *, former: bool
    ) -> Unanswered | Refusal | None:
        """Return None once no job has the name any more; cancel the successor that a former parallelism replaces."""
        alive = [entry for entry in entries if entry.state not in TERMINAL]
        other = next((each for each in alive if each.id not in (job.stopped_job, job.successor, job.restored)), None)
        if other is not None:
            return Refusal("contested", f"job {other.id} of this name runs")
        held = await fence.begin()
        if held is not None or not alive:
            return held
        if former and alive[-1].id == job.successor and alive[-1].state != "CANCELLING":
            await cluster.send("PATCH", f"/jobs/{job.successor}?mode=cancel")
        return Unanswered(f"job {alive[-1].id} has not ended yet")

    def _refused(self, error: CallFailed) -> Accepted | Rejected | Unanswered:
        if error.reason == responses.ALREADY:
            return Accepted(self._clock.now())
        is_final = error.is_final or error.reason is not None
        return Rejected(error.reason or str(error)) if is_final else Unanswered(str(error))

    async def _newest(self, subject: Subject) -> tuple[JobEntry | None, str | None] | str:
        """Return the newest job of the name, with a warning if several run, or why it is unknown."""
        try:
            return await self._jobs.cluster(subject).get("/jobs/overview", lambda d: find_job(d, subject.flink.job))
        except (CallFailed, Unreadable) as error:
            return str(error)

    async def _failure(self, subject: Subject, entry: JobEntry) -> str:
        try:
            return await self._jobs.cluster(subject).get(f"/jobs/{entry.id}/exceptions", responses.root_failure)
        except (CallFailed, Unreadable):
            return f"job {entry.id} is {entry.state}"

    async def _with_jar(self, subject: Subject, jobs: Jobs, entry: JobEntry, running: Deployment) -> Jobs:
        """Add the jar that a successor would run, and why the job may not be stopped."""
        target, cluster = target_of(subject), self._jobs.cluster(subject)
        try:
            found, parallelism, each_operator = await asyncio.gather(
                cluster.get("/jars", responses.jars),
                cluster.get(f"/jobs/{entry.id}/config", responses.started_with),
                cluster.get("/config", responses.sets_each_operator),
            )
        except (CallFailed, Unreadable) as error:
            return replace(jobs, refusal=Refusal("unreachable", str(error)))
        jar = next((each for each in found if each.id == target.jar), None)
        named = [each for each in found if each.name == target.jar]
        refusal: Refusal | None = None
        if jar is None and not named:
            there = listed([short_name(each.name) for each in found]) or "none"
            refusal = Refusal("no-jar", f"the cluster has no jar {short_name(target.jar)}, it has {there}")
        elif jar is None:
            jar = named[-1]
            uploaded_at, started_at = jar.uploaded_at, entry.started_at
            if uploaded_at is not None and started_at is not None and uploaded_at > started_at:
                sentence = f"jar {short_name(jar.name)} was uploaded after the job started: submit the job, or name the jar's id"
                refusal = Refusal("jar-changed", sentence)
        if running.rescale.scheduler == "reactive":
            sentence = "a job in reactive mode takes every slot, whatever it is run with: set target.flink.taskManagers with reactive: true"
            refusal = Refusal("unsupported", sentence)
        if refusal is None and not each_operator and len(set(running.observed.values())) > 1:
            sentence = "this version of Flink runs a jar with one parallelism for all operators, and the job's differ"
            refusal = Refusal("unsupported", sentence)
        return replace(
            jobs,
            jar="" if jar is None else jar.id,
            parallelism=parallelism,
            has_one_parallelism=not each_operator,
            refusal=refusal,
        )


async def _jobs_of(cluster: Cluster, subject: Subject) -> list[JobEntry]:
    return await cluster.get("/jobs/overview", lambda d: jobs_named(d, subject.flink.job))
