"""Flink jobs next to the stack's own, each under its own strategy."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bench.contest import Contestant, Controller
from testbed.flink import FlinkApi
from testbed.process import TestbedError
from testbed.trial.options import GROUP_ID, INPUT_TOPIC, OUTPUT_PARTITIONS
from testbed.trial.sampler import REPORTED_KINDS, UNREPORTED_FIELDS, EventFollower, actions_of, decisions_of
from testbed.trial.stack import TrialStack
from weir_contracts import parse_policy
from weir_engines.flink.topology import Job
from weir_runtime.http_client import Event
from workloads.probe import Probe

from .rules import Busy

Decide = Callable[[float, Mapping[str, int], Mapping[str, float | None]], dict[str, int]]
"""From time, parallelism and utilization of every operator to its parallelism."""


def busy_of(job: Job) -> dict[str, Busy]:
    """Return Flink's counters by operator name."""
    return {v.name: Busy(v.busy_ms, v.idle_ms, v.backpressured_ms, v.parallelism) for v in job.vertices}


class Rule:
    """Sets a job's parallelism."""

    def __init__(self, flink: FlinkApi, job_id: str, decide: Decide) -> None:
        self._flink = flink
        self._job_id = job_id
        self._decide = decide
        self._before: dict[str, Busy] = {}

    def cycle(self, at: float) -> None:
        """Decide at `at` (seconds) and request what was decided; raises `TestbedError` while the job restarts."""
        now = busy_of(self._flink.job(self._job_id))
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
