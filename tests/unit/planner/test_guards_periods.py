"""Excluded periods, through the nights on which clocks change."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tests.unit.planner.build import SOURCE, WORK, request_at
from tests.unit.planner.test_guards import NOW, guards, passed, seen_busy
from weir_contracts import ExcludedPeriod
from weir_planner.core.guards.times import ends_at

BERLIN = ZoneInfo("Europe/Berlin")


def period(**fields: object) -> ExcludedPeriod:
    return ExcludedPeriod.model_validate(fields)


def utc(month: int, day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


def quiet(**fields: object) -> dict[str, object]:
    """Return a policy's spec with one excluded period, without stabilisation and cooldown."""
    return {
        "behavior": {
            "scaleDown": {"stabilization": "0s"},
            "cooldown": "0s",
            "excludedPeriods": [{"from": "11:00", "to": "13:00", **fields}],
        }
    }


def test_nothing_moves_in_an_excluded_period_and_everything_after_it() -> None:
    """It is noon in UTC and in the period; in Tokyo it is nine hours later and out of it."""
    for wanted in ({SOURCE: 1, WORK: 6}, {SOURCE: 1, WORK: 3}):
        proposal = passed(wanted, request_at(NOW, spec=quiet(), found=seen_busy()))
        assert (proposal.vector, proposal.code) == (None, "excluded-period")
        assert "until 2026-01-01 13:00 UTC" in proposal.sentence
        assert passed(wanted, request_at(NOW, spec=quiet(timeZone="Asia/Tokyo"), found=seen_busy())).vector == wanted


def test_only_the_directions_it_names_are_excluded() -> None:
    """Down is: the source keeps its 3, work still grows."""
    given_ = request_at({SOURCE: 3, WORK: 4}, spec=quiet(directions=["down"]))
    proposal = passed({SOURCE: 1, WORK: 6}, given_)
    assert proposal.vector == {SOURCE: 3, WORK: 6}
    assert guards(proposal) == ["excluded-period"]
    assert (
        passed({SOURCE: 3, WORK: 2}, request_at({SOURCE: 3, WORK: 4}, spec=quiet(directions=["up"]))).code
        != "excluded-period"
    )


def test_what_is_out_of_bounds_is_brought_in_all_the_same() -> None:
    """12 run and 8 are allowed."""
    spec = {**quiet(), "bounds": {"max": 8}}
    assert passed({SOURCE: 1, WORK: 12}, request_at({SOURCE: 1, WORK: 12}, spec=spec)).vector == {SOURCE: 1, WORK: 8}


def test_a_night_lasts_past_midnight() -> None:
    """22:00 to 06:00 in Berlin, in winter."""
    night = period(**{"from": "22:00", "to": "06:00", "timeZone": "Europe/Berlin"})
    assert ends_at(night, utc(1, 1, 20, 59)) is None
    assert ends_at(night, utc(1, 1, 21)) == utc(1, 2, 5)
    assert ends_at(night, utc(1, 2, 4, 59)) == utc(1, 2, 5)
    assert ends_at(night, utc(1, 2, 5)) is None


@pytest.mark.parametrize(
    ("now", "ends"),
    [
        (utc(3, 29, 0, 59), None),  # 01:59 in winter time
        (utc(3, 29, 1, 0), None),  # 03:00 in summer time: the hour from 2 to 3 does not come
        (utc(10, 25, 0, 0), utc(10, 25, 1, 0)),  # 02:00 in summer time; its end comes twice too, the first counts
        (utc(10, 25, 1, 30), utc(10, 25, 1, 0)),  # 02:30 in winter time, an hour later: excluded again
        (utc(10, 25, 2, 0), None),  # 03:00 in winter time
    ],
)
def test_a_daily_period_goes_by_the_wall_clock(now: datetime, ends: datetime | None) -> None:
    """02:00 to 03:00 in Berlin: left out in March, twice as long in October."""
    found = ends_at(period(**{"from": "02:00", "to": "03:00", "timeZone": "Europe/Berlin"}), now)
    assert (found is None) == (ends is None)


def test_cron_and_its_duration() -> None:
    """Eight hours from nine on, Monday to Friday: 1 January 2026 is a Thursday, the 3rd a Saturday."""
    office = period(cron="0 9 * * MON-FRI", duration="8h", timeZone="Europe/Berlin")
    assert ends_at(office, utc(1, 1, 7, 59)) is None
    assert ends_at(office, utc(1, 1, 8)) == utc(1, 1, 16)
    assert ends_at(office, datetime(2026, 1, 1, 15, 59, 59, 999, tzinfo=UTC)) == utc(1, 1, 16)
    assert ends_at(office, utc(1, 1, 16)) is None
    assert ends_at(office, utc(1, 3, 10)) is None


def test_cron_lasts_as_long_on_the_days_that_clocks_change() -> None:
    """Six hours from midnight: until 07:00 in March, until 05:00 in October. A skipped time starts at once."""
    night = period(cron="0 0 * * *", duration="6h", timeZone="Europe/Berlin")
    assert ends_at(night, utc(3, 29, 4)) == utc(3, 29, 5) == datetime(2026, 3, 29, 7, tzinfo=BERLIN)
    assert ends_at(night, utc(10, 25, 3)) == utc(10, 25, 4) == datetime(2026, 10, 25, 5, tzinfo=BERLIN)
    skipped = period(cron="30 2 * * *", duration="1h", timeZone="Europe/Berlin")
    assert ends_at(skipped, utc(3, 29, 1, 10)) is not None
    twice = period(cron="30 2 * * *", duration="20m", timeZone="Europe/Berlin")
    assert [ends_at(twice, utc(10, 25, hour, 35)) is not None for hour in (0, 1)] == [True, False]


def test_a_duration_longer_than_its_interval_never_ends() -> None:
    """Every hour for two hours."""
    assert all(ends_at(period(cron="0 * * * *", duration="2h"), utc(1, 1, 5, minute)) for minute in range(0, 60, 7))


def test_the_newest_of_overlapping_times_sets_the_end() -> None:
    """Hourly for two hours: at 10:30 the period of 10:00 counts, until 12:00; that of 9:00 ends an hour earlier."""
    always = period(cron="0 * * * *", duration="2h")
    assert ends_at(always, utc(1, 5, 10, 30)) == utc(1, 5, 12)
    assert ends_at(always, utc(1, 5, 11, 1)) == utc(1, 5, 13)
