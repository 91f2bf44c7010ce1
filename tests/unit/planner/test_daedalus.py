"""The planner `daedalus`: what it learns, what it forecasts, and which parallelism it takes."""

import json
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir_contracts import Checkpoints, PlanReply, PlanRequest, RestartTimes, Run, SourceAnalysis
from weir_planner import InvalidParameters
from weir_planner.installed import ask, parse_parameters

from planners.daedalus.learned import autoregressive, linear
from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, after, analysis, deployment, known, operator, policy, request
from tests.unit.planner.requests import is_whole, requests


def plan_request(
    *,
    at: float = 0.0,
    load: float | None = 800.0,
    work: int = 4,
    each: float = 250.0,
    lag: float | None = 0.0,
    skew: float = 1.0,
    run_since: float = -9999.0,
    restart_seconds: float | None = None,
    memory: dict[str, Any] | None = None,
    **parameters: Any,
) -> PlanRequest:
    """`at` seconds after noon; a subtask of `work` is full at `each` records/s, and a checkpoint was 5 s ago."""
    taken = min(load or 0.0, each * work)
    found = analysis(
        at=after(at),
        the_policy=policy(planner={"name": "daedalus", "parameters": parameters}),
        deployment=deployment({SOURCE: 1, WORK: work}, checkpoints=Checkpoints(last_completed_at=after(at - 5))),
        run=Run(running_since=after(run_since)),
        operators=[
            operator(SOURCE, 1, None, taken, utilization=known(0.01)),
            operator(WORK, work, None, taken, utilization=known(taken / (each * work * skew)), skew=known(skew)),
        ],
        sources=[
            SourceAnalysis(
                operator=SOURCE,
                arrival_rate=known(load),
                arrival_rate_trend=known(0.0),
                lag_records=known(lag),
                lag_growth=known(0.0),
                lag_seconds=known(0.0),
                expected_latency_seconds=known(0.0),
            )
        ],
        restart_times=RestartTimes(last_seconds=restart_seconds),
    )
    return request(found, now=after(at), memory=memory or {})


def answer(**of: Any) -> PlanReply:
    return ask(plan_request(**of), "daedalus")


def test_capacity_is_derived_from_busy_shares() -> None:
    """800/s keep 4 subtasks busy for 80 %: they sustain 1,000."""
    assert answer().evidence["capacity_records_per_second"] == 1000


def test_skew_leaves_less() -> None:
    """800/s at a mean of 40 %, the busiest subtask at 80 %: told, as in the paper, at 1 − (0.8 − 0.4) of it, 1,200 and
    not 2,000."""
    assert answer(skew=2.0).evidence["capacity_records_per_second"] == 1200


def test_a_slope_counts_where_the_load_has_moved() -> None:
    """Busy for 20 % without a record, and for 1 % more with each 10/s: the slope is 1,000/s, whatever load over busy
    share says."""
    memory = {"replicas": 4, "run": f"None {after(-9999).isoformat()}"}
    for i, load in enumerate((200.0, 300.0, 400.0)):
        found = plan_request(at=60.0 * i, load=load, memory=memory)
        share = 0.2 + load / 1000
        operators = [found.analysis.operators[0], operator(WORK, 4, None, load, utilization=known(share))]
        reply = ask(
            found.model_copy(update={"analysis": found.analysis.model_copy(update={"operators": operators})}),
            "daedalus",
        )
        memory = reply.memory
    regression = memory["regressions"]["1"]
    slope = (3 * regression["xy"] - regression["x"] * regression["y"]) / (3 * regression["xx"] - regression["x"] ** 2)
    assert math.isclose(slope, 1000, rel_tol=1e-6)


def test_more_than_is_sustained_takes_the_smallest_that_carries_it_and_recovers() -> None:
    """1,600/s on 4 that sustain 1,000: 7 carry 1,750 and take long to recover, but within ten minutes; all get the same
    number."""
    reply = answer(load=1600.0)
    assert (reply.kind, reply.code) == ("scale", "overloaded")
    assert reply.parallelism == {SOURCE: 7, WORK: 7}
    # 30 s of downtime and 5 s since the checkpoint, at 1,600/s, worked off with 150 to spare: 30 + 56,000 / 150
    assert reply.evidence["chosen_recovery_seconds"] == pytest.approx(30 + 56_000 / 150, rel=1e-6)


def test_recovery_must_be_quick_enough() -> None:
    """In two minutes only 9 recover: (9 · 250 − 1,600) · (120 − 30) = 58,500 ≥ 56,000."""
    assert answer(load=1600.0, recovery_seconds=120.0).parallelism == {SOURCE: 9, WORK: 9}


def test_where_none_suffices_it_takes_and_reports_the_max() -> None:
    """12 are all there may be."""
    reply = answer(load=4000.0)
    assert reply.parallelism == {SOURCE: 12, WORK: 12}
    assert [i.code for i in reply.infeasible] == ["bounds"]


def test_less_load_takes_less_but_not_while_something_waits() -> None:
    """300/s need 2 (500); with more than a second's capacity waiting they stay 4."""
    reply = answer(load=300.0)
    assert (reply.code, reply.parallelism) == ("over-provisioned", {SOURCE: 2, WORK: 2})
    assert answer(load=300.0, lag=1500.0).code == "held"


def test_a_capacity_that_was_observed_counts_before_a_multiple() -> None:
    """8 were once seen to sustain no more than 1,500, so 1,600/s take 7 (1,750, not yet seen); were 7 seen at 1,500,
    too, 9."""
    learned = {"replicas": 4, "capacities": {"7": 1500.0, "8": 1500.0}}
    assert answer(load=1600.0, memory=learned).parallelism == {SOURCE: 9, WORK: 9}


def test_nothing_happens_right_after_a_rescale_and_little_before_it_has_settled() -> None:
    """Three minutes nothing; up to ten minutes only what the load and the next minute ask for; then also what saves."""
    memory = answer(at=0.0, load=300.0, work=8).memory
    run = {"run_since": 60.0, "load": 300.0, "work": 4}
    codes = {}
    for at in (60.0, 200.0, 300.0, 400.0, 700.0):
        reply = answer(at=at, memory=memory, **run)
        memory, codes[at] = reply.memory, reply.code
    assert codes == {
        60.0: "after-rescale",
        200.0: "after-rescale",
        300.0: "covered",
        400.0: "covered",
        700.0: "over-provisioned",
    }


def test_downtime_moves_by_a_second_toward_what_was_seen() -> None:
    """Up took 4 s instead of the 30 that are assumed at first."""
    memory = answer(at=0.0).memory
    memory = answer(at=60.0, work=5, run_since=50.0, restart_seconds=4.0, memory=memory).memory
    assert memory["up"] == 29.0
    assert "down" not in memory


@pytest.mark.parametrize(
    ("of", "message"), [({"load": None}, "arrival rate of orders"), ({"lag": None}, "lag of a source")]
)
def test_an_unknown_reading_holds_and_is_named(of: dict[str, Any], message: str) -> None:
    """And what was learned is kept."""
    before = answer().memory
    reply = answer(at=10.0, memory=before, **of)
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert message in reply.sentence
    assert reply.memory["capacities"] == before["capacities"]


def test_nothing_is_learned_from_a_run_that_is_warming_up() -> None:
    """Two minutes of a run are dropped."""
    assert answer(run_since=-60.0).code == "warming-up"


def test_a_line_is_continued() -> None:
    """And never goes below 0; one minute is a level."""
    assert linear([100.0, 200.0, 300.0], 2) == pytest.approx([400.0, 500.0])
    assert linear([200.0, 100.0], 3) == pytest.approx([0.0, 0.0, 0.0])
    assert linear([7.0], 2) == [7.0, 7.0]


def test_a_wave_is_continued_by_its_differences() -> None:
    """A sine is an AR(2) of its differences: after an hour of it the next minutes are known."""
    wave = [1000 + 500 * math.sin(i / 5) for i in range(75)]
    forecast = autoregressive(wave[:60], 5, 15)
    assert forecast == pytest.approx(wave[60:], rel=1e-3)
    assert autoregressive(wave[:10], 5, 15) is None
    assert autoregressive([5.0] * 60, 5, 2) == [5.0, 5.0]


def test_the_forecast_is_believed_once_it_has_proved_right() -> None:
    """A wave for an hour and a half: first the line, then, with a WAPE of next to nothing, the AR model."""
    memory: dict[str, Any] = {}
    used = []
    for minute in range(90):
        reply = answer(at=60.0 * minute, load=600 + 200 * math.sin(minute / 5), memory=memory)
        memory = reply.memory
        used.append(reply.evidence.get("forecast_is_ar"))
    assert used[10] is False
    assert used[-1] is True
    assert reply.evidence["forecast_wape"] == pytest.approx(0.0, abs=0.05)


@pytest.mark.thorough
def test_the_memory_stays_small() -> None:
    """After six hours of a large and noisy load, and another one at many parallelisms."""
    memory: dict[str, Any] = {}
    for minute in range(100):
        load = 1e11 * (1 + math.sin(minute) / 3)
        memory = answer(
            at=60.0 * minute, load=load, each=1e11, work=1 + minute // 8 % 12, memory=memory, history_minutes=360
        ).memory
        if minute == 2:
            memory["minutes"] = [float(f"{1e11 * (1 + math.sin(i) / 3):.6g}") for i in range(358)]
    assert len(memory["minutes"]) == 360
    assert len(json.dumps(memory)) < 12_000


def test_wrong_parameters_are_named() -> None:
    """Field and what is wrong with it."""
    with pytest.raises(InvalidParameters, match="order"):
        parse_parameters("daedalus", {"order": 0})


@examples(30)
@given(requests("daedalus"))
def test_every_request_is_answered(first: PlanRequest) -> None:
    """For any numbers: a complete vector or a hold, with its reason; and again with its memory."""
    reply = ask(first, "daedalus")
    assert is_whole(reply, first)
    later = first.model_copy(update={"memory": reply.memory, "now": first.now + timedelta(seconds=600)})
    assert is_whole(ask(later, "daedalus"), later)


@examples(50)
@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=60), st.integers(1, 15))
def test_every_forecast_is_a_number(history: list[float], order: int) -> None:
    """Between 0 and twice what was ever seen, however wild the past."""
    for forecast in (autoregressive(history, order, 15) or [], linear(history, 15)):
        assert all(math.isfinite(value) and value >= 0 for value in forecast)
    assert max(autoregressive(history, order, 15) or [0.0]) <= 2 * max(history) * (1 + 1e-9)
