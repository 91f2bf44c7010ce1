"""Requests to the planner service about a policy's planners, and its responses."""

import json
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.unit.knowledge.builders import document
from tests.unit.planner.test_registrations import Cluster, cluster
from weir_contracts import PolicySpec
from weir_knowledge.policy_changes import PlannerAway, PlannerCatalogue

__all__ = ["cluster"]
TOKEN = SecretStr("may-read")
PROBLEM = {"field": "spec.planner.name", "message": "there is no planner 'oracle'"}


def spec(**of: Any) -> PolicySpec:
    return PolicySpec.model_validate(document(**of)["spec"])


class Catalogue(PlannerCatalogue):
    """A planner service with this response, for holders of the token."""

    def __init__(self, status: int = 200, answer: Any = None, token: SecretStr | None = TOKEN) -> None:
        super().__init__("http://planner", token)
        self.status, self.answer = status, answer
        self.requested: list[Any] = []

    def _client(self, url: str) -> httpx.AsyncClient:
        def respond(request: httpx.Request) -> httpx.Response:
            if request.headers.get("authorization") != "Bearer may-read":
                return httpx.Response(401)
            if self.status == 0:
                raise httpx.ConnectError("connection refused")
            assert (request.method, request.url.path) == ("POST", "/v1/planners/validate")
            self.requested.append(json.loads(request.content))
            return httpx.Response(self.status, json=self.answer)

        made = super()._client(url)
        return httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url=url, headers=made.headers)


async def test_every_planner_that_a_policy_names_is_checked() -> None:
    """The chosen one, the candidates, the shadows and the fallbacks, each with its place."""
    catalogue = Catalogue(answer={"problems": [PROBLEM]})
    fallback = {"name": "rate", "parameters": {"drain_seconds": 60}}
    found = await catalogue.problems(
        spec(
            planner={"name": "oracle", "fallback": fallback},
            shadows=[{"name": "ds2", "parameters": {"a": 1}}],
            candidates=[{"name": "hpa", "parameters": {"b": 2}}],
        )
    )
    assert found == [(PROBLEM["field"], PROBLEM["message"])]
    [requested] = catalogue.requested
    assert requested["choices"] == [
        {"field": "spec.planner", "name": "oracle", "parameters": {}},
        {"field": "spec.planner.fallback", "name": "rate", "parameters": {"drain_seconds": 60}},
        {"field": "spec.shadows.0", "name": "ds2", "parameters": {"a": 1}},
        {"field": "spec.candidates.0", "name": "hpa", "parameters": {"b": 2}},
    ]


@pytest.mark.parametrize(
    ("catalogue", "reason"),
    [
        (Catalogue(0), "does not answer"),
        (Catalogue(503), "answered 503"),
        (Catalogue(404), "answered 404"),
        (Catalogue(token=None), "WEIR_KNOWLEDGE_PLANNER_TOKEN"),
        (Catalogue(answer=[]), "an unknown document"),
        (Catalogue(answer={"problems": [1]}), "an unknown document"),
    ],
)
async def test_an_unreachable_planner_service_judges_nothing(catalogue: Catalogue, reason: str) -> None:
    """It neither accepts nor refuses the planners."""
    with pytest.raises(PlannerAway, match=reason):
        await catalogue.problems(spec())


async def test_without_an_address_nothing_is_requested() -> None:
    """And nothing is refused."""
    assert await PlannerCatalogue(None).problems(spec(planner={"name": "oracle"})) == []


async def test_the_planner_service_understands_it(cluster: Cluster) -> None:
    """Both sides of the wire: its own answers, to this question."""
    replica = await cluster.replica()

    class Direct(PlannerCatalogue):
        def _client(self, url: str) -> httpx.AsyncClient:
            return httpx.AsyncClient(transport=httpx.ASGITransport(replica.app), base_url=url)

    catalogue = Direct("http://planner")
    assert await catalogue.problems(spec(planner={"name": "rate", "parameters": {"drain_seconds": 60}})) == []
    wrong = dict(
        await catalogue.problems(
            spec(planner={"name": "rate", "parameters": {"speed": 1}}, shadows=[{"name": "magic"}])
        )
    )
    assert "it has: " in wrong["spec.planner.parameters.speed"]
    assert "there are: " in wrong["spec.shadows.0.name"]
