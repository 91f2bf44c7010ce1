"""Write the JSON Schemas of all contracts, the OpenAPI documents of planners and endpoints, the policy's reference page
and its resource definition for Kubernetes, or check that they match.

`python -m weir_contracts.export [--check] [FOLDER]`
"""

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from .analysis import Analysis
from .base import VERSION, format_duration
from .change import Answer, Change
from .notification import Notification
from .observation import Observation
from .outcome import ActionState, Outcome
from .planning import Plan, PlanReply, PlanRequest
from .plugins import (
    ENDPOINT_OBLIGATIONS,
    PLAN_OBLIGATIONS,
    EndpointRequest,
    EndpointRestart,
    EndpointState,
    PlannerDescription,
    PlannerRegistration,
)
from .policy import ScalingPolicy
from .resource import definition
from .topics import DeadLetter
from .what_if import Judgement, WhatIf

CONTRACTS: dict[str, type[BaseModel]] = {
    "policy": ScalingPolicy,
    "change": Change,
    "change-answer": Answer,
    "observation": Observation,
    "analysis": Analysis,
    "plan-request": PlanRequest,
    "plan-reply": PlanReply,
    "plan": Plan,
    "outcome": Outcome,
    "action-state": ActionState,
    "dead-letter": DeadLetter,
    "notification": Notification,
    "what-if": WhatIf,
    "judgement": Judgement,
    "planner-description": PlannerDescription,
    "planner-registration": PlannerRegistration,
}
"""Contracts by the name of their schema and examples."""

Schema = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = f"contracts/schemas/{VERSION}"


class JsonSchema(GenerateJsonSchema):
    """JSON Schema whose defaults of durations have a policy's form: `1m`, not `PT1M`."""

    def encode_default(self, dft: Any) -> Any:
        """Return a default as JSON."""
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the contract's JSON Schema, with fields in the order of the type."""
    return model.model_json_schema(by_alias=True, schema_generator=JsonSchema)


def schema_text(model: type[BaseModel], name: str) -> str:
    """Return the content of the contract's schema file (JSON Schema draft 2020-12)."""
    address = f"https://weir.dev/schemas/{VERSION}/{name}.schema.json"
    return _text({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": address, **schema_of(model)})


def _text(schema: Schema) -> str:
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


_DESCRIBES = (
    "Returns the planner's description. Weir calls it when the planner is registered or checked, and validates the "
    "parameters of policies against the schema in it."
)
_ERROR = {
    "type": "object",
    "description": "RFC 9457, or any object with a text `detail` or `message`, whose first 300 characters users see",
    "properties": {"detail": {"type": "string"}},
}


def plugin_openapi() -> Schema:
    """Return the OpenAPI 3.1 document: `GET /` and `POST /plan` below the planner's URL."""
    _, definitions = models_json_schema(
        [(PlannerDescription, "serialization"), (PlanRequest, "validation"), (PlanReply, "validation")],
        ref_template="#/components/schemas/{model}",
        schema_generator=JsonSchema,
    )
    problem = {"content": {"application/problem+json": {"schema": _ERROR}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Planner of Weir",
            "version": VERSION,
            "description": "API of a server that policies name as their planner. Its obligations:\n\n"
            + "\n".join(f"- {obligation}" for obligation in PLAN_OBLIGATIONS)
            + "\n\nWithout a valid reply the policy's fallback decides, or the plan is a hold with the reason. "
            "After five failures in a row Weir does not call the planner for 10 s, "
            "and twice as long after each further failure.",
        },
        "paths": {
            "/": {
                "get": {
                    "operationId": "describe",
                    "summary": "Describe the planner",
                    "description": _DESCRIBES,
                    "responses": {"200": _json("PlannerDescription", "Description of the planner")},
                }
            },
            "/plan": {
                "post": {
                    "operationId": "plan",
                    "summary": "Plan for one application",
                    "description": "\n\n".join(PLAN_OBLIGATIONS),
                    "requestBody": {"required": True, **_content("PlanRequest")},
                    "responses": {
                        "200": _json("PlanReply", "Parallelism of every operator, or a hold, with its reason"),
                        "4XX": {"description": "Not a valid request, or parameters that are not accepted", **problem},
                        "5XX": {"description": "Internal error of the planner", **problem},
                    },
                }
            },
        },
        "components": {"schemas": definitions["$defs"]},
    }


def endpoint_openapi() -> Schema:
    """Return the OpenAPI 3.1 document of a server that `spec.target.endpoint` names: `GET` and `PUT` of its URL, and
    `POST` of an instance below it."""
    _, definitions = models_json_schema(
        [(EndpointState, "validation"), (EndpointRequest, "validation"), (EndpointRestart, "validation")],
        ref_template="#/components/schemas/{model}",
        schema_generator=JsonSchema,
    )
    state = _json("EndpointState", "Instances, requested and running")
    no_token = {"description": "No token, or not the right one"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Endpoint that scales an application",
            "version": VERSION,
            "description": "API of a server that policies name as `spec.target.endpoint`. Its obligations:\n\n"
            + "\n".join(f"- {obligation}" for obligation in ENDPOINT_OBLIGATIONS),
        },
        "paths": {
            "/": {
                "get": {
                    "operationId": "read",
                    "summary": "Read the instances of the application",
                    "responses": {
                        "200": state,
                        "401": no_token,
                        "403": no_token,
                        "404": {"description": "The server does not know the application"},
                    },
                },
                "put": {
                    "operationId": "scale",
                    "summary": "Request a number of instances",
                    "requestBody": {"required": True, **_content("EndpointRequest")},
                    "responses": {
                        "200": state,
                        "401": no_token,
                        "403": no_token,
                        "404": {"description": "The server does not know the application"},
                        "409": {"description": "Another version, or a change is under way: nothing was changed"},
                        "422": {"description": "A number of instances that the server does not run"},
                    },
                },
            },
            "/instances/{id}/restart": {
                "post": {
                    "operationId": "restart",
                    "summary": "Restart one instance; only servers with `restarts` serve it",
                    "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                    "requestBody": {"required": True, **_content("EndpointRestart")},
                    "responses": {
                        "200": state,
                        "401": no_token,
                        "403": no_token,
                        "404": {"description": "The server does not know the application, or lists no such instance"},
                        "409": {"description": "Another version, or a change is under way: nothing was restarted"},
                    },
                }
            },
        },
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _content(name: str) -> Schema:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


def _json(name: str, description: str) -> Schema:
    return {"description": description, **_content(name)}


_HEAD = """# Policy

Generated from the contracts by `make schemas`; do not edit. Fields are in camelCase, durations as `500ms`, `30s`,
`5m`, `1h30m` or `2d`. An unknown field is refused, a field that is `null` is not given. The same fields as JSON Schema:
[policy.schema.json](../../contracts/schemas/v1alpha1/policy.schema.json).
"""


def policy_page(schema: Schema) -> str:
    """Return the page of a policy's JSON Schema that has its definitions in `$defs`."""
    sections: dict[str, list[str]] = {}
    for path, field, is_required in fields(schema):
        top = ".".join(path.replace("[]", "").split(".")[:2]) if path.startswith("spec.") else path.split(".")[0]
        top = top if path.startswith(("spec.", "metadata")) else "document"
        default = "required" if is_required else _default(field)
        row = f"| `{path}` | {_type(field, schema)} | {default} | {field['description']} |"
        sections.setdefault(top, []).append(" ".join(row.split()))
    lines = [_HEAD]
    for name, rows in sections.items():
        lines += [f"## {name}", "", "| field | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def fields(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Yield each field's path, schema and whether it is required, in the order of the types."""

    def below(model: Schema, prefix: str) -> Iterator[tuple[str, Schema, bool]]:
        for name, field in model.get("properties", {}).items():
            path = f"{prefix}{name}"
            yield path, field, name in model.get("required", ())
            for suffix, part in (("", field), ("[]", field.get("items")), (".NAME", field.get("additionalProperties"))):
                if isinstance(part, dict) and (inner := _model(part, schema)):
                    yield from below(inner, f"{path}{suffix}.")

    return below(schema, "")


def _model(field: Schema, root: Schema) -> Schema | None:
    """Return the definition that a field refers to, or None for a plain value."""
    for each in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
        if reference := each.get("$ref"):
            found: Schema = root["$defs"][reference.rsplit("/", 1)[1]]
            return found
    return None


def _type(field: Schema, root: Schema) -> str:
    parts = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    return " or ".join(_plain_type(each, root) for each in parts)


def _plain_type(field: Schema, root: Schema) -> str:
    if _model(field, root) or field.get("type") == "object":
        return "object"
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        return f"list of {_plain_type(field['items'], root)}"
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum", field.get("exclusiveMaximum"))
    text = str(field["type"])
    if "exclusiveMinimum" in field:
        text += f", above {low:g}" + (f" up to {high:.7g}" if high is not None else "")
    elif low is not None and high is not None and high < 2**53:
        text += f", {low:g} to {high:.7g}"
    elif low is not None:
        text += f", at least {low:g}"
    return f"{text}, such as `{field['examples'][0]}`" if "examples" in field else text


def _default(field: Schema) -> str:
    if field.get("default") is None:
        return "–"
    value = field["default"]
    return ", ".join(f"`{each}`" for each in value) if isinstance(value, list) else f"`{value}`"


def documents() -> dict[str, str]:
    """Return the contents of all exported files by path from the project's root: schemas, OpenAPI, policy reference."""
    schemas = {f"{SCHEMAS}/{name}.schema.json": schema_text(model, name) for name, model in CONTRACTS.items()}
    return schemas | {
        f"{SCHEMAS}/planner.openapi.json": _text(plugin_openapi()),
        "docs/reference/endpoint.openapi.json": _text(endpoint_openapi()),
        "docs/reference/policy.md": policy_page(schema_of(ScalingPolicy)),
        "deploy/k8s/components/policy-resources/scalingpolicies.json": _text(definition(schema_of)),
    }


def drift(folder: Path = ROOT) -> list[str]:
    """Return one sentence for each exported file that is missing or differs from the types."""
    found = []
    for name, text in documents().items():
        path = folder / name
        if not path.exists():
            found.append(f"{path.name} is missing: run `make schemas`")
        elif path.read_text() != text:
            found.append(f"{path.name} differs from the types: run `make schemas` and read the difference")
    return found


def export(folder: Path = ROOT) -> list[Path]:
    """Write all exported files below `folder`; return their paths."""
    written = []
    for name, text in documents().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written


def main(arguments: list[str]) -> int:
    """Return 0 if written or without drift, 1 with drift (`--check`)."""
    folders = [Path(a) for a in arguments if not a.startswith("-")]
    folder = folders[0] if folders else ROOT
    lines = drift(folder) if "--check" in arguments else [str(path) for path in export(folder)]
    sys.stdout.writelines(line + "\n" for line in lines)
    return 1 if "--check" in arguments and lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
