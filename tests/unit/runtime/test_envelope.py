"""Messages to bytes and back: nothing is lost, and what is wrong is named."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from weir_runtime import envelope
from weir_runtime.envelope import TooLarge, Undecodable, child_traceparent, decode, encode, new_traceparent
from weir_runtime.records import Record

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = UUID("6b2f9f4e-7f0e-5d55-9d0e-3f1f5d8a7c11")


class Inner(BaseModel):
    count: int = Field(ge=0)


class Letter(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str
    inner: list[Inner] = []


def record(value: bytes | None, headers: dict[str, str] | None = None) -> Record:
    return Record("weir.letters.v1", 2, 17, "shop/orders", value, headers or {})


def test_a_message_travels_with_cloudevents_attributes() -> None:
    """Binary mode: attributes in the headers, the message alone in the body."""
    message = Letter(name="grüße", inner=[Inner(count=1)])
    body, headers = encode(message, type="dev.weir.letters.v1", source="planner", id=ID, time=NOON, traceparent="00-x")
    assert headers == {
        "ce_specversion": "1.0",
        "ce_id": str(ID),
        "ce_type": "dev.weir.letters.v1",
        "ce_source": "/weir/planner",
        "ce_time": "2026-01-01T12:00:00+00:00",
        "content-type": "application/json",
        "traceparent": "00-x",
    }
    decoded = decode(record(body, headers), Letter)
    assert decoded.message == message
    assert decoded.traceparent == "00-x"
    assert decoded.record.offset == 17


def test_without_a_trace_there_is_no_header() -> None:
    """Absent is absent, not an empty text."""
    body, headers = encode(Letter(name="a"), type="t", source="s", id=ID, time=NOON)
    assert "traceparent" not in headers
    assert decode(record(body, headers), Letter).traceparent is None


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        (None, None, "no value"),
        (b"", None, "JSON"),
        (b"not json", None, "JSON"),
        (b"\xff\xfe", None, "JSON"),
        (b"[]", None, "mapping of fields"),
        (b"{}", "name", "required"),
        (b'{"name": 7}', "name", "text"),
        (b'{"name": "a", "inner": [{"count": 1}, {"count": -1}]}', "inner.1.count", "greater than or equal to 0"),
        (b"[" * 100_000, None, ""),
    ],
)
def test_what_cannot_be_read_is_named(value: bytes | None, field: str | None, reason: str) -> None:
    """The error names the field, the reason and the record's place."""
    with pytest.raises(Undecodable) as caught:
        decode(record(value), Letter)
    assert caught.value.field == field
    assert reason in caught.value.reason
    assert str(caught.value).startswith("weir.letters.v1/2@17: ")


def test_the_error_does_not_carry_the_message() -> None:
    """A reason goes to logs and topics; what people put into fields need not."""
    with pytest.raises(Undecodable) as caught:
        decode(record(b'{"name": ["hunter2"]}'), Letter)
    assert "hunter2" not in str(caught.value)


def test_too_large_a_message_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody spends memory on parsing it, and before it is sent."""
    monkeypatch.setattr(envelope, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(Undecodable, match="is 101 bytes, more than 100"):
        decode(record(b"x" * 101), Letter)
    with pytest.raises(TooLarge, match="the message of type t has 112 bytes, more than 100"):
        encode(Letter(name="x" * 90), type="t", source="s", id=ID, time=NOON)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(value: bytes) -> None:
    """Whatever a topic holds, reading it ends in a message or in `Undecodable`."""
    try:
        decode(record(value), Letter)
    except Undecodable as error:
        assert error.reason


def test_a_trace_begins_with_the_message_and_goes_on() -> None:
    """From reading to outcome one trace id; each step has its own span."""
    first = new_traceparent(ID)
    version, trace, span, flags = first.split("-")
    assert (version, trace, len(span), flags) == ("00", ID.hex, 16, "01")
    other = UUID("0d0c7f3e-58cf-5d25-8a55-9d1a0f6f7e7b")
    assert child_traceparent(first, other) == f"00-{ID.hex}-{other.hex[16:]}-01"


@pytest.mark.parametrize(
    "parent", [None, "", "00-short-span-01", f"00-{'z' * 32}-{'1' * 16}-01", f"00-{'0' * 32}-1-01"]
)
def test_a_broken_trace_is_replaced(parent: str | None) -> None:
    """An invalid header neither loses the message nor is passed on."""
    assert child_traceparent(parent, ID) == new_traceparent(ID)
