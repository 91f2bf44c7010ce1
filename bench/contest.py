"""A contest on real parts: Flink jobs next to the stack's own that do the same work on the same records at the same time,
each under its own strategy.
"""

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from confluent_kafka import KafkaException

from bench.strategies import Busy, Decide
from testbed.flink import FlinkApi
from testbed.process import TestbedError
from testbed.trial.options import GROUP_ID, INPUT_TOPIC, OUTPUT_PARTITIONS
from testbed.trial.sampler import REPORTED_KINDS, UNREPORTED_FIELDS, EventFollower, actions_of, decisions_of
from testbed.trial.stack import TrialStack
from weir_contracts import parse_policy
from weir_runtime.http_client import Event, client
from workloads.probe import Probe

SAMPLE_SECONDS = 1.0


class Controller:
    """Calls `cycle` every `period_seconds` on a separate thread, with the seconds since its start.

    A cycle whose application or brokers do not answer is left out.
    """

    def __init__(self, name: str, cycle: Callable[[float], None], period_seconds: float) -> None:
        self._name = name
        self._cycle = cycle
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `TestbedError` if it does not decide any more: a contest without it is none."""
        if not self._thread.is_alive():
            raise TestbedError(f"the controller of {self._name} has died")

    def stop(self) -> None:
        """Return once the thread has ended."""
        self._stopped.set()
        self._thread.join(10)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopped.is_set():
            with contextlib.suppress(TestbedError, KafkaException, httpx.HTTPError, TimeoutError):
                self._cycle(time.monotonic() - began)
            self._stopped.wait(self._period_seconds)


@dataclass(frozen=True)
class Sample:
    """An application at `t` seconds after the load began. None is unknown."""

    t: float
    input_rate: float | None
    """Records/s that came for every application."""
    lag_seconds: float | None
    """By the probe at its output."""
    size: int | None
    """Slots or instances that it holds."""


@dataclass(frozen=True)
class Figures:
    """Result of a contestant."""

    violation_share: float | None
    size_seconds: float
    changes: int
    max_lag_seconds: float | None
    samples: int
    samples_without_lag: int


@dataclass
class Contestant:
    """A strategy and its application. `size` returns what the application holds now, None while that is unknown."""

    strategy: str
    probe: Probe
    size: Callable[[], int | None]
    controller: Controller | None = None
    samples: list[Sample] = field(default_factory=list)

    def figures(self, objective_seconds: float) -> Figures:
        """Return the figures. While the size is unknown, the last one counts."""
        sizes, held = [], 0
        for sample in self.samples:
            held = held if sample.size is None else sample.size
            sizes.append(held)
        lags = [s.lag_seconds for s in self.samples if s.lag_seconds is not None]
        spans = [b.t - a.t for a, b in itertools.pairwise(self.samples)]
        return Figures(
            violation_share=round(sum(lag > objective_seconds for lag in lags) / len(lags), 4) if lags else None,
            size_seconds=round(sum(n * s for n, s in zip(sizes, spans, strict=False)), 1),
            changes=sum(a != b for a, b in itertools.pairwise(n for n in sizes if n)),
            max_lag_seconds=max(lags, default=None),
            samples=len(self.samples),
            samples_without_lag=len(self.samples) - len(lags),
        )

    def stop(self) -> None:
        """End controller and probe; the application ends with its stack."""
        if self.controller is not None:
            self.controller.stop()
        self.probe.stop()


def sample_all(stack: TrialStack, contestants: Sequence[Contestant], from_seconds: float, until_seconds: float) -> None:
    """Sample all of them between two moments of the load; raises `TestbedError` if a part dies."""
    began, due = stack.began_at or time.monotonic(), from_seconds
    if stack.elapsed_seconds() > from_seconds:
        raise TestbedError(f"the contestants were not up within the first {from_seconds:g} s of the load")
    with client(timeout=2.0) as http:
        while due <= until_seconds:
            time.sleep(max(0.0, began + due - time.monotonic()))
            stack.check()
            rate: float | None = None
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
                rate = http.get(f"{stack.load_url}/state").json()["rate"]
            for each in contestants:
                if each.controller is not None:
                    each.controller.check()
                at = round(stack.elapsed_seconds(), 2)
                each.samples.append(Sample(at, rate, each.probe.lag_seconds(), each.size()))
            due += SAMPLE_SECONDS


class Rule:
    """Sets a job's parallelism."""

    def __init__(self, flink: FlinkApi, job_id: str, decide: Decide) -> None:
        self._flink = flink
        self._job_id = job_id
        self._decide = decide
        self._before: dict[str, Busy] = {}

    def cycle(self, at: float) -> None:
        """Decide at `at` (seconds) and request what was decided; raises `TestbedError` while the job restarts."""
        vertices = self._flink.job(self._job_id).vertices
        now = {v.name: Busy(v.busy_ms, v.idle_ms, v.backpressured_ms, v.parallelism) for v in vertices}
        shares = {name: busy.since(self._before.get(name, busy)) for name, busy in now.items()}
        self._before = now
        current = {name: busy.parallelism for name, busy in now.items()}
        wanted = self._decide(at, current, shares)
        if wanted != current:
            self._flink.set_parallelism(self._job_id, wanted)


class Contest:
    """The stack's own job is under Weir; the others run next to it on their own slots."""

    def __init__(self, stack: TrialStack) -> None:
        self._stack = stack
        self._events = EventFollower(f"{stack.api_url}/v1/events", kinds=REPORTED_KINDS, without=UNREPORTED_FIELDS)
        self._applications: dict[str, str] = {}
        """Those under a policy, by strategy."""
        self.contestants: list[Contestant] = []

    def enter_weir(self) -> None:
        """The job that the stack's policy is for."""
        stack = self._stack
        if stack.job_id is None or stack.probe is None:
            raise TestbedError("the stack has not been started")
        self._events.start()
        self._applications["weir"] = stack.policy.application
        self.contestants.append(Contestant("weir", stack.probe, partial(self._slots, stack.job_id)))

    def enter(self, strategy: str, decide: Decide, period_seconds: float) -> None:
        """One more job on the same input, under a rule."""
        job_id = self._start_job(strategy)
        rule = Rule(self._stack.flink, job_id, decide)
        self.contestants[-1].controller = Controller(strategy, rule.cycle, period_seconds)

    def enter_policy(self, strategy: str, changes: Mapping[str, Any]) -> None:
        """One more job on the same input, under Weir with the fields of `changes` in its policy's spec."""
        self._start_job(strategy)
        document, name = self._stack.policy.to_document(), f"{GROUP_ID}-{strategy}"
        document["metadata"]["name"] = name
        document["spec"]["application"]["flink"]["job"] = name
        document["spec"]["signals"]["kafka"]["groupId"] = name
        document["spec"] |= changes
        policy = parse_policy(document)
        self._applications[strategy] = policy.application
        self._stack.put_policy(policy)

    def _start_job(self, strategy: str) -> str:
        stack, name, output = self._stack, f"{GROUP_ID}-{strategy}", f"enriched-{strategy}"
        stack.kafka.create_topic(output, OUTPUT_PARTITIONS)
        job_id = stack.start_job(name, name, output)
        stack.flink.wait_running(job_id)
        probe = Probe(stack.kafka.bootstrap_servers, output, input_topic=INPUT_TOPIC).start()
        self.contestants.append(Contestant(strategy, probe, partial(self._slots, job_id)))
        return job_id

    def _slots(self, job_id: str) -> int | None:
        """Return a job's slots: all its operators share theirs, so that it holds as many as its largest parallelism."""
        try:
            return max(self._stack.flink.job(job_id).observed().values(), default=None)
        except TestbedError:
            return None

    def decisions(self) -> dict[str, dict[str, Any]]:
        """Return by strategy what was decided under its policy: plans by reason, the moments at which the reason changed,
        and its actions."""
        events = self._events.events()
        return {name: self._decisions(events, application) for name, application in self._applications.items()}

    def _decisions(self, events: Sequence[Event], application: str) -> dict[str, Any]:
        began = time.time() - self._stack.elapsed_seconds()
        own = [event for event in events if event.data.get("application") == application]
        plans = decisions_of(own, began)
        cycles = [
            b for a, b in itertools.pairwise([None, *plans]) if b and (a is None or a.reason_code != b.reason_code)
        ]
        return {
            "plans": dict(Counter(plan.reason_code for plan in plans).most_common()),
            "cycles": [{"t": plan.time, "code": plan.reason_code, "sentence": plan.sentence} for plan in cycles],
            "actions": [action.to_document() for action in actions_of(own, began)],
        }

    def stop(self) -> None:
        """End the feed, controllers and probes; the jobs end with their cluster."""
        self._events.stop()
        for contestant in self.contestants:
            contestant.stop()
