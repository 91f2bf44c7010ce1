"""Sentences fit the messages that carry them."""

import pytest
from pydantic import ValidationError

from weir_contracts import Amendment, PlanReply, bounded, changes, counted, fitted, listed, one_line


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
