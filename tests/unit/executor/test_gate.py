"""Each reason to refuse a plan, and the conditions under which it is admitted."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.engines.kubernetes.rig import reactive_policy
from tests.unit.executor.builders import (
    ATTEMPT,
    BEFORE,
    NOON,
    RULES,
    WANTED,
    absent,
    action,
    after,
    analysis,
    away,
    operator_analysis,
    plan,
    policy,
    reading,
    snapshot,
)
from weir_contracts import ActionState, QuarantinedVector, RescaleSettings
from weir_engines.driver import Refusal
from weir_executor.core.gate import Context, admit, still_wanted
from weir_executor.core.history import ActionHistory
from weir_executor.core.in_flight import rescale_limit
from weir_executor.core.limits import Fleet, Recommendation, recommendation_after
from weir_executor.core.observed import PolicyReading
from weir_executor.core.parameters import Rules


def context(**changes: Any) -> Context:
    """Return a context in which a plan is admitted."""
    return Context(
        **{
            "now": after(1),
            "history": ActionHistory(),
            "policy": reading(),
            "snapshot": snapshot(),
            "attempt_id": ATTEMPT,
            **changes,
        }
    )


def refusal(the_plan: Any, **changes: Any) -> Refusal:
    decision = admit(the_plan, context(**changes))
    assert isinstance(decision, Refusal), decision
    return decision


def intent(the_plan: Any, **changes: Any) -> ActionState:
    decision = admit(the_plan, context(**changes))
    assert isinstance(decision, ActionState), decision
    return decision


def test_a_good_plan_becomes_an_intent() -> None:
    """It names the deployment, the parallelism before and wanted, and is valid until the plan expires."""
    made = intent(plan())
    assert (made.phase, made.version, made.before, made.wanted) == ("intended", 1, BEFORE, WANTED)
    assert made.deadline_at == plan().expires_at
    assert made.deployment == plan().deployment
    assert made.sentence == "will set enrich 1 → 4, sink 1 → 2"


def test_the_same_plan_makes_the_same_intent() -> None:
    """A replayed plan repeats ids instead of making a new action."""
    assert intent(plan()).id == intent(plan()).id != intent(plan(number=2)).id


def test_a_hold_is_ignored() -> None:
    """A plan that holds gets no outcome."""
    assert admit(plan(None), context()) is None


def test_a_plan_is_answered_once() -> None:
    """Kafka may deliver it again after a crash."""
    assert admit(plan(), context(history=ActionHistory(answered=(plan().id,)))) is None


def test_an_advised_plan_is_not_acted_on() -> None:
    """Mode advise: the outcome gives the plan, and no action begins."""
    assert refusal(plan(mode="advise")).code == "not-act"


@pytest.mark.parametrize("mode", ["advise", "paused"])
def test_the_mode_is_read_again_just_before(mode: str) -> None:
    """A user paused the policy after the plan was made."""
    assert refusal(plan(), policy=reading(mode=mode)).code == "not-act"


def test_a_plan_for_an_older_policy_is_refused() -> None:
    """The plan was made for another objective."""
    result = refusal(plan(), policy=reading(version=4))
    assert result.code == "policy-changed"
    assert "version 4" in result.sentence


def test_a_deleted_policy_refuses() -> None:
    """The user removed the application from Weir."""
    assert refusal(plan(), policy=PolicyReading(reachable=True)).code == "policy-changed"


def test_without_knowledge_nothing_begins() -> None:
    """The mode cannot be read, so it may not be `act`."""
    assert refusal(plan(), policy=PolicyReading(reachable=False, reason="connection refused")).code == "unreachable"


def test_a_clock_that_is_behind_prolongs_no_plan() -> None:
    """This executor's clock is a minute behind: the plan has expired as soon as knowledge's clock says so."""
    expired = replace(reading(), at=plan().expires_at)
    assert refusal(plan(), now=after(-30), policy=expired).code == "expired"
    held = still_wanted(intent(plan()), expired, snapshot(), after(-30), 3)
    assert held is not None and held.code == "expired"
    assert still_wanted(intent(plan()), replace(expired, at=after(29)), snapshot(), after(-30), 3) is None
    intent(plan(), policy=replace(reading(), at=after(-60)))  # and knowledge's clock that is behind proves nothing


def test_an_intent_lives_no_longer_than_its_plan_was_meant_to() -> None:
    """The planner's clock is a minute ahead: its plan of 30 s may be requested for 30 s, not for 90."""
    assert intent(plan(at=after(60)), now=after(1)).deadline_at == after(31)
    assert intent(plan(), now=after(20)).deadline_at == after(30)


def test_an_expired_plan_is_refused() -> None:
    """A plan has expired at the instant `expires_at`."""
    assert refusal(plan(), now=plan().expires_at).code == "expired"
    assert intent(plan(), now=plan().expires_at - timedelta(milliseconds=1))


def test_a_plan_for_another_job_is_refused() -> None:
    """The job was resubmitted: same name, another id."""
    assert refusal(plan(), snapshot=snapshot(job_id="b" * 32)).code == "other-deployment"


def test_a_plan_for_another_graph_is_refused() -> None:
    """The same job id with another graph is refused, although Flink cannot change a graph in place."""
    assert refusal(plan(), snapshot=snapshot(graph_hash="0" * 16)).code == "other-deployment"


def test_a_plan_without_a_deployment_is_refused() -> None:
    """Without a deployment the plan cannot be compared with the job."""
    assert refusal(plan(deployment=None)).code == "other-deployment"


def test_a_plan_for_a_cancelled_job_is_refused() -> None:
    """The job was cancelled between plan and action."""
    assert refusal(plan(), snapshot=absent()).code == "other-deployment"


def test_an_unreachable_target_is_refused() -> None:
    """The state of the target is unknown, so nothing is requested."""
    result = refusal(plan(), snapshot=away())
    assert result.code == "unreachable"
    assert "connection refused" in result.sentence


def test_a_plan_for_another_parallelism_is_refused() -> None:
    """The job lost a TaskManager after the plan: it runs at another parallelism."""
    found = snapshot({**BEFORE, "enrich": 2}, requested=BEFORE)
    assert refusal(plan(), snapshot=found).code == "other-deployment"


def test_a_plan_without_an_operator_of_the_job_is_refused() -> None:
    """A vector covers all operators."""
    result = refusal(plan({"orders": 1, "enrich": 4}))
    assert result.code == "other-deployment"
    assert "sink" in result.sentence


def test_an_already_requested_parallelism_is_refused() -> None:
    """The wanted parallelism is requested already."""
    assert refusal(plan(BEFORE)).code == "nothing-to-do"


def test_a_cluster_that_cannot_rescale_is_refused() -> None:
    """The default scheduler would answer 500 to every request."""
    found = snapshot(rescale=RescaleSettings(scheduler="default"))
    assert refusal(plan(), snapshot=found).code == "unsupported"


def test_a_target_that_restarts_the_job_needs_no_scheduler_for_it() -> None:
    """As the Flink Kubernetes Operator does; the cluster has more time for it, since its pods start again."""
    found = snapshot(rescale=RescaleSettings(scheduler="default", by_restart=True))
    assert isinstance(admit(plan(), context(snapshot=found)), ActionState)
    in_place = snapshot(rescale=RescaleSettings(scheduler="default"))
    assert found.deployment is not None and in_place.deployment is not None
    limits = [rescale_limit(each.deployment, None, Rules()) for each in (found, in_place)]
    assert limits[0] - limits[1] == timedelta(seconds=Rules().container_start_seconds)


def test_reactive_mode_is_for_targets_with_instances() -> None:
    """A job in reactive mode takes every slot and no requirements: its TaskManagers scale it."""
    found = snapshot(rescale=RescaleSettings(scheduler="reactive"))
    refused = refusal(plan(), snapshot=found)
    assert (refused.code, "reactive: true" in refused.sentence) == ("unsupported", True)
    assert isinstance(
        admit(plan(), context(snapshot=found, policy=PolicyReading(True, reactive_policy()))), ActionState
    )


@pytest.mark.parametrize("phase", ["intended", "applying", "rolling-back", "verifying"])
def test_an_action_in_flight_is_never_pre_empted(phase: str) -> None:
    """Two restarts in a row only add downtime."""
    assert refusal(plan(number=2), history=ActionHistory(action=action(phase))).code == "in-flight"


def test_once_it_runs_a_newer_plan_may_follow() -> None:
    """One version is left for the outcome of the superseded action."""
    running = action("verifying", running_at=after(4))
    made = intent(
        plan(number=2, current=WANTED, deployment=snapshot(WANTED).deployment.ref(), action={"parallelism": BEFORE}),
        history=ActionHistory(action=running, last_written=WANTED),
        snapshot=snapshot(WANTED),
    )
    assert made.version == running.version + 2


FOREIGN = {"orders": 1, "enrich": 7, "sink": 7}


class TestContested:
    """Another client scales the job, too."""

    def plan_for(self, there: dict[str, int]) -> Any:
        return plan(number=2, deployment=snapshot(there).deployment.ref())

    def decision(self, **history: Any) -> Any:
        done = action("verified", version=9)
        base = ActionHistory(**{"action": done, "last_written": WANTED, "original": BEFORE, **history})
        there = snapshot(FOREIGN)
        return admit(self.plan_for(FOREIGN), context(history=base, snapshot=there))

    def test_foreign_requirements_hold(self) -> None:
        """The requirements are neither the last that Weir wrote nor the first that it found."""
        result = self.decision()
        assert result.code == "contested"
        assert "enrich 4 → 7" in result.sentence

    def test_the_original_requirements_are_not_foreign(self) -> None:
        """The JobManager failed over and lost the later requirements."""
        made = intent(
            plan(number=2), history=ActionHistory(action=action("verified"), last_written=WANTED, original=BEFORE)
        )
        assert made.phase == "intended"

    def test_nothing_written_yet_means_nothing_contested(self) -> None:
        """Weir has never written to this job."""
        assert isinstance(self.decision(last_written=None), ActionState)

    def test_another_job_was_never_written_to(self) -> None:
        """Requirements end with their job."""
        old = action("verified", deployment=snapshot(job_id="b" * 32).deployment.ref())
        assert isinstance(self.decision(action=old), ActionState)

    def test_an_uncertain_request_may_be_ours(self) -> None:
        """The last action failed without a response: the engine may have taken its request."""
        failed = action("failed", wanted=FOREIGN)
        assert isinstance(self.decision(action=failed), ActionState)

    def test_writing_the_policy_again_takes_over(self) -> None:
        """A user who changes or resumes the policy hands the requirements back to Weir."""
        done = action("verified", version=9)
        base = ActionHistory(action=done, last_written=WANTED, original=BEFORE, contested_since=after(-60))
        there = snapshot(FOREIGN)
        before, later = reading(updated_at=after(-61)), reading(updated_at=after(-10))
        the_plan = self.plan_for(FOREIGN)
        assert admit(the_plan, context(history=base, snapshot=there, policy=before)).code == "contested"
        assert admit(the_plan, context(history=base, snapshot=there, policy=later)).phase == "intended"

    @pytest.mark.parametrize(
        ("contests", "hold_seconds", "admitted_after_seconds"),
        [(1, 600.0, 600), (2, 600.0, 1200), (3, 600.0, 2400), (9, 600.0, 86_400), (1, 0.0, None)],
    )
    def test_weir_takes_up_again_once_no_client_writes(
        self, contests: int, hold_seconds: float, admitted_after_seconds: int | None
    ) -> None:
        """After a time that doubles with each time that the other client wrote after Weir; 0 leaves it to the user."""
        done = action("verified", version=9)
        base = ActionHistory(
            action=done,
            last_written=WANTED,
            original=BEFORE,
            contested_since=after(0),
            contested_requested=FOREIGN,
            contests=contests,
        )
        there, rules = snapshot(FOREIGN), Rules(contested_hold_seconds=hold_seconds)
        seconds = 100_000 if admitted_after_seconds is None else admitted_after_seconds

        def decide(at: float) -> Any:
            made = plan(number=2, at=after(at), deployment=snapshot(FOREIGN).deployment.ref())
            return admit(made, context(history=base, snapshot=there, rules=rules, now=after(at + 1)))

        early = decide(seconds - 2)
        assert early.code == "contested"
        assert len(early.sentence) <= 160
        if admitted_after_seconds is None:
            assert "paused and resumed" in early.sentence
            assert decide(seconds).code == "contested"
        else:
            assert f"held until {after(seconds):%H:%M:%S} if no client writes again" in early.sentence
            assert decide(seconds).phase == "intended"

    def test_a_further_write_of_another_value_begins_the_time_again(self) -> None:
        """Ten minutes after the first one, and a second after the other."""
        base = ActionHistory(
            action=action("verified", version=9),
            last_written=WANTED,
            original=BEFORE,
            contested_since=after(-600),
            contested_requested={**FOREIGN, "sink": 5},
            contests=1,
        )
        refused = admit(self.plan_for(FOREIGN), context(history=base, snapshot=snapshot(FOREIGN)))
        assert refused.code == "contested"


def test_a_quarantined_vector_is_refused_until_its_time() -> None:
    """The vector was rolled back a minute ago."""
    kept = QuarantinedVector(parallelism=WANTED, until=after(5), strikes=1, because="did not run")
    assert refusal(plan(), history=ActionHistory(quarantine=(kept,))).code == "quarantined"
    assert intent(plan(), history=ActionHistory(quarantine=(kept,)), now=after(5))


class TestFleet:
    """Limits across applications."""

    rules = Rules(max_actions=3, max_actions_per_cluster=2, fleet_min_applications=3)
    cluster = policy().subject.cluster

    def test_the_number_of_restarts_is_limited(self) -> None:
        """Three applications restart, so a fourth is refused."""
        busy = Fleet(restarting={f"shop/{i}": None for i in range(3)})
        assert refusal(plan(), fleet=busy, rules=self.rules).code == "too-many-actions"

    def test_the_number_of_restarts_per_cluster_is_limited(self) -> None:
        """Two jobs of this cluster restart; those of another cluster do not count."""
        busy = Fleet(restarting={"shop/1": self.cluster, "shop/2": self.cluster})
        assert refusal(plan(), fleet=busy, rules=self.rules).code == "too-many-actions"
        assert intent(plan(), fleet=Fleet(restarting={"shop/1": self.cluster, "shop/2": "other"}), rules=self.rules)

    def test_its_own_action_does_not_count(self) -> None:
        """A newer plan replaces the application's own action."""
        busy = Fleet(restarting={"shop/orders": self.cluster, "shop/2": self.cluster})
        assert intent(plan(), fleet=busy, rules=self.rules)

    def shrinking(self, count: int, of: int, at: Any = NOON) -> Fleet:
        wanting = Recommendation(at, at, at + timedelta(seconds=60))
        return Fleet(recommendations={f"shop/{i}": wanting if i < count else Recommendation(at) for i in range(of)})

    def smaller(self) -> Any:
        there = snapshot(WANTED)
        return plan(BEFORE, current=WANTED, deployment=there.deployment.ref())

    def test_a_fleet_does_not_shrink_at_once(self) -> None:
        """Three of four applications would shrink: a faulty metric is more likely than three independent falls of the
        load."""
        result = refusal(self.smaller(), snapshot=snapshot(WANTED), fleet=self.shrinking(2, 4), rules=self.rules)
        assert result.code == "fleet-shrinking"
        assert "3 of 5" in result.sentence

    def test_a_few_may_shrink(self) -> None:
        """Three of ten applications are below the share."""
        assert intent(self.smaller(), snapshot=snapshot(WANTED), fleet=self.shrinking(2, 9), rules=self.rules)

    def test_scale_downs_at_different_times_are_admitted(self) -> None:
        """All applications need less, each since a different quarter of an hour."""
        recommendations = {f"shop/{i}": Recommendation(NOON, after(-900.0 * i), after(60)) for i in range(1, 9)}
        assert intent(
            self.smaller(), snapshot=snapshot(WANTED), fleet=Fleet(recommendations=recommendations), rules=self.rules
        )

    def test_it_is_held_for_a_while_only(self) -> None:
        """An application shrinks ten minutes after its recommendation began, whatever the others need."""
        began = Recommendation(NOON, after(-598), after(60))
        recommendations = dict.fromkeys(("shop/orders", "shop/1", "shop/2", "shop/3"), began)
        result = refusal(
            self.smaller(), snapshot=snapshot(WANTED), fleet=Fleet(recommendations=recommendations), rules=self.rules
        )
        assert result.code == "fleet-shrinking"
        recommendations = {
            name: replace(recommendation, less_since=after(-599)) for name, recommendation in recommendations.items()
        }
        assert intent(
            self.smaller(), snapshot=snapshot(WANTED), fleet=Fleet(recommendations=recommendations), rules=self.rules
        )

    def test_a_recommendation_begins_with_the_planners_proposal(self) -> None:
        """It precedes stabilisation; a gap of a restart does not end it, a recommendation to grow does."""
        smaller = dict.fromkeys(WANTED, 1)
        less, none, more = plan(None, current=WANTED, proposed=smaller), plan(None), plan(WANTED)
        recommendation = recommendation_after(None, less, NOON, self.rules)
        assert (recommendation.less_since, recommendation.less_until) == (NOON, after(60))
        recommendation = recommendation_after(recommendation, none, after(50), self.rules)
        recommendation = recommendation_after(recommendation, less, after(59), self.rules)
        assert (recommendation.at, recommendation.less_since) == (after(59), NOON)
        assert recommendation_after(recommendation, none, after(130), self.rules).less_since is None
        assert recommendation_after(recommendation, less, after(130), self.rules).less_since == after(130)
        assert recommendation_after(recommendation, more, after(60), self.rules) == Recommendation(after(60))

    def test_a_small_fleet_may_shrink(self) -> None:
        """Two applications are below the minimum, even if both shrink."""
        assert intent(self.smaller(), snapshot=snapshot(WANTED), fleet=self.shrinking(1, 1), rules=self.rules)

    def test_old_recommendations_do_not_count(self) -> None:
        """The others shrank an hour ago."""
        fleet = self.shrinking(4, 4, at=after(-3600))
        assert intent(self.smaller(), snapshot=snapshot(WANTED), fleet=fleet, rules=self.rules)

    def test_growing_is_never_held_for_it(self) -> None:
        """All other applications shrink, this one grows."""
        assert intent(plan(), fleet=self.shrinking(9, 9), rules=self.rules)


def test_baselines_are_of_raised_operators_only() -> None:
    """A baseline needs a measured capacity: of this window, else an earlier one at this parallelism."""
    before = analysis(
        BEFORE,
        [
            operator_analysis("orders", 1, capacity=9000.0),
            operator_analysis("enrich", 1, capacity=1000.0),
            operator_analysis("sink", 1, capacity=3000.0, confidence=0.2),
        ],
    )
    made = intent(plan(), analysis=before)
    assert {b.operator: b.capacity_records_per_second for b in made.baselines} == {"enrich": 1000.0, "sink": None}
    assert {b.operator: b.input_rate for b in made.baselines} == {"enrich": 1500.0, "sink": 1500.0}


class TestStillWanted:
    """An intent is checked again before it is stored in knowledge, perhaps minutes later by another process."""

    def code(self, **changes: Any) -> str | None:
        base = {"policy": reading(), "snapshot": snapshot(), "now": after(1), "planned_version": 3, **changes}
        result = still_wanted(action(), **base)
        return None if result is None else result.code

    def test_nothing_changed(self) -> None:
        """The intent is still valid."""
        assert self.code() is None
        assert self.code(planned_version=None) is None

    def test_it_expires_with_its_plan(self) -> None:
        """At the deadline of the intent."""
        assert self.code(now=after(30)) == "expired"

    def test_an_outage_is_waited_out(self) -> None:
        """Neither a lost policy nor a lost target refuses the intent."""
        assert self.code(policy=PolicyReading(reachable=False), snapshot=away()) is None

    def test_the_policy_changed(self) -> None:
        """Compared by version where the plan is cached, else by time."""
        assert self.code(policy=reading(version=4)) == "policy-changed"
        assert self.code(policy=reading(updated_at=after(0.5)), planned_version=None) == "policy-changed"
        assert self.code(policy=reading(updated_at=after(-5)), planned_version=None) is None
        assert self.code(policy=reading(mode="paused")) == "not-act"
        assert self.code(policy=PolicyReading(reachable=True)) == "policy-changed"

    def test_the_job_changed(self) -> None:
        """The job was replaced, deleted, or scaled by another client."""
        assert self.code(snapshot=snapshot(job_id="b" * 32)) == "other-deployment"
        assert self.code(snapshot=absent()) == "other-deployment"
        assert self.code(snapshot=snapshot(WANTED)) == "other-deployment"


def test_rules_are_the_ones_given() -> None:
    """The default rules agree with the README."""
    assert (RULES.settle_seconds, RULES.deadline_floor_seconds, RULES.capacity_share) == (10.0, 60.0, 0.9)
