"""What a policy may name beyond its own namespace, by the settings."""

from dataclasses import replace
from typing import Any

import pytest

from weir_contracts import policy_of
from weir_runtime.addresses import USUAL_TARGETS, Allowed
from weir_runtime.broker_credentials import BrokerCredentials
from weir_runtime.http_credentials import HttpCredential
from weir_runtime.reach import Reach

HOSTS = "*.{namespace}.svc,kafka.example.org,prometheus.monitoring.svc"
GROUPS = "{namespace}-*,shared"
BROKERS = {"bootstrapServers": "kafka.example.org:9092"}
WORKLOAD = {"kind": "Deployment", "name": "orders"}
BROKERS_OF_B = BrokerCredentials(frozenset(), {}, frozenset({"team-b"}))
ADDRESS_OF_B = HttpCredential(("https", "b", None), frozenset({"team-b"}))


def refusal(reach: Reach, **spec: Any) -> tuple[str, str] | None:
    """What a policy of team-a is refused for."""
    return reach.refusal(policy_of("team-a/orders", objective={"maxLag": "30s"}, **spec).subject)


def flink(host: str, **more: str) -> dict[str, Any]:
    return {"application": {"flink": {"url": f"http://{host}:8081", "job": "orders", **more}}}


def streams(group: str, broker: str = "kafka.example.org", **kafka: str) -> dict[str, Any]:
    return {
        "application": {"kafkaStreams": {"applicationId": group}},
        "target": {"kubernetes": WORKLOAD},
        "signals": {"kafka": {"bootstrapServers": f"{broker}:9092", **kafka}},
    }


def endpoint(host: str, **more: str) -> dict[str, Any]:
    return {**streams("team-a-orders"), "target": {"endpoint": {"url": f"http://{host}", **more}}}


LIMITED = (
    Reach.of(Allowed.of("http,https", HOSTS, USUAL_TARGETS, prefix="WEIR_TARGET"), GROUPS, "")
    .with_credentials("signals.kafka", {"b": BROKERS_OF_B, "all": replace(BROKERS_OF_B, namespaces=frozenset({"*"}))})
    .with_credentials("application.flink", {"b": ADDRESS_OF_B})
    .with_credentials("target.endpoint", {"b": ADDRESS_OF_B})
)


@pytest.mark.parametrize(
    ("spec", "field", "word"),
    [
        (
            {"target": {"kubernetes": {**WORKLOAD, "namespace": "team-b"}}},
            "target.kubernetes.namespace",
            "team-a:team-b",
        ),
        (flink("jobmanager.team-b.svc"), "application.flink.url", "*.team-a.svc"),
        (flink("JOBMANAGER.team-b.svc."), "application.flink.url", "*.team-a.svc"),
        (endpoint("supervisor.team-b.svc"), "target.endpoint.url", "*.team-a.svc"),
        (streams("team-b-totals"), "application", "team-a-*, shared"),
        (streams("team-a-totals", broker="kafka.team-b.svc"), "signals.kafka.bootstrapServers", "*.team-a.svc"),
        (
            {**flink("jobmanager.team-a.svc"), "signals": {"kafka": {**BROKERS, "groupId": "team-b-totals"}}},
            "signals.kafka.groupId",
            "team-a-*",
        ),
        (streams("team-a-totals", credentials="b"), "signals.kafka.credentials", "'b'"),
        (flink("jobmanager.team-a.svc", credentials="b"), "application.flink.credentials", "'b'"),
        (endpoint("supervisor.team-a.svc", credentials="b"), "target.endpoint.credentials", "'b'"),
    ],
)
def test_what_belongs_to_another_namespace_is_refused(spec: dict[str, Any], field: str, word: str) -> None:
    """With the field, and the setting or entry that would allow it."""
    found = refusal(LIMITED, **spec)
    assert found is not None
    assert found[0] == field
    assert word in found[1]


@pytest.mark.parametrize(
    "spec",
    [
        {"target": {"kubernetes": WORKLOAD}},
        {"target": {"kubernetes": {**WORKLOAD, "namespace": "team-a"}}},
        flink("jobmanager.team-a.svc"),
        streams("team-a-totals"),
        streams("shared", credentials="all"),
        endpoint("supervisor.team-a.svc"),
    ],
)
def test_what_belongs_to_its_own_namespace_or_to_all_is_not(spec: dict[str, Any]) -> None:
    assert refusal(LIMITED, **spec) is None


@pytest.mark.parametrize(
    ("pairs", "named", "allowed"),
    [
        ("", "team-b", False),
        ("team-a:team-b", "team-b", True),
        ("team-a:team-b", "team-c", False),
        ("team-b:team-a", "team-b", False),
        ("ops:*", "team-b", False),
        ("team-a:*", "team-b", True),
        ("*:shared, ops:*", "shared", True),
    ],
)
def test_pairs_of_namespaces_have_a_direction(pairs: str, named: str, allowed: bool) -> None:
    """From the policy's namespace to that of the workload; by default there is none."""
    reach = Reach.of(LIMITED.allowed, "*", pairs)
    assert (refusal(reach, target={"kubernetes": {**WORKLOAD, "namespace": named}}) is None) is allowed


@pytest.mark.parametrize("pairs", ["team-a", "team-a:", "a:b:c"])
def test_a_pair_that_is_none_ends_the_service_with_the_settings_name(pairs: str) -> None:
    with pytest.raises(ValueError, match="WEIR_TARGET_NAMESPACES"):
        Reach.of(LIMITED.allowed, "*", pairs)


def test_a_connection_is_checked_for_any_namespace() -> None:
    """It knows no policy: hosts of no namespace stay refused."""
    LIMITED.allowed.check_host("jobmanager.team-b.svc")
    with pytest.raises(Exception, match=r"metadata.internal is not among the hosts"):
        LIMITED.allowed.check_host("metadata.internal")
