"""One job in the shapes that Weir scales: `make bench-flink-shapes`, results in bench/results/flink_shapes.json.

Eight hours of the 1998 World Cup's web site with two match surges, replayed in ten minutes on the sample job, under `weir run`:
rescaled in place within fixed slots; with TaskManagers of two slots that Weir starts and ends; stopped with a savepoint and run
again; and in place without the brokers, by what Flink itself reports of the source. The policy's times are its defaults, as much
shorter as the load is faster. One shape after another; `--shape NAME` measures one and keeps the others' earlier figures.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.compare import PEAK_RATE, behavior_of, excerpt, options_of, slow_down, static
from bench.contest import Contestant, sample_all
from bench.results_file import distribution, earlier, log, write
from bench.running import Running, started, with_spec
from bench.single import SingleStack
from testbed.flink import TaskManagerInstance
from testbed.process import TestbedError
from testbed.supervisor.api import endpoints
from testbed.supervisor.fleet import Fleet
from testbed.trial.loop_stack import Report
from testbed.trial.options import APPLICATION, TrialOptions
from testbed.trial.stack import SLOTS
from weir_contracts import ActionState, parse_policy
from workloads.sample_job import SLOWEST

MANAGER_SLOTS, MAX_MANAGERS = 2, 8
REGISTER_SECONDS = 60.0
"""For the slots of the first TaskManager."""
RETAINED = {"slot.idle.timeout": "1000"}
"""Slots that a job no longer uses are free after a second, as the other times of the testbed's Flink are shortened."""


class ShapeStack(SingleStack):
    """The trial of one shape under `weir run`."""

    settings: Mapping[str, str] = {"WEIR_TARGET_RESUBMIT_HOSTS": "127.0.0.1"}
    managers, slots = 1, SLOTS
    flink_options: Mapping[str, str] = RETAINED

    def __init__(self, options: TrialOptions, folder: Path) -> None:
        super().__init__(
            options, folder, task_managers=self.managers, slots=self.slots, flink_options=self.flink_options
        )

    def held(self) -> int | None:
        """Return the slots that the job holds: its operators share theirs."""
        try:
            entry = self.flink.find(APPLICATION)
            return None if entry is None else max(self.flink.observed(entry.id).values(), default=None)
        except TestbedError:
            return None

    def restarts(self) -> int:
        """Return how often the job has restarted, since it was last run."""
        entry = self.flink.find(APPLICATION)
        if entry is None:
            raise TestbedError(f"Flink has no job {APPLICATION}")
        (found,) = self.flink.get(f"/jobs/{entry.id}/metrics?get=numRestarts")
        return int(found["value"])


class WithoutOffsets(ShapeStack):
    """Weir knows no brokers: the source's pending records are what it goes by."""

    def __init__(self, options: TrialOptions, folder: Path) -> None:
        super().__init__(options, folder)
        document = self.policy.to_document()
        del document["spec"]["signals"]
        self.policy = parse_policy(document)


class Resubmitted(ShapeStack):
    """A job of the default scheduler."""

    flink_options: Mapping[str, str] = {"jobmanager.scheduler": "Default"}

    def start_job(self, name: str, group_id: str, output_topic: str, *, savepoint: str | None = None) -> str:
        job_id = super().start_job(name, group_id, output_topic, savepoint=savepoint)
        (jar,) = self.flink.get("/jars")["files"]
        with_spec(
            self,
            {"target": {"flink": {"resubmit": {**self._as_started(name, group_id, output_topic), "jar": jar["id"]}}}},
        )
        return job_id

    def _as_started(self, name: str, group_id: str, output_topic: str) -> dict[str, Any]:
        arguments = self.job_arguments(name, group_id, output_topic)
        return {"args": arguments, "savepointDirectory": f"file://{self.folder.resolve()}/savepoints", "uniform": True}


class Managed(ShapeStack):
    """A job whose TaskManagers of two slots run behind a scale endpoint."""

    managers, slots = 0, MANAGER_SLOTS

    def __init__(self, options: TrialOptions, folder: Path) -> None:
        super().__init__(options, folder)
        if self.cluster is None:
            raise TestbedError("TaskManagers of an external cluster cannot be measured")
        cluster = self.cluster
        self._fleet = Fleet(lambda _ordinal: TaskManagerInstance(cluster), 1)
        self._served, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="endpoint", daemon=True)

    def held(self) -> int:
        """Return the number of TaskManagers, of those that start and end too."""
        return len(self._fleet.state().instances)

    def _run_application(self) -> None:
        self._thread.start()
        if self.cluster is None or not self._served.wait(REGISTER_SECONDS):
            raise TestbedError("the endpoint of the TaskManagers is not served")
        self.cluster.wait_slots(MANAGER_SLOTS, REGISTER_SECONDS)
        super()._run_application()

    async def _serve(self) -> None:
        async with endpoints({APPLICATION: self._fleet}, MAX_MANAGERS) as urls:
            pool = {"endpoint": {"url": f"{urls[APPLICATION]}/scale/{APPLICATION}"}, "slots": MANAGER_SLOTS}
            with_spec(self, {"target": {"flink": {"taskManagers": {**pool, "max": MAX_MANAGERS}}}})
            self._served.set()
            await asyncio.to_thread(self._over.wait)

    def stop(self, report: Report | None = None) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(60)
        super().stop(report)


SHAPES: Mapping[str, Callable[[TrialOptions, Path], ShapeStack]] = {
    "in place": ShapeStack,
    "TaskManagers": Managed,
    "run again": Resubmitted,
    "without brokers": WithoutOffsets,
}


def measure(shape: str, seconds: float, objective_seconds: float) -> dict[str, Any]:
    """Return the figures of one shape."""
    with tempfile.TemporaryDirectory(prefix="weir-shapes-") as name:
        folder = Path(name)
        load = excerpt(folder, seconds)
        stack = with_spec(
            SHAPES[shape](options_of(load, objective_seconds, seconds), folder), {"behavior": behavior_of(load)}
        )
        with started(Running(stack)) as bench:
            slow_down(stack)
            if stack.probe is None:
                raise TestbedError("the stack has no probe")
            weir = Contestant(shape, stack.probe, stack.held)
            sample_all(stack, [weir], load.lead_in_seconds, load.lead_in_seconds + seconds)
            actions, restarts = bench.actions(), stack.restarts()
    figures = weir.figures(objective_seconds)
    peak = static(PEAK_RATE)(0.0, {SLOWEST: 1}, {})[SLOWEST]
    fixed = -(-peak // MANAGER_SLOTS) if isinstance(stack, Managed) else peak
    in_place = sum(each.requested_at is not None and each.resubmission is None for each in actions)
    return {
        "late_share": figures.violation_share,
        "max_lag_seconds": figures.max_lag_seconds,
        "held": "TaskManagers" if isinstance(stack, Managed) else "slots",
        "held_seconds": figures.size_seconds,
        "fixed": fixed,
        "share_of_fixed": round(figures.size_seconds / (fixed * seconds), 3),
        "rescales": len(actions),
        "restarts_beyond_rescales": restarts - in_place,
        "steps_seconds": _steps(actions),
        "ends": [f"{each.phase}: {each.sentence}" for each in actions],
        "series": [[each.t, each.input_rate, each.lag_seconds, each.size] for each in weir.samples[::5]],
    }


def _steps(actions: Sequence[ActionState]) -> dict[str, Any]:
    """Return how long the steps of the rescales took, those that grew apart from those that shrank."""
    found: dict[str, list[float]] = {}
    for each in actions:
        way = "out" if sum(each.wanted.values()) > sum(each.before.values()) else "in"
        times = (each.started_at, each.requested_at, each.running_at, each.finished_at)
        for step, (begin, end) in zip(("to the request", "to running", "to the end"), pairwise(times), strict=True):
            if begin is not None and end is not None:
                found.setdefault(f"{way}, {step}", []).append((end - begin).total_seconds())
    return {name: distribution(seconds) for name, seconds in sorted(found.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the measured part (default 600)")
    parser.add_argument("--objective-seconds", type=float, default=30.0, help="lag to be held (default 30)")
    parser.add_argument("--shape", choices=list(SHAPES), help="one shape, keep the others' earlier figures")
    arguments = parser.parse_args()
    results = earlier("flink_shapes") if arguments.shape else {}
    for shape in SHAPES:
        if arguments.shape in (None, shape):
            results[shape] = measure(shape, arguments.seconds, arguments.objective_seconds)
            log(f"{shape}: {results[shape]['late_share']} late, {results[shape]['share_of_fixed']} of fixed")
            log(f"written: {write('flink_shapes', 'make bench-flink-shapes', results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
