"""The tuned numbers of `rate`, and the parameters that a policy may set. Most were chosen on the loads of `bench/`."""

from pydantic import Field

from weir_predictor import Assumptions


class RateParameters(Assumptions):
    """Parameters of the planner `rate`."""

    arrival_margin: float = Field(
        default=0.1, ge=0, le=2, description="share by which arrivals are assumed to be higher before scaling in"
    )
    min_saving: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the slots that a scale-in must save to be worth a restart",
    )
    look_ahead: bool = Field(
        default=True, description="whether growth comes before a forecast peak, where waiting for it would be late"
    )


# -- sizes ------------------------------------------------------------------------------------------------------------

MAX_OVER_LINEAR = 2.0
"""Subtasks after one step over those that would do if each did what one does now. Who needs more is near a ceiling, which
the next measurement shows."""
STEADY_ROOM = 0.01
"""Share of capacity that a shrink under a steady load leaves: what the mean of its readings may be wrong by."""

# -- a load that rises -------------------------------------------------------------------------------------------------

MIN_RISE = 0.05
"""Share by which arrivals have to be higher than a cycle ago to count as risen: more than noise."""
RISES = 3
"""Cycles in a row after which it is a rise: a step that falls into one of them looks like two."""
MAX_CYCLE_SECONDS = 10.0
"""Interval above which a rise is not extrapolated: after several such cycles it is as likely to be over, as with the
surges of the Twitter recording at 15 s."""
SLOWING = 0.7
"""Share of the rise before, below which a rise is taken to end."""
MAX_RISE = 1.0
"""Share of the load that is added at most: a trend ends some time."""

# -- a steady load -----------------------------------------------------------------------------------------------------

STEADY_SECONDS = 120.0
"""Shortest time in which arrivals have to be known before the rises in it say how much room they need."""
SHARES_SECONDS = 240.0
"""Time in which each operator has to get the same share of the arrivals: behind a window it is only seen over several."""
MAX_DRIFT = 0.1
"""Change of an operator's share of the arrivals from which its own load is not as steady as they are: windows that give
out at once, selectivities that drift."""
MAX_NOISE = 0.1
"""Share of the arrivals: if they rise by more in the time of a growth, a growth that is due does not wait."""
WAITING_SHARE = 0.25
"""Share of the objective: a growth waits for the next cycle if lag stays below it until that growth counts."""
TREND_TIMES = 3.0
"""Length of each of the two windows whose means give the trend, in times of a growth. Shorter ones show noise."""

# -- a load that swings ------------------------------------------------------------------------------------------------

MIN_EXCURSIONS = 2
"""Times that a load rose and fell again: one is no pattern."""
MIN_SWING = 1.15
"""Times the mean that a load rises to in each: noise does not."""
LONGER = 1.5
"""Times the longest excursion before, up to which another one is taken for one of them."""

# -- the first step ---------------------------------------------------------------------------------------------------

MIN_RUN_SECONDS = 18.0
"""Age of the run: ten seconds of warm-up, and eight in which an operator was saturated and lag grew."""
MAX_EARLY_SECONDS = 1.0
MAX_FACTOR = 2.0

# -- growth before a peak ---------------------------------------------------------------------------------------------

STEPS = 90
"""Of the course of lag over the horizon."""
MARGIN_CYCLES = 3.0
"""Cycles by which growth may come too early: readings are means over the cycle before, and a forecast is not exact."""
AS_HIGH = 0.99
"""Share of the highest rate from which it is still the peak."""
LATE_SECONDS = 1.0
"""Less late time than this is a rounding error."""
