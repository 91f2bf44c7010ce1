"""The planner `schedule`: which entry is in force, also around summer time, and what is wrong with an expression."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, analysis, policy, request
from tests.unit.planner.requests import is_whole, requests
from weir_contracts import PlanReply, PlanRequest
from weir_planners.schedule import last_time
from weir_sdk import InvalidParameters
from weir_sdk.installed import ask, parse_parameters

BERLIN = "Europe/Berlin"
DAY_AND_NIGHT = {
    "time_zone": BERLIN,
    "entries": [{"cron": "0 8 * * *", "operators": {WORK: 8}}, {"cron": "30 2 * * *", "operators": {WORK: 2}}],
}


def at(when: datetime, parameters: dict[str, Any], work: int = 5) -> PlanReply:
    chosen = policy(planner={"name": "schedule", "parameters": parameters})
    return ask(request(analysis(the_policy=chosen, work=work, at=when), now=when), "schedule")


def work_at(when: datetime, parameters: dict[str, Any]) -> int:
    """The parallelism of `work` that holds then; 5 is what runs."""
    return (at(when, parameters).parallelism or {WORK: 5})[WORK]


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("when", "wanted"),
    [
        (utc(2026, 1, 15, 6, 59, 59), 2),
        (utc(2026, 1, 15, 7, 0, 0), 8),  # 8 o'clock in Berlin, to the second
        (utc(2026, 1, 16, 1, 29, 59), 8),
        (utc(2026, 1, 16, 1, 30, 0), 2),
        (utc(2026, 7, 15, 5, 59, 59), 2),
        (utc(2026, 7, 15, 6, 0, 0), 8),  # the same in summer
    ],
)
def test_the_last_time_that_came_is_in_force(when: datetime, wanted: int) -> None:
    """Eight by day from 8:00, two by night from 2:30, in Berlin."""
    assert work_at(when, DAY_AND_NIGHT) == wanted


@pytest.mark.parametrize(
    ("when", "wanted"),
    [
        (utc(2026, 3, 29, 0, 59, 59), 8),  # 1:59:59 in winter time
        (utc(2026, 3, 29, 1, 0, 0), 2),  # 3:00 in summer time: 2:30 does not exist, and comes with the jump
        (utc(2026, 10, 25, 0, 29, 59), 8),  # 2:29:59 in summer time
        (utc(2026, 10, 25, 0, 30, 0), 2),  # 2:30, the first time
        (utc(2026, 10, 25, 1, 15, 0), 2),  # 2:15 for the second time
        (utc(2026, 10, 25, 1, 30, 0), 2),
    ],
)
def test_summer_time_comes_and_goes(when: datetime, wanted: int) -> None:
    """A time that is left out still comes; one that is there twice comes once."""
    assert work_at(when, DAY_AND_NIGHT) == wanted


def test_a_time_that_exists_twice_comes_once() -> None:
    """The second 2:30 of the night finds the entry in force since the first."""
    second = datetime(2026, 10, 25, 2, 45, fold=1, tzinfo=ZoneInfo(BERLIN))
    found = last_time("30 2 * * *", second, ZoneInfo(BERLIN))
    assert found is not None
    assert found.astimezone(UTC) == utc(2026, 10, 25, 0, 30)


def test_an_entry_may_end_by_itself() -> None:
    """Ten for two hours from 20:00, else the default; real hours, so the night that is an hour longer changes nothing."""
    parameters = {
        "time_zone": BERLIN,
        "parallelism": 3,
        "entries": [{"cron": "0 20 * * *", "lasts": "2h", "parallelism": 10}],
    }
    assert at(utc(2026, 1, 15, 18, 59), parameters).parallelism == {SOURCE: 3, WORK: 3}
    assert at(utc(2026, 1, 15, 19, 0), parameters).parallelism == {SOURCE: 10, WORK: 10}
    assert at(utc(2026, 1, 15, 20, 59, 59), parameters).parallelism == {SOURCE: 10, WORK: 10}
    ended = at(utc(2026, 1, 15, 21, 0), parameters)
    assert (ended.code, ended.parallelism) == ("no-entry", {SOURCE: 3, WORK: 3})


def test_operators_of_an_entry_and_defaults_add_up() -> None:
    """An entry's names are added to the defaults'; its number for all replaces them."""
    base = {"parallelism": 2, "operators": {SOURCE: 1}}
    named = {**base, "entries": [{"cron": "* * * * *", "operators": {WORK: 6}}]}
    for_all = {**base, "entries": [{"cron": "* * * * *", "parallelism": 6}]}
    assert at(utc(2026, 1, 15, 12), named).parallelism == {SOURCE: 1, WORK: 6}
    assert at(utc(2026, 1, 15, 12), for_all).parallelism == {SOURCE: 6, WORK: 6}


def test_of_two_at_the_same_time_the_later_in_the_list_holds() -> None:
    """Monday's exception stands below the rule."""
    rules = [{"cron": "0 8 * * *", "parallelism": 4}, {"cron": "0 8 * * 1", "parallelism": 9}]
    monday, tuesday = utc(2026, 1, 12, 9), utc(2026, 1, 13, 9)
    assert at(monday, {"entries": rules}).parallelism == {SOURCE: 9, WORK: 9}
    assert at(tuesday, {"entries": rules}).parallelism == {SOURCE: 4, WORK: 4}


def test_it_reports_since_when() -> None:
    """In the policy's time zone."""
    reply = at(utc(2026, 1, 15, 12), DAY_AND_NIGHT)
    assert reply.sentence == "work 5 → 8: '0 8 * * *' has been in force since 2026-01-15 08:00 Europe/Berlin"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"time_zone": "Mars/Olympus"}, "time_zone: .*'Mars/Olympus' is not a time zone; use a name such as"),
        ({"time_zone": "../../etc/passwd"}, "is not a time zone"),
        ({"time_zone": "Europe"}, "is not a time zone"),
        (
            {"entries": [{"cron": "61 * * * *", "parallelism": 2}]},
            "entries.0.cron: .*'61 . . . .' is no cron expression: bad minute",
        ),
        ({"entries": [{"cron": "daily", "parallelism": 2}]}, "is no cron expression: wrong number of fields"),
        ({"entries": [{"cron": "0 0 30 2 *", "parallelism": 2}]}, "bad day-of-month"),
        ({"entries": [{"cron": "0 8 * * *"}]}, "give parallelism, operators or both"),
        ({"entries": [{"cron": "0 8 * * *", "parallelism": 2, "lasts": 30}]}, "must be a duration with a unit"),
        ({"entries": []}, "entries"),
    ],
)
def test_wrong_parameters_are_named(changed: dict[str, Any], message: str) -> None:
    """The field, what is wrong, and how it is written."""
    right = {"entries": [{"cron": "0 8 * * *", "parallelism": 2}]}
    with pytest.raises(InvalidParameters, match=message):
        parse_parameters("schedule", {**right, **changed})


def test_an_unknown_operator_holds_even_when_its_entry_is_not_in_force() -> None:
    """A mistake is not found at night only."""
    parameters = {"entries": [{"cron": "0 8 * * *", "parallelism": 2}, {"cron": "0 3 1 1 *", "operators": {"wrok": 2}}]}
    assert at(utc(2026, 5, 15, 12), parameters).code == "unknown-operator"


@given(st.integers(0, 366 * 24 * 3600), st.sampled_from(["0 8 * * *", "*/7 * * * *", "30 2 * * 0", "0 0 29 2 *"]))
def test_the_last_time_lies_behind_and_is_the_last(seconds: int, cron: str) -> None:
    """At every second of a year with both changes of the clock."""
    now = utc(2026, 1, 1) + timedelta(seconds=seconds)
    found = last_time(cron, now, ZoneInfo(BERLIN))
    assert found is not None
    assert found.timestamp() <= now.timestamp()
    again = last_time(cron, found.astimezone(UTC), ZoneInfo(BERLIN))
    assert again is not None
    assert again.timestamp() == found.timestamp()


@given(requests("schedule", parallelism=2, entries=[{"cron": "*/10 * * * *", "lasts": "5m", "operators": {"o0": 3}}]))
@examples(20)
def test_every_request_is_answered(plan_request: PlanRequest) -> None:
    """For any numbers: a complete vector or a hold, with its reason."""
    assert is_whole(ask(plan_request, "schedule"), plan_request)
