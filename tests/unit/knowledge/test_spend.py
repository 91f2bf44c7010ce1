"""Slot-hours since the policy acts, against the static peak."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.knowledge.builders import APP, INTERVAL_SECONDS, at, observation, policy
from tests.unit.planner.build import deployment, topology
from weir_contracts import Deployment, Observation, Topology
from weir_knowledge.settings import KnowledgeSettings
from weir_knowledge.spend import Advice, Money, Price, Spend, advice_view, spend_view, spent

GRAPH = topology()


def held(cycle: float, work: int | None, mode: str = "act", **changes: Any) -> Observation:
    """An observation with `work` subtasks in one slot-sharing group; None: the deployment is unknown."""
    shown: dict[str, Deployment | Topology | None] = {"deployment": None, "topology": None}
    if work is not None:
        shown = {"deployment": deployment({"orders": 1, "work": work}), "topology": GRAPH}
    return observation(cycle, policy=policy(APP, mode=mode), **{**shown, **changes})


def after(*observations: Observation, start: Spend | None = None) -> Spend | None:
    found = start
    for each in observations:
        found = spent(found, each)
    return found


def test_an_interval_costs_what_was_held_at_its_begin() -> None:
    """Twelve intervals of 5 s at four slots, twelve at two: 0.1 slot-hours of the 0.1333 of the static peak."""
    cycles = [held(n, 4 if n < 12 else 2) for n in range(25)]
    found = after(*cycles)
    assert found is not None
    assert (found.since, found.seconds, found.slot_seconds, found.peak_slots) == (at(0), 120.0, 360.0, 4)
    view = spend_view(found)
    assert view is not None
    assert (view.slot_hours, view.peak_slot_hours, view.saved_share) == (0.1, 0.1333, 0.25)
    assert view.sentence == "0.1 slot-hours used since the policy acts, 25% less than a static peak of 4 slots: 0.1"


def test_hours_are_money_where_a_price_is_set() -> None:
    """Of the unit that the application is counted in; without one nothing is said of money."""
    found = after(*(held(n, 4 if n < 12 else 2) for n in range(25)))
    prices = {"slot": Price.read("12.5 EUR")}
    view = spend_view(found, prices)
    assert view is not None
    assert view.money == Money(currency="EUR", used=1.25, against=1.6667)
    assert view.sentence.endswith("a static peak of 4 slots: 0.1; 1.25 instead of 1.67 EUR")
    other = spend_view(found, {"instance": Price.read("1 EUR")})
    assert other is not None and other.money is None
    advising = Advice(since=at(0), at=at(100), seconds=500.0, running_slot_seconds=3600.0, followed_slot_seconds=1800.0)
    advised = advice_view(advising, prices)
    assert advised is not None
    assert advised.money == Money(currency="EUR", used=6.25, against=12.5)
    assert "6.25 instead of 12.50 EUR" in advised.sentence


@pytest.mark.parametrize("text", ["0.042", "0.042 Euro", "-1 EUR", "EUR 1", "1e3 EUR", "1 EUR "])
def test_a_price_has_an_amount_and_a_currency(text: str) -> None:
    """At the start, with the setting's name."""
    with pytest.raises(ValidationError, match="slot_hour_price"):
        KnowledgeSettings(slot_hour_price=text)
    assert KnowledgeSettings(slot_hour_price="0.042 EUR").prices == {"slot": Price(amount=0.042, currency="EUR")}


@pytest.mark.parametrize("mode", ["advise", "paused"])
def test_a_policy_that_does_not_act_spends_nothing(mode: str) -> None:
    """Before it acts; advising after it has acted ends the count as well."""
    assert after(held(0, 4, mode), held(1, 4, mode)) is None
    assert after(held(0, 4), held(1, 4), held(2, 4, "advise")) is None


def test_a_pause_is_not_counted_and_keeps_the_sums() -> None:
    found = after(held(0, 4), held(1, 4), held(2, 4, "paused"), held(3, 4, "paused"), held(4, 4), held(5, 4))
    assert found is not None
    assert found.seconds == 2 * INTERVAL_SECONDS
    assert found.since == at(0)


@pytest.mark.parametrize(
    "gap",
    [
        [held(1, None)],
        [held(1, 4, deployment=deployment({"orders": 1, "work": 4}, state="FAILED"))],
        [],
    ],
    ids=["unknown", "failed", "silence"],
)
def test_what_was_not_observed_is_unknown(gap: list[Observation]) -> None:
    """An unknown or failed job, or five intervals without an observation: neither used nor saved."""
    last = 6 if not gap else 2
    found = after(held(0, 4), *gap, held(last, 4), held(last + 1, 4))
    assert found is not None
    assert (found.seconds, found.slot_seconds) == (INTERVAL_SECONDS, 4 * INTERVAL_SECONDS)


def test_too_little_is_not_shown() -> None:
    """Under a minute; then the time that is unknown is part of the sentence."""
    assert spend_view(after(held(0, 4), held(1, 4))) is None
    hour = 3600 / INTERVAL_SECONDS
    found = after(*(held(n, 2) for n in range(20)), *(held(hour + n, 2) for n in range(20)))
    view = spend_view(found)
    assert view is not None
    assert view.saved_share == 0
    assert view.sentence.endswith("; 1.0 h unknown or paused")


def test_a_consumer_group_counts_instances() -> None:
    """It has no slots."""
    target = {"kubernetes": {"namespace": "shop", "kind": "Deployment", "name": "orders"}}
    spec = {"target": target, "application": None, "mode": "act"}
    the_policy = policy(APP, **{name: value for name, value in spec.items() if value is not None})
    shown = {"deployment": deployment({"orders": 1, "work": 2}), "topology": GRAPH}
    found = after(*(observation(n, policy=the_policy, **shown) for n in range(20)))
    view = spend_view(found)
    assert view is not None
    assert view.unit == "instance"
    assert "2 instances" in view.sentence
