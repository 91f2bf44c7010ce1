"""A simulated JobManager's REST API for jobs that are stopped with a savepoint and run again from a jar."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from weir_engines.flink_resubmit.responses import OVERRIDES

from .simulated_flink import NAMES, VERTICES, Job, ManyJobs

JAR_NAME, JAR = "orders.jar", "82ea69b3-27c5-469d-992a-82be8c3d929d_orders.jar"
ENTRY_CLASS = "shop.Orders"
KEY_GROUPS = 128


@dataclass
class Behaviour:
    """Change its fields to make the cluster misbehave."""

    version: str = "1.20.1"
    savepoint_seconds: float = 2.0
    savepoint_failure: str = ""
    """Last line of the stack trace with which each savepoint fails."""
    start_seconds: float = 2.0
    start_failure: str = ""
    """Last line of the stack trace with which a job that has another parallelism than before fails to start."""
    never_runs: bool = False
    """Whether such a job stays in INITIALIZING."""
    forgets_stops: bool = False
    """Whether the cluster forgets a stop as soon as it is complete, as it does after 5 min."""
    configuration: dict[str, str] = field(default_factory=lambda: {"jobmanager.scheduler": "default"})
    jars: dict[str, tuple[str, float]] = field(default_factory=lambda: {JAR: (JAR_NAME, 0.0)})
    """Name and time of the upload by id."""
    stop_requests: int = 0
    stops: list[str] = field(default_factory=list)
    """Target directory of each stop that was begun."""
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Body of each run that started a job."""


@dataclass
class _Stop:
    job: Job
    directory: str
    done_at: float

    @property
    def location(self) -> str:
        return f"{self.directory}/savepoint-{self.job.id[:6]}-0123456789ab"


def _error(status: int, *lines: str) -> JSONResponse:
    """Return an error as Flink words it: a sentence, and the stack trace of the server."""
    return JSONResponse({"errors": list(lines)}, status_code=status)


def _trace(last: str) -> str:
    begins = "<Exception on server side:\njava.util.concurrent.CompletionException: …"
    return f"{begins}\nCaused by: {last}\n\t... 12 more\nEnd of exception on server side>"


class ResubmittedJobs(ManyJobs):
    """Jobs of the default scheduler, one of each name at the beginning."""

    def __init__(self, names: list[str], now: Callable[[], float], parallelism: int = 1) -> None:
        super().__init__([], 0.0)
        self.now = now
        self.behaviour = Behaviour()
        self.all: list[Job] = [self._job(name, None, dict.fromkeys(VERTICES, parallelism)) for name in names]
        for job in self.all:
            job.state = "RUNNING"
        self.started_with = parallelism
        self._stops: dict[str, _Stop] = {}
        self._savepoints: dict[str, str] = {}
        """Location of the savepoint by the id of the job that it stopped."""

    def _job(self, name: str, job_id: str | None, parallelism: dict[str, int]) -> Job:
        at = self.now()
        job = Job(name, started_at=at, running_since=at, observed=parallelism, requested=parallelism, now=self.now)
        job.state = "INITIALIZING"
        if job_id is not None:
            job.id = job_id
        return job

    @property
    def alive(self) -> list[Job]:
        """Jobs that have not ended."""
        return [job for job in self.all if job.state not in ("FINISHED", "CANCELED", "FAILED")]

    def submit(self, name: str, parallelism: int = 1) -> Job:
        """Run one more job, as a user does."""
        job = self._job(name, None, dict.fromkeys(VERTICES, parallelism))
        job.state = "RUNNING"
        self.all.append(job)
        return job

    def pass_time(self) -> None:
        """Complete the savepoints, and start the jobs, whose time has come."""
        now, does = self.now(), self.behaviour
        for stop in self._stops.values():
            if now >= stop.done_at and not does.savepoint_failure and stop.job.state == "RUNNING":
                stop.job.state = "FINISHED"
                self._savepoints[stop.job.id] = stop.location
        for job in self.all:
            if job.state == "INITIALIZING" and now >= job.started_at + does.start_seconds:
                is_new = job.requested != self.all[0].requested
                if is_new and does.never_runs:
                    continue
                job.state = "FAILED" if is_new and does.start_failure else "RUNNING"
                job.running_since = job.started_at + does.start_seconds

    async def _answer(self, path: str, request: Request) -> JSONResponse:
        self.pass_time()
        parts, does = path.split("/"), self.behaviour
        if parts == ["config"]:
            return JSONResponse({"flink-version": does.version, "features": {"web-rescale": False}})
        if parts == ["jobs", "overview"]:
            return JSONResponse({"jobs": [self._line(job) for job in self.all]})
        if parts == ["jars"]:
            files = [{"id": id, "name": name, "uploaded": at * 1000} for id, (name, at) in does.jars.items()]
            return JSONResponse({"address": "http://jobmanager", "files": files})
        if parts[0] == "jars":
            return self._run(parts[1], await request.json())
        job = next((each for each in self.all if parts[:2] == ["jobs", each.id]), None)
        if job is None:
            return _error(404, f"org.apache.flink.runtime.rest.NotFoundException: Job {parts[-1]} not found")
        return await self._answer_of(job, parts, request)

    async def _answer_of(self, job: Job, parts: list[str], request: Request) -> JSONResponse:
        if request.method == "PATCH":
            job.state = "CANCELED"
            return JSONResponse({}, status_code=202)
        match parts[2:]:
            case ["stop"]:
                return self._stop(job, await request.json())
            case ["savepoints", trigger]:
                return self._status(job, trigger)
            case ["config"]:
                return JSONResponse({"jid": job.id, "execution-config": {"job-parallelism": self.started_with}})
            case ["exceptions"]:
                return JSONResponse(
                    {"root-exception": _trace(self.behaviour.start_failure), "exceptionHistory": {"entries": []}}
                )
            case ["resource-requirements"]:
                return _error(
                    500,
                    "Internal server error.",
                    _trace(
                        "UnsupportedOperationException: The DefaultScheduler does not support changing the parallelism"
                    ),
                )
            case ["jobmanager", "config"]:
                options = self.behaviour.configuration.items()
                return JSONResponse([{"key": key, "value": value} for key, value in options])
            case ["checkpoints"]:
                location = self._savepoints.get(job.id)
                latest = {} if location is None else {"savepoint": {"external_path": location, "is_savepoint": True}}
                return JSONResponse({"counts": {"completed": 0, "in_progress": 0}, "latest": latest})
            case [] if job.state == "INITIALIZING":
                return JSONResponse(
                    {"jid": job.id, "name": job.name, "state": job.state, "vertices": [], "plan": {"nodes": []}}
                )
        return await super()._answer_of(job, parts, request)

    def _stop(self, job: Job, body: dict[str, Any]) -> JSONResponse:
        trigger = body["triggerId"]
        self.behaviour.stop_requests += 1
        if trigger not in self._stops:
            directory = body["targetDirectory"]
            self._stops[trigger] = _Stop(job, directory, self.now() + self.behaviour.savepoint_seconds)
            self.behaviour.stops.append(directory)
        return JSONResponse({"request-id": trigger}, status_code=202)

    def _status(self, job: Job, trigger: str) -> JSONResponse:
        stop, does = self._stops.get(trigger), self.behaviour
        is_done = stop is not None and self.now() >= stop.done_at
        if stop is None or (is_done and does.forgets_stops):
            what = f"There is no savepoint operation with triggerId={trigger} for job {job.id}."
            return _error(404, f"org.apache.flink.runtime.rest.handler.RestHandlerException: {what}")
        if not is_done:
            return JSONResponse({"status": {"id": "IN_PROGRESS"}, "operation": None})
        if does.savepoint_failure:
            cause = {
                "class": "x.CheckpointException",
                "stack-trace": _trace(does.savepoint_failure),
                "serialized-throwable": "rO0AB",
            }
            return JSONResponse({"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}})
        return JSONResponse({"status": {"id": "COMPLETED"}, "operation": {"location": stop.location}})

    def _run(self, jar: str, body: dict[str, Any]) -> JSONResponse:
        does = self.behaviour
        if jar not in does.jars:
            return _error(
                400,
                f"org.apache.flink.runtime.rest.handler.RestHandlerException: Jar file /tmp/flink-web/{jar} does not exist",
            )
        if body.get("entryClass", ENTRY_CLASS) != ENTRY_CLASS:
            last = f"ProgramInvocationException: The program's entry point class '{body['entryClass']}' was not found in the jar file."
            return _error(500, "Internal server error.", _trace(last))
        if any(job.id == body["jobId"] for job in self.all):
            last = "org.apache.flink.runtime.client.DuplicateJobSubmissionException: Job has already been submitted."
            return _error(400, "Could not execute application.", _trace(last))
        level = body.get("parallelism", 1)
        overrides = body.get("flinkConfiguration", {}).get(OVERRIDES, "")
        parallelism = dict.fromkeys(VERTICES, level)
        if does.version.startswith(("1.19", "1.20")) and overrides:
            pairs = (each.split(":") for each in overrides.split(","))
            parallelism |= {NAMES[vertex]: int(p) for vertex, p in pairs}
        self.all.append(self._job(self.all[0].name, body["jobId"], parallelism))
        does.runs.append(body)
        return JSONResponse({"jobid": body["jobId"]})
