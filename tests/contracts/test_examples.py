"""Golden examples and exported schemas, on which other programs rely."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from weir_contracts import PLAN_OBLIGATIONS, Symptom
from weir_contracts.base import VERSION
from weir_contracts.export import CONTRACTS, drift, export, fields, plugin_openapi, schema_of

EXAMPLES = Path(__file__).resolve().parents[2] / "contracts" / "examples" / VERSION
CASES = [(name, path.stem) for name in CONTRACTS for path in sorted((EXAMPLES / name).glob("*.json"))]


def _load(name: str, which: str) -> Any:
    return json.loads((EXAMPLES / name / f"{which}.json").read_text())


@pytest.mark.parametrize(("name", "which"), CASES)
def test_an_example_survives_being_read_and_written(name: str, which: str) -> None:
    """Read and written again without unset fields, every example equals itself: fails for a renamed, removed or
    re-typed field, passes for an added optional one."""
    document = _load(name, which)
    message = CONTRACTS[name].model_validate(document)
    assert json.loads(message.model_dump_json(exclude_unset=True)) == document


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_each_contract_has_its_examples(name: str) -> None:
    """One with the required fields and one with all; there may be more."""
    assert {"minimal", "full"} <= {which for contract, which in CASES if contract == name}


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_the_minimal_example_has_only_required_fields(name: str) -> None:
    """Leaving out any top-level field of a minimal example makes it invalid."""
    document = _load(name, "minimal")
    optional = []
    for field in document:
        try:
            CONTRACTS[name].model_validate({k: v for k, v in document.items() if k != field})
        except ValidationError:
            continue
        optional.append(field)
    assert optional == []


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_the_full_example_shows_every_field(name: str) -> None:
    """A reader of `full.json` sees each top-level field at least once."""
    shown = set(_load(name, "full"))
    model: type[BaseModel] = CONTRACTS[name]
    assert shown == {info.serialization_alias or info.alias or field for field, info in model.model_fields.items()}


def test_exported_schemas_match_the_types() -> None:
    """`make schemas` was run after the last change of a type."""
    assert drift() == []


@pytest.mark.thorough
def test_drift_is_reported(tmp_path: Path) -> None:
    """An edited and a missing schema are each named."""
    paths = export(tmp_path)
    paths[0].write_text("{}")
    paths[1].unlink()
    found = drift(tmp_path)
    assert len(found) == 2
    assert paths[0].name in found[0]
    assert "missing" in found[1]


def test_every_field_of_a_policy_is_described() -> None:
    """A user reads meaning, unit and default's reason in the schema and in docs/reference/policy.md."""
    found = {path: field.get("description") for path, field, _ in fields(schema_of(CONTRACTS["policy"]))}
    assert len(found) >= 78
    assert {path for path, description in found.items() if not description} == set()


def test_defaults_match_the_patterns_of_their_fields() -> None:
    """A duration's default is written as a policy writes it."""
    found = [
        field for _, field, _ in fields(schema_of(CONTRACTS["policy"])) if "default" in field and "pattern" in field
    ]
    assert len(found) > 5
    assert [field for field in found if not re.search(field["pattern"], field["default"])] == []


def test_readers_ignore_fields_of_a_newer_writer() -> None:
    """A writer may be newer than its reader within a version."""
    document = _load("observation", "full") | {"colour": "blue"}
    assert "colour" not in CONTRACTS["observation"].model_validate(document).model_dump()


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_no_required_field_may_be_null(name: str) -> None:
    """null in a required field is refused with that field's name, never read as 0."""
    document = _load(name, "minimal")
    for field in document:
        with pytest.raises(ValidationError) as caught:
            CONTRACTS[name].model_validate(document | {field: None})
        assert any(error["loc"][0] in (field, CONTRACTS[name].__name__) for error in caught.value.errors())


def test_the_planners_openapi_is_complete() -> None:
    """Every reference has its schema, and every obligation is in the description of the call."""
    document = plugin_openapi()
    plan = document["paths"]["/plan"]["post"]
    assert all(obligation in plan["description"] for obligation in PLAN_OBLIGATIONS)
    obligations = " ".join(PLAN_OBLIGATIONS)
    assert all(word in obligations for word in ("timeout", "same answer", "bytes", "null"))
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert {"PlannerDescription", "PlanRequest", "PlanReply"} <= references <= set(document["components"]["schemas"])


@pytest.mark.parametrize("name", ["plan-request", "plan-reply", "planner-description"])
def test_every_field_that_a_planner_reads_or_writes_is_described(name: str) -> None:
    """A planner's author reads the meaning in the schema. Names, ids and parts whose type has a description need none."""
    schema = schema_of(CONTRACTS[name])
    models = {CONTRACTS[name].__name__: schema, **schema.get("$defs", {})}
    obvious = {"id", "application", "operator", "plan_id", "name", "topic", "partition", "source", "target", "kind"}
    missing = [
        f"{model}.{field}"
        for model, definition in models.items()
        for field, content in definition.get("properties", {}).items()
        if field not in obvious and "description" not in content and "$ref" not in json.dumps(content)
    ]
    assert missing == []


def test_an_unknown_symptom_is_read() -> None:
    """Engines have symptoms of their own; a reader that does not know one passes it on."""
    symptom = Symptom.model_validate_json('{"code": "hot-partition", "evidence": "orders-3 gets 61 % of the records."}')
    assert symptom.code == "hot-partition"
