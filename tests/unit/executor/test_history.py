"""Outcomes of transitions, and the history that is recalled from them."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.executor.builders import (
    ATTEMPT,
    BEFORE,
    NOON,
    OTHER_ATTEMPT,
    RULES,
    WANTED,
    action,
    after,
    observed,
    plan,
    restarting,
    snapshot,
)
from weir_contracts import Outcome, QuarantinedVector
from weir_engines.driver import Accepted, Refusal
from weir_executor.core.history import (
    ActionHistory,
    CompareAndSwap,
    recall,
    record_refusal,
    record_transition,
    resolve_conflict,
    strike,
)
from weir_executor.core.observed import Conflict, Recorded, Request, Step
from weir_executor.core.parameters import Rules
from weir_executor.core.steps import next_step
from weir_executor.core.table import Event

ROUND_TRIP_FIELDS = ("action", "last_written", "quarantine", "restarts_seconds")


def publish(history: ActionHistory, step: Step, at: float = 5, found: object = None) -> tuple[ActionHistory, Outcome]:
    published = record_transition(history, step, found or snapshot(), after(at), RULES)
    return published.history, published.outcome


def test_the_history_is_recalled_from_the_topic() -> None:
    """Another process that reads only the newest outcome has the same state."""
    history, published = publish(ActionHistory(), Step(action(version=1), Event("admitted", "…")), 0)
    applying = next_step(history.action, observed(answer=Recorded()), after(1), RULES)
    for move in (applying, next_step(applying.action, observed(answer=Accepted(after(2))), after(2), RULES)):
        history, published = publish(history, move)
        again = recall(ActionHistory(), Outcome.model_validate_json(published.model_dump_json()))
        assert [getattr(again, f) for f in ROUND_TRIP_FIELDS] == [getattr(history, f) for f in ROUND_TRIP_FIELDS]
        assert again.action is not None
    assert history.last_written == WANTED


def test_a_refusal_carries_the_last_action_along() -> None:
    """The compacted topic keeps one outcome per application: action and quarantine must survive."""
    kept = strike((), WANTED, "did not run", NOON, RULES)
    history = ActionHistory(action=action("verified"), last_written=WANTED, quarantine=kept)
    published = record_refusal(history, plan(number=2), Refusal("expired", "too late"), None, after(9))
    assert published.outcome.phase == "refused"
    assert published.outcome.newest_action == action("verified")
    again = recall(ActionHistory(), published.outcome)
    assert (again.last_written, again.quarantine) == (WANTED, kept)
    assert plan(number=2).id in again.answered


def test_ids_of_outcomes_are_derived() -> None:
    """A replay repeats them; each transition has its own."""
    first = publish(ActionHistory(), Step(action(), Event("admitted", "…")))[1]
    assert first.id == publish(ActionHistory(), Step(action(), Event("admitted", "…")))[1].id
    moved = next_step(action(), observed(answer=Recorded()), after(1), RULES)
    assert publish(ActionHistory(action=action()), moved)[1].id != first.id


def test_the_restart_time_is_published() -> None:
    """From acceptance to running, in seconds."""
    running = next_step(action("verifying"), observed(snapshot(WANTED, steady_since=after(3))), after(4), RULES)
    assert publish(ActionHistory(action=action("verifying")), running)[1].restart_seconds == 3.0


def test_the_last_restarts_are_carried_along() -> None:
    """Each action counts once, a refusal carries them on, and the oldest gives way."""
    history = ActionHistory(restarts_seconds=(1.0, 2.0, 3.0, 4.0, 5.0))
    running = action(phase="verifying", requested_at=after(2), running_at=after(20))
    history, published = publish(history, Step(running, Event("running", "…")))
    assert published.restarts_seconds == [18.0, 1.0, 2.0, 3.0, 4.0]
    history, published = publish(
        history, Step(running.model_copy(update={"phase": "verified", "version": 9}), Event("verified", "…"))
    )
    assert published.restarts_seconds == [18.0, 1.0, 2.0, 3.0, 4.0]
    refused = record_refusal(history, plan(), Refusal("stale", "it is old"), snapshot(), after(30))
    assert refused.outcome.restarts_seconds == [18.0, 1.0, 2.0, 3.0, 4.0]
    assert refused.history.restarts_seconds == (18.0, 1.0, 2.0, 3.0, 4.0)


def test_what_was_written_follows_the_requests() -> None:
    """Wanted once accepted, the old once the rollback is; a new job has had nothing written."""
    history = ActionHistory(action=action("applying"))
    history, _ = publish(history, next_step(action("applying"), observed(answer=Accepted(after(1))), after(1), RULES))
    assert history.last_written == WANTED
    rollback = next_step(action("rolling-back"), observed(answer=Accepted(after(70))), after(70), RULES)
    history, _ = publish(history, rollback)
    assert history.last_written == BEFORE
    new_job = action(deployment=snapshot(job_id="b" * 32).deployment.ref())
    history, _ = publish(history, Step(new_job, Event("admitted", "…")))
    assert history.last_written is None


def test_a_conflict_is_published_with_the_stored_action() -> None:
    """The newest action of the application is the other executor's."""
    rival = action("applying", attempt_id=OTHER_ATTEMPT, version=7)
    lost = next_step(action(), observed(answer=Conflict(rival)), after(1), RULES)
    history, published = publish(ActionHistory(action=action()), lost)
    assert published.phase == "refused"
    assert history.action == rival == published.newest_action


def test_only_a_rollback_quarantines() -> None:
    """The vector that did not work, from the moment that is known."""
    verifying = action("verifying", checked_at=after(60))
    rollback = next_step(verifying, observed(restarting(requested=WANTED)), after(61), RULES)
    history, published = publish(ActionHistory(action=verifying), rollback, 61)
    assert [q.parallelism for q in published.quarantine] == [WANTED]
    assert published.quarantine[0].until == after(61 + 300)
    restored = next_step(
        rollback.action.model_copy(update={"rollback_requested_at": after(62)}), observed(snapshot()), after(65), RULES
    )
    history, published = publish(history, restored, 65)
    assert len(history.quarantine) == len(published.quarantine) == 1
    assert not publish(ActionHistory(), next_step(action("verifying"), observed(snapshot(WANTED)), after(5), RULES))[
        1
    ].quarantine


def test_a_job_that_failed_for_good_quarantines_too() -> None:
    """Resubmitted under its name it should not be given the same again."""
    dead = snapshot(state="FAILED", all_running=False)
    ended = next_step(action("verifying"), observed(dead), after(20), RULES)
    assert publish(ActionHistory(action=action("verifying")), ended, 20, dead)[1].quarantine
    cancelled = snapshot(state="CANCELED", all_running=False)
    ended = next_step(action("verifying"), observed(cancelled), after(20), RULES)
    assert not publish(ActionHistory(action=action("verifying")), ended, 20, cancelled)[1].quarantine


def test_the_start_of_a_contest_is_kept() -> None:
    """Kept until an action of Weir begins."""
    contested = Refusal("contested", "another client")
    history = record_refusal(ActionHistory(), plan(), contested, None, after(1)).history
    history = record_refusal(history, plan(number=2), contested, None, after(9)).history
    assert history.contested_since == after(1)
    applying = next_step(action(), observed(answer=Recorded()), after(10), RULES)
    begun = publish(history, applying)[0]
    assert (begun.contested_since, begun.contests) == (None, 1)
    again = record_refusal(begun, plan(number=3), contested, None, after(20)).history
    assert (again.contested_since, again.contests) == (after(20), 2)


def test_another_value_of_another_client_begins_the_contest_again() -> None:
    """It is one contest, of which the last write counts; an action that succeeds ends it."""
    contested = Refusal("contested", "another client")
    first, second = snapshot({"orders": 1, "enrich": 7, "sink": 7}), snapshot({"orders": 1, "enrich": 8, "sink": 8})
    history = record_refusal(ActionHistory(), plan(), contested, first, after(1)).history
    history = record_refusal(history, plan(number=2), contested, first, after(9)).history
    assert (history.contested_since, history.contests) == (after(1), 1)
    history = record_refusal(history, plan(number=3), contested, second, after(20)).history
    assert (history.contested_since, history.contests) == (after(20), 1)
    verified = Step(action("verified", version=9), Event("healthy", "…"))
    assert publish(history, verified)[0].contests == 0


@given(st.integers(min_value=1, max_value=60))
def test_quarantine_doubles_up_to_its_maximum(times: int) -> None:
    """5, 10, 20 … 120 minutes, however often."""
    kept: tuple[QuarantinedVector, ...] = ()
    now = NOON
    for strikes in range(1, times + 1):
        kept = strike(kept, WANTED, "did not run", now, RULES)
        assert [q.strikes for q in kept] == [strikes]
        assert kept[0].until - now == timedelta(seconds=min(300 * 2 ** (strikes - 1), 7200))
        now = kept[0].until


def test_old_strikes_expire() -> None:
    """Two hours after the end of a quarantine its strikes no longer count."""
    kept = strike((), WANTED, "did not run", NOON, RULES)
    history = ActionHistory(action=action("verified"), quarantine=kept)
    still = record_transition(
        history, Step(action(version=6), Event("admitted", "…")), snapshot(), kept[0].until + timedelta(hours=1), RULES
    )
    assert still.outcome.quarantine
    later = record_transition(
        history, Step(action(version=6), Event("admitted", "…")), snapshot(), kept[0].until + timedelta(hours=3), RULES
    )
    assert not later.outcome.quarantine


def test_a_request_is_an_instruction_of_a_step() -> None:
    """The shell publishes the new state first, then carries out the instruction."""
    made = next_step(action(), observed(answer=Recorded()), after(1), Rules())
    assert made.action.phase == "applying"
    assert made.instruction == Request(WANTED)


class TestResolveConflict:
    """Meaning of a conflict."""

    def test_my_own_attempt_is_a_success(self) -> None:
        """The response to an earlier try was lost, or knowledge read it from the topic."""
        assert resolve_conflict(action(), action(), None) == Recorded()

    def test_an_earlier_phase_of_mine_is_replaced(self) -> None:
        """A later phase replaces an earlier one, not the other way round."""
        assert resolve_conflict(action("verifying", version=7), action(version=5), None) == CompareAndSwap(5)
        assert resolve_conflict(action("applying", version=6), action("verifying", version=7), None) == Recorded()

    def test_an_empty_store_is_written_with_version_0(self) -> None:
        """Knowledge came back without its data."""
        assert resolve_conflict(action(), None, None) == CompareAndSwap(0)

    def test_an_ended_action_is_no_rival(self) -> None:
        """Its version is the one to replace."""
        assert resolve_conflict(
            action(version=5), action("verified", version=3, attempt_id=OTHER_ATTEMPT), None
        ) == CompareAndSwap(3)

    def test_a_lagging_store_is_no_rival(self) -> None:
        """It shows a phase that has ended by the topic."""
        last = action("verified", version=4, id=plan(number=9).id)
        shown = last.model_copy(update={"phase": "verifying", "version": 3, "finished_at": None})
        assert resolve_conflict(action(version=5), shown, last) == CompareAndSwap(3)

    def test_an_interrupted_intent_is_taken_over(self) -> None:
        """The same action, recorded by the process that died."""
        mine = action(version=6, attempt_id=OTHER_ATTEMPT)
        assert resolve_conflict(mine, action(version=5, attempt_id=ATTEMPT), None) == CompareAndSwap(5)

    def test_anything_else_is_a_rival(self) -> None:
        """Another action in flight, or a store that is ahead of this process."""
        rival = action("applying", id=plan(number=9).id, attempt_id=OTHER_ATTEMPT, version=4)
        assert resolve_conflict(action(version=5), rival, None) == Conflict(rival)
        ahead = action("verified", version=8, attempt_id=OTHER_ATTEMPT)
        assert resolve_conflict(action(version=5), ahead, None) == Conflict(ahead)
