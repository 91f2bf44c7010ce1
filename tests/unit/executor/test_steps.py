"""Each observation leads to at most one transition: the steps of each phase."""

from datetime import timedelta
from typing import Any, get_args

import pytest

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
from weir_contracts import Checkpoints, Phase, RescaleSettings, RestartTimes, Slots
from weir_engines.driver import Accepted, Rejected, Unanswered
from weir_executor.core.observed import Conflict, PolicyReading, Record, Recorded, Request, Step, TriggerCheckpoint
from weir_executor.core.parameters import Rules
from weir_executor.core.steps import late_rollback, next_step, resume, supersede
from weir_executor.core.table import Lost

FOREIGN = {"orders": 1, "enrich": 7, "sink": 7}


def step(the_action: Any, found: Any = None, at: float = 5, rules: Rules = RULES, **base: Any) -> Step:
    return next_step(the_action, observed(found, **base), after(at), rules)


class TestIntended:
    """Published as an outcome only: nothing has been requested."""

    def test_it_is_recorded_first(self) -> None:
        """Before anything is requested from the engine."""
        assert step(action()) == Step(action(), None, Record())

    def test_once_recorded_it_is_requested(self) -> None:
        """The request comes last."""
        made = step(action(), answer=Recorded())
        assert (made.name, made.action.phase) == ("recorded", "applying")
        assert made.instruction == Request(WANTED)

    def test_another_executor_has_an_action(self) -> None:
        """Knowledge stores another executor's action in flight, which the event carries."""
        rival = action("applying", attempt_id=OTHER_ATTEMPT)
        made = step(action(), answer=Conflict(rival))
        assert (made.name, made.action.phase) == ("lost", "refused")
        assert isinstance(made.event, Lost) and made.event.rival == rival

    def test_an_outage_is_waited_out(self) -> None:
        """Without knowledge or target the intent waits until it expires."""
        assert step(action(), policy=PolicyReading(reachable=False)) == Step(action())
        assert step(action(), away()) == Step(action())
        made = step(action(), away(), at=30)
        assert (made.name, made.action.code) == ("outdated", "expired")

    def test_a_paused_policy_ends_it(self) -> None:
        """The user paused the policy while the intent waited for knowledge."""
        made = step(action(), policy=reading(mode="paused"))
        assert (made.action.phase, made.action.code) == ("refused", "not-act")

    def test_another_process_takes_it_over_with_its_attempt_id(self) -> None:
        """The id shows in a conflict which process stored the action."""
        taken = resume(action(), OTHER_ATTEMPT, after(3))
        assert (taken.name, taken.action.attempt_id, taken.action.version) == ("resumed", OTHER_ATTEMPT, 6)
        assert resume(action(), ATTEMPT, after(3)).name is None

    def test_later_phases_keep_their_attempt_id(self) -> None:
        """Only an intent is compared by its attempt id."""
        for phase in ("applying", "verifying", "rolling-back", "verified"):
            assert resume(action(phase), OTHER_ATTEMPT, after(3)) == Step(action(phase))


class TestApplying:
    """The request may have been sent or not; the observed requirements show which."""

    def test_accepted(self) -> None:
        """The action gets a deadline, and a checkpoint is triggered."""
        made = step(action("applying"), answer=Accepted(after(4)))
        assert (made.name, made.action.phase, made.action.requested_at) == ("accepted", "verifying", after(4))
        assert made.action.deadline_at == after(64)
        assert made.instruction == TriggerCheckpoint()

    def test_rejected(self) -> None:
        """The sentence contains the engine's reason."""
        made = step(action("applying"), answer=Rejected("exceeds its maximum parallelism 2"))
        assert made.action.phase == "failed"
        assert "maximum parallelism 2" in made.action.sentence

    def test_resumed_before_it_was_sent(self) -> None:
        """The engine has other requirements: the request is sent."""
        assert step(action("applying")) == Step(action("applying"), None, Request(WANTED))

    def test_resumed_after_it_was_sent(self) -> None:
        """The requirements are the wanted ones: accepted, as of the start of this phase."""
        sent = action("applying", checked_at=after(2))
        made = step(sent, snapshot(requested=WANTED))
        assert (made.name, made.action.phase, made.action.requested_at) == ("found-requested", "verifying", after(2))

    def test_a_lost_answer_is_no_second_request(self) -> None:
        """The response was lost, the request was not."""
        made = step(action("applying"), snapshot(requested=WANTED), answer=Unanswered("timeout"))
        assert made.name == "found-requested"

    def test_an_unanswered_request_fails_at_its_deadline(self) -> None:
        """After 30 s the planner may plan again."""
        waiting = action("applying", deadline_at=after(30))
        assert step(waiting, away(), at=29) == Step(waiting)
        assert step(waiting, away(), at=31).action.code == "unreachable"

    def test_another_client_was_faster(self) -> None:
        """The requirements are neither the previous nor the wanted ones: contested."""
        made = step(action("applying"), snapshot(requested=FOREIGN))
        assert (made.action.phase, made.action.code) == ("failed", "contested")

    def test_the_job_ended(self) -> None:
        """The job is missing, replaced or cancelled."""
        for ended in (absent(), snapshot(job_id="b" * 32), snapshot(state="CANCELED", all_running=False)):
            assert step(action("applying"), ended).action.code == "job-gone"


class TestVerifying:
    """The engine has the request: wait until it runs, then until it settles."""

    def test_it_runs(self) -> None:
        """Its start is the engine's last state change of a task, not the time of the observation."""
        made = step(action("verifying"), snapshot(WANTED, steady_since=after(3.2)), at=5)
        assert (made.name, made.action.phase) == ("running", "verifying")
        assert made.action.restart_seconds == pytest.approx(3.2)

    def test_it_cannot_have_run_before_it_was_requested(self) -> None:
        """A parallelism that ran already needed no restart, and a clock difference cannot make a restart time negative."""
        made = step(action("verifying"), snapshot(WANTED, steady_since=after(-100)))
        assert made.action.restart_seconds == 0.0

    def test_partly_running_is_not_running(self) -> None:
        """RUNNING with tasks still deploying, or another parallelism, is waited for."""
        assert step(action("verifying"), snapshot(WANTED, all_running=False)).name is None
        assert step(action("verifying"), snapshot(requested=WANTED)).name is None

    def test_it_settles(self) -> None:
        """It is verified after 10 s without a restart; the sentence says that capacity is not judged yet."""
        running = action("verifying", running_at=after(4))
        found = snapshot(WANTED, steady_since=after(4))
        assert step(running, found, at=13.9).name is None
        made = step(running, found, at=14)
        assert (made.name, made.action.phase) == ("healthy", "verified")
        assert "not judged yet" in made.action.sentence

    def test_a_restart_restarts_the_settling_time(self) -> None:
        """It ran at 4 s, restarted, and runs again since 12 s."""
        running = action("verifying", running_at=after(4))
        found = snapshot(WANTED, steady_since=after(12), restarts=2)
        assert step(running, found, at=15).name is None
        assert step(running, found, at=22).name == "healthy"
        assert step(running, found, at=22).action.restart_seconds == 4

    def test_it_does_not_run_in_time(self) -> None:
        """It rolls back after the deadline, not before."""
        assert step(action("verifying"), restarting(requested=WANTED), at=60).name is None
        made = step(action("verifying", checked_at=after(60)), restarting(requested=WANTED), at=61)
        assert (made.name, made.action.phase) == ("not-running", "rolling-back")
        assert made.instruction == Request(BEFORE)

    def test_it_runs_below_what_was_requested(self) -> None:
        """Slots are missing: 200 OK, and then 3 instead of 4."""
        less = snapshot({**WANTED, "enrich": 3}, requested=WANTED)
        made = step(action("verifying", checked_at=after(60)), less, at=61)
        assert (made.name, made.action.phase) == ("below-requested", "rolling-back")
        assert "enrich 4 → 3" in made.action.sentence

    def test_a_restart_loop_rolls_back(self) -> None:
        """Three restarts beyond the rescale's own, for 20 s and continuing, are a loop; two are not."""
        assert step(action("verifying"), restarting(requested=WANTED, restarts=3), at=25).name is None
        made = step(action("verifying"), restarting(requested=WANTED, restarts=4), at=25)
        assert (made.name, made.action.phase) == ("restart-loop", "rolling-back")

    def test_a_lost_task_manager_is_no_restart_loop(self) -> None:
        """The job restarts several times within seconds, until the cluster has noticed; then it runs and settles."""
        running = action("verifying", running_at=after(2))
        assert step(running, restarting(requested=WANTED, restarts=6), at=6).name is None
        again = snapshot(WANTED, steady_since=after(18), restarts=6)
        assert step(running, again, at=24).name is None
        assert step(running, again, at=28).name == "healthy"

    def test_a_job_that_waits_for_slots_is_in_no_restart_loop(self) -> None:
        """Fewer slots are left than the job used before: its restarts are not due to the new parallelism."""
        found = restarting(requested=WANTED, restarts=6)
        few = analysis(BEFORE)
        assert few.deployment is not None
        for total, event in ((0, None), (50, "restart-loop")):
            slots = few.deployment.model_copy(update={"slots": Slots(total=total, available=0)})
            base = few.model_copy(update={"deployment": slots})
            assert step(action("verifying"), found, at=30, analysis=base).name == event

    def test_restarts_count_from_before(self) -> None:
        """A job may have many restarts before it is scaled."""
        old = action("verifying", restarts_before=70)
        assert step(old, restarting(requested=WANTED, restarts=71), at=25).name is None
        assert step(old, restarting(requested=WANTED, restarts=74), at=25).name == "restart-loop"

    def test_unknown_restarts_are_not_zero(self) -> None:
        """A counter that was reset is unknown, too."""
        assert step(action("verifying", restarts_before=None), restarting(requested=WANTED, restarts=50)).name is None
        assert step(action("verifying", restarts_before=9), restarting(requested=WANTED, restarts=1)).name is None

    def test_a_restart_while_watched_gets_a_deadline(self) -> None:
        """One restart after it ran is no reason to roll back."""
        running = action("verifying", running_at=after(4), deadline_at=after(60))
        found = step(running, snapshot(WANTED, steady_since=after(58)), at=59).action
        assert found.deadline_at == after(119)
        down = restarting(WANTED, restarts=2)
        assert step(found.model_copy(update={"checked_at": after(118)}), down, at=119).name is None
        assert step(found.model_copy(update={"checked_at": after(118)}), down, at=120).name == "not-running"

    def test_a_gap_in_observations_extends_the_deadline(self) -> None:
        """The target was unreachable for two minutes: the deadline is two minutes later."""
        unobserved = action("verifying", checked_at=after(2))
        assert step(unobserved, away(), at=120).name is None
        made = step(unobserved, restarting(requested=WANTED), at=122)
        assert made.name is None
        assert made.action.deadline_at == after(180)

    def test_an_unreachable_target_fails_after_ten_minutes(self) -> None:
        """The action then no longer counts for the limits."""
        assert step(action("verifying"), away(), at=600).name is None
        assert step(action("verifying"), away(), at=601).action.code == "unreachable"

    def test_growing_lag_is_no_reason(self) -> None:
        """Lag grew to an hour: the planner plans again."""
        running = action("verifying", running_at=after(4))
        worse = analysis(lag_seconds={"value": 3600.0, "basis": "measured", "confidence": 1.0})
        assert step(running, snapshot(WANTED, steady_since=after(4)), at=14, analysis=worse).name == "healthy"

    def test_another_client_scales_it(self) -> None:
        """The action ends as contested, without a request."""
        made = step(action("verifying"), snapshot(requested=FOREIGN))
        assert (made.action.phase, made.action.code) == ("failed", "contested")

    def test_the_job_failed_for_good(self) -> None:
        """Its restart strategy gave up, so there is no job to roll back."""
        made = step(action("verifying"), snapshot(state="FAILED", all_running=False))
        assert (made.action.phase, made.action.code) == ("failed", "job-failed")

    def test_a_newer_plan_supersedes_it_once_it_ran(self) -> None:
        """The sentence says that it ran."""
        assert supersede(action("verifying"), after(9)) == Step(action("verifying"))
        made = supersede(action("verifying", running_at=after(4)), after(9))
        assert (made.name, made.action.phase, made.action.code) == ("superseded", "superseded", "superseded-running")
        assert "ran after 4.0 s" in made.action.sentence


class TestTriggerCheckpoint:
    """A rescale waits for a checkpoint: one is triggered whenever it would let the rescale begin."""

    def due(self, at: float, *, checkpoint_at: float | None, running_since: float = -3600, **changes: Any) -> bool:
        found = snapshot(
            requested=WANTED,
            checkpoint_completed_at=None if checkpoint_at is None else after(checkpoint_at),
            running_since=after(running_since),
            **changes,
        )
        return step(action("verifying"), found, at=at).instruction == TriggerCheckpoint()

    def test_until_one_completed_after_the_request(self) -> None:
        """Earlier checkpoints do not count, nor do failed ones, which never complete."""
        assert self.due(1, checkpoint_at=-5)
        assert self.due(1, checkpoint_at=None)
        assert not self.due(1, checkpoint_at=0.6)

    def test_one_in_flight_is_waited_for(self) -> None:
        """Another trigger would only queue; an unknown state triggers none either."""
        assert not self.due(1, checkpoint_at=-5, checkpoint_in_progress=True)
        assert not self.due(1, checkpoint_at=-5, checkpoint_in_progress=None)

    def test_again_after_the_cooldown(self) -> None:
        """The first completed while the engine was still cooling down from the rescale before."""
        slow = RescaleSettings(cooldown_seconds=30, stabilization_seconds=60)
        base: dict[str, Any] = {"checkpoint_at": 0.6, "running_since": -10, "rescale": slow}
        assert not self.due(20, **base)
        assert self.due(20.6, **base)
        assert not self.due(25, **{**base, "checkpoint_at": 21})

    def test_again_after_the_stabilisation(self) -> None:
        """Slots were missing; the engine takes the available ones at the next checkpoint."""
        slow = RescaleSettings(cooldown_seconds=0, stabilization_seconds=20)
        assert not self.due(20, checkpoint_at=0.6, rescale=slow)
        assert self.due(20.6, checkpoint_at=0.6, rescale=slow)

    def test_only_if_the_driver_can(self) -> None:
        """A driver without checkpoints gets no such instruction, not after its acceptance either."""
        assert not self.due(1, checkpoint_at=-5, can_trigger_checkpoint=False)
        accepted = step(action("applying"), snapshot(can_trigger_checkpoint=False), answer=Accepted(after(4)))
        assert (accepted.name, accepted.instruction) == ("accepted", None)

    def test_not_if_the_engine_does_it(self) -> None:
        """Two checkpoints for one rescale would cost twice."""
        assert not self.due(1, checkpoint_at=-5, engine_triggers_checkpoint=True)
        accepted = step(action("applying"), snapshot(engine_triggers_checkpoint=True), answer=Accepted(after(4)))
        assert (accepted.name, accepted.instruction) == ("accepted", None)

    def test_not_after_the_rescale_began(self) -> None:
        """A new execution, or tasks that do not run, wait for no checkpoint."""
        assert not self.due(5, checkpoint_at=-5, running_since=2)
        assert not self.due(5, checkpoint_at=-5, all_running=False)


class TestRollingBack:
    """Return to the requirements before the action."""

    def test_accepted(self) -> None:
        """The rollback has the same time limit as the rescale."""
        made = step(action("rolling-back"), answer=Accepted(after(70)), at=70)
        assert (made.name, made.action.rollback_requested_at) == ("accepted", after(70))
        assert made.action.deadline_at == after(130)
        assert made.instruction == TriggerCheckpoint()

    def test_it_is_requested_until_there_is_a_response(self) -> None:
        """Another process finds in the requirements whether the request was taken."""
        rollback = action("rolling-back")
        assert step(rollback, snapshot(requested=WANTED)).instruction == Request(BEFORE)
        assert step(rollback, away()) == Step(rollback)
        assert step(rollback, snapshot(WANTED, requested=BEFORE)).name == "found-requested"

    def test_it_runs_again(self) -> None:
        """The previous parallelism runs with all tasks."""
        rollback = action("rolling-back", rollback_requested_at=after(61))
        assert step(rollback, restarting(WANTED, requested=BEFORE)).name is None
        made = step(rollback, snapshot())
        assert (made.name, made.action.phase) == ("restored", "rolled-back")

    def test_it_returns_to_the_requirements_before(self) -> None:
        """Not to the lower parallelism that the slots allowed then."""
        ref = snapshot(requested={**BEFORE, "enrich": 3}).deployment.ref()
        rollback = action("rolling-back", deployment=ref)
        assert step(rollback, snapshot(requested=WANTED)).instruction == Request({**BEFORE, "enrich": 3})
        request_sent = rollback.model_copy(update={"rollback_requested_at": after(61)})
        assert step(request_sent, snapshot(requested={**BEFORE, "enrich": 3})).name == "restored"

    def test_the_old_parallelism_does_not_run_either(self) -> None:
        """The parallelism is not the cause: the sentence asks the user to check the job."""
        rollback = action(
            "rolling-back", rollback_requested_at=after(61), deadline_at=after(121), checked_at=after(120)
        )
        made = step(rollback, restarting(requested=BEFORE), at=122)
        assert (made.action.phase, made.action.code) == ("failed", "rollback-stuck")

    def test_a_refused_rollback_fails(self) -> None:
        """With the engine's reason."""
        made = step(action("rolling-back"), answer=Rejected("no such job"))
        assert (made.action.phase, made.action.code) == ("failed", "rollback-rejected")

    def test_another_client_scales_it(self) -> None:
        """The rollback ends as contested, too."""
        assert step(action("rolling-back"), snapshot(requested=FOREIGN)).action.code == "contested"

    def test_a_rollback_fails_after_ten_minutes_without_response(self) -> None:
        """The target is reachable without a response, or unreachable."""
        mute = action("rolling-back", deadline_at=after(600), checked_at=after(599))
        assert step(mute, snapshot(requested=WANTED), at=601).action.code == "rollback-unreachable"
        assert step(action("rolling-back"), away(), at=601).action.code == "unreachable"


class TestCapacity:
    """More subtasks with less capacity: contention, or a shared limit downstream."""

    def decision(self, capacity: float | None, at: float = 50, **changes: Any) -> str:
        how = {k: changes.pop(k) for k in list(changes) if k in ("demand", "utilization", "confidence")}
        found = analysis(
            WANTED,
            [operator_analysis("enrich", 4, capacity=capacity, **how), operator_analysis("sink", 2, capacity=6000.0)],
            at=after(at),
            **{"window_started_at": after(10), "window_seconds": 35.0, **changes},
        )
        running = action("verifying", running_at=after(4), checked_at=after(at))
        return str(step(running, snapshot(WANTED, steady_since=after(4)), at=at, analysis=found).name)

    def test_less_than_nine_tenths_rolls_back(self) -> None:
        """899 instead of 1000 records/s, with four times the subtasks."""
        assert self.decision(899.0) == "worse"
        assert self.decision(900.0) == "healthy"

    def test_without_comparable_measurements_it_is_verified(self) -> None:
        """Windows that are cold, early, underutilised, uncertain, at another demand or missing are not compared."""
        assert self.decision(500.0, window_seconds=20.0) == "healthy"
        assert self.decision(500.0, window_started_at=after(3)) == "healthy"
        assert self.decision(500.0, symptoms=[{"code": "warming-up", "evidence": "just started"}]) == "healthy"
        assert self.decision(500.0, utilization=0.4) == "healthy"
        assert self.decision(500.0, confidence=0.4) == "healthy"
        assert self.decision(500.0, demand=700.0) == "healthy"
        assert self.decision(None) == "healthy"
        assert self.decision(500.0, status="not_running") == "healthy"

    def test_the_sentence_names_operator_and_capacities(self) -> None:
        """With the parallelism of each."""
        found = analysis(
            WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=after(50), window_started_at=after(10)
        )
        running = action("verifying", running_at=after(4), checked_at=after(50))
        made = step(running, snapshot(WANTED, steady_since=after(4)), at=50, analysis=found)
        assert made.action.sentence.startswith("enrich processes 700 records/s with 4, before 1,000 with 1")
        assert made.instruction == Request(BEFORE)

    def late_step(self, at: float = 60, **changes: Any) -> Step | None:
        found = analysis(
            WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=after(50), window_started_at=after(10)
        )
        verified = action("verified", running_at=after(4), requested_at=NOON, finished_at=after(14), **changes)
        base = observed(snapshot(WANTED), analysis=found)
        return late_rollback(verified, base, after(at), OTHER_ATTEMPT, RULES)

    def test_a_late_window_rolls_a_verified_action_back(self) -> None:
        """The first warm window comes half a minute after verification: a new action rolls back."""
        made = self.late_step()
        assert made is not None
        assert (made.action.phase, made.action.code, made.action.version) == ("rolling-back", "capacity-worse", 6)
        assert made.action.id != action().id
        assert made.instruction == Request(BEFORE)

    def test_a_late_rollback_has_a_time_limit(self) -> None:
        """Two minutes later the planner plans instead."""
        assert self.late_step(at=14 + 121) is None

    def test_a_late_rollback_needs_mode_act(self) -> None:
        """It needs a policy that can be read and is in mode `act`."""
        verified = action("verified", running_at=after(4), finished_at=after(14))
        found = analysis(
            WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=after(50), window_started_at=after(10)
        )
        for word in (reading(mode="paused"), PolicyReading(reachable=False), PolicyReading(reachable=True)):
            base = observed(snapshot(WANTED), analysis=found, policy=word)
            assert late_rollback(verified, base, after(60), ATTEMPT, RULES) is None

    def test_a_late_rollback_needs_the_same_deployment(self) -> None:
        """The job was scaled by another client, replaced, or is unreachable."""
        verified = action("verified", running_at=after(4), finished_at=after(14))
        found = analysis(
            WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=after(50), window_started_at=after(10)
        )
        for there in (
            snapshot(FOREIGN),
            snapshot(WANTED, job_id="b" * 32),
            away(),
            snapshot(WANTED, requested=FOREIGN),
        ):
            assert late_rollback(verified, observed(there, analysis=found), after(60), ATTEMPT, RULES) is None


class TestDeadline:
    """The deadline of a rescale, from the cluster's settings."""

    def seconds(self, analysis_: Any = None, **changes: Any) -> float:
        made = step(action("applying"), snapshot(**changes), answer=Accepted(NOON), analysis=analysis_)
        assert made.action.deadline_at is not None
        return (made.action.deadline_at - NOON).total_seconds()

    def test_all_parts_are_added(self) -> None:
        """Cooldown 40, stabilisation 50, delay 60, checkpoint 7, restart 30 until one was measured."""
        slow = RescaleSettings(cooldown_seconds=40, stabilization_seconds=50, max_trigger_delay_seconds=60)
        checkpoints = Checkpoints(last_duration_seconds=7)
        assert self.seconds(rescale=slow, checkpoints=checkpoints) == 187
        learned = analysis(restart_times=RestartTimes(seconds=9, samples=2))
        assert self.seconds(learned, rescale=slow, checkpoints=checkpoints) == 166

    def test_unset_settings_have_the_engine_s_defaults(self) -> None:
        """30 + 60 + 3 intervals of 20 + an unknown checkpoint 10 + 30."""
        assert self.seconds(rescale=RescaleSettings(), checkpoints=Checkpoints(interval_seconds=20)) == 190

    def test_there_is_a_floor(self) -> None:
        """A fast cluster gets a minute, too."""
        assert self.seconds() == 60


@pytest.mark.parametrize("phase", get_args(Phase))
def test_only_two_phases_request_a_parallelism(phase: Phase) -> None:
    """A step with a request in any other phase cannot be made."""
    if phase in ("applying", "rolling-back"):
        assert Step(action(phase), instruction=Request(WANTED))
        return
    with pytest.raises(ValueError, match=phase):
        Step(action(phase), instruction=Request(WANTED))


def test_a_terminal_action_takes_no_step() -> None:
    """No observation changes it."""
    for phase in ("verified", "rolled-back", "superseded", "refused", "failed"):
        assert step(action(phase), snapshot(FOREIGN)) == Step(action(phase))


def test_bookkeeping_is_no_transition() -> None:
    """An observation without news changes neither phase nor version."""
    before = action("verifying")
    made = step(before, restarting(requested=WANTED), at=3)
    assert (made.name, made.action.version, made.action.checked_at) == (
        None,
        before.version,
        NOON + timedelta(seconds=3),
    )
