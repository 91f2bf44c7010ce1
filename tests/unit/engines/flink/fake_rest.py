"""A JobManager's REST API over the memory cluster, in the shapes that a 2.2.1 cluster was recorded to answer in.

Like the real one it gathers metrics only when asked for some, and answers that request from what it had before.
"""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.unit.engines.memory_sources import JOB_ID, SOURCE, MemoryFlink
from weir_engines.flink.metrics import SourceOffsets
from weir_engines.flink.topology import Job

_RECORDED = Path(__file__).parent / "recorded" / "collector"
Broken = tuple[int, bytes] | Callable[[httpx.Request], httpx.Response]


def recorded(name: str) -> Any:
    """An answer of a Flink 2.2.1 cluster that ran the sample job, as it came."""
    return json.loads((_RECORDED / f"{name}.json").read_text())


def _ms(at: datetime | None) -> int:
    return 0 if at is None else round(at.timestamp() * 1000)


class FakeFlink:
    """Serves `cluster`. `broken[path]` replaces an answer, by status and body or by a function."""

    def __init__(self, cluster: MemoryFlink) -> None:
        self.cluster = cluster
        self.broken: dict[str, Broken] = {}
        self.calls: list[str] = []
        self.hidden: set[str] = set()
        """Metrics that no subtask has."""
        self._gathered = (cluster.job(), cluster.offsets(), cluster.restarts)
        self.pauses: list[float] = []

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._handle)

    def gather(self) -> None:
        """The TaskManagers' answers come in."""
        self._gathered = (self.cluster.job(), self.cluster.offsets(), self.cluster.restarts)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.calls.append(f"{path}?{request.url.query.decode()}" if request.url.query else path)
        if self.cluster.away:
            raise httpx.ConnectError("connection refused", request=request)
        broken = self.broken.get(path)
        if callable(broken):
            return broken(request)
        if broken is not None:
            return httpx.Response(broken[0], content=broken[1])
        answer = self._answer(path, request.url.params.get("get"))
        if "/metrics" in path or path == f"/jobs/{JOB_ID}":
            self.gather()
        return httpx.Response(404 if answer is None else 200, json=answer if answer is not None else _not_found(path))

    def _answer(self, path: str, names: str | None) -> Any:
        if path == "/overview":
            free = 8 - max(self.cluster.parallelism.values())
            return {**recorded("overview"), "slots-total": 8, "slots-available": free}
        if path == "/jobs/overview":
            line = {"jid": JOB_ID, "name": "orders", "state": self.cluster.state, "start-time": 1}
            return {"jobs": [] if self.cluster.absent else [line]}
        if path.startswith("/taskmanagers"):
            return task_managers_answer(path, names)
        if not path.startswith(f"/jobs/{JOB_ID}"):
            return None
        what = path.removeprefix(f"/jobs/{JOB_ID}").removeprefix("/")
        counters, offsets, restarts = self._gathered
        if what == "":
            return _details(self.cluster.job(), counters)
        if what == "metrics":
            return [{"id": "numRestarts", "value": str(restarts)}]
        if what.startswith("vertices/"):
            metrics = _metrics(what.split("/")[1], offsets)
            return _aggregated({k: v for k, v in metrics.items() if k not in self.hidden}, names)
        return self._about_the_job(what)

    def _about_the_job(self, what: str) -> Any:
        if what == "resource-requirements":
            wanted = self.cluster.requested.items()
            return {v: {"parallelism": {"lowerBound": 1, "upperBound": upper}} for v, upper in wanted}
        files = {
            "checkpoints": "checkpoints",
            "checkpoints/config": "checkpoints_config",
            "jobmanager/config": "jobmanager_config",
        }
        return recorded(files[what]) if what in files else None


TASK_MANAGER = "127.0.0.1:6122-a1b2c3"


def task_managers_answer(path: str, names: str | None) -> Any:
    """The list of TaskManagers, or the metrics `names` of one."""
    if path == "/taskmanagers":
        worker = {
            "id": TASK_MANAGER,
            "hardware": {"cpuCores": 4, "physicalMemory": 8 * 2**30},
            "totalResource": {"cpuCores": 2.0, "taskHeapMemory": 512},
            "memoryConfiguration": {"totalProcessMemory": 1_728_000_000},
        }
        return {"taskmanagers": [worker]}
    values = {
        "Status.JVM.CPU.Load": "0.25",
        "Status.JVM.Memory.Heap.Used": "200",
        "Status.JVM.Memory.NonHeap.Used": "40",
        "Status.JVM.Memory.Direct.MemoryUsed": "2",
    }
    return [{"id": name, "value": values[name]} for name in (names or "").split(",")]


def _details(job: Job, counters: Job) -> dict[str, Any]:
    """The job as it is, with the counters that were gathered."""
    counted = {v.id: v for v in counters.vertices}
    return {
        "jid": job.id,
        "name": job.name,
        "state": job.state,
        "start-time": _ms(job.started_at),
        "now": _ms(job.now),
        "timestamps": {"RUNNING": _ms(job.running_since), "FAILED": 0},
        "vertices": [
            {
                "id": v.id,
                "slotSharingGroupId": v.slot_sharing_group,
                "name": v.name,
                "maxParallelism": v.max_parallelism,
                "parallelism": v.parallelism,
                "status": "RUNNING" if v.running else "DEPLOYING",
                "tasks": {"RUNNING": v.parallelism if v.running else 0, "FINISHED": 0},
                "metrics": {
                    "read-records": counted[v.id].read_records,
                    "read-records-complete": v.complete,
                    "write-records": counted[v.id].write_records,
                    "write-records-complete": v.complete,
                    "accumulated-busy-time": v.busy_ms,
                    "accumulated-backpressured-time": v.backpressured_ms,
                    "accumulated-idle-time": v.idle_ms,
                },
            }
            for v in job.vertices
        ],
        "plan": {
            "nodes": [
                {
                    "id": v.id,
                    "inputs": [
                        {"num": 0, "id": link.source, "ship_strategy": link.ship_strategy}
                        for link in job.links
                        if link.target == v.id
                    ],
                }
                for v in job.vertices
            ]
        },
    }


def _metrics(vertex_id: str, source: SourceOffsets) -> dict[str, float]:
    """Return the metrics that a vertex's subtasks list, including unneeded ones."""
    found = {"busyTimeMsPerSecond": 500.0, "backPressuredTimeMsPerSecond": 0.0, "idleTimeMsPerSecond": 500.0}
    if vertex_id != SOURCE:
        return found
    found |= {"Source__orders.numRecordsIn": float(source.records_in or 0), "Source__orders.numBytesIn": 1.0}
    for (topic, number), position in source.positions.items():
        name = f"Source__orders.KafkaSourceReader.topic.{topic}.partition.{number}"
        found[f"{name}.currentOffset"] = -1.0 if position is None else float(position - 1)
        found[f"{name}.committedOffset"] = -1.0
    if source.records_in:
        found["Source__orders.pendingRecords"] = float(source.pending_records or 0)
    return found


def _aggregated(metrics: dict[str, float], names: str | None) -> list[dict[str, Any]]:
    if names is None:
        return [{"id": name} for name in metrics]
    wanted = names.split(",")
    if any(name not in metrics for name in wanted):
        return []
    return [{"id": n, "min": metrics[n], "max": metrics[n], "avg": metrics[n], "sum": metrics[n]} for n in wanted]


def _not_found(path: str) -> dict[str, Any]:
    return {"errors": [f"org.apache.flink.runtime.rest.NotFoundException: {path} not found\n\tat org.apache.flink.x"]}
