"""Restart of one instance: which plans become one, and that it never changes or restores a parallelism."""

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any, get_args

import pytest

from tests.effort import some
from tests.unit.executor.builders import (
    ATTEMPT,
    BEFORE,
    NOON,
    OTHER_ATTEMPT,
    RULES,
    action,
    after,
    away,
    observed,
    plan,
    reading,
    restarting,
    snapshot,
)
from weir_contracts import ActionState, InstanceRef, Phase, Plan, RestartInstanceAction
from weir_engines.driver import (
    Accepted,
    DepartedMember,
    Evicted,
    Progress,
    Refusal,
    Rejected,
    RunningInstance,
    Snapshot,
    Unanswered,
)
from weir_executor.core.gate import Context, admit, is_for_us, precheck
from weir_executor.core.history import ActionHistory, recall, record_refusal, record_transition
from weir_executor.core.observed import Evict, Recorded, Request, Restart, Step
from weir_executor.core.steps import is_watched, next_step, resume
from weir_executor.core.table import ROLLBACK_EVENTS, Event

STUCK = InstanceRef(id="orders-2", members=["orders-2-StreamThread-1-consumer-a"], uid="u2")
OLD = (
    RunningInstance("orders-1", ("orders-1-StreamThread-1-consumer-b",), "u1"),
    RunningInstance("orders-2", ("orders-2-StreamThread-1-consumer-a",), "u2"),
)
NEW = (OLD[0], RunningInstance("orders-2", ("orders-2-StreamThread-1-consumer-c",), "u3"))
GONE = (DepartedMember("orders-2-StreamThread-1-consumer-a", "orders-2", None, "u2"),)


def restart_plan(**changes: Any) -> Plan:
    return plan(
        **{
            "kind": "restart_instance",
            "action": RestartInstanceAction(instance=InstanceRef(id="orders-2", members=STUCK.members)),
            "code": "instance-stuck",
            **changes,
        }
    )


def there(**changes: Any) -> Snapshot:
    """The application with both instances, which may be restarted."""
    own = {key: changes.pop(key) for key in ("can_restart_instances", "instances", "departed") if key in changes}
    made = snapshot(can_trigger_checkpoint=False, **changes)
    return replace(made, **{"can_restart_instances": True, "instances": OLD, **own})


def decided(**changes: Any) -> Any:
    given = {
        "now": after(1),
        "history": ActionHistory(),
        "policy": reading(),
        "snapshot": there(),
        "attempt_id": ATTEMPT,
    }
    return admit(restart_plan(), Context(**{**given, **changes}))


def restart(phase: str = "intended", **changes: Any) -> ActionState:
    return action(phase, **{"wanted": BEFORE, "instance": STUCK, "baselines": [], **changes})


def step(the_action: ActionState, found: Snapshot | None = None, at: float = 5, **base: Any) -> Step:
    return next_step(the_action, observed(found or there(), **base), after(at), RULES)


# -- the gate --------------------------------------------------------------------------------------------------------


def test_a_plan_becomes_the_restart_of_the_instance_that_has_its_members() -> None:
    """By the target's own id, with the uid of what runs it; requested is what is requested already."""
    intent = decided()
    assert isinstance(intent, ActionState), intent
    assert (intent.phase, intent.wanted, intent.before) == ("intended", BEFORE, BEFORE)
    assert intent.instance == STUCK and intent.baselines == []
    assert intent.sentence == "will restart orders-2"


@pytest.mark.parametrize(
    "wrong", [set(each) for each in product(*[["", name] for name in ("able", "recent", "moving", "other")])]
)
def test_every_combination_of_what_prevents_it(wrong: set[str]) -> None:
    """Each alone is enough, and the first in this order is named."""
    changes: dict[str, Any] = {"can_restart_instances": "able" not in wrong}
    if "moving" in wrong:
        changes |= {"health": "restarting", "state": "PreparingRebalance"}
    if "other" in wrong:
        changes["instances"] = NEW
    history = ActionHistory(instance_restarted_at=after(1 - 3599 if "recent" in wrong else 1 - 3600))
    answer = decided(snapshot=there(**changes), history=history)
    codes = {
        "able": "unsupported",
        "recent": "restarted-recently",
        "moving": "tasks-move",
        "other": "other-deployment",
    }
    expected = next((code for name, code in codes.items() if name in wrong), None)
    assert (answer.code if isinstance(answer, Refusal) else None) == expected, answer


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (there(departed=GONE), "tasks-move"),
        (there(requested={**BEFORE, "enrich": 2}), "other-deployment"),
        (there(instances=OLD[:1]), "other-deployment"),
        (there(job_id="b" * 32), "other-deployment"),
        (away(), "unreachable"),
    ],
)
def test_nothing_is_restarted_in_another_state_than_planned(found: Snapshot, code: str) -> None:
    """A member that departed, another size, no such member, another application, no answer."""
    answer = decided(snapshot=found)
    assert isinstance(answer, Refusal) and answer.code == code, answer


def test_the_gates_of_a_scale_are_those_of_a_restart() -> None:
    """Mode, policy, expiry, an action in flight; a plan is answered once."""
    assert decided(policy=reading(mode="advise")).code == "not-act"
    assert decided(policy=reading(version=9)).code == "policy-changed"
    assert decided(now=after(60)).code == "expired"
    assert decided(history=ActionHistory(action=action("applying"))).code == "in-flight"
    told = restart_plan()
    refused = record_refusal(ActionHistory(), told, Refusal("not-act", "…"), None, NOON)
    assert refused.outcome.instance == told.restarts and refused.outcome.wanted == {}
    assert is_for_us(told, ActionHistory()) and not is_for_us(told, refused.history)
    assert (
        precheck(told, ActionHistory(), Context(NOON, ActionHistory(), reading(), there(), ATTEMPT).fleet, NOON, RULES)
        is None
    )


# -- its steps -------------------------------------------------------------------------------------------------------


def test_from_intent_to_verified() -> None:
    """Recorded, sent, accepted; the old member is evicted; another process runs and settles."""
    made = step(restart(), answer=Recorded())
    assert (made.name, made.instruction, made.action.sentence) == ("recorded", Restart(STUCK), "restarting orders-2")
    made = step(made.action, answer=Accepted(after(4)))
    assert (made.name, made.action.phase, made.instruction) == ("accepted", "verifying", None)
    assert made.action.sentence.startswith("requested a restart of orders-2, which has ")
    waiting = step(made.action)
    assert waiting.name is None and waiting.instruction is None, "the old process still runs"
    held = step(made.action, there(instances=NEW, departed=GONE))
    assert held.instruction == Evict(GONE)
    told = step(made.action, there(instances=NEW), answer=Evicted(GONE))
    assert told.name == "evicted"
    runs = step(told.action, there(instances=NEW, at=after(6), steady_since=after(6)), at=6)
    assert (runs.name, runs.action.restart_seconds) == ("running", 2.0)
    done = step(runs.action, there(instances=NEW, at=after(17), steady_since=after(6)), at=17)
    assert (done.name, done.action.phase, done.action.code) == ("healthy", "verified", "verified")
    assert done.action.sentence == "the instance in place of orders-2 settled, 2.0 s from request to running"
    assert not is_watched(done.action, after(18), RULES)


def test_a_lost_answer_is_found_by_its_effect() -> None:
    """The process is another one: nothing is sent again. Until then the same request is repeated."""
    applying = restart("applying")
    assert step(applying).instruction == Restart(STUCK)
    found = step(applying, there(instances=NEW))
    assert (found.name, found.action.phase) == ("found-requested", "verifying")


@pytest.mark.parametrize(
    ("answer", "found", "at", "code", "text"),
    [
        (
            Rejected("no such instance"),
            there(),
            5,
            "rejected",
            "refused: no such instance; asked for a restart of orders-2",
        ),
        (Refusal("policy-changed", "it changed"), there(), 5, "policy-changed", "it changed"),
        (Unanswered("…"), there(), 31, "unreachable", "was not sent or not answered"),
        (None, there(requested={**BEFORE, "enrich": 3}), 5, "contested", "enrich 1 → 3"),
    ],
)
def test_a_restart_that_is_not_accepted_fails(answer: Any, found: Snapshot, at: float, code: str, text: str) -> None:
    """With the reason; nothing is rolled back."""
    made = step(restart("applying"), found, at, answer=answer)
    assert (made.action.phase, made.action.code) == ("failed", code)
    assert text in made.action.sentence and made.instruction is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (there(), "its process still runs"),
        (replace(restarting(), instances=NEW[:1]), "not complete: its process still runs"),
        (
            replace(restarting(), instances=NEW, progress=Progress("instances-pending", "1 of 2 instances are ready")),
            "1 of 2 instances are ready",
        ),
    ],
)
def test_an_instance_that_does_not_run_in_time_fails_the_action(found: Snapshot, reason: str) -> None:
    """There is no former state to go back to; the parallelism is not quarantined."""
    made = step(restart("verifying", checked_at=after(60)), found, 61)
    assert (made.name, made.action.phase, made.action.code) == ("stuck", "failed", "restart-failed")
    assert reason in made.action.sentence
    published = record_transition(ActionHistory(action=restart("verifying")), made, found, after(61), RULES)
    assert published.outcome.quarantine == []


@pytest.mark.parametrize("phase", [each for each in get_args(Phase) if each != "rolling-back"])
def test_no_situation_changes_or_restores_a_parallelism(phase: str) -> None:
    """Every combination of phase, process, state of the group, time and answer: no request, no rollback, no quarantine;
    what was requested last is not written as this action's."""
    snapshots = [
        (snapshot if runs else restarting)(requested=requested, restarts=restarts)
        for runs, requested, restarts in product([True, False], [None, BEFORE, {**BEFORE, "sink": 9}], [None, 0, 9])
    ]
    answers = [None, Recorded(), Accepted(after(4)), Rejected("no"), Refusal("expired", "late"), Evicted(GONE)]
    situations = product([*snapshots, away()], [(), OLD, NEW], [False, True], [None, after(2)], answers)
    # 5 divides no number of choices, so a quick run has every pair of them.
    for found, instances, late, running, answer in some(situations, 5):
        times = {"running_at": running, "checked_at": after(499)} if phase == "verifying" else {}
        before = restart(phase, **times)
        made = step(before, replace(found, instances=instances), 500 if late else 5, answer=answer)
        assert not isinstance(made.instruction, Request)
        assert made.name not in ROLLBACK_EVENTS
        if made.event is None:
            continue
        kept = ActionHistory(action=before, last_written={"orders": 7})
        published = record_transition(kept, made, found, after(500), RULES)
        assert published.outcome.last_written == {"orders": 7} and published.outcome.quarantine == []
        assert published.outcome.restarts_seconds == [] and published.outcome.instance == STUCK


def test_the_time_of_a_restart_goes_from_outcome_to_outcome() -> None:
    """An executor that takes the application over keeps the pause, too."""
    history = ActionHistory(action=restart("applying"))
    made = step(restart("applying"), answer=Accepted(after(4)))
    published = record_transition(history, made, there(), after(5), RULES)
    assert published.outcome.instance_restarted_at == after(4)
    again = recall(ActionHistory(), published.outcome)
    assert again.instance_restarted_at == after(4)
    later = Step(action("verifying"), Event("waiting", "…"))
    assert record_transition(again, later, there(), after(9), RULES).outcome.instance_restarted_at == after(4)
    ended = ActionHistory(instance_restarted_at=again.instance_restarted_at)
    assert decided(history=ended, now=after(20)).code == "restarted-recently"
    taken = resume(restart(), OTHER_ATTEMPT, after(3))
    assert taken.action.sentence == "taken over: will restart orders-2"
    assert timedelta(seconds=RULES.restart_pause_seconds) == timedelta(hours=1)
