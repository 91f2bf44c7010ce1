"""ScalingPolicy as a resource of Kubernetes: its status, and the definition that the API server checks it by.

The definition has the fields and limits of the policy's JSON Schema, and rules for fields that belong together or exclude
each other. What neither can express is in the status: `Accepted` is `False`, with the sentence that the REST API would
give.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import VERSION, Timestamp
from .document import Document, without_cluster_state
from .policy import ScalingPolicy
from .resource_rules import with_rules

GROUP, KIND, PLURAL = "weir.dev", "ScalingPolicy", "scalingpolicies"
RELEASE = f"{GROUP}/release"
"""Annotation of a policy written through the REST API that lets the resource of its name take it over: `"true"`."""

PAUSED = f"{GROUP}/paused"
"""Annotation that pauses a policy while it is there; `"false"` does not. Another text than `"true"` is the reason. In a stored
policy it says that the annotation pauses it, and not its `mode` or a caller of the REST API."""

Schema = dict[str, Any]
_KEPT = {"type", "description", "enum", "pattern", "minimum", "maximum", "required"} | {
    *("minLength", "maxLength", "minItems", "maxItems", "maxProperties")
}
"""Keys that mean the same in both kinds of schema."""


class Condition(Document):
    """A condition as of any Kubernetes resource."""

    type: str
    """`Accepted`: the policy of this resource is the one in force. `Observed`: monitor and analyzer see the application.
    `Planned`: the planner decides on it. `Acting`: Weir changes the target where a plan says so. `ObjectiveMet`: lag,
    latency or utilization is within the objective. `Degraded`: something keeps Weir from its work. `Ready`: the policy is
    in force and not degraded."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=1024)]
    """Code of the reason."""
    message: Annotated[str, Field(max_length=32768)]
    """The reason as a sentence."""
    observed_generation: int
    """Generation of the resource that was judged: an earlier one while that stays in force."""
    last_transition_time: Timestamp
    """Time since which `status` is what it is."""


class Sizes(Document):
    """Parallelism in subtasks. A missing number is unknown."""

    wanted: int | None = None
    """What the last plan wants."""
    requested: int | None = None
    """What is requested of the target."""
    running: int | None = None
    """What runs."""


class OperatorSizes(Sizes):
    """Parallelism of one operator."""

    name: str
    """Name of the operator."""


class LastDecision(Document):
    """The last plan."""

    kind: str
    """`scale`, `restart_instance` or `hold`."""
    code: str
    """Its reason, as a code."""
    sentence: str
    """Its reason, as a sentence."""
    at: Timestamp
    """Time of the plan."""


class LastAction(Document):
    """The last action on the target."""

    phase: str
    """Its phase: `verified`, `rolled-back`, `superseded` and `failed` are final."""
    sentence: str
    """How it goes or went, as a sentence."""


MAX_OPERATORS = 50
"""Operators in a status; the sums have all."""


class PolicyStatus(Document):
    """Status of the resource, written by the knowledge service."""

    observed_generation: int
    """Generation of the resource that was last read."""
    conditions: Annotated[list[Condition], Field(max_length=10)] = Field(default_factory=list)
    """Conditions by type."""
    mode: str | None = None
    """Mode in force: it differs from the resource's while the application is paused."""
    lag_seconds: float | None = None
    """Age of the oldest unprocessed record, in s. Missing: unknown."""
    parallelism: Sizes | None = None
    """Subtasks of all operators together."""
    operators: Annotated[list[OperatorSizes], Field(max_length=MAX_OPERATORS)] = Field(default_factory=list)
    """Subtasks of each operator, of the first 50."""
    decision: LastDecision | None = None
    """The last plan."""
    action: LastAction | None = None
    """The last action."""


def definition(schema_of: Any) -> Schema:
    """Return the CustomResourceDefinition. `schema_of` returns the JSON Schema of a type."""
    spec, status = schema_of(ScalingPolicy), schema_of(PolicyStatus)
    columns: list[tuple[str, str, str, int, str]] = [
        ("Mode", "string", ".status.mode", 0, "Mode in force"),
        ("Lag", "number", ".status.lagSeconds", 0, "Age of the oldest unprocessed record, in s"),
        ("Met", "string", _status_of("ObjectiveMet"), 0, "Whether the objective is met"),
        ("Wanted", "integer", ".status.parallelism.wanted", 0, "Subtasks that the last plan wants"),
        ("Requested", "integer", ".status.parallelism.requested", 1, "Subtasks that are requested of the target"),
        ("Running", "integer", ".status.parallelism.running", 0, "Subtasks that run"),
        ("Decision", "string", ".status.decision.code", 0, "Code of the last plan"),
        ("Accepted", "string", _status_of("Accepted"), 0, "Whether the policy is in force"),
        ("Acting", "string", _status_of("Acting"), 1, "Whether Weir changes the target"),
        ("Ready", "string", _status_of("Ready"), 0, "Whether it is in force and not degraded"),
        ("Age", "date", ".metadata.creationTimestamp", 0, "Age of the resource"),
        ("Why", "string", ".status.decision.sentence", 1, "The last plan as a sentence"),
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
            {"name": name, "type": type_, "jsonPath": path, "priority": priority, "description": text}
            for name, type_, path, priority, text in columns
        ],
    }
    names = {"plural": PLURAL, "singular": KIND.lower(), "kind": KIND, "shortNames": ["wsp"], "categories": ["weir"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _status_of(condition: str) -> str:
    return f'.status.conditions[?(@.type=="{condition}")].status'


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
    if types:  # a text or a number, each with its own limits
        for each in types:
            found |= {key: value for key, value in each.items() if key in _KEPT - {"type"}}
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
