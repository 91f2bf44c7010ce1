"""One look, at most one move: what each phase makes of what it sees."""

from datetime import timedelta
from typing import Any

import pytest
from weir_contracts import Checkpoints, RescaleSettings, RestartTimes, Slots

from services.executor.core import (
    Accepted,
    Conflict,
    PolicyReading,
    Record,
    Recorded,
    Rejected,
    Request,
    Rules,
    Step,
    TriggerCheckpoint,
    Unanswered,
    late_rollback,
    next_step,
    resume,
    supersede,
)
from services.executor.core.table import Lost
from tests.unit.executor.builders import (
    ATTEMPT,
    BEFORE,
    NOON,
    OTHER_ATTEMPT,
    RULES,
    WANTED,
    absent,
    action,
    after,
    analysis,
    away,
    observed,
    operator_analysis,
    reading,
    restarting,
    snapshot,
)

FOREIGN = {"orders": 1, "enrich": 7, "sink": 7}


def step(the_action: Any, seen: Any = None, at: float = 5, rules: Rules = RULES, **known: Any) -> Step:
    return next_step(the_action, observed(seen, **known), after(at), rules)


class TestIntended:
    """Recorded nowhere but in the topic: nothing has been done."""

    def test_it_is_claimed_first(self) -> None:
        """Before anything is asked of the engine."""
        assert step(action()) == Step(action(), None, Record())

    def test_once_recorded_it_is_requested(self) -> None:
        """The side effect comes last."""
        made = step(action(), answer=Recorded())
        assert (made.name, made.action.phase) == ("recorded", "applying")
        assert made.instruction == Request(WANTED)

    def test_another_holds_it(self) -> None:
        """The claim was lost to somebody's action in flight, which is told along."""
        rival = action("applying", attempt_id=OTHER_ATTEMPT)
        made = step(action(), answer=Conflict(rival))
        assert (made.name, made.action.phase) == ("lost", "refused")
        assert isinstance(made.event, Lost) and made.event.rival == rival

    def test_an_outage_is_waited_out(self) -> None:
        """No knowledge or no target: nothing is done, nothing is given up, until it expires."""
        assert step(action(), policy=PolicyReading(reachable=False)) == Step(action())
        assert step(action(), away()) == Step(action())
        made = step(action(), away(), at=30)
        assert (made.name, made.action.code) == ("outdated", "expired")

    def test_a_changed_mind_ends_it(self) -> None:
        """Paused while it waited for knowledge to come back."""
        made = step(action(), policy=reading(mode="paused"))
        assert (made.action.phase, made.action.code) == ("refused", "not-act")

    def test_another_process_takes_it_over_by_name(self) -> None:
        """So that a conflict can tell whose claim came through."""
        taken = resume(action(), OTHER_ATTEMPT, after(3))
        assert (taken.name, taken.action.attempt_id, taken.action.version) == ("resumed", OTHER_ATTEMPT, 6)
        assert resume(action(), ATTEMPT, after(3)).name is None

    def test_what_was_sent_is_just_continued(self) -> None:
        """Only an intent needs a mark of its own."""
        for phase in ("applying", "verifying", "rolling-back", "verified"):
            assert resume(action(phase), OTHER_ATTEMPT, after(3)) == Step(action(phase))


class TestApplying:
    """The request is on its way, or was, or not yet: that is what has to be found out."""

    def test_accepted(self) -> None:
        """Now it has a deadline, and a checkpoint is triggered at once."""
        made = step(action("applying"), answer=Accepted(after(4)))
        assert (made.name, made.action.phase, made.action.requested_at) == ("accepted", "verifying", after(4))
        assert made.action.deadline_at == after(64)
        assert made.instruction == TriggerCheckpoint()

    def test_rejected(self) -> None:
        """The engine's own reason is passed on."""
        made = step(action("applying"), answer=Rejected("exceeds its maximum parallelism 2"))
        assert made.action.phase == "failed"
        assert "maximum parallelism 2" in made.action.sentence

    def test_resumed_before_it_was_sent(self) -> None:
        """The engine knows nothing of it: it is sent, again or at last."""
        assert step(action("applying")) == Step(action("applying"), None, Request(WANTED))

    def test_resumed_after_it_was_sent(self) -> None:
        """Wanted is requested already: on to verifying. It was asked for when this phase began."""
        sent = action("applying", checked_at=after(2))
        made = step(sent, snapshot(requested=WANTED))
        assert (made.name, made.action.phase, made.action.requested_at) == ("found-requested", "verifying", after(2))

    def test_a_lost_answer_is_no_second_request(self) -> None:
        """The answer was lost, the request was not."""
        made = step(action("applying"), snapshot(requested=WANTED), answer=Unanswered("timeout"))
        assert made.name == "found-requested"

    def test_silence_ends_at_last(self) -> None:
        """After half a minute the planner may think again."""
        waiting = action("applying", deadline_at=after(30))
        assert step(waiting, away(), at=29) == Step(waiting)
        assert step(waiting, away(), at=31).action.code == "unreachable"

    def test_somebody_else_was_faster(self) -> None:
        """Neither what was nor what is wanted: hands off."""
        made = step(action("applying"), snapshot(requested=FOREIGN))
        assert (made.action.phase, made.action.code) == ("failed", "contested")

    def test_the_job_went_away(self) -> None:
        """There is nothing to apply it to."""
        for gone in (absent(), snapshot(job_id="b" * 32), snapshot(state="CANCELED", all_running=False)):
            assert step(action("applying"), gone).action.code == "job-gone"


class TestVerifying:
    """The engine has it: does it run, does it settle?"""

    def test_it_runs(self) -> None:
        """When, is taken from the engine's last change of a task, not from when somebody looked."""
        made = step(action("verifying"), snapshot(WANTED, steady_since=after(3.2)), at=5)
        assert (made.name, made.action.phase) == ("running", "verifying")
        assert made.action.restart_seconds == pytest.approx(3.2)

    def test_it_cannot_have_run_before_it_was_requested(self) -> None:
        """What ran already needed no restart; and no clock difference makes a restart time negative."""
        made = step(action("verifying"), snapshot(WANTED, steady_since=after(-100)))
        assert made.action.restart_seconds == 0.0

    def test_half_of_it_is_not_running(self) -> None:
        """RUNNING with tasks still deploying, or another parallelism, is waited for."""
        assert step(action("verifying"), snapshot(WANTED, all_running=False)).name is None
        assert step(action("verifying"), snapshot(requested=WANTED)).name is None

    def test_it_settles(self) -> None:
        """Ten seconds without a restart make it verified; capacity is not known yet, and it says so."""
        running = action("verifying", running_at=after(4))
        seen = snapshot(WANTED, steady_since=after(4))
        assert step(running, seen, at=13.9).name is None
        made = step(running, seen, at=14)
        assert (made.name, made.action.phase) == ("healthy", "verified")
        assert "not judged yet" in made.action.sentence

    def test_a_restart_starts_settling_anew(self) -> None:
        """It ran at 4 s, restarted, and runs again since 12 s."""
        running = action("verifying", running_at=after(4))
        seen = snapshot(WANTED, steady_since=after(12), restarts=2)
        assert step(running, seen, at=15).name is None
        assert step(running, seen, at=22).name == "healthy"
        assert step(running, seen, at=22).action.restart_seconds == 4

    def test_it_does_not_run_in_time(self) -> None:
        """Past the deadline, not before."""
        assert step(action("verifying"), restarting(requested=WANTED), at=60).name is None
        made = step(action("verifying", checked_at=after(60)), restarting(requested=WANTED), at=61)
        assert (made.name, made.action.phase) == ("not-running", "rolling-back")
        assert made.instruction == Request(BEFORE)

    def test_it_runs_below_what_was_requested(self) -> None:
        """The slots are not there: 200 OK, and then 3 instead of 4."""
        less = snapshot({**WANTED, "enrich": 3}, requested=WANTED)
        made = step(action("verifying", checked_at=after(60)), less, at=61)
        assert (made.name, made.action.phase) == ("below-requested", "rolling-back")
        assert "enrich 4 → 3" in made.action.sentence

    def test_it_restarts_all_the_time(self) -> None:
        """Three beyond the rescale's own, for 20 s and still: a loop. Two are none."""
        assert step(action("verifying"), restarting(requested=WANTED, restarts=3), at=25).name is None
        made = step(action("verifying"), restarting(requested=WANTED, restarts=4), at=25)
        assert (made.name, made.action.phase) == ("restart-loop", "rolling-back")

    def test_a_lost_task_manager_is_no_restart_loop(self) -> None:
        """It restarts a job several times within seconds, until the cluster has noticed; then the job runs and settles."""
        running = action("verifying", running_at=after(2))
        assert step(running, restarting(requested=WANTED, restarts=6), at=6).name is None
        again = snapshot(WANTED, steady_since=after(18), restarts=6)
        assert step(running, again, at=24).name is None
        assert step(running, again, at=28).name == "healthy"

    def test_a_job_that_waits_for_slots_is_in_no_restart_loop(self) -> None:
        """Fewer slots are left than it took before: its restarts say nothing about the new parallelism."""
        seen = restarting(requested=WANTED, restarts=6)
        few = analysis(BEFORE)
        assert few.deployment is not None
        for total, event in ((0, None), (50, "restart-loop")):
            slots = few.deployment.model_copy(update={"slots": Slots(total=total, available=0)})
            known = few.model_copy(update={"deployment": slots})
            assert step(action("verifying"), seen, at=30, analysis=known).name == event

    def test_restarts_count_from_before(self) -> None:
        """A crash-looping job brings many, and may be scaled all the same."""
        old = action("verifying", restarts_before=70)
        assert step(old, restarting(requested=WANTED, restarts=71), at=25).name is None
        assert step(old, restarting(requested=WANTED, restarts=74), at=25).name == "restart-loop"

    def test_unknown_restarts_are_not_zero(self) -> None:
        """Nor does a counter that began anew say anything."""
        assert step(action("verifying", restarts_before=None), restarting(requested=WANTED, restarts=50)).name is None
        assert step(action("verifying", restarts_before=9), restarting(requested=WANTED, restarts=1)).name is None

    def test_stopping_to_run_gets_a_deadline_again(self) -> None:
        """It had run; one restart in the middle of the watch is no reason to roll back."""
        running = action("verifying", running_at=after(4), deadline_at=after(60))
        seen = step(running, snapshot(WANTED, steady_since=after(58)), at=59).action
        assert seen.deadline_at == after(119)
        down = restarting(WANTED, restarts=2)
        assert step(seen.model_copy(update={"checked_at": after(118)}), down, at=119).name is None
        assert step(seen.model_copy(update={"checked_at": after(118)}), down, at=120).name == "not-running"

    def test_blindness_does_not_count_against_it(self) -> None:
        """Nobody could look for two minutes: the deadline moves with them."""
        blind = action("verifying", checked_at=after(2))
        assert step(blind, away(), at=120).name is None
        made = step(blind, restarting(requested=WANTED), at=122)
        assert made.name is None
        assert made.action.deadline_at == after(180)

    def test_it_is_not_blind_for_ever(self) -> None:
        """After ten minutes without a sight of it others may have its place."""
        assert step(action("verifying"), away(), at=600).name is None
        assert step(action("verifying"), away(), at=601).action.code == "unreachable"

    def test_growing_lag_is_no_reason(self) -> None:
        """Lag grew to an hour: the planner's business."""
        running = action("verifying", running_at=after(4))
        worse = analysis(lag_seconds={"value": 3600.0, "basis": "measured", "confidence": 1.0})
        assert step(running, snapshot(WANTED, steady_since=after(4)), at=14, analysis=worse).name == "healthy"

    def test_somebody_else_scales_it(self) -> None:
        """Nobody is fought with."""
        made = step(action("verifying"), snapshot(requested=FOREIGN))
        assert (made.action.phase, made.action.code) == ("failed", "contested")

    def test_the_job_failed_for_good(self) -> None:
        """Its restart strategy gave up: nothing is left to roll back."""
        made = step(action("verifying"), snapshot(state="FAILED", all_running=False))
        assert (made.action.phase, made.action.code) == ("failed", "job-failed")

    def test_a_newer_plan_may_take_its_place_once_it_ran(self) -> None:
        """And the end says that it did run."""
        assert supersede(action("verifying"), after(9)) == Step(action("verifying"))
        made = supersede(action("verifying", running_at=after(4)), after(9))
        assert (made.name, made.action.phase, made.action.code) == ("superseded", "superseded", "superseded-running")
        assert "ran after 4.0 s" in made.action.sentence


class TestNudging:
    """A rescale waits for a checkpoint: one is wanted whenever that would let it begin."""

    def due(self, at: float, *, checkpoint_at: float | None, running_since: float = -3600, **changes: Any) -> bool:
        seen = snapshot(
            requested=WANTED,
            checkpoint_completed_at=None if checkpoint_at is None else after(checkpoint_at),
            running_since=after(running_since),
            **changes,
        )
        return step(action("verifying"), seen, at=at).instruction == TriggerCheckpoint()

    def test_until_one_completed_after_the_request(self) -> None:
        """The one of before does not count, and neither do failed ones, which do not complete."""
        assert self.due(1, checkpoint_at=-5)
        assert self.due(1, checkpoint_at=None)
        assert not self.due(1, checkpoint_at=0.6)

    def test_one_in_flight_is_waited_for(self) -> None:
        """Triggering another would only queue it; unknown is no reason either."""
        assert not self.due(1, checkpoint_at=-5, checkpoint_in_progress=True)
        assert not self.due(1, checkpoint_at=-5, checkpoint_in_progress=None)

    def test_again_after_the_cooldown(self) -> None:
        """The first completed while the engine was still cooling down from the rescale before."""
        slow = RescaleSettings(cooldown_seconds=30, stabilization_seconds=60)
        known: dict[str, Any] = {"checkpoint_at": 0.6, "running_since": -10, "rescale": slow}
        assert not self.due(20, **known)
        assert self.due(20.6, **known)
        assert not self.due(25, **{**known, "checkpoint_at": 21})

    def test_again_after_the_stabilisation(self) -> None:
        """Slots were missing; now the engine takes what there is, at the next checkpoint."""
        slow = RescaleSettings(cooldown_seconds=0, stabilization_seconds=20)
        assert not self.due(20, checkpoint_at=0.6, rescale=slow)
        assert self.due(20.6, checkpoint_at=0.6, rescale=slow)

    def test_only_if_the_driver_can(self) -> None:
        """A driver without checkpoints gets no such instruction, not after its acceptance either."""
        assert not self.due(1, checkpoint_at=-5, can_trigger_checkpoint=False)
        accepted = step(action("applying"), snapshot(can_trigger_checkpoint=False), answer=Accepted(after(4)))
        assert (accepted.name, accepted.instruction) == ("accepted", None)

    def test_not_once_it_has_begun(self) -> None:
        """A new execution, or tasks that are not running: there is nothing to wait for."""
        assert not self.due(5, checkpoint_at=-5, running_since=2)
        assert not self.due(5, checkpoint_at=-5, all_running=False)


class TestRollingBack:
    """Back to what was requested before."""

    def test_accepted(self) -> None:
        """It gets the same time that the rescale had."""
        made = step(action("rolling-back"), answer=Accepted(after(70)), at=70)
        assert (made.name, made.action.rollback_requested_at) == ("accepted", after(70))
        assert made.action.deadline_at == after(130)
        assert made.instruction == TriggerCheckpoint()

    def test_it_is_asked_for_until_somebody_answers(self) -> None:
        """Also by another process: what is requested tells whether it was done."""
        back = action("rolling-back")
        assert step(back, snapshot(requested=WANTED)).instruction == Request(BEFORE)
        assert step(back, away()) == Step(back)
        assert step(back, snapshot(WANTED, requested=BEFORE)).name == "found-requested"

    def test_it_runs_again(self) -> None:
        """As it was."""
        back = action("rolling-back", rollback_requested_at=after(61))
        assert step(back, restarting(WANTED, requested=BEFORE)).name is None
        made = step(back, snapshot())
        assert (made.name, made.action.phase) == ("restored", "rolled-back")

    def test_it_goes_back_to_what_was_requested(self) -> None:
        """Not to the fewer that slots allowed then: those would have stayed."""
        ref = snapshot(requested={**BEFORE, "enrich": 3}).deployment.ref()
        back = action("rolling-back", deployment=ref)
        assert step(back, snapshot(requested=WANTED)).instruction == Request({**BEFORE, "enrich": 3})
        asked = back.model_copy(update={"rollback_requested_at": after(61)})
        assert step(asked, snapshot(requested={**BEFORE, "enrich": 3})).name == "restored"

    def test_it_does_not_run_again_either(self) -> None:
        """Then the parallelism is not what ails it: somebody should look."""
        back = action("rolling-back", rollback_requested_at=after(61), deadline_at=after(121), checked_at=after(120))
        made = step(back, restarting(requested=BEFORE), at=122)
        assert (made.action.phase, made.action.code) == ("failed", "rollback-stuck")

    def test_a_refused_rollback_is_an_end(self) -> None:
        """With the engine's reason."""
        made = step(action("rolling-back"), answer=Rejected("no such job"))
        assert (made.action.phase, made.action.code) == ("failed", "rollback-rejected")

    def test_somebody_else_scales_it(self) -> None:
        """Hands off, here too."""
        assert step(action("rolling-back"), snapshot(requested=FOREIGN)).action.code == "contested"

    def test_nobody_answers_for_ten_minutes(self) -> None:
        """Reachable but mute, or not reachable at all."""
        mute = action("rolling-back", deadline_at=after(600), checked_at=after(599))
        assert step(mute, snapshot(requested=WANTED), at=601).action.code == "rollback-unreachable"
        assert step(action("rolling-back"), away(), at=601).action.code == "unreachable"


class TestCapacity:
    """More subtasks that do less: contention, or a shared limit downstream."""

    def verdict(self, capacity: float | None, at: float = 50, **changes: Any) -> str:
        how = {k: changes.pop(k) for k in list(changes) if k in ("demand", "utilisation", "confidence")}
        seen = analysis(
            WANTED,
            [operator_analysis("enrich", 4, capacity=capacity, **how), operator_analysis("sink", 2, capacity=6000.0)],
            at=after(at),
            **{"window_started_at": after(10), "window_seconds": 35.0, **changes},
        )
        running = action("verifying", running_at=after(4), checked_at=after(at))
        return str(step(running, snapshot(WANTED, steady_since=after(4)), at=at, analysis=seen).name)

    def test_less_than_nine_tenths_rolls_back(self) -> None:
        """899 of 1000, at four times the subtasks."""
        assert self.verdict(899.0) == "worse"
        assert self.verdict(900.0) == "healthy"

    def test_no_comparison_no_verdict(self) -> None:
        """Cold, of before, hardly busy, badly known, at another demand or missing: none of them proves anything."""
        assert self.verdict(500.0, window_seconds=20.0) == "healthy"
        assert self.verdict(500.0, window_started_at=after(3)) == "healthy"
        assert self.verdict(500.0, symptoms=[{"code": "warming-up", "evidence": "just started"}]) == "healthy"
        assert self.verdict(500.0, utilisation=0.4) == "healthy"
        assert self.verdict(500.0, confidence=0.4) == "healthy"
        assert self.verdict(500.0, demand=700.0) == "healthy"
        assert self.verdict(None) == "healthy"
        assert self.verdict(500.0, status="not_running") == "healthy"

    def test_the_sentence_says_what_fell(self) -> None:
        """Operator, both capacities, both parallelisms."""
        seen = analysis(
            WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=after(50), window_started_at=after(10)
        )
        running = action("verifying", running_at=after(4), checked_at=after(50))
        made = step(running, snapshot(WANTED, steady_since=after(4)), at=50, analysis=seen)
        assert made.action.sentence.startswith("enrich processes 700 records/s at parallelism 4, before 1000 at 1")
        assert made.instruction == Request(BEFORE)

    def thoughts(self, at: float = 60, **changes: Any) -> Step | None:
        seen = analysis(
            WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=after(50), window_started_at=after(10)
        )
        verified = action("verified", running_at=after(4), requested_at=NOON, finished_at=after(14), **changes)
        known = observed(snapshot(WANTED), analysis=seen)
        return late_rollback(verified, known, after(at), OTHER_ATTEMPT, RULES)

    def test_a_late_window_takes_a_verified_action_back(self) -> None:
        """The first warm window comes half a minute after verification: an action of its own undoes it."""
        made = self.thoughts()
        assert made is not None
        assert (made.action.phase, made.action.code, made.action.version) == ("rolling-back", "capacity-worse", 6)
        assert made.action.id != action().id
        assert made.instruction == Request(BEFORE)

    def test_late_rollback_have_an_end(self) -> None:
        """Two minutes later it is the planner's business."""
        assert self.thoughts(at=14 + 121) is None

    def test_late_rollback_need_the_mode(self) -> None:
        """An ended action is not undone against the user's word, nor without it."""
        verified = action("verified", running_at=after(4), finished_at=after(14))
        seen = analysis(
            WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=after(50), window_started_at=after(10)
        )
        for word in (reading(mode="paused"), PolicyReading(reachable=False), PolicyReading(reachable=True)):
            known = observed(snapshot(WANTED), analysis=seen, policy=word)
            assert late_rollback(verified, known, after(60), ATTEMPT, RULES) is None

    def test_late_rollback_need_the_same_deployment(self) -> None:
        """Somebody scaled it, or it was replaced, or cannot be seen."""
        verified = action("verified", running_at=after(4), finished_at=after(14))
        seen = analysis(
            WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=after(50), window_started_at=after(10)
        )
        for there in (
            snapshot(FOREIGN),
            snapshot(WANTED, job_id="b" * 32),
            away(),
            snapshot(WANTED, requested=FOREIGN),
        ):
            assert late_rollback(verified, observed(there, analysis=seen), after(60), ATTEMPT, RULES) is None


class TestDeadline:
    """Made of the cluster's own settings."""

    def seconds(self, analysis_: Any = None, **changes: Any) -> float:
        made = step(action("applying"), snapshot(**changes), answer=Accepted(NOON), analysis=analysis_)
        assert made.action.deadline_at is not None
        return (made.action.deadline_at - NOON).total_seconds()

    def test_all_parts_are_added(self) -> None:
        """Cooldown 40, stabilisation 50, delay 60, checkpoint 7, restart 30 until one was measured."""
        slow = RescaleSettings(cooldown_seconds=40, stabilization_seconds=50, max_trigger_delay_seconds=60)
        checkpoints = Checkpoints(last_duration_seconds=7)
        assert self.seconds(rescale=slow, checkpoints=checkpoints) == 187
        learnt = analysis(restart_times=RestartTimes(seconds=9, samples=2))
        assert self.seconds(learnt, rescale=slow, checkpoints=checkpoints) == 166

    def test_unset_settings_have_the_engine_s_defaults(self) -> None:
        """30 + 60 + 3 intervals of 20 + an unknown checkpoint 10 + 30."""
        assert self.seconds(rescale=RescaleSettings(), checkpoints=Checkpoints(interval_seconds=20)) == 190

    def test_there_is_a_floor(self) -> None:
        """A quick cluster still gets a minute."""
        assert self.seconds() == 60


def test_an_end_is_an_end() -> None:
    """Whatever is seen, nothing moves any more."""
    for phase in ("verified", "rolled-back", "superseded", "refused", "failed"):
        assert step(action(phase), snapshot(FOREIGN)) == Step(action(phase))


def test_bookkeeping_is_no_move() -> None:
    """A look without news changes neither phase nor version."""
    before = action("verifying")
    made = step(before, restarting(requested=WANTED), at=3)
    assert (made.name, made.action.version, made.action.checked_at) == (
        None,
        before.version,
        NOON + timedelta(seconds=3),
    )
