"""The planner `rate` under a load that swings: bursts and sawtooths are ridden out where lag stays within the objective."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import Any

import pytest

from tests.unit.planner.build import NOON, SOURCE, WORK, analysis, known, policy, request
from weir_contracts import PlanReply
from weir_planners.rate.memory import MAX_LOOKS, MAX_SECONDS, Memory, looked, max_rise, shared
from weir_planners.rate.tuning import MIN_RISE
from weir_sdk import Request
from weir_sdk.installed import ask

INTERVAL_SECONDS = 15.0
QUIET, BURST = 700.0, 1700.0
BURSTS = ([QUIET] * 7 + [BURST]) * 4
"""A burst in every eighth cycle; the newest look is one."""


def answer(
    looks: Sequence[float],
    shares: dict[str, float] | None = None,
    spec: dict[str, Any] | None = None,
    growth_seconds: float | None = None,
    **of: Any,
) -> PlanReply:
    """Return the reply of `rate` after these arrivals, one in each cycle; the last is the present one."""
    rising = takewhile(lambda pair: pair[1] > pair[0] * (1 + MIN_RISE), reversed([*pairwise(looks[:-1])]))
    memory = {
        "looked_at": NOON.timestamp() - INTERVAL_SECONDS,
        "looks": [(INTERVAL_SECONDS, rate) for rate in looks[:-1]],
        "shares": shares or {SOURCE: 1.0, WORK: 1.0},
        "shares_since": NOON.timestamp() - len(looks) * INTERVAL_SECONDS,
        "growth_seconds": growth_seconds,
        "arrivals": looks[-2],
        "rises": len([*rising]),
    }
    the_policy = policy(interval="15s", **(spec or {}))
    found = analysis(the_policy=the_policy, **{"arrivals": looks[-1], "arrival_rate": known(looks[-1]), **of})
    return ask(request(found).model_copy(update={"memory": memory}), "rate")


def test_a_burst_like_those_before_grows_nothing() -> None:
    """1,700/s for 15 s at 2 subtasks of 500/s, as three times before: lag of seconds, worked off before the next."""
    reply = answer(BURSTS, work=2)
    assert (reply.kind, reply.code) == ("hold", "swings-ridden")
    assert answer(BURSTS[-2:], work=2).kind == "scale"


def test_what_one_burst_has_grown_goes() -> None:
    """Also during a burst, so that the stabilisation window contains no recommendation of what it has grown."""
    for looks in (BURSTS, BURSTS[:-1]):
        reply = answer(looks, work=6)
        assert (reply.kind, reply.code) == ("scale", "swings-ridden")
        assert reply.parallelism is not None
        assert reply.parallelism[WORK] == 2
        assert len(reply.sentence) <= 160


def test_a_burst_that_does_not_end_is_a_load() -> None:
    """The third cycle above the capacity, where those before lasted one."""
    assert answer([*BURSTS, BURST, BURST], work=2).code == "overloaded"


@pytest.mark.parametrize(
    ("lag", "kind"), [(0.0, "hold"), (6.0, "hold"), (17.0, "scale"), (24.0, "scale"), (60.0, "scale")]
)
def test_more_lag_than_a_burst_explains_grows(lag: float, kind: str) -> None:
    """Growing has to be in time a cycle later; more lag never turns growth into a hold."""
    assert answer(BURSTS, work=2, backlog=lag * QUIET, lag_seconds=lag).kind == kind


def test_noise_is_no_swing() -> None:
    """±8 % around a load."""
    looks = [800.0 * (1 + 0.08 * (-1) ** cycle) for cycle in range(64)]
    assert answer(looks, work=2).code != "swings-ridden"


def test_a_sawtooth_is_ridden_where_following_costs_more() -> None:
    """From 480 to 2,400 records/s in three minutes, again and again: its mean and a little suffice."""
    tooth = [480.0 + 1920 * step / 11 for step in range(12)]
    reply = answer(tooth * 4, work=7)
    assert reply.parallelism == {SOURCE: 1, WORK: 3}


def test_a_sawtooth_of_a_quarter_of_an_hour_is_followed() -> None:
    """From 480 to 2,400 records/s in 15 minutes: following it holds little more than half of what its tops need."""
    tooth = [480.0 + 1920 * step / 59 for step in range(60)]
    reply = answer([*tooth[-6:], *tooth, *tooth, 480.0, 512.0], work=6)
    assert (reply.kind, reply.code) == ("scale", "over-provisioned")


def test_slow_waves_are_followed() -> None:
    """One rise and fall in half an hour is not faster than stabilisation."""
    wave = [400.0 + 10 * abs(64 - cycle) for cycle in range(128)]
    assert answer(wave, work=6).code != "swings-ridden"


@pytest.mark.parametrize(
    ("looks", "fewest"),
    [
        ([480.0] * 20, 1),
        ([470.0, 480.0] * 10, 1),
        ([480.0] * 6, 2),
        ([430.0] * 16 + [480.0] * 4, 2),
        ([max(30.0, 480.0 - 30 * cycle) for cycle in range(20)][::-1], 2),
    ],
    ids=["steady", "noise", "known for 90 s", "rose by a tenth", "rises"],
)
def test_a_steady_load_needs_little_room(looks: Sequence[float], fewest: int) -> None:
    """480/s at subtasks of 500/s: one is 96 % used. It suffices while arrivals do not rise, and only then."""
    assert (answer(looks, work=2).parallelism or {WORK: 2})[WORK] == fewest
    assert (answer(looks, work=1).parallelism or {WORK: 1})[WORK] == fewest


@pytest.mark.parametrize(("noise", "lag"), [(10.0, 0.0), (40.0, 0.0), (10.0, 3.0)])
def test_a_growth_that_noise_asks_for_waits(noise: float, lag: float) -> None:
    """One subtask of 500/s is 101 % used by the newest of many readings, and would be a second behind in half a minute."""
    looks = [505.0 - noise * (cycle % 2) for cycle in range(20)][::-1]
    assert answer(looks, work=1, backlog=lag * 505, lag_seconds=lag).code == "objective-held"


@pytest.mark.parametrize(
    ("looks", "of"),
    [
        ([495.0, 505.0] * 10, {"backlog": 6.0 * 505, "lag_seconds": 6.0}),
        ([440.0] * 19 + [505.0], {}),
        ([630.0, 640.0] * 10, {}),
        ([505.0] * 6, {}),
    ],
    ids=["lag", "rose by more", "too much", "known for 90 s"],
)
def test_a_growth_does_not_wait_where(looks: Sequence[float], of: dict[str, Any]) -> None:
    """Lag would not stay small, or the load rises, or is not known for long enough."""
    assert answer(looks, work=1, **of).kind == "scale"


@pytest.mark.parametrize(("rise", "size"), [(1.0, 11), (400.0, 12)], ids=["slowly", "fast"])
def test_a_load_that_rises_slowly_grows_by_less(rise: float, size: int) -> None:
    """Nine subtasks are overloaded by either, and lag does not allow to wait: the room above 4,519/s is what the load rises
    by in a growth's time, and not more than usual."""
    looks = [4519.0 - rise * (cycle % 2) for cycle in range(20)][::-1]
    reply = answer(looks, work=9, backlog=7.0 * 4519, lag_seconds=7.0)
    assert reply.parallelism is not None
    assert reply.parallelism[WORK] == size


@pytest.mark.parametrize(
    "spec",
    [
        {"planner": {"name": "rate", "parameters": {"max_utilization": 0.9}}},
        {"planner": {"name": "rate", "parameters": {"target_utilization": 0.8}}},
        {"objective": {"maxLatency": "30s"}},
        {"objective": {"utilization": 0.85}},
    ],
    ids=str,
)
def test_a_room_that_was_chosen_is_kept(spec: dict[str, Any]) -> None:
    """By the policy's parameters, or because its objective is not a lag."""
    assert (answer([480.0] * 20, spec=spec, work=2).parallelism or {WORK: 2})[WORK] == 2


def test_what_rose_in_the_time_of_a_growth_is_the_room() -> None:
    """Restart and a cycle are less than two cycles, and the oldest rise is more than four minutes ago. At least two minutes
    have to be known."""
    looks = [100.0, 500.0, *[470.0 + 5 * (cycle % 4) for cycle in range(17)]]
    memory = Memory(looked_at=1000.0, looks=tuple((INTERVAL_SECONDS, rate) for rate in looks), shares_since=700.0)
    assert max_rise(memory, 20.0, 240.0) == 5.0
    assert max_rise(memory, 120.0, 240.0) == 15.0
    short = memory.model_copy(update={"looks": memory.looks[-15:]})
    assert max_rise(short, 20.0, 240.0) is None
    assert max_rise(short, 20.0, 40.0) == 5.0
    assert max_rise(memory.model_copy(update={"looks": memory.looks[-7:]}), 20.0, 40.0) is None


@pytest.mark.parametrize(
    ("looks", "fewest"),
    [
        ([483.0, 490.0] * 10, 1),
        ([490.0, 508.0] * 10, 2),
        ([900.0] * 11 + [480.0] * 9, 1),
        ([480.0 + 5 * cycle for cycle in range(20)][::-1], 1),
    ],
    ids=["noise", "too much", "fell", "falls"],
)
def test_a_steady_load_shrinks_by_its_mean(looks: Sequence[float], fewest: int) -> None:
    """One subtask of 500/s may be 99 % used by the mean of two minutes, also where the newest reading and the largest rise
    would be more together. A load that falls needs less than that mean."""
    assert (answer(looks, work=2).parallelism or {WORK: 2})[WORK] == fewest


def test_capacity_that_takes_minutes_needs_a_longer_history() -> None:
    """Growth takes three minutes: one subtask stays 96 % used only if twice as long of a steady load is known."""
    for cycles, fewest in ((20, 2), (30, 1)):
        reply = answer([480.0] * cycles, growth_seconds=180.0, work=1)
        assert (reply.parallelism or {WORK: 1})[WORK] == fewest


def test_a_load_is_as_steady_as_its_share_of_the_arrivals() -> None:
    """`work` gets 0.8 records for each of the source a cycle ago, and now one: however steady the source is, one subtask
    is not enough. A small change is noise."""
    for share, fewest in ((0.8, 2), (0.97, 1)):
        reply = answer([480.0] * 20, {SOURCE: 1.0, WORK: share}, work=2)
        assert (reply.parallelism or {WORK: 2})[WORK] == fewest
        assert reply.memory["shares"][WORK] == (1.0 if fewest == 2 else share)


def test_the_shares_of_a_large_graph_are_not_remembered() -> None:
    """They would not fit into the memory."""
    found = Request(**dict(request(analysis(arrivals=500.0))))
    assert shared(found, Memory())["shares"] == {SOURCE: 1.0, WORK: 1.0}
    names = {f"{'x' * 200} {i}": {SOURCE: 1.0} for i in range(50)}
    model, gaps = found.model
    found.__dict__["model"] = replace(model, flow=names), gaps
    assert shared(found, Memory()) == {"shares": {}, "shares_since": None}


def test_what_is_remembered_is_bounded_and_begins_again_after_a_gap() -> None:
    """As many looks and as long as the planner says; arrivals that were not looked at are not made up."""
    memory = Memory()
    found = request(analysis(the_policy=policy(interval="15s"), arrivals=500.0))
    for _ in range(300):
        moved = memory.model_copy(update={"looked_at": NOON.timestamp() - INTERVAL_SECONDS})
        memory = moved.model_copy(update=looked(found, moved))
    assert len(memory.looks) <= MAX_LOOKS
    assert sum(seconds for seconds, _ in memory.looks) <= MAX_SECONDS
    assert memory.looks[-1] == (INTERVAL_SECONDS, 500.0)
    late = memory.model_copy(update={"looked_at": NOON.timestamp() - 600})
    assert looked(found, late)["looks"] == ()
