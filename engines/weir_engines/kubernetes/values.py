"""Parses values of the Kubernetes API's objects, and never raises: a missing or malformed one is `None` or empty."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from weir_contracts import MAX_COUNT, bounded, within

MAX_TEXT = 500
"""Characters of a text that is shown to users."""
_MAX_LABELS = 100
_QUANTITY = re.compile(r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6}(?:\.\d{1,12})?)s)?(?:(\d{1,6}(?:\.\d{1,12})?)ms)?")
_UNITS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** (i + 1) for i, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (i + 1) for i, unit in enumerate("KMGTPE")},
}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> Sequence[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else ()


def text(value: Any, limit: int = MAX_TEXT) -> str:
    """Return a text in one line of at most `limit` characters; an empty one for anything else."""
    if not isinstance(value, str):
        return ""
    line = " ".join(value[: 2 * limit].split()).encode(errors="replace").decode()
    return bounded(line, limit)


def name(value: Any, limit: int = 253) -> str:
    """Return a name or uid; an empty one for a text that is longer, and for anything else."""
    return value if isinstance(value, str) and len(value) <= limit and value.isprintable() else ""


def count(value: Any) -> int | None:
    """Return a number of 0 or more."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None


def instant(value: Any) -> datetime | None:
    """Return a time such as `2026-03-01T10:00:00Z`."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    if found.tzinfo is None or not 1970 < found.year < 3000:
        return None
    return found.astimezone(UTC)


def duration(value: Any) -> timedelta | None:
    """Return a time span such as `30s`, `1m0.5s` or `15.012s`, up to a day."""
    if not isinstance(value, str) or not value or (match := _DURATION.fullmatch(value)) is None:
        return None
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    found = timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    return found if found <= timedelta(days=1) else None


def quantity(value: Any) -> float | None:
    """Return a quantity such as `250m`, `1Gi` or `1e3` in its unit: cores or bytes."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 64:
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    try:
        number = Decimal(match[1]) * (Decimal(10) ** int(match[2]) if match[2] else _UNITS[match[3] or ""])
    except InvalidOperation:
        return None
    return within(float(number)) if number >= 0 else None


def whole(value: float | None) -> int | None:
    """Return a number of bytes, rounded up."""
    return None if value is None or value > MAX_COUNT else math.ceil(value)


def labels(value: Any) -> Mapping[str, str]:
    found = mapping(value)
    if len(found) > _MAX_LABELS:
        return {}
    return {key: each for key, each in found.items() if isinstance(each, str) and len(key) + len(each) <= 400}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a label selector: the label `key` is in `values`, or is not, or exists, or does not."""

    key: str
    values: frozenset[str] | None = None
    """None: any value."""
    negated: bool = False

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with `labels` fulfils it."""
        has = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return has != self.negated


Selector = tuple[Requirement, ...]
"""Requirements of a label selector, which all apply. An empty one selects nothing here: no workload owns all pods."""

_PART = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<absent_key>[^\s,()=!]+)"
    r"|(?P<key>[^\s,()=!]+)\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[^\s,()=!]*)|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)


def parse_selector(written: Any) -> Selector | None:
    """Return the selector of a scale subresource, such as `app=orders,tier in (a,b)`; None if it is empty or invalid."""
    if not isinstance(written, str) or not written.strip() or len(written) > 4000:
        return None
    found, at = [], 0
    while at < len(written):
        part = _PART.match(written, at)
        if part is None or part.end() == at:
            return None
        at = part.end()
        if part["absent"]:
            found.append(Requirement(part["absent_key"], negated=True))
        elif part["set"]:
            values = frozenset(value.strip() for value in part["values"].split(","))
            found.append(Requirement(part["key"], values, part["set"] == "notin"))
        elif part["operator"]:
            found.append(Requirement(part["key"], frozenset({part["value"]}), part["operator"] == "!="))
        else:
            found.append(Requirement(part["key"]))
    return tuple(found)


def label_selector(document: Any) -> Selector | None:
    """Return the selector of an object's `spec.selector`; None if it is empty or invalid."""
    document = mapping(document)
    found = [Requirement(key, frozenset({value})) for key, value in labels(document.get("matchLabels")).items()]
    for each in map(mapping, sequence(document.get("matchExpressions"))):
        key, operator = each.get("key"), each.get("operator")
        values = frozenset(value for value in sequence(each.get("values")) if isinstance(value, str))
        if not isinstance(key, str) or operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            return None
        takes_values = operator in ("In", "NotIn")
        found.append(Requirement(key, values if takes_values else None, operator in ("NotIn", "DoesNotExist")))
    return tuple(found) or None


def selects(selector: Selector | None, labels: Mapping[str, str]) -> bool:
    return bool(selector) and all(requirement.fits(labels) for requirement in selector or ())
