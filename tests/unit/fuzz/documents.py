"""The golden examples, and every way to break one field of them."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from weir_contracts.base import VERSION

EXAMPLES = Path(__file__).resolve().parents[3] / "contracts" / "examples" / VERSION
Place = tuple[str | int, ...]

HOLE = "@@here@@"
BROKEN = {
    "null": "null",
    "true": "true",
    "NaN": "NaN",
    "infinity": "-Infinity",
    "1e308": "1e308",
    "beyond a double": "1e999",
    "beyond any integer": "9" * 5000,
    "a negative number": "-1",
    "a fraction": "0.5",
    "an empty text": '""',
    "a long text": '"' + "x" * 5000 + '"',
    "a lone surrogate": r'"\ud800"',
    "a control character": r'"a\u0000b"',
    "a list": "[]",
    "a list of everything": '[null, 1, "a", {}, [], true]',
    "an object": "{}",
    "an object with an odd key": r'{"": {"\udfff": 1}}',
    "a deep list": "[" * 1000 + "]" * 1000,
    "a deep object": '{"a":' * 1000 + "1" + "}" * 1000,
    "a list without end": "[" * 1000,
    "nothing": "",
}
"""What stands where a value should, as it is written in a message."""


def example(name: str, which: str = "full") -> Any:
    """A golden example of a contract."""
    return json.loads((EXAMPLES / name / f"{which}.json").read_text())


def places(document: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a document; of a list only the first entry, since the others are of the same kind."""
    yield at
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*at, key))
    elif isinstance(document, list) and document:
        yield from places(document[0], (*at, 0))


def with_hole(document: Any, at: Place) -> Any:
    """The document with `HOLE` at a place."""
    if not at:
        return HOLE
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = with_hole(document[at[0]], at[1:])
    return copy


def broken(document: Any, at: Place, text: str) -> bytes:
    """The message with `text`, JSON or not, at a place."""
    return json.dumps(with_hole(document, at)).replace(f'"{HOLE}"', text).encode()


def broken_at_random(document: Any, every: int) -> Iterator[bytes]:
    """One in `every` of the ways to break one field of a document, the same ones each time."""
    chance = random.Random(7)
    for place in places(document):
        for text in BROKEN.values():
            if chance.random() * every < 1:
                yield broken(document, place, text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)
"""Any value that JSON can say, and NaN, which Python says too."""
