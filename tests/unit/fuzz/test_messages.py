"""Bad messages: whatever a topic holds, reading it ends in a message or in one sentence with field and place."""

import json
import tracemalloc
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tests.effort import examples, some
from weir_contracts.export import CONTRACTS
from weir_runtime.bus import Record
from weir_runtime.messages import MAX_MESSAGE_BYTES, Decoded, Undecodable, child_traceparent, decode, new_traceparent

from .documents import BROKEN, JSON, Place, broken, example, places

quick = examples(25)
NAMES = list(CONTRACTS)
REPORTED_ONCE: dict[str | int, str] = {
    "policy": "policy",
    "analysis": "analysis",
    "topology": "observation",
    "deployment": "observation",
    "observations": "observation",
    "outcomes": "outcome",
}
"""Parts that several contracts share, by the contract in which they are tried."""


def read(name: str, value: bytes | None, headers: dict[str, str] | None = None) -> Decoded[Any] | Undecodable:
    """Return the reader's result; any other exception fails the test."""
    try:
        return decode(Record("weir.things.v1", 3, 41, "shop/orders", value, headers or {}), CONTRACTS[name])
    except Undecodable as error:
        assert error.record.place == "weir.things.v1/3@41"
        assert error.reason and len(error.reason) < 2000
        assert str(error).startswith("weir.things.v1/3@41: ")
        str(error).encode()
        return error


@pytest.mark.parametrize("name", some(NAMES, 3))
def test_one_broken_field_is_named(name: str) -> None:
    """Every field of every contract, with each kind of nonsense in it: it is either a value of its type or named."""
    document = example(name)
    model: type[BaseModel] = CONTRACTS[name]
    own = [at for at in places(document) if len(at) < 2 or REPORTED_ONCE.get(at[0], name) == name]
    for place, text in some(product(own, BROKEN.values()), 8):
        found = read(name, broken(document, place, text))
        if isinstance(found, Decoded):
            written = found.message.model_dump_json()  # what was let in can be passed on
            assert model.model_validate_json(written).model_dump_json() == written
        elif _parses(text) and place:
            named = (found.field or "").split(".")
            assert found.field is None or str(place[0]) in named[0] or named[0].lower() in model.__name__.lower()


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_every_list_and_map_has_an_end(name: str) -> None:
    """Each wrong entry is a separate error with a place and a sentence: without a limit that is counted before the
    entries are read, or a stop at the first wrong one, 8 MB of `{},` take 6 GB and minutes."""
    assert list(_endless(CONTRACTS[name].__pydantic_core_schema__, name)) == []


def _endless(schema: Any, at: str) -> Iterator[str]:
    """Places of lists and maps that may hold any number of wrong entries."""
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from _endless(part, at)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if kind == "function-before" and "limit_count" in schema["function"]["function"].__name__:
        return
    typed = kind == "dict" and schema.get("values_schema", {}).get("type") != "any"
    if (typed or (kind == "list" and not schema.get("max_length"))) and not schema.get("fail_fast"):
        yield at
    for key, part in schema.items():
        if key == "fields" and isinstance(part, dict):
            for field, inner in part.items():
                yield from _endless(inner, f"{at}.{field}")
        elif key not in ("metadata", "serialization"):
            yield from _endless(part, at)


@pytest.mark.parametrize(
    ("name", "place", "flood"),
    [
        ("plan", ("alternatives",), "[" + "{}," * 20_000 + "{}]"),
        ("plan", ("infeasible",), "[" + "{}," * 20_000 + "{}]"),
        ("plan", ("current",), "{" + ",".join(f'"{i}":0' for i in range(20_000)) + "}"),
        ("outcome", ("wanted",), "{" + ",".join(f'"{i}":0' for i in range(20_000)) + "}"),
        ("policy", ("spec", "bounds", "operators"), "{" + ",".join(f'"{i}":{{"min":0}}' for i in range(20_000)) + "}"),
    ],
)
def test_a_flood_of_wrong_entries_is_one_error(name: str, place: Place, flood: str) -> None:
    """Where a message may hold most of them."""
    with pytest.raises(ValidationError) as caught:
        CONTRACTS[name].model_validate_json(broken(example(name), place, flood))
    assert caught.value.error_count() == 1


@given(name=st.sampled_from(NAMES), value=JSON)
@quick
def test_any_json_does_no_harm(name: str, value: Any) -> None:
    """Documents that have nothing to do with the contract."""
    read(name, json.dumps(value).encode())


@given(name=st.sampled_from(NAMES), data=st.data())
@quick
def test_a_valid_document_with_any_value_in_one_place(name: str, data: st.DataObject) -> None:
    """Generated values in generated places."""
    document = example(name, data.draw(st.sampled_from(["full", "minimal"])))
    place = data.draw(st.sampled_from(list(places(document))))
    read(name, broken(document, place, json.dumps(data.draw(JSON))))


@given(name=st.sampled_from(NAMES), data=st.data())
@quick
def test_torn_and_flipped_bytes_do_no_harm(name: str, data: st.DataObject) -> None:
    """A message cut anywhere, with bytes changed anywhere, or no message at all."""
    whole = bytearray(json.dumps(example(name, "minimal")).encode())
    for _ in range(data.draw(st.integers(0, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    read(name, bytes(whole[:cut]))
    read(name, data.draw(st.binary(max_size=300)))


@given(
    headers=st.dictionaries(
        st.sampled_from(["ce_type", "ce_id", "ce_time", "ce_specversion", "traceparent", "content-type"])
        | st.text(max_size=10),
        st.text(max_size=60),
    )
)
@quick
def test_wrong_headers_cost_nothing(headers: dict[str, str]) -> None:
    """Only the body determines a message; a trace that cannot be continued is replaced by a new one."""
    body = json.dumps(example("outcome")).encode()
    found = read("outcome", body, headers)
    assert isinstance(found, Decoded)
    trace = child_traceparent(found.traceparent, found.message.id)
    version, trace_id, span, flags = trace.split("-")
    assert (version, len(trace_id), len(span), flags) == ("00", 32, 16, "01")
    assert trace == new_traceparent(found.message.id) or trace_id in (found.traceparent or "")


@pytest.mark.parametrize("name", some(["plan", "analysis", "observation", "outcome", "policy", "dead-letter"], 6))
def test_a_message_of_the_maximum_size_takes_a_few_times_its_size(name: str) -> None:
    """8 MB of a wrong map or list, of text, of digits and of brackets; one byte more is not even looked at."""
    document = example(name)
    field = max(document, key=lambda key: isinstance(document[key], dict | list))
    room = MAX_MESSAGE_BYTES - len(json.dumps(document)) - 20
    tracemalloc.start()
    try:
        for text in ("[" + "0," * (room // 2 - 1) + "0]", '"' + "x" * room + '"', "9" * room, "[" * room):
            assert isinstance(read(name, broken(document, (field,), text)), Undecodable)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * MAX_MESSAGE_BYTES
    over = read(name, b"x" * (MAX_MESSAGE_BYTES + 1))
    assert isinstance(over, Undecodable) and "bytes, more than" in over.reason
