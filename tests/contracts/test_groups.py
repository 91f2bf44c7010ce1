"""Policies of consumer groups: Kafka Streams applications and plain consumers."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_contracts import (
    InvalidPolicy,
    Observation,
    ScalingPolicy,
    even_subtasks,
    example,
    parallelism_for,
    parse_policy,
)

STREAMS = {"kafkaStreams": {"applicationId": "orders", "metrics": {"port": 9404}}}
KAFKA = {"kafka": {"bootstrapServers": "kafka:9092"}}
PODS = {"kubernetes": {"kind": "StatefulSet", "name": "orders", "slots": 2}}


def document(**spec: Any) -> dict[str, Any]:
    """Return a policy of a Kafka Streams application; a value of None leaves a field out."""
    given = {"application": STREAMS, "target": PODS, "signals": KAFKA, "objective": {"maxLag": "30s"}, **spec}
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": "orders"},
        "spec": {name: value for name, value in given.items() if value is not None},
    }


@pytest.mark.parametrize(
    ("which", "engine"),
    [("kafka-streams", "kafka-streams"), ("consumer-group", "consumer-group"), ("endpoint", "kafka-streams")],
)
def test_the_examples_are_what_a_user_may_write(which: str, engine: str) -> None:
    policy = parse_policy(example("policy", which))
    assert policy.subject.application.engine == engine
    assert policy.subject.application.group_id in ("orders", "mailer")


def test_a_group_is_named_by_its_application_id_or_group_id() -> None:
    """A pod's slots are the threads of its instance."""
    streams = parse_policy(document()).subject
    assert (streams.application.engine, streams.application.group_id) == ("kafka-streams", "orders")
    assert streams.unit is not None and (streams.unit.slots, streams.unit.instance) == (2, "pod")
    plain = parse_policy(document(application={"consumerGroup": {"groupId": "mail er"}})).subject
    assert (plain.application.engine, plain.application.group_id) == ("consumer-group", "mail er")


@pytest.mark.parametrize("target", [None, {}])
def test_a_group_without_a_target_is_advised_on(target: dict[str, Any] | None) -> None:
    """Nothing scales it, so that no instance gives a step of its parallelism; other messages carry the policy unchanged."""
    policy = parse_policy(document(target=target))
    assert (policy.spec.mode, policy.subject.target.driver, policy.subject.unit) == ("advise", None, None)
    assert ScalingPolicy.model_validate_json(policy.model_dump_json(by_alias=True)) == policy
    assert ("target" in policy.to_document()["spec"]) == (target is not None)


def test_an_endpoint_scales_the_threads_of_a_group_alone() -> None:
    """It shares no slots with other applications, and its address obeys the rules of all addresses of policies."""
    policy = parse_policy(document(target={"endpoint": {"url": "http://supervisor:8070/scale/orders", "slots": 2}}))
    subject = policy.subject
    assert (subject.target.driver, subject.cluster) == ("endpoint", "endpoint/shop/orders")
    assert subject.unit is not None and (subject.unit.slots, subject.unit.instance) == (2, "instance")
    assert [(field, str(url)) for field, url in subject.urls] == [
        ("target.endpoint.url", "http://supervisor:8070/scale/orders")
    ]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"application": {"service": {}}, "target": {"endpoint": {"url": "http://a/"}}},
            "target.endpoint: needs an application that is a consumer group",
        ),
        ({"target": {"endpoint": {"url": "http://ada:secret@a/"}}}, "must not contain credentials"),
        ({"target": {"endpoint": {"url": "ftp://a/"}}}, "target.endpoint.url"),
        ({"target": {"endpoint": {"url": "http://a/", "credentials": "Bearer x"}}}, "target.endpoint.credentials"),
        ({"target": {"endpoint": {"url": "http://a/", "slots": 0}}}, "target.endpoint.slots"),
        ({"target": {"endpoint": {"url": "http://a/"}, "flink": {}}}, "name exactly one driver"),
        (
            {"target": {"endpoint": {"url": "http://a:0/"}}},
            "target.endpoint.url: its port must lie between 1 and 65535",
        ),
        ({"signals": None}, "application.kafkaStreams: needs signals.kafka"),
        ({"target": None, "mode": "act"}, "mode: act needs a target that scales the group's instances"),
        ({"target": {}, "mode": "act"}, "mode: act needs a target that scales the group's instances"),
        ({"target": {"flink": {}}}, "target.flink: does not scale consumer groups"),
        ({"target": {"flinkDeployment": {"name": "a"}}}, "target.flinkDeployment: does not scale consumer groups"),
        (
            {"target": {"kubernetes": {"workloads": [{"kind": "Deployment", "name": "a"}]}}},
            "target.kubernetes.workloads: the instances of a consumer group are one workload",
        ),
        (
            {"signals": {"kafka": {"bootstrapServers": "kafka:9092", "groupId": "other"}}},
            "signals.kafka.groupId: must not name another group than application.kafkaStreams",
        ),
        ({"application": {**STREAMS, "consumerGroup": {"groupId": "a"}}}, "name exactly one engine"),
        ({"application": {"kafkaStreams": {"applicationId": "a b"}}}, "applicationId"),
        ({"application": {"kafkaStreams": {"applicationId": "a", "metrics": {"port": 0}}}}, "metrics.port"),
        (
            {"application": {"kafkaStreams": {"applicationId": "a", "metrics": {"port": 1, "path": "//x?y"}}}},
            "metrics.path",
        ),
        (
            {"application": {"kafkaStreams": {"applicationId": "a", "commitInterval": "2h"}}},
            "commitInterval: must lie between 10ms and 1h",
        ),
        (
            {"signals": {"kafka": {"bootstrapServers": "kafka:9092", "credentials": "user:secret"}}},
            "signals.kafka.credentials",
        ),
    ],
)
def test_a_contradictory_policy_of_a_group_is_refused_by_field(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidPolicy, match=re.escape(sentence)):
        parse_policy(document(**spec))


def test_tasks_limit_the_useful_number_of_threads() -> None:
    """With ten tasks, 6 to 9 threads are no better than 5: one of them still has two tasks."""
    graph = Observation.model_validate(example("observation", "kafka-streams")).topology
    assert graph is not None
    ten = graph.model_copy(update={"operators": [graph.operators[0].model_copy(update={"source_partitions": 10})]})
    assert [ten.smallest_useful("orders", n) for n in (1, 2, 3, 4, 5, 6, 9, 10, 11)] == [1, 2, 3, 4, 5, 5, 5, 10, 10]
    assert [ten.next_useful("orders", n) for n in (1, 2, 3, 4, 5, 6, 9, 10, 11)] == [1, 2, 3, 4, 5, 10, 10, 10, 10]


@given(st.integers(1, 200), st.integers(1, 250))
def test_shares_of_work_are_dealt_out_one_by_one(shares: int, parallelism: int) -> None:
    """As many subtasks do what equally loaded ones would, of which each has as much as the busiest of them: it is counted
    with partitions that are dealt out. The smallest parallelism for as much is found by trying each."""
    busiest = {p: max(len(range(first, shares, p)) for first in range(p)) for p in range(1, parallelism + 1)}
    assert even_subtasks(parallelism, shares) == pytest.approx(shares / busiest[parallelism])
    assert parallelism_for(shares / busiest[parallelism], shares) == min(
        p for p in busiest if busiest[p] == busiest[parallelism]
    )
    assert parallelism_for(shares + 0.5, shares) is None
