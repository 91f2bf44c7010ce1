"""The planner `rate` under a load that swings: bursts and sawtooths are ridden out where lag stays within the objective."""

from collections.abc import Sequence
from typing import Any

import pytest
from weir_contracts import PlanReply
from weir_planner.installed import ask

from planners.rate.rising import Memory
from planners.rate.swings import MAX_LOOKS, MAX_SECONDS, looked
from tests.unit.planner.build import NOON, SOURCE, WORK, analysis, known, policy, request

INTERVAL_SECONDS = 15.0
QUIET, BURST = 700.0, 1700.0
BURSTS = ([QUIET] * 7 + [BURST]) * 4
"""A burst in every eighth cycle; the newest look is one."""


def answer(looks: Sequence[float], **of: Any) -> PlanReply:
    """Return the reply of `rate` after these arrivals, one in each cycle; the last is the present one."""
    memory = {
        "looked_at": NOON.timestamp() - INTERVAL_SECONDS,
        "looks": [(INTERVAL_SECONDS, rate) for rate in looks[:-1]],
    }
    the_policy = policy(interval="15s")
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
