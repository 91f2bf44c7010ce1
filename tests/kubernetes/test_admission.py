"""The API server refuses a policy as the REST API does: on generated documents, by the definition of the kind alone."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings

from testbed.kubernetes import KubernetesCluster
from testbed.process import wait_until
from tests.effort import examples
from tests.kubernetes.policy_documents import specs
from tests.kubernetes.workers import define
from tests.unit.deploy.manifests import FOLDER
from weir_contracts import InvalidPolicy, policy_of
from weir_contracts.resource_rules import MAX_NAME_CHARACTERS

DEFINITION = FOLDER / "components" / "policy-resources" / "scalingpolicies.json"
USUAL = {"application": {"flink": {"url": "http://jm:8081", "job": "orders"}}, "objective": {"maxLag": "30s"}}
WRITER = [{"apiGroups": ["weir.dev"], "resources": ["scalingpolicies"], "verbs": ["create"]}]
INEXPRESSIBLE = re.compile(r"\.(timeZone|cron|parameters)\b")
"""Fields whose texts no rule of the API server can judge: `Accepted` says what is wrong with them."""


DEADLINE_SECONDS = 300.0
"""Limit of one dry run, repeated as often as fits, on a machine that gives the API server next to nothing."""


class Admission:
    """Dry runs of creating a policy, as a user who may do nothing else.

    One that gets no answer, or that the API server is too busy for, is repeated: only what it says of the document counts.
    """

    def __init__(self, http: httpx.Client, namespace: str) -> None:
        self._http, self._path = http, f"/apis/weir.dev/v1alpha1/namespaces/{namespace}/scalingpolicies"

    def refusal(self, spec: dict[str, Any], name: str = "orders", **metadata: Any) -> str | None:
        """Return why the API server refuses a specification; None if it takes it. Strict, as kubectl asks."""
        document = {"apiVersion": "weir.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": name, **metadata}}
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        body = {**document, "spec": spec}

        def judged() -> httpx.Response | None:
            try:
                answer = self._http.post(self._path, params=query, json=body)
            except httpx.TransportError:
                return None
            return None if answer.status_code == 429 or answer.status_code >= 500 else answer

        answer = wait_until(judged, timeout_seconds=DEADLINE_SECONDS, what=f"an answer to {body}")
        assert answer.status_code in (201, 400, 422), answer.text
        return None if answer.status_code == 201 else str(answer.json()["message"])


@pytest.fixture(scope="module")
def admission(cluster: KubernetesCluster) -> Iterator[Admission]:
    definition = json.loads(DEFINITION.read_text())
    define(cluster, definition)
    access = cluster.identity("writer", WRITER, namespace="default")
    with access.client(60.0, connections=1) as http:
        yield Admission(http, "default")
    cluster.kubectl("delete", "crd", definition["metadata"]["name"])


def refusals(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """Return field and sentence of what the REST API refuses in a specification."""
    try:
        policy_of("default/orders", **spec)
    except InvalidPolicy as error:
        return error.problems
    return []


POOL: dict[str, Any] = {"kubernetes": {"kind": "Deployment", "name": "taskmanager"}, "slots": 2, "max": 3}


@settings(suppress_health_check=[*HealthCheck], parent=examples(500))
@given(spec=specs())
@example({**USUAL, "target": {"kubernetes": {"kind": "Deployment", "name": "orders", "restartInstances": None}}})
@example({**USUAL, "mode": None, "bounds": None, "planner": {"name": None}, "behavior": {"cooldown": None}})
@example({**USUAL, "bounds": {"min": None, "operators": {"enrich": None}}, "shadows": None, "moode": None})
@example({**USUAL, "objective": None})
@example({**USUAL, "shadows": [None]})
@example({**USUAL, "target": {"flink": {"taskManagers": POOL}}, "bounds": {"min": 7}})
@example({**USUAL, "target": {"flink": {"taskManagers": {**POOL, "slots": None}}}, "bounds": {"min": 4}})
def test_both_refuse_the_same(admission: Admission, spec: dict[str, Any]) -> None:
    """Except what no rule can say, which the resource's status does."""
    problems = refusals(spec)
    if not problems or any(not INEXPRESSIBLE.search(field) for field, _ in problems):
        assert (admission.refusal(spec) is None) == (not problems), (problems, admission.refusal(spec))


def test_a_name_that_no_application_can_have_is_refused(admission: Admission) -> None:
    """Kubernetes' names are longer."""
    assert admission.refusal(USUAL, "x" * MAX_NAME_CHARACTERS) is None
    refusal = admission.refusal(USUAL, "x" * (MAX_NAME_CHARACTERS + 1))
    assert refusal is not None and "metadata.name: must have at most 63 characters" in refusal


@pytest.mark.parametrize(
    "odd",
    [
        {"behavior": {"excludedPeriods": [{"from": "08:00", "to": "09:00", "timeZone": "Nowhere"}]}},
        {"behavior": {"excludedPeriods": [{"cron": "61 0 * * *", "duration": "1h"}]}},
        {"planner": {"parameters": {"a": {"b": [1e300]}}}},
    ],
)
def test_what_no_rule_can_say_is_left_to_the_status(admission: Admission, odd: dict[str, Any]) -> None:
    """The API server takes it, and the policy is not in force."""
    assert admission.refusal({**USUAL, **odd}) is None
    assert refusals({**USUAL, **odd}) != []
