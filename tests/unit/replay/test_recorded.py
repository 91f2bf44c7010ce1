"""Recorded messages through the present cores: nothing differs with the same code, and what differs is named."""

import json
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from unittest import mock

import pytest

from tests.effort import thorough
from tests.unit.planner.build import REQUIRED_PARAMETERS
from weir_contracts import Plan, PlannerChoice, parse_policy
from weir_planner.core.decide import plan_offline
from weir_planner.core.guards import GUARDS
from weir_replay.loop import Loop
from weir_replay.options import ReplayOptions, prepare
from weir_replay.recorded import (
    KINDS,
    Changed,
    Comparison,
    InvalidRecording,
    compare,
    first_difference,
    last_request,
)
from weir_replay.simulator import Noise, Simulation
from weir_runtime.http_client import Event
from weir_sdk.installed import built_in

APP = "replay/replay"
SECONDS = 240 if thorough() else 120


@cache
def recorded(planner: str = "rate", trace: str = "spike") -> tuple[Event, ...]:
    """The messages of a simulated application under the services' own shells, as the feed of knowledge has them."""
    prepared = prepare(ReplayOptions(trace=trace, interval_seconds=5))
    chosen = PlannerChoice(name=planner, parameters=REQUIRED_PARAMETERS.get(planner, {}))
    policy = prepared.policy.model_copy(update={"spec": prepared.policy.spec.model_copy(update={"planner": chosen})})
    events: list[Event] = []

    def carry(message: Any) -> Any:
        kind = next(kind for kind, contract in KINDS.items() if isinstance(message, contract))
        events.append(Event(f"{len(events)}-0", kind, json.loads(message.model_dump_json())))
        return message

    simulation = Simulation(prepared.job, prepared.trace.rate_at, step_seconds=1.0)
    with closing(Loop(carry=carry)) as loop:
        loop.add(simulation, policy, noise=Noise(relative=0.02))
        loop.run(SECONDS)
    return tuple(events)


def edited(events: tuple[Event, ...], kind: str, edit: Callable[[Any], None], *, last: int = 1) -> list[Event]:
    """The events with the last ones of a kind edited."""
    chosen = [i for i, event in enumerate(events) if event.kind == kind][-last:]
    found = list(events)
    for i in chosen:
        data = deepcopy(events[i].data)
        edit(data)
        found[i] = replace(events[i], data=data)
    return found


def second_half(events: tuple[Event, ...]) -> tuple[Event, ...]:
    return events[len(events) // 2 :]


@pytest.mark.parametrize(
    "planner", ["rate", *(pytest.param(p, marks=pytest.mark.thorough) for p in built_in() if p != "rate")]
)
def test_the_same_inputs_and_the_same_code_give_the_same_decisions(planner: str) -> None:
    """From the application's beginning on, analyses included: 0 differences."""
    events = recorded(planner)
    found = compare(events, APP)
    assert (found.decisions, found.analyses) == (SECONDS // 5, SECONDS // 5)
    assert (found.differences, found.analyses_first, found.incomplete) == ([], None, 0)


@pytest.mark.parametrize("planner", ["rate", "responsive"])
def test_a_recording_that_begins_in_the_middle_uses_its_analyses(planner: str) -> None:
    """The analyzer's state is not in it, and the first decisions lack what their planner had seen. With the outcomes
    from before it, all others are the same."""
    events = recorded(planner)
    later = second_half(events)
    outcomes = [event for event in events if event.kind == "outcome"]
    found = compare([*outcomes, *later], APP)
    assert found.analyses == 0
    assert found.analyses_first is not None
    assert found.incomplete >= 1
    assert found.decisions + found.incomplete == sum(event.kind == "plan" for event in later)
    assert found.differences == []
    times = (datetime.fromisoformat(e.data["observed_at"]) for e in later if "observed_at" in e.data)
    assert found.recorded_from == min(times)


def test_the_order_of_different_topics_does_not_matter() -> None:
    """Knowledge reads each topic by itself: plans may come before their analyses."""
    events = list(recorded())
    shuffled = [
        event for i in range(0, len(events), 12) for event in sorted(events[i : i + 12], key=lambda e: e.kind)[::-1]
    ]
    found = compare(shuffled, APP)
    assert (found.decisions, found.differences) == (SECONDS // 5, [])


def test_only_decisions_since_a_time_are_compared() -> None:
    """Earlier messages complete the planner's inputs."""
    events = recorded()
    since = datetime.fromisoformat(events[-1].data.get("observed_at") or events[-1].data["at"]) - timedelta(seconds=60)
    found = compare(events, APP, since=since)
    assert 11 <= found.decisions <= 13
    assert found.decided_from is not None and found.decided_from >= since
    assert found.differences == []


def test_another_planner_decides_otherwise() -> None:
    """One line for each decision that differs; it goes on from its own decisions and its own memory."""
    found = compare(recorded(), APP, changed=Changed(planner="hpa"))
    assert found.decisions == SECONDS // 5
    assert found.differences
    assert all(each.is_decision and each.recorded != each.present for each in found.differences)
    assert {each.first.split()[0].split(".")[0].rstrip(":") for each in found.differences} <= {
        "guard",
        "proposed",
        "action",
    }


def test_changed_parameters_name_what_limits_now() -> None:
    """With fewer slots the guard of the bounds is the first difference of the growth."""
    document = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "replay", "name": "replay"},
        "spec": {
            "application": {"flink": {"url": "http://elsewhere:8081", "job": "other"}},
            "objective": {"maxLag": "30s"},
            "bounds": {"min": 1, "max": 3},
        },
    }
    found = compare(recorded(), APP, changed=Changed(policy=parse_policy(document).spec))
    growth = next(each for each in found.differences if "→" in each.recorded)
    assert (growth.recorded, growth.present) == ("enrich 2 → 4 (overloaded)", "enrich 2 → 3 (overloaded)")
    assert growth.first == "proposed: enrich 2 → 4 is now enrich 2 → 3"


def test_a_changed_guard_is_named() -> None:
    """A guard that the code of today lacks: the decisions that it had limited are listed with it."""
    events = recorded()
    limits = {a["guard"] for e in events if e.kind == "plan" for a in e.data["amendments"]}
    assert "stabilisation" in limits
    with mock.patch.dict(GUARDS, {"stabilisation": lambda proposal: proposal}):
        found = compare(events, APP)
    assert found.differences
    assert all(each.first.startswith("guard") and "stabilisation" in each.first for each in found.differences)


def test_a_changed_number_of_a_planner_is_named() -> None:
    """The same decision for another number: listed, but not as another decision."""
    events = edited(recorded(), "plan", lambda plan: plan["evidence"].update(horizon_seconds=1.5))
    (found,) = compare(events, APP).differences
    assert not found.is_decision
    assert found.recorded == found.present
    assert found.first.startswith("evidence.horizon_seconds: 1.5 is now ")


def test_a_changed_analyzer_is_named() -> None:
    """From which time on analyses differ, with the first number, and the decisions that follow from it."""
    events = edited(recorded(), "analysis", lambda analysis: analysis["lag_seconds"].update(value=77.0), last=3)
    found = compare(events, APP)
    assert found.analyses == SECONDS // 5
    assert found.analyses_first is not None and found.analyses_first.startswith("analysis.lag_seconds.value: 77.0 is")
    third_last = [e for e in events if e.kind == "analysis"][-3]
    assert found.analyses_differ_from == datetime.fromisoformat(third_last.data["observed_at"])


def test_an_outcome_may_have_come_just_after_a_decision() -> None:
    """Its time alone does not show whether the planner had read it: either is the same decision."""
    events = recorded()
    early = [i for i, e in enumerate(events) if e.kind == "outcome" and e.data["phase"] == "verified"]
    assert early

    def sooner(event: Event) -> Event:
        at = datetime.fromisoformat(event.data["at"]) - timedelta(seconds=0.5)
        return replace(event, data={**event.data, "at": at.isoformat()})

    moved = [sooner(event) if i in early else event for i, event in enumerate(events)]
    assert compare(moved, APP).decisions == SECONDS // 5


def test_a_decision_without_a_reply_cannot_be_made_again() -> None:
    """A planner that timed out then: counted, and not called a difference."""
    events = edited(recorded(), "plan", lambda plan: plan.update(code="planner-timeout", amendments=[]))
    found = compare(events, APP)
    assert (found.unanswered, found.differences) == (1, [])


def test_a_planner_that_is_not_installed_is_named() -> None:
    """A registered one runs elsewhere: another one can be compared."""

    def rename(analysis: Any) -> None:
        analysis["policy"]["spec"]["planner"]["name"] = "elsewhere"

    events = edited(recorded(), "analysis", rename, last=1000)
    with pytest.raises(InvalidRecording, match=r"there is no planner 'elsewhere'.*--planner"):
        compare(events, APP)
    assert compare(events, APP, changed=Changed(planner="rate")).decisions == SECONDS // 5


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_invalid_message_is_named(kind: str) -> None:
    """The kind, the field and what is wrong."""
    events = edited(recorded(), kind, lambda data: data.update(id="no uuid"))
    with pytest.raises(InvalidRecording, match=f"{kind}: id"):
        compare(events, APP)


def test_nothing_recorded() -> None:
    """No events, those of another application, and kinds that are no messages."""
    assert compare([], APP) == Comparison(APP)
    assert compare(recorded(), "shop/other") == Comparison("shop/other")
    assert compare([Event("1-0", "end", {}), Event("2-0", "plan", "text")], APP) == Comparison(APP)


@pytest.mark.parametrize("share", [0.35, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("planner", ["rate", "responsive"])
def test_the_last_request_is_the_one_that_the_planner_received(planner: str, share: float) -> None:
    """Its decision is the recorded one, also if the recording ends before that decision. Without an analysis there is
    none."""
    events = recorded(planner)
    until = max(i for i, event in enumerate(events[: int(len(events) * share)]) if event.kind == "analysis")
    decided = next(Plan.model_validate(event.data) for event in events[until:] if event.kind == "plan")
    for end in (until + 1, events.index(next(e for e in events[until:] if e.kind == "plan")) + 1):
        request = last_request(events[:end], APP)
        assert request is not None and request.analysis.observation_id == decided.observation_id
        assert first_difference(decided, plan_offline(request)) is None
    assert last_request([event for event in events if event.kind != "analysis"], APP) is None
