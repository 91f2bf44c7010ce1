"""What is told of each move, and that memory can be had back from it."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from weir_contracts import Outcome, QuarantinedVector

from services.executor.core import (
    Accepted,
    ActionHistory,
    CompareAndSwap,
    Conflict,
    Event,
    Recorded,
    Refusal,
    Request,
    Rules,
    Step,
    next_step,
    recall,
    record_refusal,
    record_transition,
    resolve_conflict,
)
from services.executor.core.history import strike
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

ROUND_TRIP_FIELDS = ("action", "last_written", "quarantine", "restarts_seconds")


def tell(history: ActionHistory, step: Step, at: float = 5, seen: object = None) -> tuple[ActionHistory, Outcome]:
    told = record_transition(history, step, seen or snapshot(), after(at), RULES)
    return told.history, told.outcome


def test_memory_is_had_back_from_the_topic() -> None:
    """Another process that reads only the newest outcome knows what this one does."""
    history, told = tell(ActionHistory(), Step(action(version=1), Event("admitted", "…")), 0)
    applying = next_step(history.action, observed(answer=Recorded()), after(1), RULES)
    for move in (applying, next_step(applying.action, observed(answer=Accepted(after(2))), after(2), RULES)):
        history, told = tell(history, move)
        again = recall(ActionHistory(), Outcome.model_validate_json(told.model_dump_json()))
        assert [getattr(again, f) for f in ROUND_TRIP_FIELDS] == [getattr(history, f) for f in ROUND_TRIP_FIELDS]
        assert again.action is not None
    assert history.last_written == WANTED


def test_a_refusal_carries_the_last_action_along() -> None:
    """The compacted topic keeps one outcome an application: it must not forget the action, nor the quarantine."""
    kept = strike((), WANTED, "did not run", NOON, RULES)
    history = ActionHistory(action=action("verified"), last_written=WANTED, quarantine=kept)
    told = record_refusal(history, plan(number=2), Refusal("expired", "too late"), None, after(9))
    assert told.outcome.phase == "refused"
    assert told.outcome.newest_action == action("verified")
    again = recall(ActionHistory(), told.outcome)
    assert (again.last_written, again.quarantine) == (WANTED, kept)
    assert plan(number=2).id in again.answered


def test_ids_of_outcomes_are_derived() -> None:
    """A replay repeats them; each move has its own."""
    first = tell(ActionHistory(), Step(action(), Event("admitted", "…")))[1]
    assert first.id == tell(ActionHistory(), Step(action(), Event("admitted", "…")))[1].id
    moved = next_step(action(), observed(answer=Recorded()), after(1), RULES)
    assert tell(ActionHistory(action=action()), moved)[1].id != first.id


def test_restart_time_is_told() -> None:
    """From acceptance to running, to be learnt from."""
    running = next_step(action("verifying"), observed(snapshot(WANTED, steady_since=after(3))), after(4), RULES)
    assert tell(ActionHistory(action=action("verifying")), running)[1].restart_seconds == 3.0


def test_the_last_restarts_are_carried_along() -> None:
    """Each action counts once, a refusal carries them on, and the oldest gives way."""
    history = ActionHistory(restarts_seconds=(1.0, 2.0, 3.0, 4.0, 5.0))
    running = action(phase="verifying", requested_at=after(2), running_at=after(20))
    history, told = tell(history, Step(running, Event("running", "…")))
    assert told.restarts_seconds == [18.0, 1.0, 2.0, 3.0, 4.0]
    history, told = tell(
        history, Step(running.model_copy(update={"phase": "verified", "version": 9}), Event("verified", "…"))
    )
    assert told.restarts_seconds == [18.0, 1.0, 2.0, 3.0, 4.0]
    refused = record_refusal(history, plan(), Refusal("stale", "it is old"), snapshot(), after(30))
    assert refused.outcome.restarts_seconds == [18.0, 1.0, 2.0, 3.0, 4.0]
    assert refused.history.restarts_seconds == (18.0, 1.0, 2.0, 3.0, 4.0)


def test_what_was_written_follows_the_requests() -> None:
    """Wanted once accepted, the old once the rollback is; a new job has had nothing written."""
    history = ActionHistory(action=action("applying"))
    history, _ = tell(history, next_step(action("applying"), observed(answer=Accepted(after(1))), after(1), RULES))
    assert history.last_written == WANTED
    back = next_step(action("rolling-back"), observed(answer=Accepted(after(70))), after(70), RULES)
    history, _ = tell(history, back)
    assert history.last_written == BEFORE
    new_job = action(deployment=snapshot(job_id="b" * 32).deployment.ref())
    history, _ = tell(history, Step(new_job, Event("admitted", "…")))
    assert history.last_written is None


def test_a_lost_claim_is_told_with_the_action_that_won() -> None:
    """The newest action of the application is the other's."""
    rival = action("applying", attempt_id=OTHER_ATTEMPT, version=7)
    lost = next_step(action(), observed(answer=Conflict(rival)), after(1), RULES)
    history, told = tell(ActionHistory(action=action()), lost)
    assert told.phase == "refused"
    assert history.action == rival == told.newest_action


def test_only_a_rollback_quarantines() -> None:
    """The vector that did not work, from the moment that is known."""
    verifying = action("verifying", checked_at=after(60))
    back = next_step(verifying, observed(restarting(requested=WANTED)), after(61), RULES)
    history, told = tell(ActionHistory(action=verifying), back, 61)
    assert [q.parallelism for q in told.quarantine] == [WANTED]
    assert told.quarantine[0].until == after(61 + 300)
    restored = next_step(
        back.action.model_copy(update={"rollback_requested_at": after(62)}), observed(snapshot()), after(65), RULES
    )
    history, told = tell(history, restored, 65)
    assert len(history.quarantine) == len(told.quarantine) == 1
    assert not tell(ActionHistory(), next_step(action("verifying"), observed(snapshot(WANTED)), after(5), RULES))[
        1
    ].quarantine


def test_a_job_that_failed_for_good_quarantines_too() -> None:
    """Resubmitted under its name it should not be given the same again."""
    dead = snapshot(state="FAILED", all_running=False)
    gone = next_step(action("verifying"), observed(dead), after(20), RULES)
    assert tell(ActionHistory(action=action("verifying")), gone, 20, dead)[1].quarantine
    cancelled = snapshot(state="CANCELED", all_running=False)
    gone = next_step(action("verifying"), observed(cancelled), after(20), RULES)
    assert not tell(ActionHistory(action=action("verifying")), gone, 20, cancelled)[1].quarantine


def test_contested_is_remembered_since_when() -> None:
    """Until an action of Weir's own is under way again."""
    contested = Refusal("contested", "somebody else")
    history = record_refusal(ActionHistory(), plan(), contested, None, after(1)).history
    history = record_refusal(history, plan(number=2), contested, None, after(9)).history
    assert history.contested_since == after(1)
    applying = next_step(action(), observed(answer=Recorded()), after(10), RULES)
    assert tell(history, applying)[0].contested_since is None


@given(st.integers(min_value=1, max_value=60))
def test_quarantine_doubles_up_to_its_longest(times: int) -> None:
    """5, 10, 20 … 120 minutes, however often."""
    kept: tuple[QuarantinedVector, ...] = ()
    now = NOON
    for strikes in range(1, times + 1):
        kept = strike(kept, WANTED, "did not run", now, RULES)
        assert [q.strikes for q in kept] == [strikes]
        assert kept[0].until - now == timedelta(seconds=min(300 * 2 ** (strikes - 1), 7200))
        now = kept[0].until


def test_old_strikes_are_forgotten() -> None:
    """Two hours after a quarantine ended its vector is as good as new."""
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


def test_a_step_asks_only_after_it_was_told() -> None:
    """The request is an instruction beside the new state, which the shell publishes first."""
    made = next_step(action(), observed(answer=Recorded()), after(1), Rules())
    assert made.action.phase == "applying"
    assert made.instruction == Request(WANTED)


class TestClaim:
    """Reading a conflict."""

    def test_my_own_attempt_is_a_success(self) -> None:
        """The answer to an earlier try was lost, or knowledge had it from the topic already."""
        assert resolve_conflict(action(), action(), None) == Recorded()

    def test_an_earlier_phase_of_mine_is_replaced(self) -> None:
        """What is told to knowledge later must not stop at what it had."""
        assert resolve_conflict(action("verifying", version=7), action(version=5), None) == CompareAndSwap(5)
        assert resolve_conflict(action("applying", version=6), action("verifying", version=7), None) == Recorded()

    def test_an_emptied_store_is_claimed_from_nothing(self) -> None:
        """Knowledge came back without its data."""
        assert resolve_conflict(action(), None, None) == CompareAndSwap(0)

    def test_an_ended_action_is_no_rival(self) -> None:
        """Only its version has to be named."""
        assert resolve_conflict(
            action(version=5), action("verified", version=3, attempt_id=OTHER_ATTEMPT), None
        ) == CompareAndSwap(3)

    def test_a_lagging_store_is_no_rival(self) -> None:
        """It still shows a phase that the topic knows to be over."""
        last = action("verified", version=4, id=plan(number=9).id)
        shown = last.model_copy(update={"phase": "verifying", "version": 3, "finished_at": None})
        assert resolve_conflict(action(version=5), shown, last) == CompareAndSwap(3)

    def test_an_interrupted_intent_is_taken_over(self) -> None:
        """The same action, claimed by the process that died."""
        mine = action(version=6, attempt_id=OTHER_ATTEMPT)
        assert resolve_conflict(mine, action(version=5, attempt_id=ATTEMPT), None) == CompareAndSwap(5)

    def test_anything_else_is_a_rival(self) -> None:
        """Another action in flight, or a store that is ahead of what is known here."""
        rival = action("applying", id=plan(number=9).id, attempt_id=OTHER_ATTEMPT, version=4)
        assert resolve_conflict(action(version=5), rival, None) == Conflict(rival)
        ahead = action("verified", version=8, attempt_id=OTHER_ATTEMPT)
        assert resolve_conflict(action(version=5), ahead, None) == Conflict(ahead)
