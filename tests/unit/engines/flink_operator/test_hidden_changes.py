"""Changes that the operator carries out, or does not, without saying so: what its records keep and drop, options of former names,
jobs that start, and two policies for one job. Words in brackets are classes of the operator's source."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.engines.driver_suite import OPEN
from tests.unit.engines.flink_operator.rig import OperatorRig, deployment_spec, operated_subject
from tests.unit.engines.flink_operator.test_resource import METADATA, reading, recorded
from tests.unit.executor import builders
from weir_contracts import Subject, policy_of
from weir_engines.driver import Accepted, Refusal
from weir_engines.flink_operator.resource import FLINK_DEPLOYMENT, FLINK_SESSION_JOB, FlinkResource, resource_of
from weir_engines.flink_operator.spec import OVERRIDES
from weir_engines.registry import claims, may_be_same

Document = dict[str, Any]
POD: Document = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "pod-template"},
    "spec": {"containers": [{"name": "main"}]},
}
KEPT = {"metadata": POD["metadata"], "spec": POD["spec"]}
"""What the operator's record has of a pod template from its first change on (ReflectiveDiffBuilder)."""


def changing(record: Document, spec: Document, **status: Any) -> FlinkResource:
    """Return a resource whose newest generation the operator has not acted on."""
    return reading(spec, recorded(record, **status), generation=4)


def code_of(resource: FlinkResource) -> str:
    """Return the code of the reason why it takes no request; empty: it takes one."""
    refusal = resource.refusal()
    return "" if refusal is None else refusal.code


@pytest.mark.parametrize("place", ["", "taskManager", "jobManager"])
def test_what_the_record_drops_of_a_pod_template_is_no_change(place: str) -> None:
    spec, record = (deployment_spec(podTemplate=None) for _ in range(2))
    for document, pod in ((spec, POD), (record, KEPT)):
        (document[place] if place else document)["podTemplate"] = pod
    assert changing(record, spec).changed_field == ""


async def test_a_change_by_weir_is_taken_back_also_with_a_pod_template() -> None:
    """The operator has not acted on the change yet."""
    rig = await OperatorRig(deployment_spec(podTemplate=POD)).begin()
    rig.operator.paused = True
    text = json.dumps({"spec": {**rig.spec, "podTemplate": KEPT}})
    reconciliation = {"state": "DEPLOYED", "lastReconciledSpec": text, "lastStableSpec": text}
    rig.objects.report(FLINK_DEPLOYMENT, "orders", lifecycleState="STABLE", reconciliationStatus=reconciliation)
    assert isinstance(await rig.ask(rig.wanted), Accepted)
    assert (await rig.driver.observe(rig.subject)).refusal is None
    back = await rig.driver.request(rig.subject, rig.job_id, rig.before, rig.wanted, OPEN)
    assert isinstance(back, Accepted), back


FORMER = "kubernetes.operator.job.autoscaler"


@pytest.mark.parametrize(
    ("options", "contested"),
    [
        ({f"{FORMER}.enabled": "true"}, True),
        ({f"{FORMER}.enabled": "true", "job.autoscaler.enabled": "false"}, False),
        ({f"{FORMER}.enabled": "true", f"{FORMER}.scaling.enabled": "false"}, False),
    ],
)
async def test_the_autoscaler_has_former_options(options: dict[str, str], contested: bool) -> None:
    """They count where the present ones are not set (AutoScalerOptions)."""
    rig = await OperatorRig().begin()
    rig.edit(flinkConfiguration=options)
    answer = await rig.ask(rig.wanted)
    assert isinstance(answer, Refusal if contested else Accepted), answer


def test_a_redeployment_from_a_savepoint_is_waited_for() -> None:
    """The job throws its state away and starts from the savepoint that is named (JobSpec)."""
    spec = deployment_spec()
    spec["job"] = {**spec["job"], "initialSavepointPath": "s3://a", "savepointRedeployNonce": 2}
    found = changing(deployment_spec(), spec)
    assert (found.changed_field, code_of(found)) == ("spec.job.savepointRedeployNonce", "upgrade")


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("jobManager", "podTemplate"),
        ("podTemplate", "metadata"),
        ("logConfiguration", "log4j.properties"),
        ("job", "entryClass"),
    ],
)
def test_a_spec_that_failed_for_what_it_lacks_stays_rolled_back(part: str, field: str) -> None:
    """Any write would deploy it again."""
    logs = {"log4j.properties": "x", "other": "y"}
    stable = deployment_spec(logConfiguration=logs, podTemplate=KEPT)
    stable["jobManager"] = {
        **stable["jobManager"],
        "replicas": 1,
        "podTemplate": {"metadata": {"labels": {"a": "b"}}},
    }
    stable["job"] = {**stable["job"], "entryClass": "a.B"}
    failed = copy.deepcopy(stable)
    del failed[part][field]
    status = recorded(stable, lifecycleState="ROLLED_BACK")
    status["reconciliationStatus"] |= {"state": "ROLLED_BACK", "lastReconciledSpec": json.dumps({"spec": failed})}
    assert code_of(reading(failed, status)) == "rolled-back"


async def test_nothing_is_written_to_a_spec_that_failed_for_what_it_lacks() -> None:
    spec = deployment_spec(logConfiguration={"log4j.properties": "x", "other": "y"})
    rig = await OperatorRig(spec).begin()
    rig.operator.paused = True
    failed = {**spec, "logConfiguration": {"other": "y"}}
    rig.objects.put(FLINK_DEPLOYMENT, "orders", failed, "flux")
    document = await rig.objects.get(FLINK_DEPLOYMENT, "shop", "orders") or {}
    rig.objects.report(
        FLINK_DEPLOYMENT,
        "orders",
        lifecycleState="ROLLED_BACK",
        observedGeneration=document["metadata"]["generation"],
        reconciliationStatus={
            "state": "ROLLED_BACK",
            "lastReconciledSpec": json.dumps({"spec": failed}),
            "lastStableSpec": json.dumps({"spec": spec}),
        },
    )
    answer = await rig.ask(rig.wanted)
    assert isinstance(answer, Refusal) and rig.objects.writes == [], answer


def test_a_removed_restart_nonce_is_no_change() -> None:
    """The operator ignores it, and its record keeps the nonce."""
    assert changing(deployment_spec(restartNonce=5), deployment_spec()).changed_field == ""


def test_replicas_in_native_mode_are_not_weirs_field() -> None:
    """A manifest may name them; native mode does not use them, and Weir does not write them."""
    owners = [
        {"manager": "weir", "fieldsV1": {"f:spec": {"f:flinkConfiguration": {f"f:{OVERRIDES}": {}}}}},
        {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:taskManager": {"f:replicas": {}}}}},
    ]
    spec = deployment_spec(taskManager={"replicas": 1}, flinkConfiguration={OVERRIDES: "v1:1"})
    assert reading(spec, recorded(spec), managedFields=owners).writer == ""
    standalone = {**spec, "mode": "standalone"}
    assert reading(standalone, recorded(standalone), managedFields=owners).writer == "kubectl in taskManager.replicas"


def test_a_spec_that_the_operator_does_not_accept_is_not_written_to() -> None:
    """Its validation refuses a field that it would deploy nothing for; until then it acts on no change, nor on Weir's."""
    spec = deployment_spec()
    spec["job"] = {**spec["job"], "upgradeMode": "last-state"}
    assert code_of(changing(deployment_spec(), spec, error="last-state while HA disabled")) == "operator-error"


def test_an_error_of_weirs_own_change_or_an_old_one_holds_nothing() -> None:
    """The operator removes an error with the next change only."""
    spec = deployment_spec()
    spec["flinkConfiguration"] = {**spec["flinkConfiguration"], OVERRIDES: "v1:2"}
    assert code_of(changing(deployment_spec(), spec, error="no slots")) == ""
    assert code_of(reading(None, recorded(deployment_spec(), error="Job Not Found"))) == ""


def _starting(spec: Document, stable: Document | None, **reconciled: Any) -> Document:
    """Return the status of a resource whose job the operator has not observed running yet."""
    job = {"jobId": "a" * 32, "jobName": "orders", "state": "RECONCILING"}
    status: Document = recorded(spec, lifecycleState="DEPLOYED", jobStatus=job)
    text = None if stable is None else json.dumps({"spec": stable})
    status["reconciliationStatus"] |= {"lastStableSpec": text, **reconciled}
    return status


def test_a_job_that_starts_is_waited_for() -> None:
    """The operator scales no job in place that it has not observed: it would stop it by its upgradeMode."""
    stable = deployment_spec()
    stable["job"] = {**stable["job"], "state": "suspended"}
    assert code_of(reading(None, _starting(deployment_spec(), None))) == "upgrade"
    assert code_of(reading(None, _starting(deployment_spec(), stable))) == "upgrade"


def test_a_job_that_starts_after_weirs_own_change_is_not_waited_for() -> None:
    """So that the change can be taken back."""
    spec = deployment_spec()
    spec["flinkConfiguration"] = {**spec["flinkConfiguration"], OVERRIDES: "v1:2"}
    for state in ("DEPLOYED", "UPGRADING"):
        assert code_of(reading(spec, _starting(spec, deployment_spec(), state=state))) == ""


def test_a_resource_that_is_resumed_is_not_suspended() -> None:
    """`set spec.job.state to running` would be wrong: it is."""
    spec = deployment_spec()
    states = [{**spec, "job": {**spec["job"], "state": state}} for state in ("suspended", "running")]
    found = changing(*states, lifecycleState="SUSPENDED")
    assert code_of(found) != "suspended" and found.is_changing


async def test_a_resource_that_is_being_deleted_takes_no_request() -> None:
    rig = await OperatorRig().begin()
    rig.operator.paused = True
    rig.objects._objects["FlinkDeployment", "orders"]["metadata"]["deletionTimestamp"] = "2026-03-01T10:00:00Z"
    answer = await rig.ask(rig.wanted)
    assert isinstance(answer, Refusal) and rig.objects.writes == [], answer


def _same(one: Subject, other: Subject) -> bool:
    return bool(claims(one) & claims(other)) or may_be_same(one, claims(other))


def test_a_job_and_the_deployment_that_runs_it_are_one() -> None:
    """An application cluster has one job, often of another name than the resource's."""
    flink = {"url": "http://orders-rest.shop.svc:8081", "job": "Orders pipeline"}
    plain = policy_of("shop/pipeline", objective={"maxLag": "30s"}, application={"flink": flink}).subject
    assert _same(operated_subject(), plain) and _same(plain, operated_subject())


def test_jobs_of_a_session_cluster_are_several() -> None:
    url = "http://session-rest.shop.svc:8081"
    one, other = (
        operated_subject(name, field="flinkSessionJob", application={"flink": {"url": url, "job": name}})
        for name in ("a", "b")
    )
    assert not _same(one, other)


def test_a_standalone_session_cluster_has_the_slots_that_it_has() -> None:
    """Nothing sets the number of its TaskManagers: a job that is restarted with more subtasks would not get their slots."""
    spec = {**deployment_spec(mode="standalone", taskManager={"replicas": 1}), "job": None}
    cluster = resource_of({"metadata": METADATA, "spec": spec}, FLINK_DEPLOYMENT)
    job = {"metadata": METADATA, "spec": {"deploymentName": "orders", "job": deployment_spec()["job"]}}
    found = resource_of(job, FLINK_SESSION_JOB)
    assert found is not None
    there = builders.deployment()
    adapted = replace(found, cluster=cluster).adapted(there, builders.TOPOLOGY)
    assert (there.rescale.max_slots, adapted.rescale.max_slots) == (None, None)
