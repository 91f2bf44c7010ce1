"""The OpenAPI document of what a planner elsewhere implements, obligations beside the fields."""

from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from .base import VERSION, format_duration
from .planning import PlanReply, PlanRequest
from .plugins import PLAN_OBLIGATIONS, PlannerDescription

_DESCRIBES = (
    "Says who it is. Asked when the planner is registered or checked. Parameters of policies are checked against its schema by Weir; what "
    "it means is the planner's own."
)
_ERROR = {
    "type": "object",
    "description": "RFC 9457, or anything with a text `detail` or `message`, of which 300 characters are shown to people",
    "properties": {"detail": {"type": "string"}},
}


class JsonSchema(GenerateJsonSchema):
    """JSON Schema with durations' defaults as a policy writes them: `1m`, not `PT1M`."""

    def encode_default(self, dft: Any) -> Any:
        """Return a default as JSON."""
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def plugin_openapi() -> dict[str, Any]:
    """OpenAPI 3.1: `GET /` and `POST /plan` below the planner's URL."""
    _, definitions = models_json_schema(
        [(PlannerDescription, "serialization"), (PlanRequest, "validation"), (PlanReply, "validation")],
        ref_template="#/components/schemas/{model}",
        schema_generator=JsonSchema,
    )
    problem = {"content": {"application/problem+json": {"schema": _ERROR}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "A planner of Weir",
            "version": VERSION,
            "description": "What a server implements so that policies can name it as their planner, and what it owes:\n\n"
            + "\n".join(f"- {obligation}" for obligation in PLAN_OBLIGATIONS)
            + "\n\nWhere it gives no usable answer, the policy's fallback decides or nothing changes; the plan says why. After five "
            "failures in a row it is not asked for 10 s, then for twice as long after each single try that fails.",
        },
        "paths": {
            "/": {
                "get": {
                    "operationId": "describe",
                    "summary": "Who it is",
                    "description": _DESCRIBES,
                    "responses": {"200": _json("PlannerDescription", "What policies may give it")},
                }
            },
            "/plan": {
                "post": {
                    "operationId": "plan",
                    "summary": "What should be",
                    "description": "\n\n".join(PLAN_OBLIGATIONS),
                    "requestBody": {"required": True, **_content("PlanRequest")},
                    "responses": {
                        "200": _json(
                            "PlanReply", "A parallelism for every operator, or a hold; either with its reason"
                        ),
                        "4XX": {
                            "description": "This is no request, or has parameters that it does not take",
                            **problem,
                        },
                        "5XX": {"description": "A fault of the planner's own", **problem},
                    },
                }
            },
        },
        "components": {"schemas": definitions["$defs"]},
    }


def _content(name: str) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


def _json(name: str, description: str) -> dict[str, Any]:
    return {"description": description, **_content(name)}
