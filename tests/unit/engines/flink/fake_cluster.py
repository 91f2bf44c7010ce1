"""A JobManager's REST API over the memory cluster, in the shapes that a 2.2.1 cluster was recorded to answer in."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx

from tests.unit.engines.memory_jobs import MemoryDriver, MemoryJob
from weir_contracts import Subject
from weir_engines.driver import Rejected, Snapshot, Unfenced

Answer = tuple[int, Any]


def _ms(at: datetime | None) -> int:
    return 0 if at is None else round(at.timestamp() * 1000)


class FakeFlink:
    """Serves the jobs of `driver` at `target`'s URL. `broken[path]` replaces an answer, by status and body."""

    def __init__(self, driver: MemoryDriver, subject: Subject, *, clock_ahead_ms: int = 0) -> None:
        self.driver = driver
        self.subject = subject
        self.broken: dict[str, tuple[int, bytes] | Callable[[], httpx.Response]] = {}
        self.calls: list[str] = []
        self._ahead_ms = clock_ahead_ms

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._handle)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(f"{request.method} {request.url.path}")
        if str(request.url.copy_with(path="", query=None)).rstrip("/") in self.driver.away:
            raise httpx.ConnectError("connection refused", request=request)
        broken = self.broken.get(request.url.path)
        if callable(broken):
            return broken()
        if broken is not None:
            return httpx.Response(broken[0], content=broken[1])
        status, body = await self._route(request)
        return httpx.Response(status, json=body)

    async def _route(self, request: httpx.Request) -> Answer:
        parts = request.url.path.strip("/").split("/")
        jobs = {job.job_id: job for job in self.driver.jobs.values()}
        if parts == ["jobs", "overview"]:
            return 200, {"jobs": [await self._line(job) for job in jobs.values()]}
        if parts == ["config"]:
            return 200, {"refresh-interval": 1000, "flink-version": "2.2.1", "features": {"web-rescale": True}}
        if parts == ["overview"]:
            return 200, {"slots-total": 7, "slots-available": 3}
        job = jobs.get(parts[1])
        if parts[2:] == ["checkpoints"] and request.method == "POST":
            await self.driver.trigger_checkpoint(self.subject, parts[1])
            return 202, {"request-id": "0" * 32}
        if job is None:
            return 404, _errors("org.apache.flink.runtime.rest.NotFoundException", f"Job {parts[1]} not found")
        if parts[2:] == ["resource-requirements"] and request.method == "PUT":
            return await self._put(job, json.loads(request.content))
        snapshot = await self.driver.observe(self.subject)
        return 200, self._get(job, snapshot, "/".join(parts[2:]))

    def _get(self, job: MemoryJob, snapshot: Snapshot, what: str) -> Any:
        if what == "":
            return self._details(job, snapshot)
        if what == "resource-requirements":
            return {
                o.id: {"parallelism": {"lowerBound": 1, "upperBound": job.requested[o.name]}}
                for o in job.topology.operators
            }
        if what == "checkpoints":
            at = _ms(job.checkpoint_at) + self._ahead_ms
            done = {"latest_ack_timestamp": at, "end_to_end_duration": 200}
            return {
                "counts": {"in_progress": 0, "completed": job.checkpoints_triggered, "failed": 0},
                "latest": {"completed": done if job.checkpoint_at else None},
            }
        if what == "checkpoints/config":
            return {"mode": "exactly_once", "interval": 10000}
        if what == "metrics":
            return [{"id": "numRestarts", "value": str(job.restarts)}]
        if what == "jobmanager/config":
            prefix = "jobmanager.adaptive-scheduler."
            return [
                {"key": f"{prefix}executing.cooldown-after-rescaling", "value": "1 s"},
                {"key": f"{prefix}executing.resource-stabilization-timeout", "value": "1 s"},
                {"key": f"{prefix}rescale-trigger.max-delay", "value": "0 ms"},
            ]
        raise AssertionError(f"no test expects a request for {what}")

    async def _line(self, job: MemoryJob) -> dict[str, Any]:
        found = await self.driver.observe(self.subject)
        total = sum(job.observed.values())
        running = total if job.state == "RUNNING" else 0
        return {
            "jid": job.job_id,
            "name": job.name,
            "state": job.state,
            "start-time": _ms(job.started_at) + self._ahead_ms,
            "end-time": -1,
            "last-modification": _ms(found.steady_since) + self._ahead_ms,
            "tasks": {"total": total, "running": running, "finished": 0},
        }

    def _details(self, job: MemoryJob, snapshot: Snapshot) -> dict[str, Any]:
        running = job.state == "RUNNING"
        return {
            "jid": job.job_id,
            "name": job.name,
            "state": job.state,
            "start-time": _ms(job.started_at) + self._ahead_ms,
            "now": _ms(snapshot.at) + self._ahead_ms,
            "timestamps": {"RUNNING": _ms(job.running_since) + self._ahead_ms, "FAILED": 0},
            "vertices": [
                {
                    "id": o.id,
                    "name": o.name,
                    "parallelism": job.observed[o.name],
                    "maxParallelism": o.max_parallelism,
                    "slotSharingGroupId": "g1",
                    "status": "RUNNING" if running else "CREATED",
                    "tasks": {"RUNNING" if running else "CREATED": job.observed[o.name]},
                    "metrics": {"accumulated-busy-time": "NaN"},
                }
                for o in job.topology.operators
            ],
            "plan": {
                "nodes": [
                    {
                        "id": o.id,
                        "inputs": [
                            {"num": i, "id": job.topology.operator(e.source).id, "ship_strategy": e.ship_strategy}
                            for i, e in enumerate(x for x in job.topology.edges if x.target == o.name)
                        ],
                    }
                    for o in job.topology.operators
                ]
            },
        }

    async def _put(self, job: MemoryJob, body: dict[str, Any]) -> Answer:
        names = {o.id: o.name for o in job.topology.operators}
        wanted = {names[i]: each["parallelism"]["upperBound"] for i, each in body.items()}
        assert {each["parallelism"]["lowerBound"] for each in body.values()} == {1}
        answer = await self.driver.request(self.subject, job.job_id, wanted, job.requested, Unfenced())
        if isinstance(answer, Rejected):
            text = re.sub(
                r"^.+: (\d+) exceeds",
                r"The newly requested parallelism \1 for the job vertex 9f exceeds",
                answer.reason,
            )
            return 400, _errors("org.apache.flink.runtime.rest.handler.RestHandlerException", text)
        return 200, {}


def _errors(kind: str, message: str) -> dict[str, list[str]]:
    return {
        "errors": [f"{kind}: {message}\n\tat org.apache.flink.runtime.dispatcher.Dispatcher.x(Dispatcher.java:1256)"]
    }
