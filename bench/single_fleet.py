"""One process under a simulated monitor, as `bench.single` starts it: `python -m bench.single_fleet FOLDER APPLICATIONS
INTERVAL_SECONDS`.

All services but the monitor, with log and store in a file of the folder, and the display, as `weir run --data` has them.
It writes what it measured to FOUND in the folder, then waits to be ended.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import psutil

from bench.results_file import distribution
from bench.simulated_monitor import Fleet, remember_the_past
from weir_cli.single import SingleSettings, compose, of_environment
from weir_cli.single_run import FILE, Display
from weir_knowledge.adapters.sqlite import SqliteStore
from weir_knowledge.settings import KnowledgeSettings
from weir_knowledge.view import View
from weir_runtime.bus import Committed, Outgoing, Place
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop
from weir_runtime.service import run_service, wait_for_topics
from weir_runtime.sqlite_bus import SqliteBus
from weir_runtime.sqlite_file import SqliteFile

FOUND = "found.json"
WARM_UP_SECONDS, MEASURED_SECONDS = 45.0, 50.0
"""The log keeps each plan for a minute, then an application's newest."""
END_SECONDS = 5.0
"""For the plans of the last observations."""


def opened(folder: Path) -> SqliteFile:
    """Return the file of a process with `--data` of this folder."""
    return SqliteFile.open(folder / FILE, SystemClock())


class TimedBus(SqliteBus):
    """Keeps how long each append took, with its transaction."""

    def __init__(self, file: SqliteFile) -> None:
        super().__init__(file)
        self.milliseconds: list[float] = []

    def store(self, records: Sequence[Outgoing], group: str, positions: Mapping[Place, Committed]) -> set[Place]:
        began = time.perf_counter()
        try:
            return super().store(records, group, positions)
        finally:
            if records:
                self.milliseconds.append(1000 * (time.perf_counter() - began))


async def run(folder: Path, applications: int, interval_seconds: float) -> int:
    """Run until ended; returns the exit code."""
    settings = of_environment(SingleSettings, http_port=0)
    with closing(opened(folder)) as file:
        clock = file.clock
        bus, store = TimedBus(file), SqliteStore(file, **of_environment(KnowledgeSettings).kept())
        await remember_the_past(store, applications)
        one = compose(settings, bus, store, clock)

        async def observe(stop: Stop) -> None:
            if not await wait_for_topics(bus, settings, stop):
                return
            fleet = Fleet(bus, applications, interval_seconds)
            await fleet.publish_policies()
            began = time.monotonic()
            observing = asyncio.create_task(fleet.run(began + WARM_UP_SECONDS + MEASURED_SECONDS))
            await asyncio.sleep(WARM_UP_SECONDS)
            since, spent = time.time(), cpu_seconds(os.getpid())
            before = sum(each.count for each in fleet.applications)
            fleet.late_seconds = 0.0
            bus.milliseconds.clear()
            await observing
            until = time.time()
            found = {
                "since": since,
                "until": until,
                "observations": sum(each.count for each in fleet.applications) - before,
                "monitor_late_seconds": round(fleet.late_seconds, 3),
                "append_milliseconds": distribution(bus.milliseconds),
                "cpu_cores": round((cpu_seconds(os.getpid()) - spent) / (until - since), 3),
                "megabytes": megabytes(os.getpid()),
            }
            await asyncio.sleep(END_SECONDS)
            (folder / FOUND).write_text(json.dumps(found))

        async def show(stop: Stop) -> None:
            display = Display(View(store, settings.partitions), clock, lambda _: [], settings.log_level)
            await display.follow(stop, lambda _: False)

        tasks = {name: task for name, task in one.tasks.items() if name != "monitor"}
        return await run_service(
            "weir", settings, app=one.app, tasks={**tasks, "observe": observe, "show": show}, on_stopped=one.close
        )


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """Return the processor time so far of a process and those that it started and that run."""
    return sum(each.cpu_times().user + each.cpu_times().system for each in _tree(pid))


def megabytes(pid: int) -> float:
    """Return the resident memory of a process and those that it started; pages that they share count once (Pss)."""
    return round(sum(each.memory_full_info().pss for each in _tree(pid)) / 1e6, 1)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
