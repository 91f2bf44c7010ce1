"""Parsing of Kubernetes objects: pods, workloads, quantities, selectors and discovery, also of objects in bad shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_engines.kubernetes.discovery import (
    Kind,
    KindUnknown,
    chosen,
    group_versions,
    kinds_of_groups,
    kinds_of_version,
)
from weir_engines.kubernetes.pods import pod_of
from weir_engines.kubernetes.polled import PodUsage, usage_of
from weir_engines.kubernetes.values import duration, instant, label_selector, parse_selector, quantity, selects, text
from weir_engines.kubernetes.workloads import WorkloadReading, Writer, workload_of

DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
CREW = Kind("example.org", "v1", "Crew", "crews")

_KEYS = [
    "metadata", "spec", "status", "name", "uid", "labels", "containers", "resources", "limits", "requests", "cpu", "memory",
    "containerStatuses", "state", "waiting", "terminated", "lastState", "reason", "message", "restartCount", "conditions",
    "type", "replicas", "readyReplicas", "updatedReplicas", "selector", "matchLabels", "matchExpressions", "key", "operator",
    "values", "managedFields", "fieldsV1", "f:spec", "f:replicas", "manager", "template", "observedGeneration", "items",
    "groups", "versions", "version", "responseKind", "kind", "resource", "subresources", "scope", "usage", "updateStrategy",
    "rollingUpdate", "partition", "paused", "generation", "creationTimestamp", "startTime", "phase", "initContainers",
]  # fmt: skip
_ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(_KEYS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(_KEYS), st.text(max_size=5)), inner)
    ),
    max_leaves=15,
)
_OBJECT = st.dictionaries(st.sampled_from(_KEYS), _ANY, max_size=6)
_NAMED = st.builds(
    lambda metadata, spec, status: {"metadata": {**metadata, "name": "a", "uid": "u"}, "spec": spec, "status": status},
    _OBJECT,
    _OBJECT,
    _OBJECT,
)


def pod(status: dict | None = None, **spec: object) -> dict:
    return {
        "metadata": {"name": "orders-1", "uid": "p1", "labels": {"app": "orders"}},
        "spec": spec,
        "status": status or {},
    }


def deployment(spec: dict | None = None, status: dict | None = None, **metadata: object) -> dict:
    return {
        "metadata": {
            "name": "orders",
            "namespace": "shop",
            "uid": "u1",
            "resourceVersion": "7",
            "generation": 3,
            **metadata,
        },
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "orders"}},
            "template": {"spec": {}},
            **(spec or {}),
        },
        "status": {"observedGeneration": 3, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 2, **(status or {})},
    }


def parsed(document: dict, kind: Kind = DEPLOYMENT) -> WorkloadReading:
    found = workload_of(document, kind)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("250m", 0.25), ("1", 1.0), (2, 2.0), (0.5, 0.5), ("1.5", 1.5), (".5", 0.5), ("100n", 1e-7), ("1Gi", 2.0**30), ("64Mi", 2.0**26),
        ("1k", 1000.0), ("1e3", 1000.0), ("2E2", 200.0), ("1E", 1e18), ("0", 0.0),
        ("", None), ("m", None), ("-1", None), ("1 Gi", None), ("1Zi", None), (None, None), (True, None), ("1e99", None),
        ("9" * 80, None), (float("nan"), None), (float("inf"), None), ({}, None), ("1Ei", None),
    ],
)  # fmt: skip
def test_quantities(written: object, value: float | None) -> None:
    assert quantity(written) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("written", "fitting", "other"),
    [
        ("app=orders", {"app": "orders", "x": "y"}, {"app": "other"}),
        ("app==orders", {"app": "orders"}, {}),
        ("app=orders,tier in (a, b)", {"app": "orders", "tier": "b"}, {"app": "orders", "tier": "c"}),
        ("tier notin (a,b)", {}, {"tier": "a"}),
        ("app!=orders", {}, {"app": "orders"}),
        ("app,!old", {"app": ""}, {"app": "", "old": "1"}),
        ("app=", {"app": ""}, {"app": "x"}),
    ],
)
def test_selectors_of_a_scale(written: str, fitting: dict[str, str], other: dict[str, str]) -> None:
    selector = parse_selector(written)
    assert selects(selector, fitting)
    assert not selects(selector, other)


@pytest.mark.parametrize("written", ["", " ", "a=b,(", "in (a)", "a in b", "=b", None, 7, "a=" + "x" * 5000, "a=b=c"])
def test_an_empty_or_invalid_selector_selects_nothing(written: object) -> None:
    assert not selects(parse_selector(written), {"a": "b", "in": "x"})


def test_selectors_of_an_object() -> None:
    expressions = [
        {"key": "app", "operator": "In", "values": ["orders"]},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "new", "operator": "Exists"},
        {"key": "tier", "operator": "NotIn", "values": ["b"]},
    ]
    selector = label_selector({"matchExpressions": expressions})
    assert selects(selector, {"app": "orders", "new": "", "tier": "a"})
    assert not selects(selector, {"app": "orders", "new": "", "tier": "b"})
    assert not selects(selector, {"app": "orders", "new": "", "old": ""})
    assert label_selector({}) is None
    assert label_selector({"matchExpressions": [{"key": "app", "operator": "Like"}]}) is None


@given(st.text(max_size=60))
def test_no_selector_takes_long_or_raises(written: str) -> None:
    selects(parse_selector(written), {"a": "b"})


def test_a_running_pod() -> None:
    container = {"resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"cpu": 1, "memory": "1Gi"}}}
    status = {
        "phase": "Running",
        "startTime": "2026-03-01T10:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {"restartCount": 2, "state": {"running": {}}, "lastState": {"terminated": {"reason": "OOMKilled"}}}
        ],
    }
    found = pod_of(pod(status, containers=[container, container]))
    assert found is not None
    assert (found.pod.name, found.pod.phase, found.pod.ready, found.pod.reason) == ("orders-1", "Running", True, "")
    assert (found.pod.restarts, found.pod.out_of_memory, found.pod.started_at) == (
        2,
        True,
        instant("2026-03-01T10:00:00Z"),
    )
    assert (found.pod.cpu_request_cores, found.pod.cpu_limit_cores) == (0.5, 2.0)
    assert (found.pod.memory_request_bytes, found.pod.memory_limit_bytes) == (2 * 2**26, 2 * 2**30)
    assert found.counts


def test_resources_are_unknown_if_a_container_names_none_unless_the_pod_does() -> None:
    limited, free = {"resources": {"limits": {"cpu": "1"}}}, {}
    without = pod_of(pod({}, containers=[limited, free]))
    assert without is not None
    assert without.pod.cpu_limit_cores is None
    sidecar = {"restartPolicy": "Always", "resources": {"limits": {"cpu": "500m"}}}
    initial = {"resources": {"limits": {"cpu": "8"}}}
    own = pod_of(pod({}, containers=[limited], initContainers=[sidecar, initial]))
    assert own is not None
    assert own.pod.cpu_limit_cores == 1.5
    level = pod_of(pod({}, containers=[free], resources={"limits": {"cpu": "3"}}))
    assert level is not None
    assert level.pod.cpu_limit_cores == 3.0


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes\nfit"}]},
            "Unschedulable: 0/3 nodes fit",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
            "ImagePullBackOff: no such image",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}, "CrashLoopBackOff"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({"initContainerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}, "ErrImagePull"),
        ({"initContainerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}]}, ""),
        ({"reason": "Evicted", "message": "low on disk"}, "Evicted: low on disk"),
        ({"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled"}}}]}, "OOMKilled"),
    ],
)  # fmt: skip
def test_why_a_pod_does_not_run(status: dict, reason: str) -> None:
    found = pod_of(pod({"phase": "Pending", **status}))
    assert found is not None
    assert found.pod.reason == reason


@pytest.mark.parametrize(
    ("containers", "at"),
    [
        ([{"restartCount": 0, "state": {"running": {"startedAt": "2026-03-01T10:00:00Z"}}}], None),
        ([{"restartCount": 2, "state": {"running": {"startedAt": "2026-03-01T10:00:00Z"}}}], "2026-03-01T10:00:00Z"),
        (
            [
                {"restartCount": 2, "state": {"running": {"startedAt": "2026-03-01T10:00:00Z"}}},
                {"restartCount": 1, "state": {"running": {"startedAt": "2026-03-01T11:00:00Z"}}},
                {"restartCount": 1, "state": {"terminated": {"reason": "Completed"}}},
            ],
            "2026-03-01T11:00:00Z",
        ),
        (
            [
                {"restartCount": 2, "state": {"running": {"startedAt": "2026-03-01T10:00:00Z"}}},
                {"restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            ],
            None,
        ),
    ],
)
def test_when_a_restarted_container_runs_again(containers: list[dict], at: str | None) -> None:
    found = pod_of(pod({"containerStatuses": containers}))
    assert found is not None and found.pod.restarted_at == instant(at)


@pytest.mark.parametrize(
    ("kind", "spec", "ordered"),
    [
        (STATEFUL_SET, {}, True),
        (STATEFUL_SET, {"podManagementPolicy": "OrderedReady"}, True),
        (STATEFUL_SET, {"podManagementPolicy": "Parallel"}, False),
        (DEPLOYMENT, {}, False),
    ],
)
def test_pods_that_start_one_after_another(kind: Kind, spec: dict, ordered: bool) -> None:
    assert parsed(deployment(spec), kind).status.one_by_one is ordered


def test_a_pod_that_ends_is_no_replica() -> None:
    ending = pod({"phase": "Running"})
    ending["metadata"]["deletionTimestamp"] = "2026-03-01T10:00:00Z"
    ended = pod_of(ending), pod_of(pod({"phase": "Failed"}))
    assert [each is not None and each.counts for each in ended] == [False, False]


def test_a_deployment() -> None:
    found = parsed(deployment())
    status = found.status
    assert (status.kind, status.name, status.namespace, status.uid) == ("Deployment", "orders", "shop", "u1")
    assert (status.wanted, status.current, status.updated, status.ready) == (3, 3, 3, 2)
    assert (status.rolling_out, status.paused, status.reason, found.is_observed) == (False, False, "", True)
    assert selects(found.selector, {"app": "orders"})


def test_counters_that_the_built_in_kinds_omit_are_0() -> None:
    document = deployment()
    document["status"] = {"observedGeneration": 1}
    found = parsed(document)
    assert (found.status.current, found.status.updated, found.status.ready) == (0, 0, 0)
    assert not found.is_observed
    del document["status"]
    assert parsed(document).status.ready is None


def test_a_rollout_is_not_a_rescale() -> None:
    assert parsed(deployment({}, {"replicas": 4, "updatedReplicas": 1})).status.rolling_out
    assert not parsed(deployment({"replicas": 8}, {"replicas": 3, "updatedReplicas": 3})).status.rolling_out
    paused = parsed(deployment({"paused": True}, {"replicas": 4, "updatedReplicas": 1})).status
    assert (paused.rolling_out, paused.paused) == (False, True)


def test_another_template_is_another_version_and_another_size_is_not() -> None:
    before = parsed(deployment()).template
    assert parsed(deployment({"replicas": 9})).template == before
    assert parsed(deployment({"template": {"spec": {"x": 1}}})).template != before


@pytest.mark.parametrize(
    ("spec", "status", "rolling"),
    [
        ({}, {"currentRevision": "a", "updateRevision": "a", "updatedReplicas": None}, False),
        ({}, {"currentRevision": "a", "updateRevision": "b", "updatedReplicas": 1}, True),
        ({}, {"currentRevision": "a", "updateRevision": "b", "updatedReplicas": 3}, False),
        (
            {"updateStrategy": {"rollingUpdate": {"partition": 2}}},
            {"currentRevision": "a", "updateRevision": "b", "updatedReplicas": 1},
            False,
        ),
        ({"updateStrategy": {"type": "OnDelete"}}, {"currentRevision": "a", "updateRevision": "b", "updatedReplicas": 0}, False),
    ],
)  # fmt: skip
def test_rollouts_of_a_stateful_set(spec: dict, status: dict, rolling: bool) -> None:
    assert parsed(deployment(spec, status), STATEFUL_SET).status.rolling_out is rolling


def test_replicas_that_a_quota_denies() -> None:
    condition = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "exceeded quota: pods",
    }
    assert parsed(deployment({}, {"conditions": [condition]})).status.reason == "FailedCreate: exceeded quota: pods"
    condition["status"] = "False"
    assert parsed(deployment({}, {"conditions": [condition]})).status.reason == ""


def test_the_managers_of_replicas_are_named() -> None:
    fields = [
        {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:replicas": {}}}, "time": "2026-03-01T10:00:00Z"},
        {"manager": "weir", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"manager": "other", "fieldsV1": {"f:spec": {"f:paused": {}}}},
    ]
    assert parsed(deployment(managedFields=fields)).writers == (
        Writer("kubectl", "", instant("2026-03-01T10:00:00Z")),
        Writer("weir", "scale", None),
    )


def test_a_custom_resource_takes_replicas_and_selector_from_its_scale() -> None:
    document = {
        "metadata": {"name": "w", "uid": "u", "generation": 2},
        "spec": {"workers": 5},
        "status": {"observedGeneration": "2"},
    }
    found = parsed(document, CREW)
    assert (found.selector, found.status.ready, found.observed_generation) == (None, None, 2)
    scale = {
        "kind": "Scale",
        "metadata": {"resourceVersion": "9"},
        "spec": {"replicas": 5},
        "status": {"replicas": 4, "selector": "app=w"},
    }
    scaled = found.with_scale(scale)
    assert scaled is not None
    assert (scaled.status.wanted, scaled.status.current, scaled.version) == (5, 4, "9")
    assert selects(scaled.selector, {"app": "w"})
    assert found.with_scale({"kind": "Status"}) is None


def test_usage() -> None:
    items = [
        {"metadata": {"name": "a"}, "containers": [{"usage": {"cpu": "120m", "memory": "10Mi"}}, {"usage": {"cpu": "1n", "memory": "1"}}]},
        {"metadata": {"name": "b"}, "containers": [{"usage": {"cpu": "?"}}]},
        {"metadata": {"name": "c"}, "timestamp": "2026-03-01T10:00:30Z", "window": "15.5s",
         "containers": [{"usage": {"cpu": "1", "memory": "1"}}]},
    ]  # fmt: skip
    assert usage_of({"items": items}) == {
        "a": PodUsage(pytest.approx(0.120000001), 10 * 2**20 + 1),
        "b": PodUsage(None, None),
        "c": PodUsage(1.0, 1, instant("2026-03-01T10:00:14.500Z")),
    }


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30s", 30.0), ("1m0.5s", 60.5), ("15.012s", 15.012), ("250ms", 0.25), ("1h2m3s", 3723.0), ("24h", 86400.0), ("0s", 0.0),
        ("", None), ("30", None), ("-5s", None), ("25h", None), ("s", None), ("1s1m", None), ("9" * 40 + "s", None), (30, None),
        (None, None),
    ],
)  # fmt: skip
def test_durations(written: object, seconds: float | None) -> None:
    found = duration(written)
    assert (None if found is None else found.total_seconds()) == seconds


@given(_ANY)
def test_objects_of_any_form_are_parsed_or_ignored(document: object) -> None:
    pod_of(document)
    workload_of(document, DEPLOYMENT)
    workload_of(document, CREW)
    usage_of(document)
    kinds_of_groups(document)
    kinds_of_version(document, "apps/v1")
    group_versions(document)


@given(_NAMED)
def test_objects_with_a_name_are_parsed_whatever_else_they_hold(document: dict) -> None:
    assert pod_of(document) is not None
    for kind in (DEPLOYMENT, STATEFUL_SET, CREW):
        found = workload_of(document, kind)
        assert found is not None
        assert found.status.wanted >= 0
        found.with_scale({**document, "kind": "Scale"})


def test_a_huge_object_is_kept_small() -> None:
    huge = pod(
        {"reason": "x" * 10_000, "message": "y" * 100_000, "containerStatuses": [{"restartCount": 1}] * 5000},
        containers=[{"resources": {"limits": {"cpu": "1"}}}] * 5000,
    )
    huge["metadata"]["labels"] = {f"l{i}": "v" for i in range(5000)}
    found = pod_of(huge)
    assert found is not None
    assert (len(found.pod.reason) <= 500, found.labels, found.pod.restarts) == (True, {}, 200)


def test_texts_hold_no_line_break_and_no_lone_surrogate() -> None:
    assert text("a\n\tb \ud800") == "a b ?"
    assert len(text("x" * 1000)) == 500


KINDS = [
    Kind("apps", "v1", "Deployment", "deployments"),
    Kind("batch", "v1", "Job", "jobs", is_scalable=False),
    Kind("example.org", "v2", "Crew", "crews"),
    Kind("example.org", "v1", "Crew", "crews"),
    Kind("other.org", "v1", "Queue", "queues"),
    Kind("third.org", "v1", "Queue", "queues"),
    Kind("third.org", "v1", "Pool", "pools", is_namespaced=False),
    Kind("half.org", "v1", "Half", "halves", is_scalable=False),
    Kind("whole.org", "v1", "Half", "halves"),
]


def test_the_preferred_version_of_the_only_group_is_chosen() -> None:
    assert chosen(KINDS, "Crew", None).version == "v2"
    assert chosen(KINDS, "Crew", "example.org/v1").version == "v1"
    assert chosen(KINDS, "Queue", "third.org/v1").group == "third.org"
    assert chosen(KINDS, "Half", None).group == "whole.org"


@pytest.mark.parametrize(
    ("kind", "version", "words"),
    [
        ("Wrker", None, "the API server has no kind Wrker"),
        ("Crew", "example.org/v9", "no kind Crew of example.org/v9"),
        ("Queue", None, "ambiguous: other.org/v1 and third.org/v1"),
        ("Job", None, "the kind Job of batch/v1 has no scale subresource"),
        ("Pool", None, "does not belong to a namespace"),
    ],
)
def test_kinds_that_cannot_be_chosen(kind: str, version: str | None, words: str) -> None:
    with pytest.raises(KindUnknown, match=words):
        chosen(KINDS, kind, version)


def test_discovery_in_both_forms() -> None:
    resources = [
        {"name": "deployments", "kind": "Deployment", "namespaced": True},
        {"name": "deployments/scale", "kind": "Scale", "namespaced": True},
        {"name": "jobs", "kind": "Job", "namespaced": True},
    ]
    of_version = kinds_of_version({"kind": "APIResourceList", "resources": resources}, "apps/v1")
    assert of_version == [DEPLOYMENT, Kind("apps", "v1", "Job", "jobs", is_scalable=False)]
    group = {
        "metadata": {"name": "apps"},
        "versions": [
            {
                "version": "v1",
                "resources": [
                    {
                        "resource": "deployments",
                        "responseKind": {"kind": "Deployment"},
                        "scope": "Namespaced",
                        "subresources": [{"subresource": "scale"}, {"subresource": "status"}],
                    }
                ],
            }
        ],
    }
    assert kinds_of_groups({"items": [group]}) == [DEPLOYMENT]
    assert group_versions({"groups": [{"preferredVersion": {"groupVersion": "apps/v1"}}, {}]}) == ["apps/v1"]
