"""The users' border: a policy that is wrong is refused with the field and the reason."""

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir_contracts import InvalidPolicy, format_duration, parse_duration, parse_policy

DOCUMENT: dict[str, Any] = {
    "apiVersion": "weir.dev/v1alpha1",
    "kind": "ScalingPolicy",
    "metadata": {"namespace": "shop", "name": "orders"},
    "spec": {
        "target": {"flink": {"url": "http://jobmanager:8081", "job": "orders"}},
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


def test_a_new_policy_is_safe() -> None:
    """Written with the least, a policy only advises, and never goes below one or above 32 subtasks."""
    policy = parse_policy(DOCUMENT)
    assert policy.application == "shop/orders"
    assert policy.spec.mode == "advise"
    assert policy.spec.bounds.of("anything") == (1, 32)
    assert policy.spec.objective.bound_seconds == 30


def test_what_a_user_wrote_comes_back() -> None:
    """The document is kept as written: camelCase, durations as text, nothing added."""
    document = _with("spec.behavior", {"scaleDown": {"stabilization": "5m", "maxFactor": 2}})
    assert parse_policy(document).to_document()["spec"]["behavior"] == {
        "scaleDown": {"stabilization": "5m", "maxFactor": 2.0}
    }


@pytest.mark.parametrize(
    ("path", "value", "field", "says"),
    [
        ("spec.objective", {}, "spec.objective", "exactly one"),
        ("spec.objective", {"maxLag": "30s", "utilization": 0.7}, "spec.objective", "exactly one"),
        ("spec.objective.maxLag", 30, "spec.objective.maxLag", "duration with a unit"),
        ("spec.objective.maxLag", "0s", "spec.objective", "at least 1s"),
        ("spec.target", {}, "spec.target", "exactly one driver"),
        ("spec.target", {"docker": {}}, "spec.target.docker", "not a field"),
        ("spec.target.flink.url", "ftp://x", "spec.target.flink.url", "http"),
        ("spec.target.flink.url", "http://me:secret@x:1", "spec.target.flink.url", "credentials"),
        ("spec.bounds", {"min": 5, "max": 2}, "spec.bounds", "min must not be above max"),
        ("spec.bounds", {"max": 4, "operators": {"enrich": {"min": 5}}}, "spec.bounds", "operators.enrich"),
        ("spec.bounds.min", 0, "spec.bounds.min", "greater than or equal to 1"),
        ("spec.mode", "auto", "spec.mode", "'advise', 'act' or 'paused'"),
        ("spec.interval", "10ms", "spec", "between 1s and 10m"),
        ("spec.signals", {"kafka": {"bootstrapServers": "kafka"}}, "spec.signals.kafka.bootstrapServers", "match"),
        ("spec.shadow", [], "spec.shadow", "not a field"),
        ("metadata.name", "Orders!", "metadata.name", "match"),
        ("apiVersion", "weir.dev/v2", "apiVersion", "weir.dev/v1alpha1"),
    ],
)
def test_a_wrong_field_is_named(path: str, value: Any, field: str, says: str) -> None:
    """The error names the field as the user wrote it, and what is wrong with it."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(_with(path, value))
    assert any(named == field and says in what for named, what in caught.value.problems), caught.value.problems


def test_an_error_never_repeats_a_secret() -> None:
    """Credentials in an address are refused without being shown again."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(_with("spec.target.flink.url", "http://me:hunter2@x:1"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("nonsense", [None, 5, "text", [], {"spec": []}])
def test_anything_but_a_policy_is_refused_in_words(nonsense: Any) -> None:
    """Whatever a file may hold, the answer is a list of problems and not an accident."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(nonsense)
    assert caught.value.problems


@given(st.integers(min_value=0, max_value=366 * 86_400_000))
def test_a_duration_survives_being_written_and_read(milliseconds: int) -> None:
    """Exact to the millisecond, whatever the units."""
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("text", ["30", "", "s", "-5s", "1 h", "5m 3s", "1e3s", "999999d", 5, None, True])
def test_a_duration_without_a_unit_is_a_guess_and_refused(text: Any) -> None:
    """Bare numbers, signs, blanks and absurd lengths are all refused."""
    with pytest.raises(ValueError, match=r"duration|between"):
        parse_duration(text)
