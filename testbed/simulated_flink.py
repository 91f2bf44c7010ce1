"""A simulated JobManager's REST API: many jobs of two operators, rescaled in place a moment after a request."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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
MAX_PARALLELISM = 128
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
    now: Callable[[], float] = time.time
    """Seconds since the epoch."""
    state: str = "RUNNING"

    def settle(self, slots: int | None = None) -> None:
        """Run the requested parallelism once its moment has passed, as far as there are slots (None: enough)."""
        wanted = {name: p if slots is None else max(1, min(p, slots)) for name, p in self.requested.items()}
        if self.observed != wanted and self.now() >= self.applied_at:
            self.observed, self.running_since = wanted, self.applied_at if slots is None else self.now()
            self.restarts += 1


Running = Callable[[], Awaitable[list[tuple[str, str]]]]
"""Returns id and host of each TaskManager that has registered, in the order in which their slots are used."""


class ManyJobs:
    """Serves the jobs by name at `url`. With `managers` a cluster of one job, which runs on their slots; a `reactive` one on
    all of them, and its requirements cannot be set."""

    def __init__(
        self,
        names: list[str],
        rescale_seconds: float,
        managers: Running | None = None,
        slots_each: int = 1,
        *,
        reactive: bool = False,
    ) -> None:
        self.jobs = {name: Job(name) for name in names}
        self._configuration = CONFIGURATION | ({"scheduler-mode": "reactive"} if reactive else {})
        if reactive:
            for job in self.jobs.values():
                job.requested = dict.fromkeys(VERTICES, MAX_PARALLELISM)
        self.url = ""
        self._rescale_seconds = rescale_seconds
        self._managers = managers
        self._slots_each = slots_each

    @property
    def graph_hash(self) -> str:
        """Return the hash of the graph that all jobs have."""
        return parse_job(_details(Job("any"))).topology().graph_hash()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        stop, bound = Stop(), listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        task = asyncio.create_task(serve(self.app(), bound, stop))
        try:
            yield
        finally:
            stop.request("the test is over")
            await asyncio.wait_for(task, 10.0)

    def app(self) -> FastAPI:
        """Return the API, for a server or a client in the same process."""
        app = FastAPI(openapi_url=None)
        app.add_api_route("/{path:path}", self._answer, methods=["GET", "PUT", "POST", "PATCH"])
        return app

    async def _answer(self, path: str, request: Request) -> JSONResponse:
        parts = path.split("/")
        registered = [] if self._managers is None else await self._managers()
        if self._managers is not None:
            for each in self.jobs.values():
                each.settle(len(registered) * self._slots_each)
        if parts == ["taskmanagers"]:
            return JSONResponse({"taskmanagers": self._task_managers(registered)})
        if parts == ["jobs", "overview"]:
            return JSONResponse({"jobs": [self._line(job) for job in self.jobs.values()]})
        if parts == ["overview"]:
            return JSONResponse({"slots-total": 1000, "slots-available": 500, "flink-version": "2.2.1"})
        if parts == ["config"]:
            return JSONResponse({"refresh-interval": 1000, "flink-version": "2.2.1", "features": {"web-rescale": True}})
        job = next((j for j in self.jobs.values() if parts[:2] == ["jobs", j.id]), None)
        if job is None:
            return JSONResponse({"errors": [f"x.NotFoundException: no {path}"]}, status_code=404)
        return await self._answer_of(job, parts, request)

    async def _answer_of(self, job: Job, parts: list[str], request: Request) -> JSONResponse:
        if self._managers is None:
            job.settle()
        if request.method == "PUT":
            return self._rescale(job, await request.json())
        if request.method == "POST":
            return JSONResponse({"request-id": "0" * 32}, status_code=202)
        return JSONResponse(self._about(job, "/".join(parts[2:]), request.query_params.get("get")))

    def _rescale(self, job: Job, body: dict[str, Any]) -> JSONResponse:
        if "scheduler-mode" in self._configuration:
            refused = "Cannot change the parallelism of a job running in reactive mode."
            return JSONResponse({"errors": ["Internal server error.", refused]}, status_code=500)
        job.requested = {NAMES[vertex]: each["parallelism"]["upperBound"] for vertex, each in body.items()}
        job.requests.append(dict(job.requested))
        job.applied_at = job.now() + self._rescale_seconds
        return JSONResponse({})

    def _about(self, job: Job, what: str, names: str | None) -> Any:
        if what == "":
            return _details(job)
        if what == "metrics":
            return [{"id": "numRestarts", "value": str(job.restarts)}]
        if what.startswith("vertices/"):
            wanted = names.split(",") if names else list(GAUGES)
            return [
                {"id": n, **(dict.fromkeys(("min", "max", "avg", "sum"), GAUGES[n]) if names else {})} for n in wanted
            ]
        return {
            "resource-requirements": {
                vertex: {"parallelism": {"lowerBound": 1, "upperBound": job.requested[name]}}
                for name, vertex in VERTICES.items()
            },
            "checkpoints": {
                "counts": {"in_progress": 0, "completed": 1, "failed": 0, "total": 1, "restored": 0},
                "latest": {"completed": {"latest_ack_timestamp": _ms(job.now() - 1), "end_to_end_duration": 200}},
            },
            "checkpoints/config": {"mode": "exactly_once", "interval": 10_000},
            "jobmanager/config": [{"key": key, "value": value} for key, value in self._configuration.items()],
        }[what]

    def _task_managers(self, registered: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """Return the TaskManagers, of which the first ones have the slots in use."""
        used, listed = max(max(job.observed.values()) for job in self.jobs.values()), []
        for id, host in registered:
            taken = min(used, self._slots_each)
            used -= taken
            path = f"pekko.tcp://flink@{host}:6122/user/rpc/taskmanager_0"
            free = self._slots_each - taken
            listed.append({"id": id, "path": path, "slotsNumber": self._slots_each, "freeSlots": free})
        return listed

    def _line(self, job: Job) -> dict[str, Any]:
        if self._managers is None:
            job.settle()
        total = sum(job.observed.values())
        return {
            "jid": job.id,
            "name": job.name,
            "state": job.state,
            "start-time": _ms(job.started_at),
            "end-time": -1,
            "last-modification": _ms(job.running_since),
            "tasks": {"total": total, "running": total if job.state == "RUNNING" else 0, "finished": 0},
        }


def _details(job: Job) -> dict[str, Any]:
    records = round((job.now() - job.running_since) * 500)
    running = job.observed if job.state == "RUNNING" else dict.fromkeys(job.observed, 0)
    return {
        "jid": job.id,
        "name": job.name,
        "state": job.state,
        "start-time": _ms(job.started_at),
        "now": _ms(job.now()),
        "timestamps": {"RUNNING": _ms(job.running_since), "FAILED": 0},
        "vertices": [
            {
                "id": vertex,
                "slotSharingGroupId": "all",
                "name": name,
                "maxParallelism": MAX_PARALLELISM,
                "parallelism": job.observed[name],
                "status": job.state,
                "tasks": {"RUNNING": running[name], "FINISHED": 0},
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
