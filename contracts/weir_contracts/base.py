"""What every contract shares: the frozen base, identifiers, durations and estimates.

Unknown is `None`, never 0: a reader that finds `None` must hold rather than guess.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Literal, Self
from uuid import UUID, uuid5

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

VERSION: Literal["v1alpha1"] = "v1alpha1"
"""The version of every contract in this package; part of each topic's name."""


class Message(BaseModel):
    """A frozen value that crosses a process border.

    Fields a reader does not know are ignored, so that within a version optional fields may be added in any upgrade
    order. NaN and infinity are refused: they are not numbers anybody can act on.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    def __copy__(self) -> Self:
        """Copy the fields without cached properties: a copy with other fields (`model_copy`) computes its own."""
        copied, fields = super().__copy__(), type(self).__pydantic_fields__
        if len(copied.__dict__) > len(fields):
            for name in copied.__dict__.keys() - fields.keys():
                del copied.__dict__[name]
        return copied


NAME_PATTERN = r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"

Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}$", examples=["orders"])]
"""A namespace's or an application's name, as Kubernetes writes them."""

ApplicationId = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}/{NAME_PATTERN}$", examples=["shop/orders"])]
"""`namespace/name`: the key of every topic."""

OperatorName = Annotated[str, Field(min_length=1, max_length=400, examples=["enrich"])]
"""An operator's name as its engine shows it; made unique within a topology by a suffix ` #2`."""

SubtaskCount = Annotated[int, Field(ge=1, le=32768)]
"""32768 is the largest max parallelism an engine knows (Flink)."""

Parallelism = Annotated[dict[OperatorName, SubtaskCount], Field(fail_fast=True)]
"""Parallelism by operator.

Without `fail_fast` each wrong entry of a large map is an error of its own: megabytes of nonsense would take gigabytes.
"""


def writable(value: dict[str, Any]) -> dict[str, Any]:
    """A map whose meaning is its owner's, if it can be written as JSON: no NaN, infinity or half of a character."""
    if not value:
        return value
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False, default=str).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"holds what JSON cannot say: {' '.join(str(error).split())[:200]}") from None
    return value


def _bounded_numbers(value: dict[str, Any]) -> dict[str, Any]:
    waiting: list[tuple[str, Any]] = list(value.items())
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, dict):
            waiting += [(f"{place}.{key}", inner) for key, inner in each.items()]
        elif isinstance(each, list):
            waiting += [(f"{place}.{i}", inner) for i, inner in enumerate(each)]
        elif isinstance(each, int | float) and each and not MIN_NUMBER <= abs(each) <= MAX_COUNT:
            raise ValueError(f"{place[:100]} must be 0, or between {MIN_NUMBER:g} and {MAX_COUNT:.0e} in size")
    return value


Parameters = Annotated[dict[str, Any], Field(max_length=50), AfterValidator(writable), AfterValidator(_bounded_numbers)]
"""A planner's own settings as a policy holds them."""

_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)


def _within_reach(value: datetime) -> datetime:
    if not _EARLIEST <= value <= _LATEST:
        raise ValueError("must lie between the years 1970 and 3000")
    return value


Timestamp = Annotated[AwareDatetime, AfterValidator(_within_reach)]
"""An instant with its zone. At the ends of the calendar there is no "an hour before", so every sum would need its own guard."""

MAX_NUMBER, MIN_NUMBER = 1e18, 1e-18
"""What a number in a message may be: 0, or within these in size. Sums, products and quotients of a few of them stay finite."""
MAX_COUNT = 2**63 - 1
"""What a counter of an engine or a broker can hold."""
MAX_SECONDS = 366 * 86_400.0
"""The longest time in a setting or a reading; a timestamp and a few of these stay within the calendar."""


def within(value: float | None, most: float = MAX_NUMBER) -> float | None:
    """Return `value`, or None (unknown) if it is not finite or larger than `most` in size; 0 for one that is next to nothing."""
    if value is None or not -most <= value <= most:
        return None
    return value if abs(value) >= MIN_NUMBER else 0.0


def _zero_if_tiny(value: float) -> float:
    return value if value >= MIN_NUMBER or value <= -MIN_NUMBER else 0.0


Quantity = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER), AfterValidator(_zero_if_tiny)]
"""A number that was measured, set or asked for; one nearer to 0 than `MIN_NUMBER` is read as 0."""
NonNegative = Annotated[float, Field(ge=0, le=MAX_NUMBER), AfterValidator(_zero_if_tiny)]
Rate = Annotated[float, Field(ge=MIN_NUMBER, le=MAX_NUMBER)]
"""Records/s above 0: something is divided by it."""
Derived = Annotated[float, Field(ge=0, le=1e100)]
"""A number that Weir computes from those above: predictions and what is simulated. It may exceed them."""
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Share = Annotated[float, Field(ge=0, le=1)]

MAX_SENTENCE_LENGTH = 2000


def bounded(text: str, length: int = MAX_SENTENCE_LENGTH) -> str:
    """Return `text`, cut to `length` characters, the last of them an ellipsis, if it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def one_line(text: object, length: int = 300) -> str:
    """Return a text or an error of another program on one line of at most `length` characters; an error without text by its class."""
    words = " ".join(str(text).split())
    return bounded(words or (type(text).__name__ if isinstance(text, BaseException) else ""), length)


Sentence = Annotated[
    str,
    BeforeValidator(lambda value: bounded(value) if isinstance(value, str) else value),
    Field(min_length=1, max_length=MAX_SENTENCE_LENGTH),
]
"""A sentence for people; a longer one is cut when it is read. `model_copy` does not read: there the caller cuts it (`bounded`)."""
Code = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$", examples=["metric-missing"])]
"""A reason a program can test for; the sentence beside it is for people."""

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_LONGEST = timedelta(days=366)


def parse_duration(value: Any) -> timedelta:
    """Read `500ms`, `30s`, `5m`, `1h30m` or `2d`; a `timedelta` passes through.

    Raises `ValueError` for anything else, bare numbers included: their unit would be a guess.
    """
    parsed = value if isinstance(value, timedelta) else None
    if isinstance(value, str) and len(value) <= 40:
        parsed = _read(value)
    if parsed is None:
        raise ValueError("must be a duration with a unit such as 500ms, 30s, 5m or 1h30m")
    if not timedelta(0) <= parsed <= _LONGEST:
        raise ValueError("must lie between 0s and 366d")
    return parsed


# Every message of the loop carries its policy, and a policy two dozen of the same few durations.
@lru_cache(maxsize=1024)
def _read(text: str) -> timedelta | None:
    if not _DURATION.fullmatch(text):
        return None
    seconds = sum(float(n) * _UNIT_SECONDS[unit] for n, unit in _PART.findall(text))
    return timedelta(seconds=min(seconds, 2 * _LONGEST.total_seconds()))  # far larger ones do not fit a timedelta


@lru_cache(maxsize=1024)
def format_duration(value: timedelta) -> str:
    """The shortest exact text in descending units: `90s` is written `1m30s`."""
    left = round(value.total_seconds() * 1000)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, round(_UNIT_SECONDS[unit] * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d))+$", "maxLength": 40, "examples": ["30s"]}
    ),
]
"""A length of time as people write it: `30s`. Used wherever a policy names one."""


class Estimate(Message):
    """A number with how it was got. `value is None` means unknown, and `basis` then says why."""

    value: Quantity | None = None
    basis: Annotated[str, Field(max_length=300)]
    confidence: Share = 0.0
    samples: Count = 0
    window_seconds: NonNegative | None = None


def unknown(why: str) -> Estimate:
    """The estimate of something that could not be measured, and why."""
    return Estimate(value=None, basis=why, confidence=0.0)


def derive_id(parent: UUID, stage: str) -> UUID:
    """The id of what `stage` makes of `parent`: the same for every replay, so consumers can be idempotent."""
    return uuid5(parent, stage)


WEIR_NAMESPACE = UUID("6b2f9f4e-7f0e-5d55-9d0e-3f1f5d8a7c11")


def observation_id(application: str, observed_at: Any) -> UUID:
    """The id of an observation: one application at one instant."""
    return uuid5(WEIR_NAMESPACE, f"{application}@{observed_at.isoformat()}")
