"""Numbers are bounded where they are read, and sentences fit the messages that carry them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.effort import examples
from weir_contracts import (
    MAX_COUNT,
    MAX_NUMBER,
    MAX_SECONDS,
    MIN_NUMBER,
    Amendment,
    Analysis,
    CapacityPoint,
    Checkpoints,
    Estimate,
    InvalidPolicy,
    OperatorReading,
    PlanReply,
    PlanRequest,
    bounded,
    changes,
    counted,
    fitted,
    listed,
    one_line,
    parse_policy,
    within,
)
from weir_runtime.bus import Record
from weir_runtime.messages import Undecodable, decode

EXAMPLES = Path(__file__).parents[2] / "contracts" / "examples" / "v1alpha1"
TOO_LARGE = st.floats(min_value=MAX_NUMBER, exclude_min=True, allow_infinity=False)
TINY = st.floats(min_value=0, max_value=MIN_NUMBER, exclude_min=True, exclude_max=True)
INSIDE = st.floats(min_value=MIN_NUMBER, max_value=MAX_NUMBER)


@examples(50)
@given(TOO_LARGE, TINY, INSIDE, st.sampled_from([1.0, -1.0]))
def test_an_estimate_is_bounded_in_size(too_large: float, tiny: float, inside: float, sign: float) -> None:
    """Invalid above the maximum, 0 below the minimum, exact between them."""
    assert Estimate(value=sign * inside, basis="").value == within(sign * inside) == sign * inside
    assert Estimate(value=sign * tiny, basis="").value == within(sign * tiny) == 0.0
    assert within(sign * too_large) is None
    with pytest.raises(ValidationError, match="value"):
        Estimate(value=sign * too_large, basis="")


def test_the_bounds_themselves_are_valid() -> None:
    """Bounds of estimates, counts and seconds are inclusive."""
    assert Estimate(value=MAX_NUMBER, basis="").value == MAX_NUMBER
    assert Estimate(value=MIN_NUMBER, basis="").value == MIN_NUMBER
    assert OperatorReading(operator="a", parallelism=32768, records_in=MAX_COUNT).records_in == MAX_COUNT
    assert Checkpoints(interval_seconds=MAX_SECONDS).interval_seconds == MAX_SECONDS
    assert (within(math.nan), within(math.inf), within(-math.inf), within(None), within(0.0)) == (None,) * 4 + (0.0,)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (OperatorReading, {"operator": "a", "parallelism": 1, "records_in": MAX_COUNT + 1}),
        (OperatorReading, {"operator": "a", "parallelism": 1, "busy_ms": 1e306}),
        (OperatorReading, {"operator": "a", "parallelism": 32769}),
        (CapacityPoint, {"parallelism": 1, "records_per_second": 1e-310, "confidence": 1, "measured_at": "2026-01-01T00:00:00Z"}),
        (CapacityPoint, {"parallelism": 1, "records_per_second": 1e306, "confidence": 1, "measured_at": "2026-01-01T00:00:00Z"}),
        (Checkpoints, {"last_duration_seconds": 1e9}),
    ],
)  # fmt: skip
def test_a_number_out_of_bounds_is_refused_with_its_field(model: Any, values: dict[str, Any]) -> None:
    """There is one error, at one of the given fields."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    (error,) = caught.value.errors()
    assert error["loc"][0] in values


def _example(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((EXAMPLES / name / "full.json").read_text())
    return document


def test_a_message_out_of_bounds_is_undecodable_and_names_field_and_place() -> None:
    """The loop sends it to the dead-letter topic."""
    analysis = _example("analysis")
    analysis["sources"][0]["lag_records"]["value"] = 1e306
    record = Record("weir.analyses.v1alpha1", 3, 41, "shop/orders", json.dumps(analysis).encode())
    with pytest.raises(Undecodable, match="must be less than or equal to") as caught:
        decode(record, Analysis)
    assert caught.value.field == "sources.0.lag_records.value"
    assert "weir.analyses.v1alpha1" in caught.value.record.place and "41" in caught.value.record.place


def test_a_tiny_rate_in_a_request_is_0() -> None:
    """1e-310 records/s is a rounding error of a division."""
    request = _example("plan-request")
    request["analysis"]["operators"][0]["true_processing_rate"]["value"] = 1e-310
    assert PlanRequest.model_validate(request).analysis.operators[0].true_processing_rate.value == 0.0


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"planner": {"parameters": {"target": {"rates": [1, 1e306]}}}}, "target.rates.1 must be 0, or between"),
        ({"planner": {"parameters": {"rate": 1e-310}}}, "rate must be 0, or between"),
        ({"planner": {"parameters": {"rate": 10**400}}}, "rate must be 0, or between"),
        ({"behavior": {"scaleUp": {"maxFactor": 1e306}}}, "maxFactor"),
        ({"behavior": {"scaleDown": {"maxStep": 10**400}}}, "maxStep"),
        ({"objective": {"utilization": 1e-310}}, "utilization"),
    ],
)
def test_a_policys_numbers_are_bounded(spec: dict[str, Any], field: str) -> None:
    """Each refusal names the field in one line."""
    document = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": "orders"},
        "spec": {"application": {"flink": {"url": "http://flink:8081", "job": "orders"}}, "objective": {"maxLag": "30s"}, **spec},
    }  # fmt: skip
    with pytest.raises(InvalidPolicy, match=field) as caught:
        parse_policy(document)
    assert len(str(caught.value).splitlines()) == 1


def test_a_long_sentence_is_cut_on_validation() -> None:
    """Writers of sentences need not count characters; an ellipsis shows the cut."""
    reply = PlanReply(kind="hold", code="too-long", sentence="é" * 5000)
    assert (len(reply.sentence), reply.sentence[-2:]) == (2000, "é…")
    document = {"guard": "bounds", "code": "bounds", "because": "w" * 2001, "before": {"a": 1}, "after": {"a": 2}}
    assert len(Amendment.model_validate(document, strict=True).because) == 2000


@pytest.mark.parametrize("wrong", ["", None, 7, ["a sentence"], "half \ud800 of a character"])
def test_a_sentence_is_text_and_not_empty(wrong: object) -> None:
    """The cut does not accept any other value."""
    with pytest.raises(ValidationError):
        PlanReply.model_validate({"kind": "hold", "code": "odd", "sentence": wrong})


def test_external_texts_are_shown_on_one_line() -> None:
    """An error without a text is shown as its class."""
    assert bounded("short") == "short"
    assert bounded("0123456789", 5) == "0123…"
    assert one_line("two\nlines\t and  more") == "two lines and more"
    assert one_line(TimeoutError()) == "TimeoutError"
    assert len(one_line(ValueError("x" * 900))) == 300


def test_changes_name_as_many_operators_as_fit() -> None:
    """The first one always, the others are counted; an operator of an unknown parallelism before shows so."""
    before = {"parse": 1, "enrich": 2, "join": 4, "sink": 1}
    assert changes(before, {**before, "enrich": 4, "sink": 2}) == "enrich 2 → 4, sink 1 → 2"
    assert changes(before, dict.fromkeys(before, 8), 30) == "parse 1 → 8 and 3 more"
    assert changes(before, before) == "no change"
    assert changes({}, {"x" * 90: 3}) == f"{'x' * 39}… ? → 3"


def test_lists_of_reasons_count_what_is_left_out() -> None:
    """A list never says `and 0 more`."""
    assert listed(["a is late", "b is late", "c is late"], 25, "; ") == "a is late; 2 more"
    assert listed(["a", "b"], 1) == "a and 1 more"
    assert listed([], 10) == ""
    assert counted(1, "slot") == "1 slot"
    assert counted(1200, "record") == "1,200 records"


def test_details_are_left_out_where_a_sentence_is_full() -> None:
    """The most important detail first; none is cut in the middle, and none comes without the one before it."""
    text = "x" * 100
    assert fitted(text, ", " + "y" * 50, ", z") == f"{text}, {'y' * 50}, z"
    assert fitted(text, ", " + "y" * 60, ", z") == text
    assert len(fitted("x" * 400)) == 160
