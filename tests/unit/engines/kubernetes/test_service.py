"""A service's workloads and signals as a scrape that monitor and executor share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engines.kubernetes.memory_cluster import MemoryCluster
from tests.unit.engines.kubernetes.objects import CREW, NAMESPACE, cluster, controlled, pod, target, workload
from weir_contracts import MAX_COUNT
from weir_contracts.application import ServiceApplication, ServiceSignals
from weir_contracts.target import KubernetesTarget
from weir_engines.kubernetes.cluster import WorkloadsReading
from weir_engines.kubernetes.polled import PodUsage
from weir_engines.kubernetes.service import merged, scrape_of
from weir_engines.kubernetes.signals import ServiceMeter
from weir_engines.scrape import Scrape

SIGNALS = ServiceApplication(processed="done", waiting="queued")


async def scraped(found: MemoryCluster, *names: str, inputs: dict[str, list[str]] | None = None) -> Scrape:
    of = target(*(names or ("orders",)), inputs=inputs)
    return scrape_of(await found.read(NAMESPACE, of.refs, usage=True), of, NAMESPACE)


async def test_one_workload_is_one_operator() -> None:
    scrape = await scraped(cluster(3))
    assert (scrape.status, scrape.message) == ("running", "3 of 3 replicas are ready")
    deployment = scrape.deployment
    assert deployment is not None
    assert scrape.topology is not None
    assert (deployment.engine, deployment.health, deployment.job_id) == ("service", "running", "uid-1")
    assert (deployment.observed, deployment.requested, deployment.replicas) == ({"orders": 3}, {"orders": 3}, 3)
    assert [each.name for each in deployment.pods] == ["orders-0", "orders-1", "orders-2"]
    assert deployment.workloads[0].wanted == 3
    assert scrape.topology.names == ["orders"]


async def test_no_default_of_flink_enters_the_deadlines() -> None:
    deployment = (await scraped(cluster())).deployment
    assert deployment is not None
    settings = deployment.rescale
    times = (settings.cooldown_seconds, settings.stabilization_seconds, settings.max_trigger_delay_seconds)
    assert (settings.scheduler, times) == (None, (0, 0, 0))


async def test_several_workloads_are_a_graph() -> None:
    found = cluster(2, "orders")
    found.put(workload("bill", 4))
    found.put(pod("bill-0", "bill"))
    scrape = await scraped(found, "orders", "bill", inputs={"bill": ["orders"]})
    assert scrape.topology is not None
    assert scrape.deployment is not None
    assert [(edge.source, edge.target) for edge in scrape.topology.edges] == [("orders", "bill")]
    assert scrape.deployment.job_id == "uid-1+uid-4"
    assert (scrape.deployment.observed, scrape.deployment.replicas) == ({"orders": 2, "bill": 4}, 6)
    assert {each.name: each.workload for each in scrape.deployment.pods} == {
        "bill-0": "bill",
        "orders-0": "orders",
        "orders-1": "orders",
    }


async def test_ready_replicas_are_observed_and_wanted_ones_requested() -> None:
    found = cluster(3)
    found.put(workload("orders", 5, ready=2))
    scrape = await scraped(found)
    assert scrape.deployment is not None
    assert (scrape.deployment.observed, scrape.deployment.requested) == ({"orders": 2}, {"orders": 5})
    assert scrape.message == "2 of 5 replicas are ready"


async def test_without_a_ready_replica_it_does_not_run_and_reports_why() -> None:
    found = MemoryCluster()
    found.put(workload("orders", 1, ready=0))
    waiting = [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]
    found.put(pod("orders-0", ready=False, phase="Pending", containerStatuses=waiting))
    scrape = await scraped(found)
    assert (scrape.status, scrape.run) == ("not_running", None)
    assert scrape.message == "orders: no replica is ready (ImagePullBackOff: no such image)"
    assert scrape.deployment is not None
    assert (scrape.deployment.health, scrape.deployment.observed) == ("restarting", {"orders": 1})


async def test_a_workload_of_0_replicas_has_ended() -> None:
    found = MemoryCluster()
    found.put(workload("orders", 0))
    scrape = await scraped(found)
    assert scrape.deployment is not None
    assert (scrape.status, scrape.deployment.health, scrape.deployment.requested) == ("not_running", "ended", None)
    assert "spec.replicas is 0" in scrape.message


async def test_more_replicas_than_an_operator_can_have_are_reported() -> None:
    """`spec.replicas` is any 32-bit number."""
    found = cluster(1)
    found.put(workload("orders", 2**31 - 1, ready=1))
    scrape = await scraped(found)
    assert (scrape.status, scrape.deployment) == ("not_running", None)
    assert scrape.message == "Deployment orders has 2147483647 replicas, more than 32768"


async def test_a_missing_workload_is_not_found() -> None:
    scrape = await scraped(cluster(), "other")
    assert (scrape.status, scrape.topology) == ("not_found", None)
    assert scrape.message == "Deployment other does not exist in namespace shop"


async def test_a_rescale_keeps_the_run_and_another_template_does_not() -> None:
    found = cluster(2)
    before = (await scraped(found)).run
    found.put(workload("orders", 4))
    rescaled = (await scraped(found)).run
    changed = workload("orders", 4)
    changed["spec"]["template"] = {"spec": {"version": 2}}
    found.put(changed)
    rolled = (await scraped(found)).run
    assert before is not None
    assert rescaled is not None
    assert rolled is not None
    assert before.is_same(rescaled)
    assert not before.is_same(rolled)


async def test_a_workload_that_is_created_again_is_another_deployment() -> None:
    found = cluster(1)
    before = (await scraped(found)).deployment
    found.delete("Deployment", NAMESPACE, "orders")
    found.put(workload("orders", 1))
    after = (await scraped(found)).deployment
    assert before is not None
    assert after is not None
    assert before.job_id != after.job_id


async def test_a_selector_that_matches_nothing_is_a_problem() -> None:
    found = MemoryCluster()
    found.put(workload("orders", 2))
    (problem,) = (await scraped(found)).problems
    assert (problem.where, problem.what) == (
        "Deployment orders",
        "it reports 2 replicas, and owns no pod that its selector matches",
    )


HASH, ROLLOUT_HASH = "pod-template-hash", "rollouts-pod-template-hash"


@pytest.mark.parametrize(
    ("kind", "own", "others"),
    [
        pytest.param(
            "Deployment",
            [("ReplicaSet", "orders-7d9f", {HASH: "7d9f"}), ("ReplicaSet", "orders-6c88", {HASH: "6c88"})],
            [
                ("ReplicaSet", "orders-canary-55c8", {HASH: "55c8"}),
                ("ReplicaSet", "orders-55c8", {HASH: "x9"}),
                ("ReplicaSet", "orders-canary", {}),
                ("Job", "orders-2900", {}),
                ("StatefulSet", "orders", {}),
            ],
            id="a Deployment, in the middle of a rollout",
        ),
        pytest.param(
            "StatefulSet",
            [("StatefulSet", "orders", {})],
            [("StatefulSet", "orders-canary", {}), ("ReplicaSet", "orders-55c8", {HASH: "55c8"})],
            id="a StatefulSet",
        ),
        pytest.param(
            "Crew",
            [("ReplicaSet", "orders-7d9f", {ROLLOUT_HASH: "7d9f"})],
            [("ReplicaSet", "orders-old-55c8", {HASH: "55c8"}), ("Job", "orders-2900", {})],
            id="a custom kind with ReplicaSets of its own, as an Argo Rollout",
        ),
        pytest.param(
            "Crew",
            [("PodSet", "orders-connect", {})],
            [("Job", "orders-2900", {})],
            id="a custom kind with an object of another name between, as Strimzi's KafkaConnect",
        ),
    ],
)
async def test_pods_of_another_owner_with_the_same_labels_do_not_count(
    kind: str, own: list[tuple[str, str, dict[str, str]]], others: list[tuple[str, str, dict[str, str]]]
) -> None:
    """Labels overlap: a canary beside the stable version, a CronJob with a chart's common labels. Owners do not."""
    found = MemoryCluster([CREW])
    status = {"selector": "app=orders", "readyReplicas": None} if kind == "Crew" else {}
    found.put(workload("orders", 2, kind=kind, **status))
    for i, (owner, name, labels) in enumerate([*own, *others]):
        found.put(controlled(pod(f"pod-{i}"), owner, name, **labels))
        found.usage[f"pod-{i}"] = PodUsage(0.9 if i < len(own) else 0.1, 2**20)
    of = KubernetesTarget(kind=kind, name="orders")
    scrape = scrape_of(await found.read(NAMESPACE, of.refs, usage=True), of, NAMESPACE)
    assert scrape.deployment is not None
    assert [each.name for each in scrape.deployment.pods] == [f"pod-{i}" for i in range(len(own))]
    assert scrape.operators[0].busy_share_mean == pytest.approx(0.9)


async def test_without_a_selector_the_ready_replicas_are_unknown_and_not_0() -> None:
    """A custom resource whose scale subresource names no labels."""
    found = cluster(0)
    found.put(workload("orders", 2, kind="Crew", selector="", readyReplicas=None))
    of = KubernetesTarget(kind="Crew", name="orders")
    scrape = scrape_of(await found.read(NAMESPACE, of.refs), of, NAMESPACE)
    assert scrape.deployment is not None
    assert scrape.deployment.workloads[0].ready is None
    assert "ready replicas are unknown, since the workload has no selector" in scrape.message


async def test_an_interrupted_watch_is_a_problem_and_after_a_while_an_outage() -> None:
    reading = await cluster().read(NAMESPACE, target("orders").refs)
    late = WorkloadsReading(reading.found, failure="cannot watch pods in namespace shop: no answer", age_seconds=20)
    scrape = scrape_of(late, target("orders"), NAMESPACE)
    assert (scrape.status, scrape.problems[0].what) == ("running", f"{late.failure}; its last event is 20 s old")
    gone = WorkloadsReading(reading.found, failure=late.failure, age_seconds=61)
    assert scrape_of(gone, target("orders"), NAMESPACE).status == "unreachable"


async def test_busy_is_the_cpu_in_use_over_the_limit() -> None:
    found = cluster(3)
    found.put(pod("orders-1", cpu="2"))
    found.usage = {"orders-0": PodUsage(0.5, 2**20), "orders-1": PodUsage(2.5, 2**20)}
    scrape = await scraped(found)
    (reading,) = scrape.operators
    assert (reading.busy_share_mean, reading.busy_share_max) == (0.75, 1.0)
    assert scrape.deployment is not None
    assert [each.cpu_cores for each in scrape.deployment.pods] == [0.5, 2.5, None]


async def test_without_limit_and_request_the_busy_share_is_unknown_and_a_problem() -> None:
    found = MemoryCluster()
    found.put(workload("orders", 1))
    found.put(pod("orders-0", cpu=""))
    found.usage = {"orders-0": PodUsage(0.5, 1)}
    scrape = ServiceMeter(SIGNALS).measured(await scraped(found), {}, 0.0)
    assert scrape.operators[0].busy_ms is None
    assert [problem.where for problem in scrape.problems] == ["CPU of orders"]


async def test_signals_become_counters_of_records_and_offsets_of_a_queue() -> None:
    found = cluster(2)
    found.usage = {f"orders-{i}": PodUsage(0.25, 1) for i in range(2)}
    meter = ServiceMeter(SIGNALS)
    meter.measured(await scraped(found), {"done": 100.0, "queued": 40.0}, 10.0)
    scrape = meter.measured(await scraped(found), {"done": 160.0, "queued": 30.0}, 20.0)
    (reading,), (partition,) = scrape.operators, scrape.partitions
    assert (reading.records_in, reading.records_out, reading.pending_records) == (160, 160, 30)
    assert (reading.busy_ms, reading.idle_ms, reading.backpressured_ms) == (5000.0, 15000.0, 0.0)
    assert (partition.topic, partition.current_offset, partition.log_end_offset) == ("queued", 160, 190)
    assert scrape.problems == ()


async def test_a_counter_that_falls_adds_nothing() -> None:
    meter, found = ServiceMeter(SIGNALS), cluster(1)
    values = [1000.0, 400.0, 450.0, None, 460.0]
    counted = [
        meter.measured(await scraped(found), {"done": value}, 10.0 * i).operators[0].records_in
        for i, value in enumerate(values)
    ]
    assert counted == [1000, 1000, 1050, None, 1060]


async def test_a_counter_that_falls_is_a_problem_with_both_numbers() -> None:
    """A replica ended, and took its part of the sum with it."""
    meter, found = ServiceMeter(SIGNALS), cluster(1)
    found.usage = {"orders-0": PodUsage(0.25, 1)}
    problems = [
        meter.measured(await scraped(found), {"done": done, "queued": 0.0}, at).problems
        for at, done in ((0.0, 1000.0), (5.0, 400.0), (10.0, 450.0))
    ]
    assert [len(each) for each in problems] == [0, 1, 0]
    assert problems[1][0].where == "signals.prometheus.queries.done"
    assert problems[1][0].what.startswith("fell from 1,000 to 400 records")


@pytest.mark.parametrize("queued", [-2.0, -0.5, -300.0, 1e19])
async def test_a_queue_of_less_than_nothing_is_unknown_and_a_problem_that_names_it(queued: float) -> None:
    """Exporters that read commits and log ends at different moments report negative lags
    (github.com/danielqsj/kafka_exporter/issues/76, /437). The processed records stay known."""
    meter, found = ServiceMeter(SIGNALS), cluster(1)
    found.usage = {"orders-0": PodUsage(0.25, 1)}
    scrape = meter.measured(await scraped(found), {"done": 100.0, "queued": queued}, 5.0)
    (reading,), (queue,), (problem,) = scrape.operators, scrape.partitions, scrape.problems
    assert (reading.records_in, reading.pending_records) == (100, None)
    assert (queue.topic, queue.current_offset, queue.log_end_offset) == ("queued", None, None)
    assert problem.where == "signals.prometheus.queries.queued"
    assert problem.what == f"{queued:g} is no number of records, so application.service.waiting is unknown now"


async def test_records_that_leave_the_queue_unprocessed_do_not_hide_later_arrivals() -> None:
    meter, found = ServiceMeter(SIGNALS), cluster(1)
    queued = [500.0, 0.0, 0.0, 0.0, 200.0]
    found_at = [
        meter.measured(await scraped(found), {"done": 100.0, "queued": each}, 10.0 * i).partitions[0]
        for i, each in enumerate(queued)
    ]
    ends = [each.log_end_offset for each in found_at]
    lags = [(each.log_end_offset or 0) - (each.current_offset or 0) for each in found_at]
    assert ends == [600, 600, 600, 600, 800]
    assert lags == [500, 0, 0, 0, 200]


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), min_size=1, max_size=12))
async def test_the_end_of_a_queue_never_falls_and_its_length_is_the_signal(samples: list[tuple[float, float]]) -> None:
    meter, scrape = ServiceMeter(SIGNALS), await scraped(cluster(1))
    before = 0
    for i, (done, queued) in enumerate(samples):
        (partition,) = meter.measured(scrape, {"done": done, "queued": queued}, float(i)).partitions
        end, position = partition.log_end_offset or 0, partition.current_offset or 0
        assert end >= before
        assert end - position == pytest.approx(queued, abs=1.01)
        before = end


async def test_counters_stay_within_the_contract_whatever_the_signals_do() -> None:
    """A queue that jumps between nothing and far too much counts each jump as records that left it."""
    meter, scrape = ServiceMeter(SIGNALS), await scraped(cluster(1))
    huge = MAX_COUNT / 4
    for i in range(80):
        on = i % 8 < 4
        sample = {"done": huge if on else 0.0, "queued": huge if on else 0.0}
        measured = meter.measured(scrape, sample, float(i))
        (reading,), (partition,) = measured.operators, measured.partitions
        type(reading).model_validate(reading.model_dump())
    assert partition.log_end_offset == MAX_COUNT


async def test_signals_of_several_workloads_are_each_operators_own() -> None:
    found = cluster(1, "orders")
    found.put(workload("bill", 1))
    own = {"bill": ServiceSignals(processed="billed"), "orders": ServiceSignals(processed="done", waiting="queued")}
    meter = ServiceMeter(ServiceApplication(operators=own))
    scrape = await scraped(found, "orders", "bill", inputs={"bill": ["orders"]})
    measured = meter.measured(scrape, {"done": 7.0, "queued": 1.0, "billed": 3.0}, 0.0)
    assert [each.records_in for each in measured.operators] == [7, 3]
    assert [each.operator for each in measured.partitions] == ["orders"]


async def test_a_service_without_signals_reports_that_planners_hold() -> None:
    scrape = ServiceMeter(ServiceApplication()).measured(await scraped(cluster(1)), {}, 0.0)
    problem = next(each for each in scrape.problems if each.where == "signals of orders")
    assert "names no signal for processed and waiting" in problem.what


async def test_a_flink_job_gets_the_replicas_of_its_task_managers() -> None:
    of = target("orders").model_copy(update={"slots": 2})
    reading = await cluster(3).read(NAMESPACE, of.refs)
    flink = await scraped(cluster(1))
    assert flink.deployment is not None
    flink_deployment = flink.deployment.model_copy(update={"engine": "flink", "requested": {"orders": 99}})
    scrape = Scrape("running", "RUNNING", deployment=flink_deployment, topology=flink.topology)
    found = merged(scrape, reading, of, NAMESPACE).deployment
    assert found is not None
    assert (found.engine, found.replicas, len(found.pods), found.requested) == ("flink", 3, 3, {"orders": 6})


async def test_a_flink_job_without_its_workload_keeps_its_readings() -> None:
    scrape = await scraped(cluster(1))
    reading = WorkloadsReading({})
    found = merged(scrape, reading, target("gone"), NAMESPACE)
    assert found.deployment == scrape.deployment
    assert found.problems[-1].what == "Deployment gone does not exist in namespace shop"
