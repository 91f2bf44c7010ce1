"""Sentences fit the messages that carry them."""

import pytest
from pydantic import ValidationError
from weir_contracts import Amendment, PlanReply, bounded, one_line


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
