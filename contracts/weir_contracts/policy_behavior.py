"""Bounds, budget, excluded periods and behavior of a policy, with their defaults: how large each operator and their sum may
be, and when and how fast parallelism changes."""

import re
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from .base import Duration, OperatorName
from .document import Document

Subtasks = Annotated[int, Field(ge=1, le=1_000_000)]


class TotalBounds(Document):
    """Limits of the subtasks of all operators together."""

    min: Subtasks | None = None
    """Minimum sum of all operators' subtasks. Default: none."""
    max: Subtasks | None = None
    """Maximum sum of all operators' subtasks; the largest growth yields first. Default: none."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min must not be above max")
        return self


ParallelismBound = Annotated[int, Field(ge=1, le=32768)]


class OperatorBounds(Document):
    """Parallelism limits of one operator."""

    min: ParallelismBound | None = None
    """Minimum parallelism of this operator, in subtasks. Default: `bounds.min`."""
    max: ParallelismBound | None = None
    """Maximum parallelism of this operator, in subtasks. Default: `bounds.max`."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min must not be above max")
        return self


def _limit_count(operators: Any) -> Any:
    """Count before validation, which would make a sentence for each of a million invalid operators."""
    if isinstance(operators, dict) and len(operators) > 500:
        raise ValueError(f"has {len(operators)} operators, more than 500")
    return operators


class Bounds(Document):
    """Parallelism limits: of every operator, of single operators by name, and of all operators together."""

    min: ParallelismBound = 1
    """Minimum parallelism of every operator, in subtasks. Default 1: no operator runs without a subtask."""
    max: ParallelismBound = 32
    """Maximum parallelism of every operator, in subtasks. Default 32 keeps a mistake affordable; set it to what the
    cluster offers."""
    total: TotalBounds | None = None
    """Limits of the sum of all operators' subtasks. Default: none."""
    operators: Annotated[dict[OperatorName, OperatorBounds], BeforeValidator(_limit_count)] = Field(
        default_factory=dict, max_length=500
    )
    """Limits of single operators by name, at most 500; not allowed where one workload or compose service runs all
    operators. Default: none."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        for name in self.operators:
            low, high = self.of(name)
            if low > high:
                raise ValueError(f"operators.{name}: min {low} is above max {high}")
        return self

    def of(self, operator: str) -> tuple[int, int]:
        """Return the minimum and maximum parallelism of `operator`."""
        own = self.operators.get(operator)
        if own is None:
            return self.min, self.max
        return (self.min if own.min is None else own.min, self.max if own.max is None else own.max)


_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
MEMORY_PATTERN = r"^([0-9]{1,15}(?:\.[0-9]{1,3})?)(k|M|G|T|Ki|Mi|Gi|Ti)$"
_MEMORY = re.compile(MEMORY_PATTERN)


def parse_memory(value: Any) -> int:
    """Return the bytes of `512Mi`, `1.5Gi` or `4G`; an integer passes through."""
    if isinstance(value, str) and (found := _MEMORY.fullmatch(value)):
        size = round(float(found[1]) * _UNITS[found[2]])
        if 1 <= size <= 2**60:
            return size
    elif isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**60:
        return value
    raise ValueError("must be a size with a unit such as 512Mi, 4Gi or 16G, or bytes as an integer, at most 2^60")


def format_memory(size: int) -> str | int:
    """Return the size in the largest unit that represents it exactly; an integer if none does."""
    for unit, factor in sorted(_UNITS.items(), key=lambda item: -item[1]):
        if unit and size % factor == 0:
            return f"{size // factor}{unit}"
    return size


Memory = Annotated[
    int,
    BeforeValidator(parse_memory),
    PlainSerializer(format_memory, return_type=str | int),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": MEMORY_PATTERN, "maxLength": 21, "examples": ["4Gi"]},
                {"type": "integer", "minimum": 1, "maximum": 2**60},
            ]
        }
    ),
]
"""Bytes with a unit, such as `4Gi`, or as an integer."""

Cores = Annotated[float, Field(gt=0, le=1_000_000)]


class PerSlot(Document):
    """Resources of one slot, as the cluster is configured."""

    cpu: Cores | None = None
    """CPU of one slot, in cores. Required with `budget.cpu`."""
    memory: Memory | None = None
    """Memory of one slot, such as `2Gi`, or in bytes. Required with `budget.memory`."""


class Budget(Document):
    """Maximum resources of an application. CPU and memory are counted in slots, so `perSlot` must give the size of
    one."""

    slots: Subtasks | None = None
    """Maximum number of slots. Default: no limit."""
    cpu: Cores | None = None
    """Maximum CPU, in cores. Default: no limit."""
    memory: Memory | None = None
    """Maximum memory, such as `64Gi`, or in bytes. Default: no limit."""
    per_slot: PerSlot = Field(default_factory=PerSlot)
    """Resources of one slot."""

    @model_validator(mode="after")
    def _countable(self) -> Self:
        for resource in ("cpu", "memory"):
            total, per_slot = getattr(self, resource), getattr(self.per_slot, resource)
            if total is not None and per_slot is None:
                raise ValueError(f"{resource} needs perSlot.{resource}, the {resource} of one slot")
            if total is not None and per_slot > total:
                raise ValueError(f"{resource} is less than a single slot takes (perSlot.{resource})")
        return self

    @property
    def limit(self) -> tuple[int, str] | None:
        """Maximum number of slots and the resource that limits it; None if there is no limit."""
        limits = [] if self.slots is None else [(self.slots, "slots")]
        if self.cpu is not None and self.per_slot.cpu is not None:
            limits.append((int(self.cpu / self.per_slot.cpu + 1e-9), "CPU"))
        if self.memory is not None and self.per_slot.memory is not None:
            limits.append((self.memory // self.per_slot.memory, "memory"))
        return min(limits, default=None)


CLOCK_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"


def _clock_time(value: Any) -> Any:
    if isinstance(value, time) and value.tzinfo is None:
        return value
    if isinstance(value, str) and re.fullmatch(CLOCK_PATTERN, value):
        return time.fromisoformat(value)
    hint = " in quotes (YAML reads 22:00 without them as a number)" if isinstance(value, int) else ""
    raise ValueError(f'must be a time of day such as "22:00"{hint}')


ClockTime = Annotated[
    time,
    BeforeValidator(_clock_time),
    PlainSerializer(lambda value: f"{value:%H:%M}", return_type=str),
    WithJsonSchema({"type": "string", "pattern": CLOCK_PATTERN, "examples": ["22:00"]}),
]


@lru_cache(maxsize=1000)
def _cron(expression: str | None) -> str | None:
    if expression is None:
        return None
    parts = len(expression.split())
    if parts != 5:
        raise ValueError(f"must have five fields, minute hour day month weekday, and has {parts}")
    try:
        # Starts at a leap day, so that an expression without a match soon after has none at all.
        next(CronSim(expression, datetime(2024, 2, 28, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f"is no cron expression: {str(error).lower()}") from None
    except StopIteration:
        raise ValueError("matches no date, such as 30 February") from None
    return expression


@lru_cache(maxsize=1000)
def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}; use a name such as Europe/Berlin or UTC") from None
    return name


class ExcludedPeriod(Document):
    """Period without changes: for `duration` from each time of `cron`, or every day between `from` and `to`."""

    cron: Annotated[str | None, Field(default=None, max_length=200), AfterValidator(_cron)] = None
    """Cron expression of five fields, minute to weekday, with the semantics of Debian's cron. Requires `duration`."""
    duration: Duration | None = None
    """Length of each period that `cron` begins, 1m to 31d."""
    begins: Annotated[ClockTime | None, Field(alias="from")] = None
    """Start of the daily period on the local clock, such as `"22:00"`. Requires `to`."""
    ends: Annotated[ClockTime | None, Field(alias="to")] = None
    """End of the daily period, exclusive; a time before `from` is on the next day."""
    time_zone: Annotated[str, Field(max_length=100), AfterValidator(_zone)] = "UTC"
    """Time zone of the period, such as `Europe/Berlin`. Default `UTC`."""
    directions: Annotated[list[Literal["up", "down"]], Field(min_length=1, max_length=2)] = Field(
        default=["up", "down"]
    )
    """Directions that are excluded. Default: both. An application outside the policy's bounds is brought into them
    anyway."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        by_cron, daily = (self.cron, self.duration), (self.begins, self.ends)
        if (None not in by_cron and daily == (None, None)) == (None not in daily and by_cron == (None, None)):
            raise ValueError("give either cron and duration, or from and to")
        if self.duration is not None and not timedelta(minutes=1) <= self.duration <= timedelta(days=31):
            raise ValueError("duration must lie between 1m and 31d")
        if self.begins is not None and self.begins == self.ends:
            raise ValueError("from and to must differ; for all day use cron '0 0 * * *' and duration 1d")
        return self


class Direction(Document):
    """Limits on changes of parallelism in one direction."""

    stabilization: Duration
    """Window in which a change must have been recommended throughout; the most cautious recommendation of the window
    counts."""
    max_step: Annotated[int | None, Field(default=None, ge=1, le=32768)] = None
    """Maximum change of one operator in one action, in subtasks. Default: no limit."""
    max_factor: Annotated[float | None, Field(default=None, gt=1, le=32768)] = None
    """Maximum change of one operator in one action, as a ratio: 2 allows doubling or halving. Default: no limit."""


class ScaleUp(Direction):
    stabilization: Duration = timedelta(0)
    """Window in which growth must have been recommended throughout; the smallest recommendation counts. Default 0s:
    grow at once."""
    ineffective_hold: Duration = timedelta(minutes=10)
    """Time without further growth of an operator whose last growth added almost no measured capacity. Default 10m."""


class ScaleDown(Direction):
    stabilization: Duration = timedelta(minutes=2)
    """Window in which shrinking must have been recommended throughout; the largest recommendation counts. Default 2m: a
    short dip is not the end of the load."""
    input_outage_hold: Duration = timedelta(minutes=10)
    """Time without shrinking after the input fell to almost nothing. Default 10m: usually an upstream outage, after
    which all records arrive at once."""
    reversal_hold: Duration = timedelta(minutes=10)
    """Time without shrinking of an operator that went up, down and up again within 30 minutes. Default 10m: each
    reversal is a restart."""
    forecast_hold: Duration = timedelta(minutes=30)
    """Longest time before a forecast peak in which nothing shrinks that the peak would need again. Default 30m; it ends
    sooner where a shrink pays for its restarts. 0s: forecasts prevent no shrinking."""


class Behavior(Document):
    scale_up: ScaleUp = Field(default_factory=ScaleUp)
    """Limits on growth."""
    scale_down: ScaleDown = Field(default_factory=ScaleDown)
    """Limits on shrinking."""
    cooldown: Duration = timedelta(seconds=60)
    """Time without shrinking after an action, and after a restart of any cause. Growth waits only until the action
    ends. Default 60s: a restart's own backlog must not count as load."""
    tolerance: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """Minimum relative change of an operator's parallelism for an action. Default 0.1: a smaller change does not
    justify a restart. An operator whose demand exceeds its capacity grows anyway."""
    max_actions_per_hour: Annotated[int | None, Field(ge=1, le=60)] = None
    """Maximum number of actions in any hour; the last one is reserved for growth. Default: no limit."""
    excluded_periods: Annotated[list[ExcludedPeriod], Field(max_length=50)] = Field(default_factory=list)
    """Times without changes, at most 50. Default: none."""
