"""A simulated JobManager's REST API: many jobs of two operators, rescaled in place a moment after a request."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from weir_engines.flink.topology import job as parse_job
from weir_runtime.http import listen, serve
from weir_runtime.loop import Stop

SOURCE, WORK = "orders", "work"
VERTICES = {SOURCE: "a" * 32, WORK: "b" * 32}
NAMES = {vertex: name for name, vertex in VERTICES.items()}
GAUGES = {"busyTimeMsPerSecond": 500.0, "backPressuredTimeMsPerSecond": 0.0}
CONFIGURATION = {
    "jobmanager.scheduler": "adaptive",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "1 s",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "1 s",
    "jobmanager.adaptive-scheduler.rescale-trigger.max-delay": "0 ms",
}


def _ms(at: float) -> int:
    return round(at * 1000)


@dataclass
class Job:
    """One job; `requests` holds every requested vector, in order."""

    name: str
    id: str = field(default_factory=lambda: uuid4().hex)
    started_at: float = field(default_factory=time.time)
    running_since: float = field(default_factory=time.time)
    observed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERTICES, 1))
    requested: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERTICES, 1))
    applied_at: float = 0.0
    restarts: int = 0
    requests: list[dict[str, int]] = field(default_factory=list)

    def settle(self) -> None:
        """Run the requested parallelism once its moment has passed."""
        if self.observed != self.requested and time.time() >= self.applied_at:
            self.observed, self.running_since = dict(self.requested), self.applied_at
            self.restarts += 1


class ManyJobs:
    """Serves the jobs by name at `url`."""

    def __init__(self, names: list[str], rescale_seconds: float) -> None:
        self.jobs = {name: Job(name) for name in names}
        self.url = ""
        self._rescale_seconds = rescale_seconds

    @property
    def graph_hash(self) -> str:
        """Return the hash of the graph that all jobs have."""
        return parse_job(_details(next(iter(self.jobs.values())))).topology().graph_hash()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = FastAPI(openapi_url=None)
        app.add_api_route("/{path:path}", self._answer, methods=["GET", "PUT", "POST"])
        stop, bound = Stop(), listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        task = asyncio.create_task(serve(app, bound, stop))
        try:
            yield
        finally:
            stop.request("the test is over")
            await asyncio.wait_for(task, 10.0)

    async def _answer(self, path: str, request: Request) -> JSONResponse:
        parts = path.split("/")
        if parts == ["jobs", "overview"]:
            return JSONResponse({"jobs": [self._line(job) for job in self.jobs.values()]})
        if parts == ["overview"]:
            return JSONResponse({"slots-total": 1000, "slots-available": 500, "flink-version": "2.2.1"})
        if parts == ["config"]:
            return JSONResponse({"refresh-interval": 1000, "flink-version": "2.2.1", "features": {"web-rescale": True}})
        job = next((j for j in self.jobs.values() if parts[:2] == ["jobs", j.id]), None)
        if job is None:
            return JSONResponse({"errors": [f"x.NotFoundException: no {path}"]}, status_code=404)
        job.settle()
        if request.method == "PUT":
            return self._rescale(job, await request.json())
        if request.method == "POST":
            return JSONResponse({"request-id": "0" * 32}, status_code=202)
        return JSONResponse(_about(job, "/".join(parts[2:]), request.query_params.get("get")))

    def _rescale(self, job: Job, body: dict[str, Any]) -> JSONResponse:
        job.requested = {NAMES[vertex]: each["parallelism"]["upperBound"] for vertex, each in body.items()}
        job.requests.append(dict(job.requested))
        job.applied_at = time.time() + self._rescale_seconds
        return JSONResponse({})

    def _line(self, job: Job) -> dict[str, Any]:
        job.settle()
        total = sum(job.observed.values())
        return {
            "jid": job.id,
            "name": job.name,
            "state": "RUNNING",
            "start-time": _ms(job.started_at),
            "end-time": -1,
            "last-modification": _ms(job.running_since),
            "tasks": {"total": total, "running": total, "finished": 0},
        }


def _about(job: Job, what: str, names: str | None) -> Any:
    if what == "":
        return _details(job)
    if what == "metrics":
        return [{"id": "numRestarts", "value": str(job.restarts)}]
    if what.startswith("vertices/"):
        wanted = names.split(",") if names else list(GAUGES)
        return [{"id": n, **(dict.fromkeys(("min", "max", "avg", "sum"), GAUGES[n]) if names else {})} for n in wanted]
    return {
        "resource-requirements": {
            vertex: {"parallelism": {"lowerBound": 1, "upperBound": job.requested[name]}}
            for name, vertex in VERTICES.items()
        },
        "checkpoints": {
            "counts": {"in_progress": 0, "completed": 1, "failed": 0, "total": 1, "restored": 0},
            "latest": {"completed": {"latest_ack_timestamp": _ms(time.time() - 1), "end_to_end_duration": 200}},
        },
        "checkpoints/config": {"mode": "exactly_once", "interval": 10_000},
        "jobmanager/config": [{"key": key, "value": value} for key, value in CONFIGURATION.items()],
    }[what]


def _details(job: Job) -> dict[str, Any]:
    records = round((time.time() - job.running_since) * 500)
    return {
        "jid": job.id,
        "name": job.name,
        "state": "RUNNING",
        "start-time": _ms(job.started_at),
        "now": _ms(time.time()),
        "timestamps": {"RUNNING": _ms(job.running_since), "FAILED": 0},
        "vertices": [
            {
                "id": vertex,
                "slotSharingGroupId": "all",
                "name": name,
                "maxParallelism": 128,
                "parallelism": job.observed[name],
                "status": "RUNNING",
                "tasks": {"RUNNING": job.observed[name], "FINISHED": 0},
                "metrics": {
                    "read-records": records,
                    "read-records-complete": True,
                    "write-records": records,
                    "write-records-complete": True,
                    "accumulated-busy-time": records,
                    "accumulated-backpressured-time": 0,
                    "accumulated-idle-time": records,
                },
            }
            for name, vertex in VERTICES.items()
        ],
        "plan": {
            "nodes": [
                {"id": VERTICES[SOURCE]},
                {"id": VERTICES[WORK], "inputs": [{"num": 0, "id": VERTICES[SOURCE], "ship_strategy": "HASH"}]},
            ]
        },
    }
