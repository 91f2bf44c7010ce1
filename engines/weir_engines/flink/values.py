"""Values in responses of Flink's REST API.

A missing optional value is `None`; a value of the wrong form raises `Unreadable` with its place.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from weir_contracts import MAX_SECONDS, within

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
MAX_PARALLELISM = 32_768


class Unreadable(ValueError):
    """Error of a response that differs from Flink's documentation; `where` names call and field."""

    def __init__(self, where: str, what: str) -> None:
        self.where = where
        self.what = what
        super().__init__(f"{where}: {what}")


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable(where, f"expected an object, got {type(value).__name__}")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise Unreadable(where, f"expected a list, got {type(value).__name__}")
    return value


def text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise Unreadable(where, f"expected a text that is not empty, got {type(value).__name__}")
    return value


def identifier(value: Any, where: str) -> str:
    """Return an id that is safe in the path of a request."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise Unreadable(where, "expected an id of letters, digits, - and _")
    return value


def number(value: Any) -> float | None:
    """Return a number or numeric text as a float of 0 or more within the bounds of messages, else None (NaN, -1,
    text)."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        parsed = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return within(parsed) if parsed >= 0 else None


def count(value: Any) -> int | None:
    parsed = number(value)
    return None if parsed is None else int(parsed)


def instant(milliseconds: Any) -> datetime | None:
    """Return the instant of milliseconds since the epoch; None for 0, -1 and anything but a time."""
    parsed = number(milliseconds)
    if not parsed or parsed > 32_503_680_000_000:
        return None
    return datetime.fromtimestamp(parsed / 1000, UTC)


_UNITS = {
    "ns": 1e-9,
    **dict.fromkeys(("us", "µs"), 1e-6),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_DURATION = re.compile(r"(\d{1,18})\s*([a-zµ]*)")
_ISO_DURATION = re.compile(r"pt(?=\d)(?:(\d{1,12})h)?(?:(\d{1,12})m)?(?:(\d{1,12}(?:\.\d+)?)s)?")


def flink_seconds(value: str | None, default: float | None) -> float | None:
    """Return the seconds of a duration in Flink's form (`30 s`, `1 min`, `PT30S`, plain milliseconds).

    `default` if it is unset, None if it is unreadable or longer than 366 days.
    """
    if value is None:
        return default
    cleaned = value.strip().strip("'\"").lower()
    if iso := _ISO_DURATION.fullmatch(cleaned):
        hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return within(hours * 3600 + minutes * 60 + seconds, MAX_SECONDS)
    match = _DURATION.fullmatch(cleaned)
    return None if match is None or match[2] not in _UNITS else within(float(match[1]) * _UNITS[match[2]], MAX_SECONDS)
