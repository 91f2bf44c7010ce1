"""Flink's TaskManagers as replicas, with the CPU and memory that their JVMs report."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weir_contracts import Pod

from .values import count, number, sequence

CPU_LOAD = "Status.JVM.CPU.Load"
"""CPU use of the JVM, as a share of the machine's processors."""
_MEMORY = ("Status.JVM.Memory.Heap.Used", "Status.JVM.Memory.NonHeap.Used", "Status.JVM.Memory.Direct.MemoryUsed")
METRICS = (CPU_LOAD, *_MEMORY)
_ID = re.compile(r"[0-9A-Za-z_:.-]{1,253}")
"""An id such as `10.0.0.1:6122-a1b2c3`, which is safe in the path of a request."""
MAX_TASK_MANAGERS = 50
"""TaskManagers of a cluster whose metrics are read; each costs a request."""


@dataclass(frozen=True)
class TaskManager:
    """One TaskManager as the JobManager lists it."""

    id: str
    processors: float | None
    """Processors of its machine or container, as its JVM counts them."""
    cpu_cores: float | None
    """Cores that its configuration gives it."""
    memory_bytes: int | None
    """Size of its process by its memory configuration."""

    def pod(self, metrics: Mapping[str, float | None]) -> Pod:
        """Return the replica with CPU and memory in use; unknown without the metrics."""
        load, used = metrics.get(CPU_LOAD), [metrics.get(name) for name in _MEMORY]
        present = [each for each in used if each is not None]
        return Pod(
            name=self.id,
            ready=True,
            cpu_cores=None if load is None or self.processors is None else min(1.0, load) * self.processors,
            cpu_request_cores=self.cpu_cores,
            memory_bytes=count(sum(present)) if len(present) == len(used) else None,
            memory_limit_bytes=self.memory_bytes,
        )


def task_managers(document: Any) -> list[TaskManager]:
    """Parse `GET /taskmanagers`. One without a readable id is left out."""
    listed = document.get("taskmanagers") if isinstance(document, dict) else None
    found = []
    for each in sequence(listed, "/taskmanagers")[:MAX_TASK_MANAGERS]:
        entry = each if isinstance(each, dict) else {}
        called = entry.get("id")
        if not isinstance(called, str) or not _ID.fullmatch(called) or ".." in called:
            continue
        found.append(
            TaskManager(
                id=called,
                processors=number(_part(entry, "hardware").get("cpuCores")) or None,
                cpu_cores=number(_part(entry, "totalResource").get("cpuCores")) or None,
                memory_bytes=count(_part(entry, "memoryConfiguration").get("totalProcessMemory")) or None,
            )
        )
    return found


def _part(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = entry.get(key)
    return part if isinstance(part, dict) else {}
