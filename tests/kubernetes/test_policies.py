"""Policies as resources on a real API server, with the rights that deploy/k8s grants and no others."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from testbed.kubernetes import KubernetesCluster
from testbed.process import TestbedError, wait_until
from tests.kubernetes.rigs import api
from tests.kubernetes.workers import define
from tests.kubernetes.wrong_policies import WRONG
from tests.unit.deploy.manifests import FOLDER, named
from tests.unit.knowledge.builders import INTERVAL_SECONDS, NOON, analysis, observation, outcome, plan
from tests.unit.knowledge.direct_log import show_messages
from tests.unit.knowledge.resources_suite import WRITER, House, ResourcesSuite, accepted, condition
from weir_contracts import InvalidPolicy, example, policy_of
from weir_contracts.base import Estimate
from weir_engines.kubernetes.api import ApiFailed, Call
from weir_engines.kubernetes.watches import Pauses
from weir_knowledge.resource_events import MAX_NOTE_BYTES, PAUSE_SECONDS
from weir_knowledge.resource_policies import STATUS_SECONDS, KubernetesResources

TARGET, DEFINITION = "target/policies", FOLDER / "components" / "policy-resources" / "scalingpolicies.json"
QUICK = Pauses(first_seconds=0.05, max_seconds=0.5, denied_seconds=0.5)


@pytest.fixture(scope="module")
def defined(cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """A cluster that knows the kind ScalingPolicy."""
    definition = json.loads(DEFINITION.read_text())
    define(cluster, definition)
    yield cluster
    cluster.kubectl("delete", "crd", definition["metadata"]["name"])


class ApiWorld:
    """Resources of one namespace, applied as a user does and read as the knowledge service does."""

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        rules = named(TARGET, "Role", "weir-knowledge")["rules"]
        self.account = cluster.identity("weir-knowledge", rules, namespace=namespace)
        self.resources = KubernetesResources(api(self.account), pauses=QUICK)

    def kubectl(self, *arguments: str, document: Mapping[str, Any] | None = None) -> str:
        stdin = None if document is None else json.dumps(document)
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    async def apply(self, document: Mapping[str, Any]) -> None:
        await asyncio.to_thread(self.kubectl, "apply", "--validate=strict", "-f", "-", document=document)

    async def annotate(self, name: str, annotations: Mapping[str, str | None]) -> None:
        written = [f"{key}-" if text is None else f"{key}={text}" for key, text in annotations.items()]
        await asyncio.to_thread(self.kubectl, "annotate", "--overwrite", "scalingpolicy", name, *written)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self.kubectl, "delete", "scalingpolicy", name)

    async def get(self, name: str) -> dict[str, Any]:
        text = await asyncio.to_thread(self.kubectl, "get", "scalingpolicy", name, "-o", "json")
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture
async def world(defined: KubernetesCluster, namespace: str) -> AsyncIterator[ApiWorld]:
    made = ApiWorld(defined, namespace)
    yield made
    await made.resources.close()


@pytest.fixture
def house(world: ApiWorld) -> House:
    return House(world)


class TestResources(ResourcesSuite):
    pass


@pytest.mark.parametrize("which", ["minimal", "full", "kubernetes", "endpoint", "kafka-streams", "consumer-group"])
def test_the_api_server_accepts_every_field_of_a_policy(world: ApiWorld, which: str) -> None:
    """Strictly, and returns it unchanged: nothing is pruned, and no default is added."""
    written = example("policy", which)
    kept = {"labels", "annotations"}
    written["metadata"] = {
        "name": "orders",
        **{key: value for key, value in written["metadata"].items() if key in kept},
    }
    world.kubectl("create", "--validate=strict", "-f", "-", document=written)
    assert json.loads(world.kubectl("get", "wsp", "orders", "-o", "json"))["spec"] == written["spec"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"objective": {"maxLagg": "30s"}}, 'unknown field "spec.objective.maxLagg"'),
        ({"objective": {"maxLag": "30 seconds"}}, "spec.objective.maxLag in body should match"),
        ({"objective": {"maxLag": "30s"}, "bounds": {"max": 0}}, "spec.bounds.max in body should be greater than or equal to 1"),
        ({"objective": {"maxLag": "30s"}, "mode": "on"}, 'spec.mode: Unsupported value: "on"'),
        ({}, "spec.objective: Required value"),
    ],
)  # fmt: skip
def test_the_api_server_refuses_a_wrong_field(world: ApiWorld, spec: dict[str, Any], sentence: str) -> None:
    """When it is applied, by name: a mistake does not wait for the status."""
    document = {"apiVersion": "weir.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "orders"}}
    with pytest.raises(TestbedError) as refused:
        world.kubectl("create", "--validate=strict", "-f", "-", document={**document, "spec": spec})
    assert sentence in str(refused.value)


@pytest.mark.parametrize(("spec", "words"), WRONG, ids=[words for _, words in WRONG])
def test_the_api_server_refuses_fields_that_do_not_fit_each_other(
    world: ApiWorld, spec: dict[str, Any], words: str
) -> None:
    """Before the document is stored, a password in a URL among them, and nothing that the REST API would take."""
    with pytest.raises(InvalidPolicy):
        policy_of("shop/orders", **spec)
    document = {"apiVersion": "weir.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "orders"}}
    with pytest.raises(TestbedError) as refused:
        world.kubectl("create", "--validate=strict", "-f", "-", document={**document, "spec": spec})
    assert words in str(refused.value)


async def test_kubectl_shows_and_waits_for_a_policy(world: ApiWorld, house: House) -> None:
    """`kubectl get` in columns, and `kubectl wait` for a condition."""
    await world.apply(house.document(mode="act"))
    await house.until(lambda status, _: accepted(status) == "True")
    table = await asyncio.to_thread(world.kubectl, "get", "scalingpolicies")
    head, row = (line.split() for line in table.splitlines())
    assert head == ["NAME", "MODE", "LAG", "MET", "WANTED", "RUNNING", "DECISION", "ACCEPTED", "READY", "AGE"]
    assert row[:2] + row[-3:-2] == ["orders", "act", "True"]
    await asyncio.to_thread(world.kubectl, "wait", "--for=condition=Accepted", "wsp/orders", "--timeout=10s")
    lag = Estimate(value=2.5, basis="measured", confidence=1.0)
    cycle = (house.clock.now() - NOON).total_seconds() / INTERVAL_SECONDS
    messages = (observation(cycle, house.app), analysis(cycle, house.app, lag_seconds=lag), plan(cycle, 4, house.app))
    await show_messages(house.store, *messages)
    await house.until(lambda status, _: "lagSeconds" in status)
    await asyncio.to_thread(world.kubectl, "wait", "--for=condition=ObjectiveMet", "wsp/orders", "--timeout=10s")
    table = await asyncio.to_thread(world.kubectl, "get", "scalingpolicies", "-o", "wide")
    head, row = (line.split() for line in table.splitlines())
    assert row[:5] == ["orders", "act", "2.5", "True", "4"]
    assert table.splitlines()[1].endswith("work needs 4")


async def refuse(house: House, code: str, sentence: str) -> None:
    """Store the refusal of a plan as the application's newest outcome."""
    cycle = (house.clock.now() - NOON).total_seconds() / INTERVAL_SECONDS
    await show_messages(house.store, outcome(plan(cycle, 4, house.app), "refused", 0.0, code=code, sentence=sentence))


async def test_describe_shows_what_keeps_the_target_from_being_scaled(world: ApiWorld, house: House) -> None:
    """As a condition and as an event: nobody has to look into Weir's own log."""
    await world.apply(house.document(mode="act"))
    await house.until(lambda status, _: accepted(status) == "True")
    await refuse(house, "other-autoscaler", "HorizontalPodAutoscaler orders scales Deployment orders, too")
    status = await house.until(lambda status, _: condition(status, "Acting").get("status") == "False")
    assert condition(status, "Acting")["reason"] == condition(status, "Degraded")["reason"] == "OtherAutoscaler"
    shown = await asyncio.to_thread(world.kubectl, "describe", "scalingpolicy", "orders")
    event = next(line for line in shown.partition("Events:")[2].splitlines() if "Refused" in line)
    assert event.split()[0] == "Warning"
    assert "other-autoscaler: HorizontalPodAutoscaler orders scales Deployment orders, too" in event


async def test_an_event_that_repeats_is_a_series(world: ApiWorld, house: House) -> None:
    """One object, which the API server takes with its longest note; one that it has deleted is written again."""
    await world.apply(house.document(mode="act"))
    await house.until(lambda status, _: accepted(status) == "True")

    async def events() -> list[dict[str, Any]]:
        text = await asyncio.to_thread(world.kubectl, "get", "events.events.k8s.io", "-o", "json")
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return [each for each in found if each["regarding"]["name"] == "orders"]

    for count in (1, 2):
        await refuse(house, "forbidden", "→" * 900)
        house.clock.advance(STATUS_SECONDS)
        await house.policies.check()
        (event,) = await events()
        assert event.get("series", {}).get("count", 1) == count
        house.clock.advance(PAUSE_SECONDS)
    assert (event["type"], event["reason"], event["action"], event["reportingController"]) == (
        *("Warning", "Refused", "Scale", "weir.dev/knowledge"),
    )
    assert event["note"] == "forbidden: " + "→" * ((MAX_NOTE_BYTES - 11) // 3)
    await asyncio.to_thread(world.kubectl, "delete", "events.events.k8s.io", "--all")
    await refuse(house, "forbidden", "again")
    house.clock.advance(STATUS_SECONDS)
    await house.policies.check()
    (event,) = await events()
    assert "series" not in event


async def test_no_right_of_knowledge_is_superfluous(world: ApiWorld, house: House) -> None:
    """Its requests by the audit log are all that its role grants; it may not change a resource itself."""
    await world.apply(house.document())
    await house.until(lambda status, _: accepted(status) == "True")
    await refuse(house, "forbidden", "may not update deployments/scale of orders")
    await house.until(lambda status, _: condition(status, "Ready").get("status") == "False")
    house.clock.advance(PAUSE_SECONDS)
    await refuse(house, "forbidden", "may not update deployments/scale of orders")
    await house.policies.check()
    granted = {
        (resource, verb)
        for rule in named(TARGET, "Role", "weir-knowledge")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    user = f"system:serviceaccount:{world.namespace}:weir-knowledge"

    def requested() -> set[tuple[str, str]]:
        return {(each.resource, each.verb) for each in world.cluster.audit(user)}

    await asyncio.to_thread(wait_until, lambda: requested() >= granted, timeout_seconds=30.0, what="all requests")
    assert requested() == granted
    path = f"/apis/weir.dev/v1alpha1/namespaces/{world.namespace}/scalingpolicies/orders"
    with world.account.client() as client:
        answer = client.patch(
            path, json={"spec": {"mode": "act"}}, headers={"Content-Type": "application/merge-patch+json"}
        )
    assert (answer.status_code, "cannot patch resource" in answer.json()["message"]) == (403, True)


async def test_a_right_that_is_missing_deletes_nothing(world: ApiWorld, house: House) -> None:
    """The reason names verb, resource and namespace; with the right it goes on."""
    await world.apply(house.document())
    await house.until(lambda status, _: accepted(status) == "True")
    await world.resources.close()
    nobody = world.cluster.identity("nobody", [], namespace=world.namespace)
    world.resources = house.policies.resources = KubernetesResources(api(nobody), pauses=QUICK)
    with pytest.raises(ApiFailed, match=rf"may not list scalingpolicies in namespace {world.namespace} \(403\)"):
        await world.resources.read(world.namespace)
    await house.policies.check()
    assert await house.changes.view.policy(house.app) is not None


async def test_the_policy_of_a_deleted_namespace_can_be_deleted(defined: KubernetesCluster) -> None:
    """The namespace went, with Weir's rights in it, while knowledge was stopped."""
    name = f"test-{uuid4().hex[:8]}"
    defined.create_namespace(name)
    world = ApiWorld(defined, name)
    house = House(world)
    await world.apply(house.document(mode="act"))
    await house.until(lambda status, _: accepted(status) == "True")
    await world.resources.close()
    await asyncio.to_thread(defined.kubectl, "delete", "namespace", name, "--timeout=60s", timeout_seconds=90.0)
    elsewhere = defined.identity("weir-knowledge", [], namespace="default")
    world.resources = house.policies.resources = KubernetesResources(api(elsewhere), pauses=QUICK)
    await house.policies.check()
    assert await house.changes.view.policy(house.app) is not None
    await house.changes.delete(house.app, WRITER, None)
    assert await house.changes.view.policy(house.app) is None
    await world.resources.close()


async def test_a_resource_that_is_gone_has_no_status(world: ApiWorld) -> None:
    """The API server answers 404."""
    with pytest.raises(ApiFailed, match="404") as failed:
        await world.resources.write_status(world.namespace, "gone", {"observedGeneration": 1})
    assert failed.value.call == Call("patch", "scalingpolicies/status", world.namespace, "gone")
