"""A new engine: one file and one line in the registry, and the whole loop runs on it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.unit.engines.tiny_engine import JOBS, Job
from weir_contracts import ScalingPolicy, policy_of
from weir_contracts.topics import POLICIES, TOPICS
from weir_engines import registry
from weir_engines.registry import Engines, Resources, claims, rival
from weir_executor.core import Rules
from weir_executor.service import Executor
from weir_monitor.applications import Collectors
from weir_monitor.service import Monitor
from weir_replay.loop import ATTEMPT, Loop


class LoopOfEngines(Loop):
    """The loop of a replay, in which monitor and executor are the real ones and ask the registry."""

    def __init__(self, policy: ScalingPolicy) -> None:
        super().__init__()
        self._policy = policy
        engines = Engines(Resources(self.clock))
        self._watching = Monitor(self.bus, self.clock, Collectors(engines).new)
        self._executor = Executor(self.bus, engines.drivers, self.knowledge, self.clock, Rules(), attempt_id=ATTEMPT)
        self.knowledge.policies[policy.application] = policy

    async def _start_services(self) -> None:
        for topic in TOPICS:
            self.bus.records(topic.name)
        await self.bus.publish(POLICIES.name, self._policy.application, self._policy.model_dump_json().encode())
        services = (self._planner, self._executor, self._watching)
        self._tasks = [asyncio.create_task(service.run(self._stop)) for service in services]
        self._tasks.append(asyncio.create_task(self._analyze()))
        await asyncio.sleep(-self._time.time())


def policy(name: str = "orders", job: str = "orders") -> ScalingPolicy:
    """A policy that adds a worker above 80 % and removes one below 30 %."""
    return policy_of(
        f"shop/{name}",
        version=1,
        application={"flink": {"url": "http://tiny.test", "job": job}},
        objective={"utilization": 0.8},
        planner={"name": "threshold", "parameters": {"up_above": 0.8, "down_below": 0.3}},
        bounds={"max": 8},
        behavior={"cooldown": "5s"},
        mode="act",
    )


@pytest.fixture(autouse=True)
def only_the_tiny_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the engine of one file; of the others only Kafka, which reads the sources of any engine."""
    tiny = "tests.unit.engines.tiny_engine:TinyEngine"
    monkeypatch.setattr(registry, "REGISTRY", {"kafka": registry.REGISTRY["kafka"], "tiny": tiny})
    yield
    JOBS.clear()


def test_an_engine_of_one_file_is_observed_planned_for_and_scaled() -> None:
    """2.5 workers' load on one worker: the monitor sees it, the planner adds workers one by one until they are less
    than 80 % busy, and the executor sets and verifies each number."""
    loop = LoopOfEngines(policy())
    job = JOBS["orders"] = Job(arrivals_per_second=250.0, at=loop.now)
    try:
        loop.run(180)
    finally:
        loop.close()
    assert job.workers == 4
    assert loop.tally.ends["verified"] == 3
    assert loop.tally.dead_letters == []


@pytest.mark.thorough
def test_policies_are_compared_without_any_engine_s_client() -> None:
    """A process that asks for claims only, as knowledge does, loads neither kafka-python nor the Kubernetes client."""
    program = """
import sys
from weir_contracts import policy_of
from weir_engines.registry import claims
spec = {"application": {"flink": {"url": "http://tiny.test", "job": "orders"}}, "objective": {"maxLag": "30s"}}
assert claims(policy_of("shop/orders", **spec).subject) == {("job", "tiny.test:80/", "orders")}
print(sorted({"kafka", "kubernetes"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_two_policies_for_one_job_of_the_engine_are_rivals() -> None:
    """By the claims of the registered engine, whichever it is."""
    first, same, other = policy("a"), policy("b"), policy("c", job="other")
    taken = {first.application: claims(first.subject)}
    assert rival(claims(same.subject), taken) == "shop/a"
    assert rival(claims(other.subject), taken) is None
