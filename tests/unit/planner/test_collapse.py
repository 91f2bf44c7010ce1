"""What is usual to arrive, and when next to nothing of it does."""

from datetime import timedelta

import pytest
from weir_contracts import Analysis, Behavior, UsualArrivals

from services.planner.core.collapse import HALF_LIFE_SECONDS, holds_for_collapse, usual_arrivals
from tests.unit.planner.build import NOON, after, analysis


def arriving(rate: float | None) -> Analysis:
    return analysis(arrivals=rate)


def usual(rate: float, at: float = 0.0, since: float | None = None) -> UsualArrivals:
    return UsualArrivals(at=after(at), records_per_second=rate, collapsed_since=None if since is None else after(since))


def test_the_highest_of_late_is_usual_and_fades() -> None:
    """Half of it after an hour, so that a load that fell for good becomes the usual one."""
    assert usual_arrivals(None, arriving(800), NOON) == usual(800)
    later = usual_arrivals(usual(800), arriving(300), after(HALF_LIFE_SECONDS))
    assert later is not None
    assert later.records_per_second == pytest.approx(400)
    assert later.collapsed_since is None


def test_next_to_nothing_is_a_collapse_from_its_first_reading() -> None:
    """It lasts until more arrives."""
    first = usual_arrivals(usual(800), arriving(10), after(2))
    assert first is not None
    assert first.collapsed_since == after(2)
    second = usual_arrivals(first, arriving(0), after(4))
    assert second is not None
    assert second.collapsed_since == after(2)
    back = usual_arrivals(second, arriving(700), after(6))
    assert back is not None
    assert back.collapsed_since is None


def test_an_unknown_rate_is_no_collapse() -> None:
    """Unknown is not zero."""
    assert usual_arrivals(usual(800), arriving(None), after(2)) == usual(800)
    assert usual_arrivals(None, arriving(None), NOON) is None


def test_it_holds_for_the_policys_time() -> None:
    """Ten minutes by default."""
    collapsed = usual(800, 100, since=10)
    assert holds_for_collapse(collapsed, Behavior(), after(609))
    assert not holds_for_collapse(collapsed, Behavior(), after(610))
    assert not holds_for_collapse(usual(800), Behavior(), NOON)
    assert not holds_for_collapse(None, Behavior(), NOON + timedelta(days=1))
