"""A planner's schema of its parameters: refused unless it can be checked cheaply and without fetching."""

from typing import Any

import pytest
from pydantic import BaseModel, Field

from weir_sdk.installed import installed
from weir_sdk.schemas import parameter_problems, schema_problems


class Inner(BaseModel):
    names: list[str] = []


class Wanted(BaseModel):
    target: float = Field(0.7, gt=0, le=1)
    shape: Inner = Inner()


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema of a kilobyte that expands to two to the power of `levels` parts."""
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    for i in range(1, levels):
        defs[f"d{i}"] = {"allOf": [{"$ref": f"#/$defs/d{i - 1}"}] * 2}
    return {"type": "object", "$defs": defs, "properties": {"a": {"$ref": f"#/$defs/d{levels - 1}"}}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string"}, "schema of an object"),
        ({"type": "object", "properties": 3}, "no JSON Schema"),
        ({"type": "object", "properties": {"a": {"type": "nonsense"}}}, "no JSON Schema"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}, "leads out of it"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "leads out of it"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "leads nowhere"),
        ({"properties": {"a": {"$ref": "#"}}}, "leads back to itself"),
        (
            {"$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}, "properties": {"a": {"$ref": "#/$defs/t"}}},
            "leads back to itself",
        ),
        ({"properties": {"a": {"pattern": "(?=x)x"}}}, "linear time"),
        ({"properties": {"a": {"pattern": "("}}}, "linear time"),
        ({"properties": {"a": {"pattern": 3}}}, "parameters"),
        ({"properties": {"a": {"pattern": ["x"]}}}, "parameters"),
        ({"patternProperties": {"(a+)+$": {}}}, "not supported"),
        (doubling(30), "more than 5000 parts"),
        ({"description": "x" * 200_000}, "bytes"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: dict[str, Any], reason: str) -> None:
    """Nothing is fetched, checking terminates, and the reason is reported."""
    [problem] = schema_problems(schema)
    assert reason in problem
    assert "cannot be used" in parameter_problems("mine", schema, {"a": "x"}, "spec.planner.parameters")[0][1]


def test_pydantics_schema_of_a_model_can_be_used() -> None:
    """It includes nested models; every built-in planner's schema passes too."""
    assert schema_problems(Wanted.model_json_schema()) == []
    for name, entry in installed().items():
        assert schema_problems(entry.parameters.model_json_schema()) == [], name


def test_wrong_parameters_are_named_with_what_is_allowed() -> None:
    """Each problem has its field."""
    schema = {
        "properties": {
            "target": {"type": "number", "maximum": 1},
            "mode": {"enum": ["calm", "bold"]},
            "label": {"type": "string", "pattern": "^(a+)+$"},
            "steps": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["mode"],
        "additionalProperties": False,
    }

    def wrong(**values: Any) -> list[tuple[str, str]]:
        return parameter_problems("mine", schema, values, "spec.planner.parameters")

    assert wrong(mode="calm", target=0.5, label="aaa", steps=[1]) == []
    assert wrong(mode="wild") == [("spec.planner.parameters.mode", "'wild' is not one of ['calm', 'bold']")]
    assert wrong(mode="calm", target=5)[0] == ("spec.planner.parameters.target", "5 is greater than the maximum of 1")
    assert wrong(mode="calm", steps=[1, "x"])[0][0] == "spec.planner.parameters.steps.1"
    assert wrong()[0][1] == "'mode' is a required property"
    assert wrong(mode="calm", speed=3) == [
        ("spec.planner.parameters.speed", "mine has no such parameter; it has: label, mode, steps, target")
    ]
    # Python's `re` would take exponential time for this pattern.
    assert "does not match" in wrong(mode="calm", label="a" * 5_000 + "!")[0][1]
    assert "bytes" in wrong(mode="calm", label="a" * 20_000)[0][1]
