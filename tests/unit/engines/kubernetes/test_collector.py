"""Collectors of Kubernetes workloads, from the API's objects to the observation and the analysis of it."""

from collections.abc import Set
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.unit.engines.kubernetes.memory_cluster import MemoryCluster
from tests.unit.engines.kubernetes.objects import NAMESPACE, cluster, pod, workload
from weir_analyzer.core import advance
from weir_contracts import Observation, ScalingPolicy, parse_policy
from weir_engines.kubernetes.collector import ServiceCollector
from weir_engines.kubernetes.engine import KubernetesEngine
from weir_engines.kubernetes.polled import PodUsage
from weir_engines.registry import Engines, Resources
from weir_monitor.applications import ApplicationCollector, Collectors
from weir_monitor.core import observe
from weir_monitor.prometheus import PrometheusCollector
from weir_runtime.clock import Clock, FakeClock

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _policy(target: dict[str, Any] | None = None, **spec: Any) -> ScalingPolicy:
    queries = {"url": "http://127.0.0.1:9090", "queries": {"done": "sum(done_total)", "queued": "sum(queued)"}}
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": NAMESPACE, "name": "orders"},
            "spec": {
                "target": {"kubernetes": target or {"kind": "Deployment", "name": "orders"}},
                "application": {"service": {"processed": "done", "waiting": "queued"}},
                "signals": {"prometheus": queries},
                "objective": {"maxLag": "30s"},
                "interval": "5s",
                "mode": "advise",
                **spec,
            },
        }
    )


def _collectors(clock: Clock, found: MemoryCluster, namespaces: Set[str] = frozenset({NAMESPACE})) -> Collectors:
    engines = Engines(Resources(clock, 2.0, namespaces=namespaces))
    engines.of(KubernetesEngine).workloads = found
    return Collectors(engines)


def _service(found: MemoryCluster | None, policy: ScalingPolicy, namespaces: tuple[str, ...] = (NAMESPACE,)) -> Any:
    return ServiceCollector(policy.subject, found, frozenset(namespaces), FakeClock(START))


async def test_a_namespace_that_the_settings_do_not_list_is_not_read() -> None:
    found = cluster()
    scrape = await _service(found, _policy(), ("other",)).scrape()
    expected = "the setting WEIR_MONITOR_KUBERNETES_NAMESPACES does not list the namespace shop"
    assert (scrape.status, scrape.message, scrape.topology) == ("unreachable", expected, None)
    assert scrape.problems[0].what == expected
    assert (await _service(None, _policy(), ()).scrape()).message == expected


async def test_a_namespace_that_is_listed_later_is_read() -> None:
    """By the collector that was refused: a service's list may change under it."""
    namespaces: set[str] = set()
    collectors = _collectors(FakeClock(START), cluster(), namespaces)
    policy = _policy()
    collector = collectors.new(policy)
    assert (await collector.read(policy)).scrape.topology is None
    namespaces.add(NAMESPACE)
    assert (await collector.read(policy)).scrape.topology is not None
    await collector.close()


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ({"kind": "Wrker", "name": "orders"}, "not_found", "the API server has no kind Wrker"),
        ({"kind": "Job", "name": "orders"}, "not_found", "has no scale subresource"),
        ({"kind": "Deployment", "name": "gone"}, "not_found", "Deployment gone does not exist in namespace shop"),
    ],
)
async def test_workloads_that_cannot_be_found(target: dict[str, Any], status: str, message: str) -> None:
    scrape = await _service(cluster(), _policy(target)).scrape()
    assert scrape.status == status
    assert message in scrape.message


async def test_a_denied_right_and_an_outage_are_named() -> None:
    found = cluster()
    found.deny("pods")
    scrape = await _service(found, _policy()).scrape()
    assert (scrape.status, scrape.message) == ("unreachable", "may not list pods in namespace shop (403): forbidden")
    found = cluster()
    found.break_down()
    assert (await _service(found, _policy()).scrape()).status == "unreachable"
    found.mend()
    assert (await _service(found, _policy()).scrape()).status == "running"


class _Service:
    """Service of a given capacity per replica behind a queue, its signals, and the monitor that watches it."""

    def __init__(self, capacity: float, arrivals: float, replicas: int) -> None:
        self.clock = FakeClock(START)
        self.cluster = cluster(replicas)
        self.capacity, self.arrivals, self.replicas = capacity, arrivals, replicas
        self.usage_seconds = 0
        """Length of the windows whose mean CPU is reported once they are over; 0: the present CPU is known at once."""
        self._busy: list[float] = []
        self.done = self.queued = 0.0
        self.policy = _policy()
        transport = httpx.MockTransport(self._answer)
        signals = self.policy.spec.signals.prometheus
        assert signals is not None
        collectors = _collectors(self.clock, self.cluster)
        self.collector: ApplicationCollector = collectors.new(self.policy)
        self.collector._signals = PrometheusCollector(signals, 2.0, transport=transport)
        self.state = None
        self.previous: Observation | None = None

    def _answer(self, request: httpx.Request) -> httpx.Response:
        value = self.done if "done" in request.url.params["query"] else self.queued
        sample = {"metric": {}, "value": [0, str(value)]}
        return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": [sample]}})

    async def pass_time(self, seconds: int) -> Any:
        """Serve for a while with a scrape every 5 s; return the last analysis."""
        analysis = None
        for _ in range(seconds // 5):
            self.clock.advance(5)
            served = min(self.queued + 5 * self.arrivals, 5 * self.capacity * self.replicas)
            self.queued += 5 * self.arrivals - served
            self.done += served
            busy = served / (5 * self.capacity * self.replicas)
            self._measure(busy)
            readings = await self.collector.read(self.policy)
            self.previous = observe(readings, self.clock.now())
            self.state, analysis = advance(self.state, self.previous)
        return analysis

    def _measure(self, busy: float) -> None:
        self._busy.append(busy)
        if 5 * len(self._busy) < self.usage_seconds:
            return
        mean, self._busy = sum(self._busy) / len(self._busy), []
        began = self.clock.now() - timedelta(seconds=max(5, self.usage_seconds))
        self.cluster.usage = {f"orders-{i}": PodUsage(mean, 1, began) for i in range(self.replicas)}

    def scale(self, replicas: int) -> None:
        for i in range(replicas, self.replicas):
            self.cluster.delete("Pod", NAMESPACE, f"orders-{i}")
        self.replicas = replicas
        self.cluster.put(workload("orders", replicas))
        for i in range(replicas):
            self.cluster.put(pod(f"orders-{i}"))


async def test_the_analyzer_learns_demand_lag_and_capacity_of_a_service() -> None:
    service = _Service(capacity=100.0, arrivals=150.0, replicas=2)
    analysis = await service.pass_time(90)
    (source,), (operator,) = analysis.sources, analysis.operators
    assert source.arrival_rate.value == pytest.approx(150, rel=0.05)
    assert source.lag_records.value == 0
    assert operator.true_processing_rate.value == pytest.approx(200, rel=0.1)
    service.arrivals = 300.0
    analysis = await service.pass_time(60)
    (source,), (operator,) = analysis.sources, analysis.operators
    assert source.arrival_rate.value == pytest.approx(300, rel=0.05)
    assert source.lag_records.value == pytest.approx(service.queued, abs=2)
    assert source.lag_seconds.value == pytest.approx(service.queued / 300, rel=0.35)
    assert operator.true_processing_rate.value == pytest.approx(200, rel=0.05)
    service.scale(4)
    analysis = await service.pass_time(90)
    (operator,) = analysis.operators
    assert {point.parallelism: point.records_per_second for point in operator.capacities} == {
        2: pytest.approx(200, rel=0.05),
        4: pytest.approx(400, rel=0.1),
    }
    observation = service.previous
    assert observation is not None
    assert observation.signals == {"done": service.done, "queued": service.queued}
    assert observation.problems == []
    assert observation.deployment is not None
    assert (observation.deployment.requested, observation.deployment.replicas) == ({"orders": 4}, 4)
    assert observation.topology is not None
    assert observation.topology.operator("orders").source_partitions is None


async def test_cpu_from_before_a_change_of_the_pods_teaches_no_capacity() -> None:
    """Metrics are the mean of a minute that is over: of six replicas, when two are left, and the other way round."""
    service = _Service(capacity=100.0, arrivals=150.0, replicas=6)
    service.usage_seconds = 60
    for replicas in (6, 2, 5, 3):
        service.scale(replicas)
        for _ in range(36):
            analysis = await service.pass_time(5)
            for point in analysis.operators[0].capacities:
                assert point.records_per_second == pytest.approx(100 * point.parallelism, rel=0.05)
    assert {point.parallelism for point in analysis.operators[0].capacities} == {6, 2, 5, 3}
    assert service.previous is not None and service.previous.problems == []


async def test_a_service_without_signals_has_a_symptom_that_says_what_lacks() -> None:
    clock, policy = FakeClock(START), _policy(application={"service": {}}, signals={})
    collectors = _collectors(clock, cluster())
    collector, state, analysis = collectors.new(policy), None, None
    for _ in range(3):
        clock.advance(5)
        state, analysis = advance(state, observe(await collector.read(policy), clock.now()))
    assert analysis is not None
    sentence = "orders: arrival rate unknown, application.service needs its signals processed and waiting for it."
    assert sentence in [symptom.evidence for symptom in analysis.symptoms if symptom.code == "metric-missing"]


async def test_nothing_is_read_for_a_policy_of_another_namespace() -> None:
    """The problem names the field and the setting; the API server is not asked, nor are brokers or queries."""
    clock, reader = FakeClock(START), cluster()
    policy = _policy({"kind": "Deployment", "name": "orders", "namespace": NAMESPACE})
    policy = policy.model_copy(update={"metadata": policy.metadata.model_copy(update={"namespace": "team-a"})})
    reader.break_down("it was asked")
    collector = _collectors(clock, reader).new(policy)
    readings = await collector.read(policy)
    await collector.close()
    (problem,) = observe(readings, clock.now()).problems
    assert problem.where == "target.kubernetes.namespace"
    assert f"WEIR_TARGET_NAMESPACES does not list team-a:{NAMESPACE}" in problem.what
