"""Growth before a forecast peak: each of its conditions, its sentence, and that a forecast only ever adds."""

from datetime import timedelta
from typing import Any
from uuid import uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, SPACE, WORK, action, after, analysis, outcome, policy, request
from tests.unit.planner.forecasts import forecast, rising
from tests.unit.planner.requests import requests
from weir_contracts import Outcome, PlanReply, SourceForecast
from weir_predictor import coming
from weir_sdk.installed import ask

INTERVAL_SECONDS = 10.0


def grown(seconds: float, name: str = "grown") -> Outcome:
    """A growth whose capacity counted so many seconds after its request."""
    acted = action(
        before={SOURCE: 1, WORK: 1},
        wanted={SOURCE: 1, WORK: 2},
        id=uuid5(SPACE, name),
        requested_at=after(-600),
        running_at=after(-600) + timedelta(seconds=seconds),
    )
    return outcome(acted, before=acted.before, wanted=acted.wanted, restart_seconds=seconds, restarts_seconds=[seconds])


def answer(
    *forecasts: SourceForecast, takes: float | None = 180.0, parameters: dict[str, Any] | None = None, **of: Any
) -> PlanReply:
    """The reply of `rate` at 800 records/s on 2 subtasks of 500/s, whose last growth took `takes` seconds."""
    chosen = policy(planner={"name": "rate", "parameters": parameters or {}}, interval=f"{INTERVAL_SECONDS:g}s")
    found = analysis(**{"arrivals": 800, "work": 2, "the_policy": chosen, "forecasts": list(forecasts), **of})
    return ask(request(found, outcomes=[] if takes is None else [grown(takes)]), "rate")


def test_a_peak_for_which_waiting_would_be_late_is_grown_for() -> None:
    """2,400/s in 200 s, and capacity takes 180 s: seen, it would be answered three minutes late."""
    reply = answer(forecast(rising(2400, 200)))
    assert (reply.kind, reply.code) == ("scale", "before-the-peak")
    assert reply.parallelism is not None
    assert reply.parallelism[SOURCE] == 1
    assert reply.parallelism[WORK] * 500 * 0.85 >= 2400
    assert reply.sentence.startswith(f"work 2 → {reply.parallelism[WORK]}: 2,400 to 2,6")
    assert "2 subtasks process 1,000; waiting is late for" in reply.sentence


def test_a_peak_that_still_rises_then_is_grown_for_at_once() -> None:
    """From 800/s to 4,000/s between 100 and 500 s, and another growth would count in 370 s at the earliest: one for the
    rate of then, not for that of the first 250 s."""
    course = rising(4000, 500, over=400)
    reply = answer(forecast(course, above=1.0))
    assert reply.code == "before-the-peak"
    assert reply.parallelism is not None
    assert reply.parallelism[WORK] * 500 * 0.85 >= course(370) > 1.3 * course(250)


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("the band has not been judged", {"coverage": None, "judged": 0}),
        ("too few peaks were judged", {"judged": 10}),
        ("the band does not keep what it promises", {"coverage": 0.6}),
        ("the band is far above all that came", {"coverage": 0.99}),
        ("the history is too short for a band", {"peak_upper": None}),
    ],
)
def test_a_band_that_has_not_earned_its_coverage_grows_nothing(what: str, changes: dict[str, Any]) -> None:
    """Such a forecast is as good as none."""
    assert answer(forecast(rising(2400, 200), **changes)) == answer(), what


def test_a_peak_nearer_than_scaling_takes_grows_nothing() -> None:
    """2,400/s for ten seconds in half a minute: capacity counts when it is over."""
    course = forecast(lambda s: 2400.0 if 25 < s < 35 else 800.0)
    assert answer(course) == answer()


def test_growth_that_is_as_good_when_the_load_is_seen_waits_for_it() -> None:
    """Capacity takes 5 s: the same peak is answered in time when it is there, and no forecast is needed."""
    assert answer(forecast(rising(2400, 200)), takes=5.0) == answer(takes=5.0)


def test_growth_comes_as_late_as_it_may() -> None:
    """In 25 minutes: not yet; a peak that does not come costs little."""
    assert answer(forecast(rising(2400, 1500))) == answer()


def test_a_peak_that_fits_grows_nothing() -> None:
    """850/s, at most 900, on 1,000/s."""
    assert answer(forecast(rising(850, 200), above=1.05)) == answer()


def test_a_bound_far_above_a_level_load_grows_nothing() -> None:
    """800/s are expected, and 3,600 are the bound since a jump: that is no peak with a time to be ready for."""
    assert answer(forecast(lambda s: 800.0, above=4.5)) == answer()


def test_a_forecast_never_shrinks() -> None:
    """Almost nothing is forecast: the decision is what it is without."""
    assert answer(forecast(lambda s: 1.0)) == answer()
    assert answer(forecast(lambda s: 1.0), arrivals=300, work=8) == answer(arrivals=300, work=8)


def test_a_forecast_never_holds_needed_growth_back() -> None:
    """1,500/s arrive now on 1,000/s: a forecast that it falls changes nothing, one that it rises adds."""
    now, falls = answer(arrivals=1500), answer(forecast(lambda s: 1500 / (1 + s)), arrivals=1500)
    rises = answer(forecast(rising(3000, 150, since=1500)), arrivals=1500)
    assert now == falls
    assert now.code == rises.code == "overloaded"
    assert now.parallelism is not None
    assert rises.parallelism is not None
    assert rises.parallelism[WORK] > now.parallelism[WORK]


def test_a_load_that_does_not_follow_its_forecast_grows_nothing() -> None:
    """800/s are forecast for now and 300 arrive, as in an outage upstream: the peak is as doubtful."""
    assert answer(forecast(rising(2400, 200)), arrivals=300) == answer(arrivals=300)


def test_growth_ahead_can_be_turned_off() -> None:
    """`look_ahead: false` in the planner's parameters."""
    assert answer(forecast(rising(2400, 200)), parameters={"look_ahead": False}) == answer()


@given(requests("rate"))
@examples(100)
def test_any_request_without_a_forecast_is_decided_as_with_looking_ahead_off(found: Any) -> None:
    """Without a forecast every decision is exactly what it was before there were any."""
    choice = found.policy.spec.planner.model_copy(update={"parameters": {"look_ahead": False}})
    spec = found.policy.spec.model_copy(update={"planner": choice})
    off = found.model_copy(update={"policy": found.policy.model_copy(update={"spec": spec})})
    assert ask(found, "rate") == ask(off, "rate")


@given(
    st.floats(0, 1e9),
    st.lists(st.floats(0, 1e9), min_size=1, max_size=5),
    st.floats(1.0, 10.0),
    st.floats(0.0, 400.0),
)
@examples(100)
def test_any_forecast_is_answered_and_never_takes_away(
    arrivals: float, levels: list[float], above: float, takes: float
) -> None:
    """Every operator gets at least what it gets without, or a hold becomes growth."""
    course = forecast(lambda s: levels[min(len(levels) - 1, int(s / 120))], above=above)
    of = {"arrivals": arrivals, "takes": takes, "work": 4}
    reply, before = answer(course, **of), answer(**of)
    now = {SOURCE: 1, WORK: 4}
    had, has = before.parallelism or now, reply.parallelism or now
    assert all(has[name] >= had[name] for name in now)


def test_a_source_without_a_forecast_is_taken_to_stay_as_it_is() -> None:
    """Orders rise, clicks have no band: their 300 records/s stay."""
    found = coming(analysis(forecasts=[forecast(rising(2400, 100))]), {SOURCE: 800.0, "clicks": 300.0}, 600)
    assert found is not None
    assert found.expected(0) == found.upper(0) == {SOURCE: 800.0, "clicks": 300.0}
    assert found.upper(200) == {SOURCE: pytest.approx(2640), "clicks": 300.0}
    assert found.expected(200)["clicks"] == 300.0
