"""A planner's memory in few bytes: for jobs whose memory as plain JSON is larger than a plan may carry."""

import base64
import json
import zlib
from typing import Any

MAX_UNPACKED_BYTES = 4_000_000
"""Memory comes back from a topic, where a few bytes could stand for gigabytes."""


def size(value: Any) -> int:
    """Return the length of the value as compact JSON, in bytes."""
    return len(json.dumps(value, separators=(",", ":")))


def packed(value: Any) -> str:
    """Return the value compressed, as text that JSON need not escape."""
    return base64.b85encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)).decode()


def unpacked(text: str) -> Any:
    """Return what was packed. `ValueError` for any other text."""
    decompressor = zlib.decompressobj()
    try:
        found = decompressor.decompress(base64.b85decode(text), MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(f"is not packed: {error}") from None
    if not decompressor.eof:
        raise ValueError(f"is cut, or larger than {MAX_UNPACKED_BYTES:,} bytes")
    return json.loads(found)
