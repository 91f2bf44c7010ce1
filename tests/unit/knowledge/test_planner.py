"""What the planner service describes is what a policy may say."""

from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from weir_contracts import PlannerChoice

from services.knowledge.adapters.planner import PlannerCatalogue
from services.planner.core.planners import PLANNERS

PROPERTIES = {
    "target_utilisation": {"type": "number", "exclusiveMinimum": 0.1, "maximum": 1},
    "horizon_seconds": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
    "least": {"type": "integer", "minimum": 1},
    "shape": {"$ref": "#/$defs/Shape"},
    "odd": {"type": "boolean", "minimum": 1},
}
ANSWER: dict[str, Any] = {
    "planners": [{"name": "rate", "parameters": {"properties": PROPERTIES}}, {"name": "mine", "parameters": None}]
}


class Catalogue(PlannerCatalogue):
    """A planner service that answers this, to who has the token."""

    answer: Any = ANSWER

    def _client(self, url: str) -> httpx.AsyncClient:
        def respond(request: httpx.Request) -> httpx.Response:
            if request.headers.get("authorization") != "Bearer may-read":
                return httpx.Response(401)
            return httpx.Response(200, json=self.answer)

        made = super()._client(url)
        return httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url=url, headers=made.headers)


TOKEN = SecretStr("may-read")


async def asked(parameters: dict[str, Any], name: str = "rate", token: SecretStr | None = TOKEN) -> Any:
    return await Catalogue("http://planner", token).problems(PlannerChoice(name=name, parameters=parameters))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("target_utilisation", 5, "less than or equal to 1"),
        ("target_utilisation", 0.1, "greater than 0.1"),
        ("target_utilisation", "much", "valid number"),
        ("horizon_seconds", -1, "greater than 0"),
        ("horizon_seconds", [60], "valid number"),
        ("least", 1.5, "valid integer"),
        ("target_utilization", 0.8, "no such parameter; it has: horizon_seconds, least"),
    ],
)
async def test_a_value_that_the_planner_would_not_take_is_refused(name: str, value: Any, said: str) -> None:
    """The field, what it must be, and what it is."""
    ((field, sentence),) = await asked({name: value})
    assert field == f"spec.planner.parameters.{name}"
    assert said in sentence


async def test_what_suits_is_taken() -> None:
    """Within its limits, null where null is meant, and whatever the description leaves open."""
    suits = {"target_utilisation": 0.7, "horizon_seconds": None, "least": 3, "shape": {"any": 1}, "odd": True}
    assert await asked(suits) == []
    assert await asked({"anything": 1}, "mine") == []


async def test_the_planners_that_there_are_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they say of themselves is understood: their defaults suit, and a wrong value is found."""
    schemas = {name: entry.parameters.model_json_schema() for name, entry in PLANNERS.items()}
    entries = [{"name": name, "parameters": schema} for name, schema in schemas.items()]
    monkeypatch.setattr(Catalogue, "answer", {"planners": entries})
    for name, entry in PLANNERS.items():
        assert await asked(entry.parameters().model_dump(mode="json"), name) == []
    ((field, _),) = await asked({"target_utilisation": 5})
    assert field == "spec.planner.parameters.target_utilisation"


async def test_it_is_asked_with_its_token() -> None:
    """Without it nobody can be asked, and so nothing is refused."""
    assert await asked({"target_utilisation": 5}, token=None) is None
    assert await asked({}, "oracle") == [("spec.planner.name", "'oracle' is not known; there are: mine, rate")]


async def test_an_answer_of_another_kind_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else answers at that address."""
    monkeypatch.setattr(Catalogue, "answer", {"hello": 1})
    assert await asked({"target_utilisation": 5}) is None
