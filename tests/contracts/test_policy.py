"""Policies that users write: an invalid one is refused with the field and the reason."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import thorough
from weir_contracts import InvalidPolicy, ScalingPolicy, format_duration, parse_duration, parse_policy
from weir_contracts.application import Application
from weir_contracts.base import DURATION_PATTERN
from weir_contracts.document import PATTERN_SENTENCES
from weir_contracts.policy_behavior import MEMORY_PATTERN

FLINK = {"url": "http://jobmanager:8081", "job": "orders"}
TASKMANAGERS = {"kubernetes": {"kind": "Deployment", "name": "taskmanager"}}
DOCUMENT: dict[str, Any] = {
    "apiVersion": "weir.dev/v1alpha1",
    "kind": "ScalingPolicy",
    "metadata": {"namespace": "shop", "name": "orders"},
    "spec": {
        "application": {"flink": {"url": "http://jobmanager:8081", "job": "orders"}},
        "objective": {"maxLag": "30s"},
    },
}


def _with(path: str, value: Any) -> dict[str, Any]:
    document = deepcopy(DOCUMENT)
    place = document
    *parents, last = path.split(".")
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = value
    return document


def test_an_objective_may_name_the_metric_of_its_lag() -> None:
    """Only with `maxLag`, and only of a Flink job, whose sources report it."""
    named = {"maxLag": "30s", "lagMetric": "watermarkLag"}
    assert parse_policy(_with("spec.objective", named)).spec.objective.lag_metric == "watermarkLag"
    with pytest.raises(InvalidPolicy, match=r"spec\.objective: lagMetric needs maxLag"):
        parse_policy(_with("spec.objective", {"maxLatency": "30s", "lagMetric": "watermarkLag"}))
    with pytest.raises(InvalidPolicy, match=r"spec\.objective\.lagMetric"):
        parse_policy(_with("spec.objective", {"maxLag": "30s", "lagMetric": "currentEmitEventTimeLag"}))
    group = _with("spec.objective", named)
    group["spec"] |= {
        "application": {"consumerGroup": {"groupId": "orders"}},
        "signals": {"kafka": {"bootstrapServers": "kafka:9092"}},
    }
    with pytest.raises(InvalidPolicy, match=r"objective\.lagMetric: only the sources of a Flink job report it"):
        parse_policy(group)


def test_contradictory_limits_are_refused_where_they_are_written() -> None:
    """A budget of two slots contradicts three subtasks of each operator. A stored policy stays readable."""
    document = _with("spec.bounds", {"min": 3})
    document["spec"]["budget"] = {"slots": 2}
    with pytest.raises(InvalidPolicy, match=r"spec\.budget: allows 2 slots \(slots\), and bounds\.min requires 3"):
        parse_policy(document)
    assert ScalingPolicy.model_validate(document).spec.budget.slots == 2


@pytest.mark.parametrize(
    ("application", "properties"),
    [
        ({"flink": FLINK}, (False, True, False, True, "")),
        ({"service": {}}, (False, False, True, True, "")),
        ({"consumerGroup": {"groupId": "orders"}}, (True, False, False, False, "")),
        (
            {"kafkaStreams": {"applicationId": "orders"}},
            (True, False, False, False, "application.kafkaStreams.metrics"),
        ),
        ({"kafkaStreams": {"applicationId": "orders", "metrics": {"port": 9404}}}, (True, False, False, True, "")),
    ],
)
def test_cores_ask_for_properties_of_an_application(application: Any, properties: Any) -> None:
    """Members that share tasks, a size in slots, records that the policy's signals count, busy time, and the field that
    would add it."""
    found = Application.model_validate(application)
    names = ("shares_tasks", "has_slots", "counts_by_signals", "has_busy_time", "unread_metrics")
    assert tuple(getattr(found, name) for name in names) == properties


def test_a_new_policy_is_safe() -> None:
    """A policy with the required fields only advises, and stays within 1 to 32 subtasks."""
    policy = parse_policy(DOCUMENT)
    assert policy.application == "shop/orders"
    assert policy.spec.mode == "advise"
    assert policy.spec.bounds.of("anything") == (1, 32)
    assert policy.spec.objective.bound_seconds == 30


def test_a_job_whose_taskmanagers_are_pods_has_one_parallelism() -> None:
    """A policy names the job and the workload to scale, by default with one slot a pod; bounds of single operators are
    refused."""
    document = _with("spec.target", TASKMANAGERS)
    subject = parse_policy(document).subject
    assert (subject.target.driver, subject.flink.job) == ("kubernetes", "orders")
    assert subject.unit is not None and subject.unit.slots == 1
    document["spec"]["bounds"] = {"operators": {"enrich": {"max": 3}}}
    with pytest.raises(InvalidPolicy, match=r"bounds\.operators"):
        parse_policy(document)


def test_a_job_in_reactive_mode_has_one_parallelism() -> None:
    """As with pods as a target of their own; outside of reactive mode each operator has its own."""
    pool = {"kubernetes": {"kind": "Deployment", "name": "taskmanager"}, "slots": 3, "max": 4}
    for reactive in (True, False):
        policy = parse_policy(_with("spec.target.flink.taskManagers", {**pool, "reactive": reactive}))
        assert policy.spec.target.driver == "task-managers"
        assert (policy.subject.unit is not None) == reactive
    document = _with("spec.target.flink.taskManagers", {**pool, "reactive": True})
    for bounds, field in [({"operators": {"enrich": {"max": 3}}}, "operators"), ({"min": 4, "max": 5}, "no number of")]:
        document["spec"]["bounds"] = bounds
        with pytest.raises(InvalidPolicy, match=rf"bounds.*{field}"):
            parse_policy(document)


def test_a_target_that_went_is_refused_with_what_to_use_instead() -> None:
    """A policy of a time when TaskManagers could be containers of a compose project."""
    containers = {**FLINK, "project": "shop", "service": "taskmanager", "slots": 2}
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy(_with("spec.target", {"docker": containers}))
    assert refused.value.problems == [
        (
            "spec.target.docker",
            "is not a field of this version: use target.kubernetes for a job in reactive mode, target.flink for another",
        )
    ]


def test_a_policy_is_written_as_the_user_wrote_it() -> None:
    """The document has camelCase, durations as text, and no added fields."""
    document = _with("spec.behavior", {"scaleDown": {"stabilization": "5m", "maxFactor": 2}})
    assert parse_policy(document).to_document()["spec"]["behavior"] == {
        "scaleDown": {"stabilization": "5m", "maxFactor": 2.0}
    }


@pytest.mark.parametrize(
    ("path", "value", "field", "sentence"),
    [
        ("spec.objective", {}, "spec.objective", "exactly one"),
        ("spec.objective", {"maxLag": "30s", "utilization": 0.7}, "spec.objective", "exactly one"),
        ("spec.objective.maxLag", 30, "spec.objective.maxLag", "duration with a unit"),
        ("spec.objective.maxLag", "0s", "spec.objective", "at least 1s"),
        ("spec.target", {}, "spec", "target: name exactly one driver"),
        ("spec.target", {"nomad": {}}, "spec.target.nomad", "not a field"),
        ("spec.target", {"flink": {}, **TASKMANAGERS}, "spec.target", "exactly one driver"),
        ("spec.application.flink.url", "ftp://x", "spec.application.flink.url", "http"),
        ("spec.application.flink.url", "http://me:secret@x:1", "spec.application.flink.url", "credentials"),
        ("spec.bounds", {"min": 5, "max": 2}, "spec.bounds", "min must not be above max"),
        ("spec.bounds", {"max": 4, "operators": {"enrich": {"min": 5}}}, "spec.bounds", "operators.enrich"),
        ("spec.bounds.min", 0, "spec.bounds.min", "greater than or equal to 1"),
        ("spec.mode", "auto", "spec.mode", "'advise', 'act' or 'paused'"),
        ("spec.interval", "10ms", "spec", "between 1s and 10m"),
        ("spec.signals", {"kafka": {"bootstrapServers": "kafka"}}, "spec.signals.kafka.bootstrapServers", "host:port"),
        ("spec.bounds.total", {"min": 9, "max": 3}, "spec.bounds.total", "min must not be above max"),
        ("spec.bounds", {"min": 3, "total": {"max": 2}}, "spec.bounds.total.max", "is below bounds.min, 3 for each"),
        ("spec.budget", {"cpu": 4}, "spec.budget", "cpu needs perSlot.cpu"),
        (
            "spec.budget",
            {"memory": "1Gi", "perSlot": {"memory": "2Gi"}},
            "spec.budget",
            "less than a single slot takes",
        ),
        ("spec.budget.memory", "4", "spec.budget.memory", "size with a unit"),
        ("spec.budget.memory", "9999999Ti", "spec.budget.memory", "size with a unit"),
        ("spec.behavior.tolerance", 0.6, "spec.behavior.tolerance", "less than or equal to 0.5"),
        ("spec.behavior.maxActionsPerHour", 0, "spec.behavior.maxActionsPerHour", "greater than or equal to 1"),
        ("spec.shadow", [], "spec.shadow", "not a field"),
        (
            "spec.candidates",
            [{"name": "hpa"}] * 2,
            "spec",
            "candidates.1: 'hpa' is already the name of another candidate",
        ),
        ("spec.candidates", [{"name": "rate"}], "spec", "candidates.0: 'rate' is already the name of the planner"),
        ("spec.candidates", [{"name": f"p{i}"} for i in range(11)], "spec.candidates", "at most 10"),
        ("spec.shadows", [{"name": f"p{i}"} for i in range(6)], "spec.shadows", "at most 5"),
        ("spec.shadows", [{"name": "rate"}], "spec", "shadows.0: 'rate' is already the name of the planner"),
        (
            "spec",
            {**DOCUMENT["spec"], "candidates": [{"name": "hpa"}], "shadows": [{"name": "hpa"}]},
            "spec",
            "shadows.0: 'hpa' is already the name of another candidate",
        ),
        ("spec.shadows", [{"name": "hpa", "timeout": "2s"}], "spec.shadows.0.timeout", "not a field"),
        ("spec.candidates", [{"name": "hpa", "timeout": "2s"}], "spec.candidates.0.timeout", "not a field"),
        ("metadata.name", "Orders!", "metadata.name", "lower-case letters, digits, dashes and dots"),
        ("spec.bounds.max", True, "spec.bounds.max", "must be an integer"),
        ("spec.bounds.max", "12", "spec.bounds.max", "must be an integer"),
        ("spec.bounds.max", 12.0, "spec.bounds.max", "must be an integer"),
        ("spec.behavior.tolerance", "0.1", "spec.behavior.tolerance", "must be a number"),
        ("spec.budget", {"slots": True}, "spec.budget.slots", "must be an integer"),
        ("metadata.version", "3", "metadata.version", "must be an integer"),
        ("spec.bounds", [], "spec.bounds", "must be a mapping"),
        ("spec.application.flink.url", "http://a:99999", "spec.application.flink.url", "port"),
        ("spec.application.flink.url", "http://a:0", "spec.application.flink.url", "between 1 and 65535"),
        ("spec.application.flink.url", "http:a", "spec.application.flink.url", "expected //"),
        ("spec.application.flink.url", "HTTP://a", "spec.application.flink.url", "such as http://host:8081/path"),
        ("spec.application.flink.url", "http://1.2", "spec.application.flink.url", "such as http://host:8081/path"),
        ("spec.application.flink.url", "http://2852039166/", "spec.application.flink.url", "such as http://host:8081"),
        (
            "spec.signals",
            {"kafka": {"bootstrapServers": "a:9092,b:99999"}},
            "spec.signals.kafka.bootstrapServers",
            "'b:99999' must be host:port with a port between 1 and 65535",
        ),
        (
            "spec.signals",
            {"kafka": {"bootstrapServers": "a\x1b[31m:9092"}},
            "spec.signals.kafka.bootstrapServers",
            "must be host:port",
        ),
        ("apiVersion", "weir.dev/v2", "apiVersion", "weir.dev/v1alpha1"),
    ],
)
def test_an_invalid_field_is_named(path: str, value: Any, field: str, sentence: str) -> None:
    """The error names the field as the user wrote it, and the reason."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(_with(path, value))
    assert any(name == field and sentence in reason for name, reason in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("path", "value", "field", "meant"),
    [
        ("spec.objective", {"max_lag": "30s"}, "spec.objective.max_lag", "maxLag"),
        ("spec.behaviour", {}, "spec.behaviour", "behavior"),
        ("spec.behavior.scaleDown", {"stabilisation": "1m"}, "spec.behavior.scaleDown.stabilisation", "stabilization"),
        ("spec.bounds.operators", {"enrich": {"maxx": 3}}, "spec.bounds.operators.enrich.maxx", "max"),
        ("spec.candidates", [{"name": "hpa", "lable": "a"}], "spec.candidates.0.lable", "label"),
        ("spec.foo", 1, "spec.foo", None),
        ("spec.planner", {"name": "hpa", "mode": "act"}, "spec.planner.mode", None),
    ],
)
def test_an_unknown_field_is_compared_with_those_there_are(
    path: str, value: Any, field: str, meant: str | None
) -> None:
    """With the fields of the same object; one that resembles none is only named."""
    with pytest.raises(InvalidPolicy) as error:
        parse_policy(_with(path, value))
    hint = f": did you mean {meant}?" if meant else ""
    assert error.value.problems == [(field, f"is not a field of this version{hint}")]


def test_every_pattern_has_a_sentence() -> None:
    """A user need not read regular expressions. Durations and sizes have their own sentences."""

    def patterns(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from [part["pattern"]] if isinstance(part.get("pattern"), str) else []
            part = list(part.values())
        for each in part if isinstance(part, list) else []:
            yield from patterns(each)

    schema = ScalingPolicy.model_json_schema()
    used = set(patterns(schema)) - {DURATION_PATTERN, MEMORY_PATTERN}
    assert len(used) >= 10
    assert used - PATTERN_SENTENCES.keys() == set()


def test_a_stored_policy_stays_readable() -> None:
    """Readers of messages accept policies that an earlier version accepted: numbers in quotes, an invalid port."""
    stored = _with("spec.signals", {"kafka": {"bootstrapServers": "a:99999"}})
    stored["spec"]["bounds"] = {"max": "12"}
    assert ScalingPolicy.model_validate_json(json.dumps(stored)).spec.bounds.max == 12


def test_a_policy_from_the_api_can_be_sent_back() -> None:
    """The fields that the knowledge service sets are accepted, such as the time of the last change."""
    document = deepcopy(DOCUMENT)
    document["metadata"] |= {"version": 3, "updatedAt": "2026-01-01T12:00:00Z", "updatedBy": "me"}
    policy = parse_policy(document)
    assert policy.metadata.updated_at == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert parse_policy(policy.to_document()) == policy


def test_many_problems_are_one_short_line() -> None:
    """The error names the first five of very many unknown fields, counts the others, and cuts a long name."""
    count = 100_000 if thorough() else 10_000
    document = deepcopy(DOCUMENT)
    document["spec"] |= {f"field{i}": 1 for i in range(count - 1)} | {"x" * 100_000: 1}
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(document)
    assert (len(caught.value.problems), caught.value.more) == (5, count - 5)
    assert str(caught.value).endswith(f"; and {count - 5:,} more")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b[31m", "\x00", "\u2028", "\u202e", "\x85"])
def test_the_name_of_a_field_is_escaped(character: str) -> None:
    """A control character in a name must not break the line, move the cursor or reverse the text."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(_with(f"spec.a{character}b", 1))
    assert str(caught.value).isprintable()
    assert caught.value.problems[0][0].startswith("spec.a\\")


def test_an_invalid_item_is_not_reported_as_missing() -> None:
    """pydantic counts valid items only, and reports the list as too short as well."""
    period = {"from": "22:00", "to": "23:00", "directions": ["sideways"]}
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(_with("spec.behavior.excludedPeriods", [period]))
    assert [field for field, _ in caught.value.problems] == ["spec.behavior.excludedPeriods.0.directions.0"]


def test_a_lone_surrogate_is_refused() -> None:
    """JSON can contain one as an escape, but no message can carry it."""
    with pytest.raises(InvalidPolicy, match="policy: contains a lone surrogate"):
        parse_policy(_with("spec.application.flink.job", "\ud800"))


NIGHT = {"from": "22:00", "to": "06:00"}
OFFICE = {"cron": "0 9 * * MON-FRI", "duration": "8h"}


@pytest.mark.parametrize(
    ("period", "field", "sentence"),
    [
        ({}, "", "either cron and duration, or from and to"),
        ({"cron": "0 9 * * *"}, "", "either cron and duration, or from and to"),
        ({**NIGHT, **OFFICE}, "", "either cron and duration, or from and to"),
        ({"from": "22:00", "to": "22:00"}, "", "from and to must differ"),
        ({**OFFICE, "duration": "10s"}, "", "duration must lie between 1m and 31d"),
        ({**OFFICE, "cron": "9 o'clock"}, ".cron", "must have five fields"),
        ({**OFFICE, "cron": "0 25 * * *"}, ".cron", "bad hour"),
        ({**OFFICE, "cron": "0 9 31 2 *"}, ".cron", "bad day-of-month"),
        ({**NIGHT, "from": 1320}, ".from", "in quotes (YAML reads 22:00 without them as a number)"),
        ({**NIGHT, "to": "24:00"}, ".to", "time of day"),
        ({**NIGHT, "timeZone": "Mars/Olympus"}, ".timeZone", "Europe/Berlin or UTC"),
        ({**NIGHT, "timeZone": "../../etc/passwd"}, ".timeZone", "no time zone"),
        ({**NIGHT, "timeZone": "Europe"}, ".timeZone", "no time zone"),
        ({**NIGHT, "directions": []}, ".directions", "at least 1"),
        ({**NIGHT, "directions": ["sideways"]}, ".directions.0", "'up' or 'down'"),
        ({**NIGHT, "zone": "UTC"}, ".zone", "not a field"),
    ],
)
def test_an_invalid_excluded_period_is_named(period: dict[str, Any], field: str, sentence: str) -> None:
    """The error has its place in the list and its field."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(_with("spec.behavior", {"excludedPeriods": [OFFICE, period]}))
    found = caught.value.problems
    path = f"spec.behavior.excludedPeriods.1{field}"
    assert any(name == path and sentence in reason for name, reason in found), found


def test_an_excluded_period_and_a_budget_are_written_as_the_user_wrote_them() -> None:
    """Times of day, days of the week and sizes are text."""
    behavior = {"excludedPeriods": [{**NIGHT, "directions": ["down"], "timeZone": "Europe/Berlin"}, OFFICE]}
    assert parse_policy(_with("spec.behavior", behavior)).to_document()["spec"]["behavior"] == behavior
    budget = {"memory": "16Gi", "perSlot": {"memory": "1536Mi"}}
    policy = parse_policy(_with("spec.budget", budget))
    assert policy.to_document()["spec"]["budget"] == budget
    assert policy.spec.budget.limit == (10, "memory")


def test_an_error_never_repeats_a_secret() -> None:
    """Credentials in an address are refused, and the error does not contain them."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(_with("spec.application.flink.url", "http://me:hunter2@x:1"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("nonsense", [None, 5, "text", [], {"spec": []}])
def test_a_document_that_is_not_a_policy_is_refused(nonsense: Any) -> None:
    """The result is a list of problems for any content of a file, never another error."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(nonsense)
    assert caught.value.problems


@given(st.integers(min_value=0, max_value=366 * 86_400_000))
def test_a_duration_is_exact_after_being_written_and_read(milliseconds: int) -> None:
    """It is exact to the millisecond, whatever the units."""
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("text", ["30", "", "s", "-5s", "1 h", "5m 3s", "1e3s", "999999d", 5, None, True])
def test_an_invalid_duration_is_refused(text: Any) -> None:
    """Numbers without a unit, signs, blanks and lengths above the maximum are refused."""
    with pytest.raises(ValueError, match=r"duration|between"):
        parse_duration(text)


FROM_KUBERNETES = """
apiVersion: weir.dev/v1alpha1
kind: ScalingPolicy
metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: '{"apiVersion": "weir.dev/v1alpha1"}'
    team: checkout
  creationTimestamp: "2026-01-01T12:00:00Z"
  finalizers: [weir.dev/policy]
  generation: 3
  labels: {app: orders}
  managedFields: [{manager: kubectl}]
  name: orders
  namespace: shop
  resourceVersion: "48613"
  uid: 6b2f9f4e-7f0e-4d55-9d0e-3f1f5d8a7c11
spec:
  application: {flink: {url: "http://jobmanager:8081", job: orders}}
  objective: {maxLag: 30s}
status: {mode: advise}
"""


def test_a_document_from_kubernetes_is_read() -> None:
    """`kubectl get -o yaml` prints it. Its resource version is not the policy's; labels, annotations and uid are kept."""
    policy = parse_policy(yaml.safe_load(FROM_KUBERNETES))
    metadata = policy.metadata
    assert (metadata.version, metadata.resource_version, metadata.generation) == (None, "48613", 3)
    assert (metadata.labels, metadata.annotations) == ({"app": "orders"}, {"team": "checkout"})
    shown = policy.to_document()
    assert shown["metadata"]["uid"] == "6b2f9f4e-7f0e-4d55-9d0e-3f1f5d8a7c11"
    assert parse_policy(shown) == policy


def test_a_field_that_is_null_is_not_given() -> None:
    """As for Kubernetes' API server: YAML has `bounds:` with nothing but comments below. A planner's parameters are its own."""
    plain = _with("spec.planner.parameters", {"a": None})
    spec = plain["spec"]
    nulls = {"mode": None, "bounds": None, "shadows": None, "behavior": {"cooldown": None, "excludedPeriods": None}}
    odd = {**plain, "spec": {**spec, **nulls, "planner": {**spec["planner"], "name": None}}}
    policy = parse_policy(odd)
    assert policy.spec == parse_policy(plain).spec.model_copy(update={"behavior": policy.spec.behavior})
    assert policy.spec.behavior == parse_policy(DOCUMENT).spec.behavior
    assert policy.spec.planner.parameters == {"a": None}
    assert policy.to_document()["spec"].keys() == {"application", "objective", "planner", "behavior"}


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("spec.objective", None, "spec.objective: is required"),
        ("spec.moode", None, "spec.moode: is not a field of this version: did you mean mode?"),
        ("spec.shadows", [None], "spec.shadows.0: must be a mapping of fields"),
    ],
)
def test_null_is_no_value_of_what_is_required_unknown_or_in_a_list(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy(_with(path, value))
    assert sentence in str(refused.value)


def test_an_earlier_name_of_a_field_is_refused_with_its_present_one() -> None:
    """Field and name stand in the answer."""
    with pytest.raises(InvalidPolicy, match=r"behavior.scaleDown.collapseHold: .*its name is inputOutageHold"):
        parse_policy(_with("spec.behavior", {"scaleDown": {"collapseHold": "7m"}}))


def test_a_job_under_the_target_is_refused_with_its_place() -> None:
    """Where policies once named it."""
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy(_with("spec.target.flink", FLINK))
    former = "is not a field of this version: its place is application.flink"
    assert refused.value.problems == [(f"spec.target.flink.{name}", f"{former}.{name}") for name in ("url", "job")]


def test_a_flink_application_is_scaled_by_flink_unless_a_target_is_named() -> None:
    """The target defaults to Flink's scheduler; a kubernetes target takes the job from the application."""
    document = deepcopy(DOCUMENT)
    subject = parse_policy(document).subject
    assert (subject.target.driver, subject.unit, subject.application.engine) == ("flink", None, "flink")
    document["spec"]["target"] = {"kubernetes": {**TASKMANAGERS["kubernetes"], "slots": 2}}
    subject = parse_policy(document).subject
    assert (subject.target.driver, subject.unit and subject.unit.slots, subject.flink.job) == (
        "kubernetes",
        2,
        "orders",
    )


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ({"name": "orders"}, "http://orders-rest.shop.svc:8081/"),
        ({"name": "orders", "namespace": "shop-live"}, "http://orders-rest.shop-live.svc:8081/"),
    ],
)
def test_a_flink_deployment_brings_its_application(target: dict[str, str], url: str) -> None:
    """The REST API that the operator names after the resource, and the job of its name; a policy may name others."""
    document = deepcopy(DOCUMENT)
    del document["spec"]["application"]
    document["spec"]["target"] = {"flinkDeployment": target}
    subject = parse_policy(document).subject
    assert (subject.target.driver, subject.unit, str(subject.flink.url), subject.flink.job) == (
        "flink-operator",
        None,
        url,
        "orders",
    )
    assert subject.namespace == target.get("namespace", "shop")
    document["spec"]["application"] = {"flink": {"url": "https://flink.example.org", "job": "totals"}}
    subject = parse_policy(document).subject
    assert (str(subject.flink.url), subject.flink.job) == ("https://flink.example.org/", "totals")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"target": {"flink": {}}}, "application: is required"),
        ({"target": {"flinkSessionJob": {"name": "orders"}}}, "application: is required"),
        ({"target": {"flinkDeployment": {}}}, "spec.target.flinkDeployment.name: is required"),
        ({"target": {"flinkDeployment": {"name": "a"}, "flink": {}}}, "name exactly one driver"),
        ({"application": {"service": {}}, "target": {"flinkDeployment": {"name": "a"}}}, "needs a kubernetes target"),
        ({"application": {"flink": {"url": "http://a:1"}}}, "spec.application.flink.job: is required"),
        ({"application": {}}, "spec.application: name exactly one engine"),
        ({"application": {"storm": {}}}, "spec.application.storm: is not a field"),
        ({"application": {"flink": {**FLINK, "url": "http://a:0"}}}, "spec.application.flink.url: its port"),
    ],
)
def test_the_job_is_named_once(spec: dict[str, Any], problem: str) -> None:
    """By the application, of exactly one engine."""
    document = {**DOCUMENT, "spec": {"objective": {"maxLag": "30s"}, **spec}}
    with pytest.raises(InvalidPolicy, match=problem.replace(".", r"\.")):
        parse_policy(document)


def test_a_cluster_has_one_key() -> None:
    """Case of the host, scheme and a trailing slash do not change it, so that actions on one cluster share their limit."""
    one, other = (
        _with("spec.application.flink.url", url) for url in ("http://JobManager:8081", "https://jobmanager.:8081/")
    )
    assert parse_policy(one).subject.cluster == parse_policy(other).subject.cluster == "jobmanager:8081/"


# -- Kubernetes targets --------------------------------------------------------------------------------------------


def _kubernetes(target: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": "checkout"},
        "spec": {"target": {"kubernetes": target}, "objective": {"maxLag": "30s"}, **spec},
    }


FLINK_JOB = {"flink": {"url": "http://jobmanager:8081", "job": "orders"}}


def test_a_workload_without_an_engine_is_a_service_of_one_operator() -> None:
    policy = parse_policy(_kubernetes({"kind": "Deployment", "name": "web"}))
    subject = policy.subject
    assert (subject.application.engine, subject.namespace, subject.cluster) == (
        "service",
        "shop",
        "kubernetes/shop/checkout",
    )
    assert subject.unit is not None and subject.unit.instance == "pod"
    assert [(ref.kind, ref.name) for ref in policy.spec.target.kubernetes.refs] == [("Deployment", "web")]  # type: ignore[union-attr]


def test_the_task_managers_of_a_flink_job_are_pods_with_slots() -> None:
    target = {"kind": "StatefulSet", "name": "taskmanager", "namespace": "flink", "slots": 4}
    subject = parse_policy(_kubernetes(target, application=FLINK_JOB)).subject
    assert (subject.application.engine, subject.namespace, subject.flink.job) == ("flink", "flink", "orders")
    assert subject.unit is not None and subject.unit.slots == 4


@pytest.mark.parametrize(
    ("target", "spec", "sentence"),
    [
        ({"kind": "Deployment"}, {}, "spec.target.kubernetes: name is required, or list workloads"),
        ({"kind": "deployment", "name": "web"}, {}, "spec.target.kubernetes.kind"),
        ({"kind": "Deployment", "name": "Web"}, {}, "spec.target.kubernetes.name"),
        (
            {"kind": "Deployment", "name": "web", "slots": 2},
            {},
            "spec: target.kubernetes.slots: a service has no slots",
        ),
        (
            {"kind": "Deployment", "name": "web", "workloads": [{"kind": "Deployment", "name": "b"}]},
            {},
            "workloads: not together with kind, name, apiVersion or slots",
        ),
        (
            {"workloads": [{"kind": "Deployment", "name": "b", "inputs": ["a"]}, {"kind": "Deployment", "name": "a"}]},
            {},
            "workloads.0.inputs: 'a' must be listed before 'b'",
        ),
        (
            {"workloads": [{"kind": "Deployment", "name": "a"}, {"kind": "StatefulSet", "name": "a"}]},
            {},
            "workloads.1: 'a' is listed twice",
        ),
        (
            {"workloads": [{"kind": "Deployment", "name": "a"}]},
            {"application": FLINK_JOB},
            "the TaskManagers of a Flink job are one workload",
        ),
        (
            {"kind": "Deployment", "name": "web"},
            {"application": {"service": {"waiting": "queued"}}},
            "application.service: signals.prometheus.queries has no 'queued'",
        ),
        (
            {"kind": "Deployment", "name": "web"},
            {"application": {"service": {"operators": {"shop": {}}}}},
            "application.service.operators: target.kubernetes has no workload 'shop'",
        ),
    ],
)
def test_a_contradictory_kubernetes_target_is_refused_by_field(
    target: dict[str, Any], spec: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidPolicy, match=re.escape(sentence)):
        parse_policy(_kubernetes(target, **spec))


@pytest.mark.parametrize(
    ("inputs", "operators", "words"),
    [
        ([], {}, "the only source, and these are 2: name them in operators"),
        (["orders"], {"orders": {"waiting": "queued"}}, "operators names the signals of 'orders', too"),
    ],
)
def test_signals_of_a_service_that_nothing_would_read(inputs: list[str], operators: dict[str, Any], words: str) -> None:
    """They are refused: demand and lag would be unknown without a word."""
    workloads = [{"kind": "Deployment", "name": "orders"}, {"kind": "Deployment", "name": "bill", "inputs": inputs}]
    prometheus = {"url": "http://127.0.0.1:9090", "queries": {"queued": "sum(q)"}}
    service = {"waiting": "queued", "operators": operators}
    more = {"application": {"service": service}, "signals": {"prometheus": prometheus}}
    document = _kubernetes({"workloads": workloads}, **more)
    with pytest.raises(InvalidPolicy, match=words):
        parse_policy(document)
    document["spec"]["application"]["service"] = {"operators": {"orders": {"waiting": "queued"}}}
    parse_policy(document)


def test_a_service_needs_a_kubernetes_target() -> None:
    document = _kubernetes({})
    document["spec"] |= {"target": {"flink": {}}, "application": {"service": {}}}
    with pytest.raises(InvalidPolicy, match=r"application\.service: needs a kubernetes target"):
        parse_policy(document)
