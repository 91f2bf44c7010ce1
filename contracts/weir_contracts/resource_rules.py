"""Rules of the resource's definition, in the Common Expression Language: fields that belong together or exclude each other,
by the path of the field that they are about.

They say what the policy's own validators say, so that `kubectl apply` refuses what the REST API refuses. A test compares
both on generated documents. The language cannot say whether a time zone or a cron expression exists, what parameters of a
planner contain, nor what other policies have.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .base import DURATION_PATTERN, MAX_DURATION_SECONDS, NAME_PATTERN, PORT_PATTERN, URL_PATTERN
from .policy_behavior import CLOCK_PATTERN
from .target import WORKLOAD_PATTERN

Rule = tuple[str, str]
"""Expression that must hold, and the sentence if it does not."""

MAX_URL_CHARACTERS, MAX_NAME_CHARACTERS = 2083, 63
_MAX_CHARACTERS = {f"^{NAME_PATTERN}$": MAX_NAME_CHARACTERS, WORKLOAD_PATTERN: 253, CLOCK_PATTERN: 5}
"""Lengths of texts by their pattern, from which the API server estimates what a rule costs."""
MAX_BYTES = 2**60
_HALF_MICROSECOND = 5e-7
"""Durations are rounded to microseconds."""


def _seconds(text: str) -> str:
    """Return the seconds of a duration's text: its parts by their units, in any order."""
    units = "{'ms': 0.001, 's': 1.0, 'm': 60.0, 'h': 3600.0, 'd': 86400.0}"
    parts = f"{text}.findAll('[0-9.]+[a-z]+')"
    return f"{parts}.map(p, double(p.find('[0-9.]+')) * {units}[p.find('[a-z]+')]).sum()"


def _between(low_seconds: float, high_seconds: float, sentence: str) -> Rule:
    """Return the rule of a field with a duration."""
    low, high = low_seconds - _HALF_MICROSECOND, high_seconds + _HALF_MICROSECOND
    return f"[{_seconds('self')}].all(s, s >= {low!r} && s <= {high!r})", sentence


_DURATION = _between(0.0, MAX_DURATION_SECONDS, "must lie between 0s and 366d")


def _given(names: Sequence[str]) -> str:
    """Return the expression for the number of these fields that are present."""
    return " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names)


def _or(field: str, default: object) -> str:
    """Return the value of a field, or its default."""
    return f"(has({field}) ? {field} : {default})"


def _bytes(memory: str) -> str:
    """Return the bytes of a size such as `4Gi`, or of an integer."""
    units = ", ".join(
        f"'{unit}': {float(factor)!r}"
        for unit, factor in (
            *((unit, 1000**power) for power, unit in enumerate("kMGT", start=1)),
            *((f"{unit}i", 1024**power) for power, unit in enumerate("KMGT", start=1)),
        )
    )
    of_text = f"double({memory}.find('[0-9.]+')) * {{{units}}}[{memory}.find('[A-Za-z]+')]"
    return f"(type({memory}) == int ? double({memory}) : {of_text})"


def _whole(number: str) -> str:
    """Return the nearest integer of a number of 0 or more."""
    return f"int({number} + 0.5)"


URL: Rule = (
    f"self.matches(r'{URL_PATTERN}') && (!self.matches(r'^https?://\\[') || "
    r"isIP(self.find(r'[[][^]]+').substring(1)))",
    "must be an http or https address without credentials, query or fragment, with a port between 1 and 65535",
)
_ORDERED: Rule = ("!has(self.min) || !has(self.max) || self.min <= self.max", "min must not be above max")
_SERVICE_FIELDS = "self.application.service"
_GROUP = "(has(self.application) && (has(self.application.kafkaStreams) || has(self.application.consumerGroup)))"
_GROUP_ID = (
    "(has(self.application.kafkaStreams) ? self.application.kafkaStreams.applicationId : "
    "self.application.consumerGroup.groupId)"
)
_FLINK = "(has(self.application) && has(self.application.flink))"
_SERVICE = f"(has(self.application) && has({_SERVICE_FIELDS}))"
_TARGETS = ("flink", "flinkDeployment", "flinkSessionJob", "kubernetes", "endpoint")
_ADAPTIVE, _DEPLOYMENT, _SESSION_JOB, _KUBERNETES, _ENDPOINT = (
    f"(has(self.target) && has(self.target.{name}))" for name in _TARGETS
)
_KAFKA, _PROMETHEUS = (f"(has(self.signals) && has(self.signals.{name}))" for name in ("kafka", "prometheus"))
_WORKLOADS = "self.target.kubernetes.workloads"
_MANAGERS = "self.target.flink.taskManagers"
_UNITS = {
    "kubernetes": f"({_KUBERNETES} && !has({_WORKLOADS}))",
    "endpoint": _ENDPOINT,
    "flink.taskManagers": f"({_ADAPTIVE} && has({_MANAGERS}) && {_or(f'{_MANAGERS}.reactive', 'false')})",
}
"""Whether a target is scaled by its number of instances, by the target's field."""
_UNIFORM = f"({_ADAPTIVE} && has(self.target.flink.resubmit) && {_or('self.target.flink.resubmit.uniform', 'false')})"
"""Whether a job is run again with one parallelism for all operators."""
_MIN = _or("self.bounds.min", 1).replace("has(self.bounds.min)", "has(self.bounds) && has(self.bounds.min)")
_MAX = _or("self.bounds.max", 32).replace("has(self.bounds.max)", "has(self.bounds) && has(self.bounds.max)")
_CALLED = "(has({0}.label) ? {0}.label : {0}.name)"
_PLANNER = "(has(self.planner) && has(self.planner.name) ? self.planner.name : 'rate')"


def _unique(field: str) -> list[Rule]:
    one, other = _CALLED.format("a"), _CALLED.format("b")
    return [
        (
            f"!has(self.{field}) || self.{field}.all(a, self.{field}.exists_one(b, {one} == {other}))",
            f"{field}: two have the same name: set another label",
        ),
        (
            f"!has(self.{field}) || self.{field}.all(a, {one} != {_PLANNER})",
            f"{field}: one has the name of the planner: set another label",
        ),
    ]


def _signals(name: str) -> list[Rule]:
    """Return the rules that a signal of a service, or of one of its workloads, is the name of a query."""
    own, of_operator = f"{_SERVICE_FIELDS}.{name}", f"{_SERVICE_FIELDS}.operators[o].{name}"
    is_query = f"{_PROMETHEUS} && {{0}} in self.signals.prometheus.queries"
    return [
        (
            f"!{_SERVICE} || !has({own}) || ({is_query.format(own)})",
            f"application.service.{name}: signals.prometheus.queries has no such name",
        ),
        (
            f"!{_SERVICE} || !has({_SERVICE_FIELDS}.operators) || {_SERVICE_FIELDS}.operators.all(o, "
            f"!has({of_operator}) || ({is_query.format(of_operator)}))",
            f"application.service.operators: signals.prometheus.queries has no such name as their {name}",
        ),
    ]


def _fits(target: str, is_unit: str) -> Rule:
    """Return the rule that some number of instances of a target, if `is_unit`, is within the bounds."""
    slots = _or(f"self.target.{target}.slots", 1)
    return (
        f"!({is_unit}) || {_MAX} / {slots} * {slots} >= {_MIN}",
        f"bounds: no number of instances of target.{target} gives a parallelism between min and max",
    )


_SIZES = "self.budget.{0}", "self.budget.perSlot.{0}"
_SOURCES = f"{_WORKLOADS}.filter(w, !has(w.inputs) || size(w.inputs) == 0)"
_OPERATORS = f"has({_SERVICE_FIELDS}.operators)"


def _budget(name: str, slots: str) -> Rule:
    """Return the rule that a budget is enough for the minimum."""
    given = f"has(self.budget) && has(self.budget.{name})"
    if name != "slots":
        given += f" && has(self.budget.perSlot) && has(self.budget.perSlot.{name})"
    return f"!({given}) || {slots} >= {_MIN}", f"budget.{name}: allows fewer slots than bounds.min requires"


_SPEC: Sequence[Rule] = [
    (
        f"{_KUBERNETES} || {_DEPLOYMENT} || has(self.application)",
        "application: is required, such as flink: {url: …, job: …}",
    ),
    (f"!{_ENDPOINT} || {_GROUP}", "target.endpoint: needs an application that is a consumer group"),
    (f"!{_SERVICE} || {_KUBERNETES}", "application.service: needs a kubernetes target"),
    (
        f"!has(self.objective.lagMetric) || {_FLINK} || {_DEPLOYMENT} || {_SESSION_JOB}",
        "objective.lagMetric: only the sources of a Flink job report it",
    ),
    (
        f"!{_GROUP} || !({_ADAPTIVE} || {_DEPLOYMENT} || {_SESSION_JOB})",
        "target: flink, flinkDeployment and flinkSessionJob do not scale consumer groups: name kubernetes or endpoint",
    ),
    (
        f"!{_GROUP} || {_KUBERNETES} || {_ENDPOINT} || !has(self.mode) || self.mode != 'act'",
        "mode: act needs a target that scales the group's instances: kubernetes or endpoint",
    ),
    (
        f"{_GROUP} || !has(self.target) || {_KUBERNETES} || {_ENDPOINT} || {_ADAPTIVE} || {_DEPLOYMENT} || {_SESSION_JOB}",
        "target: name exactly one driver",
    ),
    (
        f"!({_ADAPTIVE} && has(self.target.flink.resubmit) && {_FLINK}) || "
        "!self.application.flink.job.matches('^[0-9a-f]{32}$')",
        "application.flink.job: must be the job's name, since target.flink.resubmit changes its id",
    ),
    (f"!{_GROUP} || {_KAFKA}", "application: a consumer group needs signals.kafka, the brokers of its group"),
    (
        f"!{_GROUP} || !{_KAFKA} || !has(self.signals.kafka.groupId) || self.signals.kafka.groupId == {_GROUP_ID}",
        "signals.kafka.groupId: must not name another group than the application",
    ),
    (
        f"!{_KUBERNETES} || !has({_WORKLOADS}) || !({_GROUP} || {_FLINK})",
        "target.kubernetes.workloads: TaskManagers and the instances of a consumer group are one workload",
    ),
    (
        f"!{_KUBERNETES} || {_or('self.target.kubernetes.slots', 1)} == 1 || {_GROUP} || {_FLINK}",
        "target.kubernetes.slots: a service has no slots",
    ),
    (
        f"!{_KUBERNETES} || {_GROUP} || !{_or('self.target.kubernetes.restartInstances', 'false')}",
        "target.kubernetes.restartInstances: only an application that is a consumer group has instances",
    ),
    (
        "!has(self.bounds) || !has(self.bounds.operators) || size(self.bounds.operators) == 0 || "
        f"!({' || '.join([*_UNITS.values(), _UNIFORM])})",
        "bounds.operators: all operators of this target have the same parallelism: use bounds.min and bounds.max",
    ),
    *(_fits(target, is_unit) for target, is_unit in _UNITS.items()),
    (
        f"!{_ADAPTIVE} || !has({_MANAGERS}) || {_MANAGERS}.max * {_or(f'{_MANAGERS}.slots', 1)} >= {_MIN}",
        "target.flink.taskManagers.max: allows fewer slots than bounds.min requires",
    ),
    *_signals("processed"),
    *_signals("waiting"),
    (
        f"!{_SERVICE} || !{_KUBERNETES} || !{_OPERATORS} || {_SERVICE_FIELDS}.operators.all(o, has({_WORKLOADS}) ? "
        f"{_WORKLOADS}.exists(w, w.name == o) : has(self.target.kubernetes.name) && self.target.kubernetes.name == o)",
        "application.service.operators: target.kubernetes has no such workload",
    ),
    (
        f"!{_SERVICE} || !{_KUBERNETES} || !(has({_SERVICE_FIELDS}.processed) || has({_SERVICE_FIELDS}.waiting)) || "
        f"(has({_WORKLOADS}) ? size({_SOURCES}) == 1 && !({_OPERATORS} && {_SOURCES}.all(w, w.name in "
        f"{_SERVICE_FIELDS}.operators)) : !({_OPERATORS} && size({_SERVICE_FIELDS}.operators) > 0))",
        "application.service: processed and waiting are of the only source, which operators must not name, too",
    ),
    *_unique("candidates"),
    *_unique("shadows"),
    (
        "!has(self.candidates) || !has(self.shadows) || self.candidates.all(a, !self.shadows.exists(b, "
        f"{_CALLED.format('a')} == {_CALLED.format('b')}))",
        "shadows: one has the name of a candidate: set another label",
    ),
    _budget("slots", "self.budget.slots"),
    _budget("cpu", "int(self.budget.cpu / self.budget.perSlot.cpu + 1e-9)"),
    _budget("memory", " / ".join(_whole(_bytes(each.format("memory"))) for each in _SIZES)),
]

RULES: Mapping[str, Sequence[Rule]] = {
    "": [
        (
            f"size(self.metadata.name) <= {MAX_NAME_CHARACTERS}",
            f"metadata.name: must have at most {MAX_NAME_CHARACTERS} characters",
        )
    ],
    "spec": _SPEC,
    "spec.interval": [_between(1.0, 600.0, "interval must lie between 1s and 10m")],
    "spec.objective": [
        (
            f"{_given(['maxLag', 'maxLatency', 'utilization'])} == 1",
            "give exactly one of maxLag, maxLatency and utilization",
        ),
        ("!has(self.lagMetric) || has(self.maxLag)", "lagMetric needs maxLag, which bounds it"),
    ],
    # Kubernetes compares an integer with the bound's integer part: by the schema 0 is not below 0.01.
    "spec.objective.utilization": [("self >= 0.01", "must lie between 0.01 and 1")],
    "spec.objective.maxLag": [_between(1.0, MAX_DURATION_SECONDS, "maxLag must be at least 1s, and at most 366d")],
    "spec.objective.maxLatency": [
        _between(1.0, MAX_DURATION_SECONDS, "maxLatency must be at least 1s, and at most 366d")
    ],
    "spec.application": [
        (f"{_given(['flink', 'service', 'kafkaStreams', 'consumerGroup'])} == 1", "name exactly one engine"),
    ],
    "spec.application.flink.url": [URL],
    "spec.application.kafkaStreams.commitInterval": [_between(0.01, 3600.0, "must lie between 10ms and 1h")],
    "spec.target": [(f"{_given(_TARGETS)} <= 1", "name exactly one driver")],
    "spec.target.endpoint.url": [URL],
    "spec.target.flink": [
        ("!(has(self.taskManagers) && has(self.resubmit))", "resubmit: not together with taskManagers"),
    ],
    "spec.target.flink.taskManagers": [
        (f"{_given(['kubernetes', 'endpoint'])} == 1", "name exactly one of kubernetes and endpoint"),
    ],
    "spec.target.flink.taskManagers.endpoint.url": [URL],
    "spec.target.kubernetes": [
        (
            "has(self.workloads) ? !(has(self.kind) || has(self.name) || has(self.apiVersion)) && "
            f"{_or('self.slots', 1)} == 1 : has(self.kind) && has(self.name)",
            "name kind and name, or list workloads",
        ),
    ],
    "spec.target.kubernetes.workloads": [
        ("self.all(a, self.exists_one(b, a.name == b.name))", "two have the same name; names are operators"),
        (
            "[self.map(w, w.name)].all(names, self.all(w, !has(w.inputs) || w.inputs.all(i, names.indexOf(i) >= 0 && "
            "names.indexOf(i) < names.indexOf(w.name))))",
            "inputs: each must be listed before",
        ),
    ],
    "spec.signals.prometheus.url": [URL],
    "spec.signals.prometheus.queries": [
        ("self.all(q, q.matches('^[a-z][a-z0-9_]{0,62}$'))", "names of signals are lower-case letters, digits and _")
    ],
    "spec.signals.kafka.bootstrapServers": [
        (f"self.matches('^([^,]+:({PORT_PATTERN})(,|$))+$')", "each port must lie between 1 and 65535"),
    ],
    "spec.bounds": [
        (
            f"{_or('self.min', 1)} <= {_or('self.max', 32)}",
            "min must not be above max, which is 32 by default",
        ),
        (
            f"!has(self.total) || !has(self.total.max) || self.total.max >= {_or('self.min', 1)}",
            "total.max for all operators together must not be below min for each",
        ),
        (
            "!has(self.operators) || self.operators.all(o, "
            f"{_or('self.operators[o].min', _or('self.min', 1))} <= {_or('self.operators[o].max', _or('self.max', 32))})",
            "operators: min must not be above max",
        ),
        (
            "!has(self.operators) || self.operators.all(o, size(o) >= 1 && size(o) <= 400)",
            "operators: names have 1 to 400 characters",
        ),
    ],
    "spec.bounds.total": [_ORDERED],
    "spec.planner.timeout": [_between(0.05, 60.0, "timeout must lie between 50ms and 60s")],
    "spec.budget": [
        *(
            (f"!has(self.{name}) || (has(self.perSlot) && has(self.perSlot.{name}))", f"{name} needs perSlot.{name}")
            for name in ("cpu", "memory")
        ),
        (
            "!has(self.cpu) || !has(self.perSlot) || !has(self.perSlot.cpu) || self.perSlot.cpu <= self.cpu",
            "cpu is less than a single slot takes (perSlot.cpu)",
        ),
        (
            "!has(self.memory) || !has(self.perSlot) || !has(self.perSlot.memory) || "
            f"{_whole(_bytes('self.perSlot.memory'))} <= {_whole(_bytes('self.memory'))}",
            "memory is less than a single slot takes (perSlot.memory)",
        ),
    ],
    **{
        path: [
            (
                f"[{_bytes('self')}].all(b, b >= 0.5 && b <= {float(MAX_BYTES)!r})",
                "must be a size with a unit such as 512Mi, 4Gi or 16G, or bytes as an integer, at most 2^60",
            )
        ]
        for path in ("spec.budget.memory", "spec.budget.perSlot.memory")
    },
    "spec.behavior.excludedPeriods[]": [
        (
            "(has(self.cron) && has(self.duration) && !has(self.from) && !has(self.to)) || "
            "(has(self.from) && has(self.to) && !has(self.cron) && !has(self.duration))",
            "give either cron and duration, or from and to",
        ),
        (
            "!has(self.from) || !has(self.to) || self.from != self.to",
            "from and to must differ; for all day use cron '0 0 * * *' and duration 1d",
        ),
    ],
    "spec.behavior.excludedPeriods[].cron": [
        (
            r"self.matches('^\\s*(\\S+\\s+){4}\\S+\\s*$')",
            "must have five fields, minute hour day month weekday",
        )
    ],
    "spec.behavior.excludedPeriods[].duration": [_between(60.0, 31 * 86_400.0, "must lie between 1m and 31d")],
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
    if isinstance(node.get("additionalProperties"), Mapping):
        found["additionalProperties"] = with_rules(node["additionalProperties"], f"{path}{{}}")
    if node.get("pattern") in _MAX_CHARACTERS:
        found["maxLength"] = _MAX_CHARACTERS[node["pattern"]]
    rules = list(RULES.get(path, ()))
    if node.get("pattern") == DURATION_PATTERN and not rules:
        rules = [_DURATION]
    if rules:
        found["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    if URL in rules:
        found["maxLength"] = MAX_URL_CHARACTERS
    return found
