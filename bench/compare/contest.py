"""Jobs that do the same work on the same records at the same time, each under its own strategy."""

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from weir_contracts import parse_policy

from engines.flink.topology import Job
from runtime.event_feed import EventFollower
from testbed.flink import FlinkApi
from testbed.process import TestbedError
from testbed.trial.options import GROUP_ID, INPUT_TOPIC, OUTPUT_PARTITIONS
from testbed.trial.sampler import REPORTED_KINDS, UNREPORTED_FIELDS, actions_of, decisions_of
from testbed.trial.stack import TrialStack
from workloads.probe import Probe

from .rules import Busy

SAMPLE_SECONDS = 1.0

Decide = Callable[[float, Mapping[str, int], Mapping[str, float | None]], dict[str, int]]
"""From time, parallelism and utilization of every operator to its parallelism."""


def busy_of(job: Job) -> dict[str, Busy]:
    """Return Flink's counters by operator name."""
    return {v.name: Busy(v.busy_ms, v.idle_ms, v.backpressured_ms, v.parallelism) for v in job.vertices}


class Controller:
    """Sets a job's parallelism every `period_seconds`."""

    def __init__(self, flink: FlinkApi, job_id: str, decide: Decide, period_seconds: float) -> None:
        self._flink = flink
        self._job_id = job_id
        self._decide = decide
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._before: dict[str, Busy] = {}

    def start(self) -> None:
        """Decide from now on, on a separate thread."""
        self._thread.start()

    def check(self) -> None:
        """Raises `TestbedError` if it does not decide any more: a contest without it is none."""
        if not self._thread.is_alive():
            raise TestbedError(f"the controller of job {self._job_id} has died")

    def stop(self) -> None:
        """Returns once the thread has ended."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopped.is_set():
            with contextlib.suppress(TestbedError):  # a job that restarts answers again soon
                self._cycle(time.monotonic() - began)
            self._stopped.wait(self._period_seconds)

    def _cycle(self, at: float) -> None:
        now = busy_of(self._flink.job(self._job_id))
        shares = {name: busy.since(self._before.get(name, busy)) for name, busy in now.items()}
        self._before = now
        current = {name: busy.parallelism for name, busy in now.items()}
        wanted = self._decide(at, current, shares)
        if wanted != current:
            self._flink.set_parallelism(self._job_id, wanted)


@dataclass(frozen=True)
class Sample:
    """A job at `t` seconds after the load began. None is unknown."""

    t: float
    input_rate: float | None
    """Records/s that came for every job."""
    probe_lag_seconds: float | None
    slots: int | None
    """All its operators share their slots, so that the largest parallelism is what it holds."""


@dataclass
class Contestant:
    """A strategy, its job, and the probe at its sink."""

    strategy: str
    job_id: str
    probe: Probe
    controller: Controller | None
    samples: list[Sample] = field(default_factory=list)

    def figures(self, objective_seconds: float) -> dict[str, Any]:
        """Return the figures. While the number of slots is unknown, the last one counts."""
        slots, held = [], 0
        for sample in self.samples:
            held = sample.slots or held
            slots.append(held)
        lags = [s.probe_lag_seconds for s in self.samples if s.probe_lag_seconds is not None]
        times = [s.t for s in self.samples]
        return {
            "strategy": self.strategy,
            "violation_share": round(sum(lag > objective_seconds for lag in lags) / len(lags), 4) if lags else None,
            "slot_seconds": round(
                sum(p * (b - a) for p, (a, b) in zip(slots, itertools.pairwise(times), strict=False)), 1
            ),
            "rescales": sum(1 for a, b in itertools.pairwise(p for p in slots if p) if a != b),
            "max_probe_lag_seconds": max(lags, default=None),
            "samples": len(self.samples),
            "samples_without_lag": len(self.samples) - len(lags),
        }


class Contest:
    """The stack's own job is under Weir; the others run next to it on their own slots."""

    def __init__(self, stack: TrialStack) -> None:
        self._stack = stack
        self._events = EventFollower(f"{stack.api_url}/v1/events", kinds=REPORTED_KINDS, without=UNREPORTED_FIELDS)
        self.contestants: list[Contestant] = []

    def enter_weir(self) -> None:
        """The job that the stack's policy is for."""
        stack = self._stack
        if stack.job_id is None or stack.probe is None:
            raise TestbedError("the stack has not been started")
        self._events.start()
        self.contestants.append(Contestant("weir", stack.job_id, stack.probe, None))

    def enter(self, strategy: str, decide: Decide, period_seconds: float) -> None:
        """One more job on the same input, under a rule."""
        job_id, probe = self._start_job(strategy)
        controller = Controller(self._stack.flink, job_id, decide, period_seconds)
        self.contestants.append(Contestant(strategy, job_id, probe, controller))
        controller.start()

    def enter_policy(self, strategy: str, changes: Mapping[str, Any]) -> None:
        """One more job on the same input, under Weir with the fields of `changes` in its policy's spec."""
        job_id, probe = self._start_job(strategy)
        document, name = self._stack.policy.to_document(), f"{GROUP_ID}-{strategy}"
        document["metadata"]["name"] = name
        document["spec"]["application"]["flink"]["job"] = name
        document["spec"]["signals"]["kafka"]["groupId"] = name
        document["spec"] |= changes
        self._stack.put_policy(parse_policy(document))
        self.contestants.append(Contestant(strategy, job_id, probe, None))

    def _start_job(self, strategy: str) -> tuple[str, Probe]:
        stack, name, output = self._stack, f"{GROUP_ID}-{strategy}", f"enriched-{strategy}"
        stack.kafka.create_topic(output, OUTPUT_PARTITIONS)
        job_id = stack.start_job(name, name, output)
        stack.flink.wait_running(job_id)
        return job_id, Probe(stack.kafka.bootstrap_servers, output, input_topic=INPUT_TOPIC).start()

    def run(self, from_seconds: float, until_seconds: float) -> None:
        """Sample all of them between two moments of the load; `TestbedError` if a part dies."""
        stack, began = self._stack, self._stack.began_at or time.monotonic()
        if stack.elapsed_seconds() > from_seconds:
            raise TestbedError(f"the contestants were not up within the first {from_seconds:g} s of the load")
        due = from_seconds
        with httpx.Client(timeout=2.0) as client:
            while due <= until_seconds:
                time.sleep(max(0.0, began + due - time.monotonic()))
                stack.check()
                for contestant in self.contestants:
                    if contestant.controller is not None:
                        contestant.controller.check()
                self._sample(client)
                due += SAMPLE_SECONDS

    def decisions(self) -> dict[str, Any]:
        """Return the decisions on the stack's own job: plans by reason, the moments at which the reason changed, and its actions."""
        began = time.time() - self._stack.elapsed_seconds()
        mine = self._stack.policy.application
        events = [event for event in self._events.events() if event.data.get("application") == mine]
        plans = decisions_of(events, began)
        cycles = [
            b for a, b in itertools.pairwise([None, *plans]) if b and (a is None or a.reason_code != b.reason_code)
        ]
        return {
            "plans": dict(Counter(plan.reason_code for plan in plans).most_common()),
            "cycles": [{"t": plan.time, "code": plan.reason_code, "sentence": plan.sentence} for plan in cycles],
            "actions": [action.to_document() for action in actions_of(events, began)],
        }

    def stop(self) -> None:
        """End controllers and probes; the jobs end with their cluster."""
        self._events.stop()
        for contestant in self.contestants:
            if contestant.controller is not None:
                contestant.controller.stop()
            contestant.probe.stop()

    def _sample(self, client: httpx.Client) -> None:
        rate: float | None = None
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            rate = client.get(f"{self._stack.load_url}/state").json()["rate"]
        for contestant in self.contestants:
            at = round(self._stack.elapsed_seconds(), 2)
            slots = self._slots(contestant.job_id)
            contestant.samples.append(Sample(at, rate, contestant.probe.lag_seconds(), slots))

    def _slots(self, job_id: str) -> int | None:
        try:
            return max(self._stack.flink.job(job_id).observed().values(), default=None)
        except TestbedError:
            return None


def series_of(samples: Sequence[Sample]) -> list[dict[str, float | int | None]]:
    """For the results' file."""
    return [
        {
            "t": s.t,
            "input_rate": s.input_rate,
            "probe_lag_seconds": None if s.probe_lag_seconds is None else round(s.probe_lag_seconds, 2),
            "slots": s.slots,
        }
        for s in samples
    ]
