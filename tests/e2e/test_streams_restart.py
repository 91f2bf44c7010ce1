"""The loop around real instances, one of which hangs: Weir restarts it, and it alone."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from bench.running import Running, started, with_spec
from testbed.process import free_port
from testbed.trial.options import TrialOptions
from testbed.trial.stack import StreamsStack
from weir_contracts.plugins import EndpointState

INSTANCES, RATE = 3, 120
HELD_SECONDS = 10.0
"""Lag below which the application keeps up."""


class StreamsRunning(Running):
    """The stack, and the endpoint of its application."""

    stack: StreamsStack

    def endpoint(self) -> EndpointState:
        """Return what the supervisor reports."""
        answer = httpx.get(self.stack.endpoint_url, timeout=5, trust_env=False).raise_for_status()
        return EndpointState.model_validate_json(answer.content)

    def has(self, replicas: int) -> bool:
        """Return whether exactly so many instances run and are ready."""
        state = self.endpoint()
        return state.replicas == state.ready == len(state.instances) == replicas


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StreamsRunning]:
    """Three instances of one thread, whose sessions outlast the test: the group never gives one up by itself."""
    options = TrialOptions(
        mode="act",
        peak_rate=RATE,
        port=free_port(),
        workload="kafka-streams",
        runs_folder=tmp_path,
    )
    stack = StreamsStack(
        options, tmp_path, partitions=6, supervisor={"replicas": INSTANCES, "session-timeout-ms": 600_000}
    )
    spec = {
        "target": {"endpoint": {"url": stack.endpoint_url, "restartInstances": True}},
        "bounds": {"min": INSTANCES, "max": INSTANCES},
    }
    with started(StreamsRunning(with_spec(stack, spec))) as found:
        found.stack.set_load(rate=RATE)
        yield found


def _process(instance: str) -> psutil.Process:
    """Return the Java process of an instance."""
    (found,) = [each for each in psutil.process_iter(["cmdline"]) if instance in (each.info["cmdline"] or ())]
    return found


def _lag_seconds(bench: StreamsRunning) -> float | None:
    """Return the lag as Weir sees it; None while it is unknown."""
    url = f"{bench.stack.api_url}/v1/applications/{bench.stack.policy.application}"
    found: float | None = httpx.get(url, timeout=5, trust_env=False).raise_for_status().json()["lag_seconds"]
    return found


def _is_held(bench: StreamsRunning) -> bool:
    """Return whether the lag of every partition is known and small."""
    lag = _lag_seconds(bench)
    return lag is not None and lag < HELD_SECONDS


def test_an_instance_that_hangs_is_restarted_and_the_lag_falls(bench: StreamsRunning) -> None:
    """Stopped by SIGSTOP: nothing of it is processed, and the brokers keep its tasks for it. After a minute Weir ends it; its
    member is evicted, another instance takes its place, and the two others go on as they are."""
    assert bench.wait(lambda: bench.has(INSTANCES), 120, "all instances are ready")
    assert bench.wait(lambda: _is_held(bench), 120, "the objective is held")
    before = [each.id for each in bench.endpoint().instances]
    hangs = before[1]
    _process(hangs).send_signal(signal.SIGSTOP)
    assert bench.wait(lambda: (_lag_seconds(bench) or 0.0) > 3 * HELD_SECONDS, 120, "the lag of its tasks grows")
    assert bench.wait(lambda: any(each.phase == "verified" for each in bench.actions()), 180, "a verified action")
    (action,) = bench.actions()
    assert action.instance is not None and action.instance.id == hangs
    assert action.before == action.wanted == {"orders": INSTANCES}
    (plan,) = [each for each in bench.plans() if each.id == action.plan_id]
    assert (plan.kind, plan.code) == ("restart_instance", "instance-stuck") and hangs in plan.sentence
    after = [each.id for each in bench.endpoint().instances]
    assert len(after) == INSTANCES and set(before) - set(after) == {hangs}
    assert bench.wait(lambda: _is_held(bench), 120, "the objective is held again")
    assert len(bench.actions()) == 1
