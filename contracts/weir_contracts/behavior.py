"""Limits of a policy on when and how fast parallelism changes."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from .base import Duration
from .document import Document
from .limits import ExcludedPeriod


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
