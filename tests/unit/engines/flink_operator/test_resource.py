"""Resources of any form, parsed: nothing raises, and odd values are unknown."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engines.flink_operator.rig import deployment_spec
from weir_engines.flink_operator.resource import FLINK_DEPLOYMENT, FlinkResource, resource_of
from weir_engines.flink_operator.spec import MAX_SPEC_CHARACTERS, OVERRIDES

FIELDS = (
    *("spec", "status", "job", "state", "flinkConfiguration", "pipeline", OVERRIDES, "jobStatus", "jobId", "error"),
    *("reconciliationStatus", "lastReconciledSpec", "managedFields", "fieldsV1", "f:spec", "taskManager", "replicas"),
)
METADATA = {"name": "orders", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 3}


def reading(spec: Any = None, status: Any = None, **metadata: Any) -> FlinkResource:
    document = {
        "metadata": {**METADATA, **metadata},
        "spec": deployment_spec() if spec is None else spec,
        "status": status,
    }
    found = resource_of(document, FLINK_DEPLOYMENT)
    assert found is not None
    return found


def recorded(spec: Any, **fields: Any) -> dict[str, Any]:
    """Return a status of a resource that runs stably with this spec."""
    written = json.dumps({"spec": spec, "resource_metadata": {}})
    return {
        "lifecycleState": "STABLE",
        "observedGeneration": 3,
        "jobStatus": {"jobId": "a" * 32, "jobName": "orders", "state": "RUNNING"},
        "reconciliationStatus": {"state": "DEPLOYED", "lastReconciledSpec": written, "lastStableSpec": written},
        **fields,
    }


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a:1,b:2", {"a": 1, "b": 2}),
        (" a : 1 , b:2 ", {"a": 1, "b": 2}),
        ("{a: 1, 'b': \"2\"}", {"a": 1, "b": 2}),
        ("", {}),
        ("{}", {}),
        ("a:0", None),
        ("a:-1", None),
        ("a:99999", None),
        ("a", None),
        ("a:1;b:2", None),
        ("../x:1", None),
    ],
)
def test_overrides_are_parsed(written: str, expected: Any) -> None:
    """In both forms that Flink reads."""
    assert reading(deployment_spec(flinkConfiguration={OVERRIDES: written})).overrides == expected


def test_nested_options_are_options() -> None:
    """As newer versions of the operator allow."""
    nested = {
        "taskmanager": {"numberOfTaskSlots": 4},
        "pipeline": {"jobvertex-parallelism-overrides": {"a": 3}},
        "job": {"autoscaler": {"enabled": True}},
    }
    found = reading(deployment_spec(flinkConfiguration=nested), recorded(deployment_spec()))
    assert (found.slots, found.overrides, found.is_nested) == (4, {"a": 3}, True)
    refusal = found.refusal()
    assert refusal is not None and refusal.code == "contested"


class TestChangedField:
    """The spec against the operator's record of what runs."""

    def test_the_records_own_fields_are_no_change(self) -> None:
        """Defaults, numbers as texts, and what the operator writes for itself."""
        spec = deployment_spec(flinkConfiguration={"a": 1, "kubernetes.operator.reconcile.interval": "15 s"})
        record = {
            **spec,
            "restartNonce": None,
            "ingress": None,
            "mode": "native",
            "logConfiguration": {},
            "flinkConfiguration": {"a": "1", "parallelism.default": "4", OVERRIDES: "a:1"},
            "jobManager": {"resource": {"memory": "1024m", "cpu": 1.0, "ephemeralStorage": None}, "replicas": 0},
            "job": {
                **spec["job"],
                "state": "running",
                "args": [],
                "upgradeMode": "last-state",
                "allowNonRestoredState": None,
            },
        }
        assert reading(spec, recorded(record)).changed_field == ""

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"image": "example/orders:2"}, "spec.image"),
            (
                {"flinkConfiguration": {"taskmanager.numberOfTaskSlots": 2}},
                "spec.flinkConfiguration.jobmanager.scheduler",
            ),
            ({"job": {"jarURI": "local:///orders.jar", "parallelism": 2}}, "spec.job.parallelism"),
            ({"job": {"jarURI": "local:///orders.jar", "parallelism": 1, "upgradeMode": "stateless"}}, ""),
            ({"mode": "standalone"}, "spec.mode"),
            ({"taskManager": {"resource": {"memory": "2048m", "cpu": 1}}}, "spec.taskManager.resource.memory"),
            ({"podTemplate": {"spec": {"containers": []}}}, "spec.podTemplate.spec.containers"),
            ({"restartNonce": 5}, "spec.restartNonce"),
        ],
    )
    def test_the_first_change_is_named(self, changes: dict[str, Any], field: str) -> None:
        assert reading(deployment_spec(**changes), recorded(deployment_spec())).changed_field == field

    def test_a_removed_field_is_a_change(self) -> None:
        spec = deployment_spec()
        del spec["podTemplate"]
        assert reading(spec, recorded(deployment_spec())).changed_field == "spec.podTemplate"

    def test_a_record_that_is_too_long_is_unknown(self) -> None:
        """And it is still deployed."""
        long = recorded(deployment_spec(image="x" * MAX_SPEC_CHARACTERS))
        found = reading(status=long)
        assert (found.changed_field, found.is_deployed, found.refusal()) == ("", True, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda each: (
            st.lists(each, max_size=3)
            | st.dictionaries(
                st.sampled_from(FIELDS),
                each,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_form_is_a_reading(odd: Any) -> None:
    """With a refusal, or without."""
    for document in (
        {"metadata": {**METADATA, "managedFields": odd}, "spec": odd, "status": odd},
        {"metadata": METADATA, "spec": odd, "status": recorded(odd)},
        odd,
    ):
        found = resource_of(document, FLINK_DEPLOYMENT)
        if found is not None:
            refusal = found.refusal()
            assert refusal is None or len(refusal.sentence) <= 160
            assert found.in_place(None) in (True, False) and found.slots >= 1
