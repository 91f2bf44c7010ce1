"""The built-in planner `schedule`: parallelism by the clock.

Each entry has a cron expression, read in the policy's time zone; it is in force from each of its times on, until any
other entry's time comes, or for `lasts` if that is set. The entry whose time came last is in force; of two at the same
time, the later in the list. If none is, the defaults at the top hold.

    in force at t = argmax over entries of last(cron, t), among those with t - last < lasts

No source: cron(5), with five fields (or six, seconds first) and its names, read by `cronsim`, which has Debian's rules
for summer time: a time that does not exist comes when the clock has jumped, one that exists twice comes once. `lasts`
is real time, not by the wall clock. Looks at no metric.
"""

from datetime import datetime, timedelta
from typing import Annotated, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, model_validator

from weir_contracts import Duration, PlanReply
from weir_sdk import Request, planner

from .static import Vector, no_such_operator, settled

_ANY_TIME = datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))


def _cron(expression: str) -> str:
    try:
        next(CronSim(expression, _ANY_TIME))
    except CronSimError as error:
        raise ValueError(
            f"{expression!r} is no cron expression: {str(error).lower()}; write minute hour day month weekday, such as 0 8 * * 1-5"
        ) from None
    except StopIteration:
        raise ValueError(f"{expression!r} never occurs: there is no such day in the next 50 years") from None
    return expression


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # a path, an unknown name, a folder of names
        raise ValueError(f"{name!r} is not a time zone; use a name such as Europe/Berlin or UTC") from None
    return name


class ScheduleEntry(Vector):
    """Parallelism in force from each time of a cron expression on."""

    cron: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_cron)]
    lasts: Duration | None = None
    """Until the next entry's time, if not given."""

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.parallelism is None and not self.operators:
            raise ValueError("give parallelism, operators or both")
        if self.lasts is not None and self.lasts <= timedelta(0):
            raise ValueError("lasts: must be above 0s")
        return self


class ScheduleParameters(Vector):
    """Parameters of the planner; parallelism and operators at the top hold while no entry does."""

    time_zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", max_length=100, description="time zone of the expressions, such as Europe/Berlin"
    )
    entries: list[ScheduleEntry] = Field(
        min_length=1, max_length=100, description="entries of the schedule, in any order"
    )


@planner(
    name="schedule",
    description="parallelism by the clock: cron expressions in a time zone, with a default for all other times",
    parameters=ScheduleParameters,
    reads=[],
)
def plan_by_schedule(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(ScheduleParameters)
    vectors: list[Vector] = [parameters, *parameters.entries]
    if unknown := sorted({name for vector in vectors for name in vector.unknown(request)}):
        return no_such_operator(unknown, request)
    zone = ZoneInfo(parameters.time_zone)
    found = in_force(parameters.entries, request.now, zone)
    if found is None:
        return settled(request, parameters, "no-entry", "no entry of the schedule is in force")
    entry, since = found
    merged = Vector(
        parallelism=parameters.parallelism if entry.parallelism is None else entry.parallelism,
        # An entry's parallelism for all outranks the defaults' for single operators.
        operators={**(parameters.operators if entry.parallelism is None else {}), **entry.operators},
    )
    when = f"{since:%Y-%m-%d %H:%M} {parameters.time_zone}"
    return settled(request, merged, "scheduled", f"{entry.cron!r} has been in force since {when}")


def in_force(entries: list[ScheduleEntry], now: datetime, zone: ZoneInfo) -> tuple[ScheduleEntry, datetime] | None:
    """The entry in force and since when; None: none is."""
    best: tuple[ScheduleEntry, datetime] | None = None
    for entry in entries:
        since = last_time(entry.cron, now, zone)
        if since is None or (entry.lasts is not None and now - since >= entry.lasts):
            continue
        # By instants: wall-clock times of one zone would compare wrongly in the hour that comes twice.
        if best is None or since.timestamp() >= best[1].timestamp():
            best = entry, since
    return best


def last_time(cron: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """The last time of an expression, up to and including now; None: none in the last 50 years."""
    just_after = (now + timedelta(seconds=1)).replace(microsecond=0).astimezone(zone)
    found = next(CronSim(cron, just_after, reverse=True), None)
    if found is None:
        return None
    # Going back through the hour that comes twice, cronsim leaves out its first pass; going forward it does not.
    for later in CronSim(cron, found):
        if later.timestamp() > now.timestamp():
            break
        found = later
    return found
