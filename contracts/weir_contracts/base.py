"""Shared parts of all contracts: formats of sentences, the frozen base, identifiers, bounded numbers, durations, estimates.

Unknown is `None`, never 0: a reader that finds `None` holds rather than guesses. A sentence stands where it is decided;
its formats and its length are shared. A sentence of Weir's own has at most `MAX_SENTENCE` characters: what changes, the
number with its unit, the reason.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Literal, Self
from uuid import UUID, uuid5

from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

MAX_SENTENCE = 160
"""Characters of a sentence by Weir. A foreign planner's may be longer, up to what its message carries."""
MAX_NAME = 40
"""Characters of a name in a sentence."""
MAX_LIST = 60
"""Characters of a list of names or changes in a sentence."""


def bounded(text: str, length: int = 2000) -> str:
    """Return `text`; a longer one is cut to `length` characters, the last of them an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def one_line(text: object, length: int = 300) -> str:
    """Return an external text or error on one line of at most `length` characters; an error without text by its
    class."""
    line = " ".join(str(text).split())
    return bounded(line or (type(text).__name__ if isinstance(text, BaseException) else ""), length)


def short_name(name: str) -> str:
    """Return a name, cut to `MAX_NAME` characters."""
    return bounded(name, MAX_NAME)


def fitted(text: str, *details: str) -> str:
    """Return `text` with as many of the details, most important first, as fit `MAX_SENTENCE` characters.

    A detail brings its own comma or semicolon. A `text` that is too long by itself is cut.
    """
    found = bounded(text, MAX_SENTENCE)
    for detail in details:
        if len(found) + len(detail) > MAX_SENTENCE:
            break
        found += detail
    return found


def listed(parts: Sequence[str], length: int = MAX_LIST, separator: str = ", ") -> str:
    """Join the first part and as many others as fit `length` characters; count the rest: `parse, enrich and 3 more`."""
    found, rest = (parts[0] if parts else ""), " and" if separator == ", " else separator.rstrip()
    for i, part in enumerate(parts[1:], start=1):
        more = f"{rest} {len(parts) - i - 1} more" if i < len(parts) - 1 else ""
        if len(found) + len(separator) + len(part) + len(more) > length:
            return f"{found}{rest} {len(parts) - i} more"
        found += separator + part
    return found


def names(operators: Iterable[str]) -> str:
    """Format as `parse, enrich and 3 more`."""
    return listed([short_name(name) for name in operators])


def changes(before: Mapping[str, int], after: Mapping[str, int], length: int = MAX_LIST) -> str:
    """Format the differences as `enrich 2 → 4, sink 1 → 2 and 3 more`; `no change` without one."""
    moved = [f"{short_name(name)} {before.get(name, '?')} → {p}" for name, p in after.items() if before.get(name) != p]
    return listed(moved, length) or "no change"


def sizes(parallelism: Mapping[str, int], length: int = MAX_LIST) -> str:
    """Format as `parse 2, enrich 4 and 3 more`."""
    return listed([f"{short_name(name)} {p}" for name, p in parallelism.items()], length)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Format as `1 slot`, `2 slots`, `1,200 records`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def formatted(value: float | None) -> str:
    """Format a number as `1,234`, `12.3`, `0.034`; `unknown` without one."""
    if value is None:
        return "unknown"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.3g}"


def after_colon(reason: str) -> str:
    """Format an external reason as the end of a clause, `: no route to host`; nothing without one."""
    return f": {reason}" if reason else ""


VERSION: Literal["v1alpha1"] = "v1alpha1"
"""Version of every contract in this package; part of each topic's name."""


class Message(BaseModel):
    """Base of every message: a frozen value that crosses a process border.

    Readers ignore unknown fields, so that optional fields may be added within a version in any upgrade order. NaN and
    infinity are invalid. The docstring of a field is its description in the JSON Schema.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, use_attribute_docstrings=True)

    def __copy__(self) -> Self:
        """Copy the fields without cached properties: a copy with other fields (`model_copy`) computes its own."""
        copied, fields = super().__copy__(), type(self).__pydantic_fields__
        if len(copied.__dict__) > len(fields):
            for name in copied.__dict__.keys() - fields.keys():
                del copied.__dict__[name]
        return copied


NAME_PATTERN = r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"

Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}$", examples=["orders"])]
"""Name of a namespace, application, planner or guard, in the form of a Kubernetes name."""

ApplicationId = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}/{NAME_PATTERN}$", examples=["shop/orders"])]
"""Id of an application: `namespace/name`, the key of its messages in every topic."""

OperatorName = Annotated[str, Field(min_length=1, max_length=400, examples=["enrich"])]
"""Name of an operator as its engine shows it; a suffix ` #2` makes it unique within its topology."""

SubtaskCount = Annotated[int, Field(ge=1, le=32768)]
"""Number of subtasks of one operator; 32,768 is the largest max parallelism of Flink."""

Parallelism = Annotated[dict[OperatorName, SubtaskCount], Field(fail_fast=True)]
"""Parallelism by operator, in subtasks.

`fail_fast`, since each wrong entry of a large map would otherwise be a separate error: gigabytes for a few megabytes.
"""


def writable(value: dict[str, Any]) -> dict[str, Any]:
    """Return an opaque map; `ValueError` if JSON cannot represent it (NaN, infinity, a lone surrogate, deep
    nesting)."""
    if not value:
        return value
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False, default=str).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON: {' '.join(str(error).split())[:200]}") from None
    return value


def _bounded_numbers(value: dict[str, Any]) -> dict[str, Any]:
    pending: list[tuple[str, Any]] = list(value.items())
    while pending:
        path, item = pending.pop()
        if isinstance(item, dict):
            pending += [(f"{path}.{key}", inner) for key, inner in item.items()]
        elif isinstance(item, list):
            pending += [(f"{path}.{i}", inner) for i, inner in enumerate(item)]
        elif isinstance(item, int | float) and item and not MIN_NUMBER <= abs(item) <= MAX_COUNT:
            raise ValueError(f"{path[:100]} must be 0, or between {MIN_NUMBER:g} and {MAX_COUNT:.0e} in size")
    return value


Parameters = Annotated[dict[str, Any], Field(max_length=50), AfterValidator(writable), AfterValidator(_bounded_numbers)]
"""Parameters of a planner as a policy holds them; numbers are bounded at any depth."""

_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)


def _between_1970_and_3000(value: datetime) -> datetime:
    # Comparing instants of different zones takes longer.
    if not 1970 < value.year < 2999 and not _EARLIEST <= value <= _LATEST:
        raise ValueError("must lie between the years 1970 and 3000")
    return value


Timestamp = Annotated[AwareDatetime, AfterValidator(_between_1970_and_3000)]
"""Instant with a time zone, from 1970 to 3000: adding a few `MAX_SECONDS` does not overflow the calendar."""

MAX_NUMBER, MIN_NUMBER = 1e18, 1e-18
"""Bounds of the size of a number other than 0 in a message. Sums, products and quotients of a few of them stay
finite."""
MAX_COUNT = 2**63 - 1
"""Maximum of a counter of an engine or a broker."""
MAX_ORDER = 2**53
"""Maximum of the numbers that order policies, outcomes and actions. None is ever reached by counting: at it a number
stays, so that a record with the maximum cannot prevent all further ones."""
MAX_SECONDS = 366 * 86_400.0
"""Maximum time in a setting or a reading, in seconds."""


def within(value: float | None, limit: float = MAX_NUMBER) -> float | None:
    """Return `value`; None (unknown) if its size exceeds `limit` or is not finite; 0 if it is below `MIN_NUMBER`."""
    if value is None or not -limit <= value <= limit:
        return None
    return value if abs(value) >= MIN_NUMBER else 0.0


def _zero_if_tiny(value: float) -> float:
    return value if value >= MIN_NUMBER or value <= -MIN_NUMBER else 0.0


Quantity = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER), AfterValidator(_zero_if_tiny)]
"""Measured, configured or requested number; a size below `MIN_NUMBER` is read as 0."""
NonNegative = Annotated[float, Field(ge=0, le=MAX_NUMBER), AfterValidator(_zero_if_tiny)]
Rate = Annotated[float, Field(ge=MIN_NUMBER, le=MAX_NUMBER)]
"""Records/s, above 0 because it is used as a divisor."""
Derived = Annotated[float, Field(ge=0, le=1e100)]
"""Computed number of 0 or more (prediction, simulation); it may exceed the bounds of its inputs."""
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Share = Annotated[float, Field(ge=0, le=1)]

MAX_SENTENCE_LENGTH = 2000
"""Characters that a message carries of a sentence, whoever wrote it."""


def cut_to(length: int) -> BeforeValidator:
    """Return the validator that cuts a longer text to `length` characters. It stands after the field's constraints,
    which also refuse a lone surrogate."""
    return BeforeValidator(lambda value: bounded(value, length) if isinstance(value, str) else value)


Sentence = Annotated[str, Field(min_length=1, max_length=MAX_SENTENCE_LENGTH), cut_to(MAX_SENTENCE_LENGTH)]
"""Sentence for people; a longer one is cut on validation. `model_copy` does not validate: its caller cuts
(`bounded`)."""
Code = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$", examples=["metric-missing"])]
"""Reason for programs, in kebab-case; the sentence next to it is for people."""

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
_DURATION = re.compile(DURATION_PATTERN)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_MAX_DURATION = timedelta(days=366)
MAX_DURATION_SECONDS = _MAX_DURATION.total_seconds()


def parse_duration(value: Any) -> timedelta:
    """Return the duration of `500ms`, `30s`, `5m`, `1h30m` or `2d`; a `timedelta` passes through.

    Raises `ValueError` for anything else, bare numbers included: their unit would be a guess.
    """
    parsed = value if isinstance(value, timedelta) else None
    if isinstance(value, str) and len(value) <= 40:
        parsed = _parse(value)
    if parsed is None:
        raise ValueError("must be a duration with a unit such as 500ms, 30s, 5m or 1h30m")
    if not timedelta(0) <= parsed <= _MAX_DURATION:
        raise ValueError("must lie between 0s and 366d")
    return parsed


# Cached, since every message carries its policy with two dozen durations.
@lru_cache(maxsize=1024)
def _parse(text: str) -> timedelta | None:
    if not _DURATION.fullmatch(text):
        return None
    seconds = sum(float(n) * _UNIT_SECONDS[unit] for n, unit in _PART.findall(text))
    return timedelta(seconds=min(seconds, 2 * _MAX_DURATION.total_seconds()))  # a timedelta has a limit


@lru_cache(maxsize=1024)
def format_duration(value: timedelta) -> str:
    """Return the shortest exact text in descending units: `1m30s` for 90 seconds."""
    left = round(value.total_seconds() * 1000)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, round(_UNIT_SECONDS[unit] * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def duration_text(seconds: float) -> str:
    """Return seconds in a sentence, rounded to full ones: `1m30s`."""
    return format_duration(timedelta(seconds=round(seconds)))


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "maxLength": 40, "examples": ["30s"]}),
]
"""Duration with a unit, such as `30s`, from 0s to 366d."""


PORT_PATTERN = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
"""Port between 1 and 65535, as one writes it."""
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = "([A-Za-z0-9_-]+[.])*[0-9]*[A-Za-z_-][A-Za-z0-9_-]*[.]?"
_PATH = "([A-Za-z0-9._~!$&()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
URL_PATTERN = rf"^https?://({_HOST}|({_OCTET}[.]){{3}}{_OCTET}|\[[0-9A-Fa-f:]+\])(:({PORT_PATTERN}))?(/{_PATH}*)?$"
"""Address of an HTTP API as a policy writes it. URL parsers read more, each something else: `http:host`, `http://1.2`,
`HTTP://host:/`."""
_URL = re.compile(URL_PATTERN)


def _without_credentials(url: AnyHttpUrl) -> AnyHttpUrl:
    if url.username or url.password:
        raise ValueError("must not contain credentials: every user with the role read sees policies")
    if url.query or url.fragment:
        raise ValueError("must not have a query or fragment")
    if url.port == 0:
        raise ValueError("its port must lie between 1 and 65535")
    return url


def _written_plainly(value: Any, validate: ValidatorFunctionWrapHandler) -> AnyHttpUrl:
    url: AnyHttpUrl = validate(value)
    if isinstance(value, str) and not _URL.fullmatch(value):
        raise ValueError("must be an http or https address such as http://host:8081/path, without anything else")
    return url


RestUrl = Annotated[AnyHttpUrl, AfterValidator(_without_credentials), WrapValidator(_written_plainly)]
"""Address of an HTTP API, without credentials, query or fragment."""


class Estimate(Message):
    """Number with its basis and confidence."""

    value: Quantity | None = None
    """Estimated value, in the unit of the field that holds the estimate. None: unknown, for the reason in `basis`."""
    lower_bound: Quantity | None = None
    """Value that the known part proves while `value` is unknown: the true one is this or more. It justifies growth, never
    shrinking. None: `value` is known, or nothing is."""
    basis: Annotated[str, Field(max_length=300)]
    """Method and data of the estimate, or the reason why the value is unknown."""
    confidence: Share = 0.0
    """Confidence in the value or its lower bound, 0 to 1; 0 if both are unknown."""
    samples: Count = 0
    """Number of readings that the estimate rests on."""
    window_seconds: NonNegative | None = None
    """Length of the window in seconds. None: not computed over a window."""

    @property
    def proven(self) -> float | None:
        """The value, or its lower bound if the value is unknown; None if both are."""
        return self.lower_bound if self.value is None else self.value


def unknown(reason: str) -> Estimate:
    """Return an estimate without a value."""
    return Estimate(value=None, basis=reason, confidence=0.0)


def derive_id(parent: UUID, stage: str) -> UUID:
    """Return the id of the message that `stage` makes of `parent`; a replay repeats it, so consumers are idempotent."""
    return uuid5(parent, stage)


WEIR_NAMESPACE = UUID("6b2f9f4e-7f0e-5d55-9d0e-3f1f5d8a7c11")


def observation_id(application: str, observed_at: Any) -> UUID:
    """Return the id of the observation of `application` at `observed_at`."""
    return uuid5(WEIR_NAMESPACE, f"{application}@{observed_at.isoformat()}")
