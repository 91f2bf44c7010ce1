"""The guard on the forecast: what a peak will need again is not given back before it."""

from typing import Any

import pytest

from tests.unit.planner.build import SOURCE, WORK, analysis, point, policy, request_at, scale
from tests.unit.planner.forecasts import forecast, rising
from tests.unit.planner.test_guards import behavior
from weir_planner.core.guards import Proposal
from weir_planner.core.guards.effects import will_be_needed
from weir_sdk.request import Request

NOW = {SOURCE: 1, WORK: 4}
LESS = {SOURCE: 1, WORK: 2}


def given_(
    course: Any = None, *, restart_seconds: float = 10.0, spec: dict[str, Any] | None = None, **of: Any
) -> Request:
    """800 records/s at 4 subtasks of 500/s, and the forecast."""
    forecasts = [] if course is None else [course]
    the_policy = policy(**(spec or {}))
    found = analysis(
        work=4,
        arrivals=800.0,
        restart_seconds=restart_seconds,
        seen=[point(4, 2000.0)],
        the_policy=the_policy,
        forecasts=forecasts,
        **of,
    )
    return request_at(NOW, found=found, spec=spec or {})


def guarded(wanted: dict[str, int], the_request: Request) -> Proposal:
    """Only this guard: another would hold for another reason."""
    reply = scale(wanted)
    return will_be_needed(Proposal(the_request, reply.parallelism, reply.code, reply.sentence))


def test_what_a_peak_needs_again_soon_is_kept() -> None:
    """2,000/s in a minute: two subtasks would be one restart down and one up again, for a minute of two slots less."""
    proposal = guarded(LESS, given_(forecast(rising(2000, 60))))
    assert proposal.vector == NOW
    (amendment,) = proposal.amendments
    assert amendment.guard == "will-be-needed"
    assert amendment.because.startswith(
        "work will be needed: up to 2,200 records/s are forecast, too many for 2 subtasks from "
    )
    assert len(amendment.because) <= 160


def test_as_much_is_given_back_as_the_peak_does_not_need() -> None:
    """1,300/s at most: three subtasks do, so one goes."""
    proposal = guarded(LESS, given_(forecast(rising(1200, 60), above=1.05)))
    assert proposal.vector == {SOURCE: 1, WORK: 3}


@pytest.mark.parametrize(
    ("what", "the_request"),
    [
        ("there is no forecast", given_()),
        ("the upper bound fits in two subtasks", given_(forecast(rising(800, 60), above=1.1))),
        ("the load stays level, and its upper bound is no peak", given_(forecast(rising(800, 60), above=1.4))),
        ("the peak is far off, and the shrink has paid by then", given_(forecast(rising(2000, 900)))),
        ("its band is not judged", given_(forecast(rising(2000, 60), coverage=None, judged=0))),
        ("its band does not hold", given_(forecast(rising(2000, 60), coverage=0.5))),
        ("the history is too short for a bound", given_(forecast(rising(2000, 60), peak_upper=None))),
        (
            "the policy does not want it",
            given_(forecast(rising(2000, 60)), spec=behavior(down={"forecastHold": "0s"})),
        ),
    ],
)
def test_it_goes_where(what: str, the_request: Request) -> None:
    """A shrink is only refused for a peak that is believed, is too high, and comes before the shrink has paid."""
    assert guarded(LESS, the_request).vector == LESS, what


def test_the_dearer_a_restart_the_longer_it_waits() -> None:
    """A peak in ten minutes: restarts of 10 s have paid by then, restarts of 150 s have not."""
    course = forecast(rising(2000, 600))
    assert guarded(LESS, given_(course, restart_seconds=10.0)).vector == LESS
    assert guarded(LESS, given_(course, restart_seconds=150.0)).vector == NOW
    limited = given_(course, restart_seconds=150.0, spec=behavior(down={"forecastHold": "1m"}))
    assert guarded(LESS, limited).vector == LESS


def test_growth_passes() -> None:
    """The guard is about giving back."""
    wanted = {SOURCE: 1, WORK: 6}
    assert guarded(wanted, given_(forecast(rising(2000, 60)))).vector == wanted
