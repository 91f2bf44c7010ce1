"""ScalingPolicy as a resource of Kubernetes: its status, and the definition that the API server checks it by.

The definition has the fields and limits of the policy's JSON Schema, and rules for fields that belong together or exclude
each other. What neither can express is in the status: `Accepted` is `False`, with the sentence that the REST API would
give.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import NAME_PATTERN, VERSION, Timestamp
from .document import Document, without_cluster_state
from .policy import ScalingPolicy

Rule = tuple[str, str]
"""Expression that must hold, and the sentence if it does not."""

MAX_URL_CHARACTERS, MAX_NAME_CHARACTERS = 2083, 63
URL: Rule = (
    "self.matches('^https?://[^/?#@]+(/[^?#]*)?$')",
    "must be an http or https address without credentials, query or fragment",
)


def _given(names: Sequence[str]) -> str:
    """Return the number of the fields that are given."""
    return " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names)


def _between(field: str, low: str, high: str) -> Rule:
    value = f"self.{field}"
    within = f"duration({value}) >= duration('{low}') && duration({value}) <= duration('{high}')"
    return f"!has({value}) || (!{value}.endsWith('d') && {within})", f"{field} must lie between {low} and {high}"


def _at_least(field: str, low: str) -> Rule:
    value = f"self.{field}"
    return (
        f"!has({value}) || {value}.contains('d') || duration({value}) >= duration('{low}')",
        f"{field} must be at least {low}",
    )


_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_ORDERED: Rule = ("!has(self.min) || !has(self.max) || self.min <= self.max", "min must not be above max")
_GROUP = "has(self.application) && (has(self.application.kafkaStreams) || has(self.application.consumerGroup))"
_FLINK = "(has(self.application) && has(self.application.flink))"
_SERVICE = "(has(self.application) && has(self.application.service))"
_TARGETS = ("flink", "flinkDeployment", "flinkSessionJob", "kubernetes", "endpoint")
_ADAPTIVE, _DEPLOYMENT, _SESSION_JOB, _KUBERNETES, _ENDPOINT = (
    f"(has(self.target) && has(self.target.{name}))" for name in _TARGETS
)
_KAFKA = "(has(self.signals) && has(self.signals.kafka))"
_CALLED = "(has({0}.label) ? {0}.label : {0}.name)"


def _unique(field: str) -> Rule:
    one, other = _CALLED.format("a"), _CALLED.format("b")
    return (
        f"!has(self.{field}) || self.{field}.all(a, self.{field}.exists_one(b, {one} == {other}))",
        f"{field}: two have the same name: set another label",
    )


def _signal(name: str) -> Rule:
    own = f"self.application.service.{name}"
    queries = "has(self.signals) && has(self.signals.prometheus)"
    return (
        f"!{_SERVICE} || !has({own}) || ({queries} && {own} in self.signals.prometheus.queries)",
        f"application.service.{name}: signals.prometheus.queries has no such name",
    )


RULES: Mapping[str, Sequence[Rule]] = {
    "spec": [
        _between("interval", "1s", "10m"),
        (
            f"{_KUBERNETES} || {_DEPLOYMENT} || has(self.application)",
            "application: is required, such as flink: {url: …, job: …}",
        ),
        (f"!{_ENDPOINT} || ({_GROUP})", "target.endpoint: needs an application that is a consumer group"),
        (f"!{_SERVICE} || {_KUBERNETES}", "application.service: needs a kubernetes target"),
        (
            f"!has(self.objective.lagMetric) || {_FLINK} || {_DEPLOYMENT} || {_SESSION_JOB}",
            "objective.lagMetric: only the sources of a Flink job report it",
        ),
        (
            f"!({_GROUP}) || !({_ADAPTIVE} || {_DEPLOYMENT} || {_SESSION_JOB})",
            "target: flink, flinkDeployment and flinkSessionJob do not scale consumer groups: name kubernetes or endpoint",
        ),
        (
            f"!({_GROUP}) || {_KUBERNETES} || {_ENDPOINT} || !has(self.mode) || self.mode != 'act'",
            "mode: act needs a target that scales the group's instances: kubernetes or endpoint",
        ),
        (
            f"({_GROUP}) || !has(self.target) || {_KUBERNETES} || {_ENDPOINT} || {_ADAPTIVE} || {_DEPLOYMENT} || {_SESSION_JOB}",
            "target: name exactly one driver",
        ),
        (f"!({_GROUP}) || {_KAFKA}", "application: a consumer group needs signals.kafka, the brokers of its group"),
        (
            f"!{_KUBERNETES} || !has(self.target.kubernetes.workloads) || !(({_GROUP}) || {_FLINK})",
            "target.kubernetes.workloads: TaskManagers and the instances of a consumer group are one workload",
        ),
        (
            f"!{_KUBERNETES} || !has(self.target.kubernetes.slots) || self.target.kubernetes.slots == 1 || ({_GROUP}) || {_FLINK}",
            "target.kubernetes.slots: a service has no slots",
        ),
        (
            "!has(self.bounds) || !has(self.bounds.operators) || size(self.bounds.operators) == 0 || "
            f"!({_KUBERNETES} || {_ENDPOINT})",
            "bounds.operators: all operators of this target have the same parallelism: use bounds.min and bounds.max",
        ),
        _signal("processed"),
        _signal("waiting"),
        _unique("candidates"),
        _unique("shadows"),
        (
            "!has(self.candidates) || !has(self.shadows) || self.candidates.all(a, !self.shadows.exists(b, "
            f"{_CALLED.format('a')} == {_CALLED.format('b')}))",
            "shadows: one has the name of a candidate: set another label",
        ),
    ],
    "spec.objective": [
        (
            f"{_given(['maxLag', 'maxLatency', 'utilization'])} == 1",
            "give exactly one of maxLag, maxLatency and utilization",
        ),
        _at_least("maxLag", "1s"),
        _at_least("maxLatency", "1s"),
        ("!has(self.lagMetric) || has(self.maxLag)", "lagMetric needs maxLag, which bounds it"),
    ],
    "spec.application": [
        (f"{_given(['flink', 'service', 'kafkaStreams', 'consumerGroup'])} == 1", "name exactly one engine"),
    ],
    "spec.application.flink.url": [URL],
    "spec.target": [(f"{_given(_TARGETS)} <= 1", "name exactly one driver")],
    "spec.target.endpoint.url": [URL],
    "spec.target.flink.taskManagers": [
        (f"{_given(['kubernetes', 'endpoint'])} == 1", "name exactly one of kubernetes and endpoint"),
    ],
    "spec.target.flink.taskManagers.endpoint.url": [URL],
    "spec.target.kubernetes": [
        (
            "has(self.workloads) ? !(has(self.kind) || has(self.name) || has(self.apiVersion)) : has(self.kind) && has(self.name)",
            "name kind and name, or list workloads",
        ),
    ],
    "spec.signals.prometheus.url": [URL],
    "spec.signals.kafka.bootstrapServers": [
        (f"self.matches('^([^,]+:({_PORT})(,|$))+$')", "each port must lie between 1 and 65535"),
    ],
    "spec.bounds": [
        (
            "(has(self.min) ? self.min : 1) <= (has(self.max) ? self.max : 32)",
            "min must not be above max, which is 32 by default",
        )
    ],
    "spec.bounds.total": [_ORDERED],
    "spec.planner": [_between("timeout", "50ms", "60s")],
    "spec.budget": [
        (f"!has(self.{name}) || (has(self.perSlot) && has(self.perSlot.{name}))", f"{name} needs perSlot.{name}")
        for name in ("cpu", "memory")
    ],
}
"""Rules by the path of the field that they are about."""


def with_rules(node: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a schema with the rules of its fields and of those below it; `path` is its own."""
    found = dict(node)
    if "properties" in node:
        found["properties"] = {
            name: with_rules(each, f"{path}.{name}".lstrip(".")) for name, each in node["properties"].items()
        }
    if "items" in node:
        found["items"] = with_rules(node["items"], f"{path}[]")
    if node.get("pattern") == f"^{NAME_PATTERN}$":
        found["maxLength"] = MAX_NAME_CHARACTERS  # the API server estimates a rule's cost by it
    rules = RULES.get(path, ())
    if rules:
        found["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    if URL in rules:
        found["maxLength"] = MAX_URL_CHARACTERS
    return found


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
