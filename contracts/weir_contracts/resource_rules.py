"""Rules of the ScalingPolicy resource in CEL, which the API server checks besides each field's own limits.

A rule refuses what the policy's validators refuse, before the document is stored: a password in a URL is never kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .base import NAME_PATTERN

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
_ENDPOINT, _KUBERNETES = (f"(has(self.target) && has(self.target.{name}))" for name in ("endpoint", "kubernetes"))
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
            f"{_KUBERNETES} || has(self.application)",
            "application: is required, such as flink: {url: …, job: …}",
        ),
        (f"!{_ENDPOINT} || ({_GROUP})", "target.endpoint: needs an application that is a consumer group"),
        (f"!{_SERVICE} || {_KUBERNETES}", "application.service: needs a kubernetes target"),
        (
            f"!({_GROUP}) || {_KUBERNETES} || {_ENDPOINT}",
            "application: a consumer group needs a target that scales instances: kubernetes or endpoint",
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
    ],
    "spec.application": [
        (f"{_given(['flink', 'service', 'kafkaStreams', 'consumerGroup'])} == 1", "name exactly one engine"),
    ],
    "spec.application.flink.url": [URL],
    "spec.target": [(f"{_given(['flink', 'kubernetes', 'endpoint'])} == 1", "name exactly one driver")],
    "spec.target.endpoint.url": [URL],
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


def with_rules(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the structural schema of a resource with the rules of its fields."""
    return _with_rules(schema, "")


def _with_rules(node: Mapping[str, Any], path: str) -> dict[str, Any]:
    found = dict(node)
    if "properties" in node:
        found["properties"] = {
            name: _with_rules(each, f"{path}.{name}".lstrip(".")) for name, each in node["properties"].items()
        }
    if "items" in node:
        found["items"] = _with_rules(node["items"], f"{path}[]")
    if node.get("pattern") == f"^{NAME_PATTERN}$":
        found["maxLength"] = MAX_NAME_CHARACTERS  # the API server estimates a rule's cost by it
    rules = RULES.get(path, ())
    if rules:
        found["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    if URL in rules:
        found["maxLength"] = MAX_URL_CHARACTERS
    return found
