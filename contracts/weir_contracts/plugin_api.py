"""OpenAPI document of the API that a remote planner implements, with its obligations."""

from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from .base import VERSION, format_duration
from .planning import PlanReply, PlanRequest
from .plugins import PLAN_OBLIGATIONS, PlannerDescription

_DESCRIBES = (
    "Returns the planner's description. Weir calls it when the planner is registered or checked, and validates the "
    "parameters of policies against the schema in it."
)
_ERROR = {
    "type": "object",
    "description": "RFC 9457, or any object with a text `detail` or `message`, whose first 300 characters users see",
    "properties": {"detail": {"type": "string"}},
}


class JsonSchema(GenerateJsonSchema):
    """JSON Schema whose defaults of durations have a policy's form: `1m`, not `PT1M`."""

    def encode_default(self, dft: Any) -> Any:
        """Return a default as JSON."""
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def plugin_openapi() -> dict[str, Any]:
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


def _content(name: str) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


def _json(name: str, description: str) -> dict[str, Any]:
    return {"description": description, **_content(name)}
