"""ScalingPolicy as a resource of Kubernetes: its status, and the definition that the API server checks it by.

The definition has the fields and limits of the policy's JSON Schema, and rules for fields that belong together or exclude
each other. What neither can express is in the status: `Accepted` is `False`, with the sentence that the REST API would
give.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import VERSION, Timestamp
from .document import Document
from .metadata import without_cluster_state
from .policy import ScalingPolicy
from .resource_rules import with_rules

GROUP, KIND, PLURAL = "weir.dev", "ScalingPolicy", "scalingpolicies"
RELEASE = f"{GROUP}/release"
"""Annotation of a policy written through the REST API that lets the resource of its name take it over: `"true"`."""

Schema = dict[str, Any]
_KEPT = {"type", "description", "enum", "pattern", "minimum", "maximum", "required"} | {
    *("minLength", "maxLength", "minItems", "maxItems", "maxProperties")
}
"""Keys that mean the same in both kinds of schema."""


class Condition(Document):
    """A condition as of any Kubernetes resource."""

    type: str
    """`Accepted`: the policy of this resource is the one in force. `Observed`: all services sent messages lately.
    `Scalable`: nothing is known that keeps the target from being scaled. `Ready`: these three hold. `ObjectiveMet`: lag is
    within `maxLag`."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str
    """Code of the reason."""
    message: str
    """The reason as a sentence."""
    observed_generation: int
    """Generation of the resource that was judged."""
    last_transition_time: Timestamp
    """Time since which `status` is what it is."""


class PolicyStatus(Document):
    """Status of the resource, written by the knowledge service."""

    observed_generation: int
    """Generation of the resource that was last read."""
    conditions: Annotated[list[Condition], Field(max_length=10)] = Field(default_factory=list)
    """Conditions by type."""
    mode: str | None = None
    """Mode in force: it differs from the resource's while the application is paused through the REST API."""
    lag_seconds: float | None = None
    """Age of the oldest unprocessed record, in s. Missing: unknown."""
    subtasks: int | None = None
    """Subtasks of all operators that run."""
    planned_subtasks: int | None = None
    """Subtasks of all operators that the last plan wants."""
    decision_code: str | None = None
    """Code of the last decision."""
    decision: str | None = None
    """The last decision as a sentence."""
    decided_at: Timestamp | None = None
    """Time of the last decision."""


def definition(schema_of: Any) -> Schema:
    """Return the CustomResourceDefinition. `schema_of` returns the JSON Schema of a type."""
    spec, status = schema_of(ScalingPolicy), schema_of(PolicyStatus)
    columns = [
        ("Mode", "string", ".status.mode", "Mode in force"),
        ("Lag", "number", ".status.lagSeconds", "Age of the oldest unprocessed record, in s"),
        ("Subtasks", "integer", ".status.subtasks", "Subtasks that run"),
        ("Planned", "integer", ".status.plannedSubtasks", "Subtasks that the last plan wants"),
        ("Decision", "string", ".status.decisionCode", "Code of the last decision"),
        ("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status', "Whether the policy is in force"),
        (
            "Ready",
            "string",
            '.status.conditions[?(@.type=="Ready")].status',
            "Whether it is in force, seen and scalable",
        ),
        ("Age", "date", ".metadata.creationTimestamp", "Age of the resource"),
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": with_rules(
                {
                    "type": "object",
                    "description": spec["description"],
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "metadata": {"type": "object"},
                        "spec": structural(spec["properties"]["spec"], spec),
                        "status": _with_map_of_conditions(structural(status, status)),
                    },
                }
            )
        },
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, "description": text} for name, type_, path, text in columns
        ],
    }
    names = {"plural": PLURAL, "singular": KIND.lower(), "kind": KIND, "shortNames": ["wsp"], "categories": ["weir"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _with_map_of_conditions(status: Schema) -> Schema:
    """Return the status's schema with conditions by type: two writers of different ones do not replace each other's."""
    by_type = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    properties = status["properties"]
    return {**status, "properties": {**properties, "conditions": {**properties["conditions"], **by_type}}}


def structural(node: Mapping[str, Any], root: Mapping[str, Any]) -> Schema:
    """Return a part of the JSON Schema `root` as Kubernetes wants it: OpenAPI 3.0 without references, one type for each
    node, and no defaults, which stay Weir's."""
    while "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        node = {**root["$defs"][name], **{key: value for key, value in node.items() if key != "$ref"}}
    types = [each for each in node.get("anyOf", ()) if each.get("type") != "null"]
    if len(types) == 1:
        others = {key: value for key, value in node.items() if key != "anyOf"}
        return {**structural({**types[0], **others}, root), "nullable": True}
    found = {key: value for key, value in node.items() if key in _KEPT}
    if types:  # a text or a number
        return {**found, "x-kubernetes-int-or-string": True, "nullable": True}
    if "const" in node:
        found["enum"] = [node["const"]]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            found |= {bound: node[exclusive], exclusive: True}
    if "properties" in node:
        found["properties"] = {name: structural(each, root) for name, each in node["properties"].items()}
    elif found.get("type") == "object":
        found |= _map_of(node, root)
    if "items" in node:
        found["items"] = structural(node["items"], root)
    return found


def _map_of(node: Mapping[str, Any], root: Mapping[str, Any]) -> Schema:
    """Return the part of a map: the schema of its values, or that they may be anything."""
    values = node.get("additionalProperties")
    if not isinstance(values, Mapping):
        values = next(iter(node.get("patternProperties", {}).values()), None)
    if values is None:
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": structural(values, root)}


def document_of(resource: Mapping[str, Any]) -> Any:
    """Return the policy's document of a resource as the API server returns it."""
    return without_cluster_state({**resource, "kind": KIND, "apiVersion": f"{GROUP}/{VERSION}"})
