"""Restart of a stuck instance: when a plan becomes one, by enumeration, and what is left of the planner's reply."""

from itertools import combinations
from typing import Any

import pytest

from tests.unit.planner.build import NOON, SPACE, action, after, analysis, deployment, outcome, policy, request, scale
from weir_contracts import (
    Deployment,
    Group,
    Instance,
    InstanceRef,
    Operator,
    Outcome,
    PastAction,
    Plan,
    PlanReply,
    PlanRequest,
    PlanState,
    ScalingPolicy,
    Symptom,
    Topology,
)
from weir_planner.calls import plan_for
from weir_planner.core.decide import make_plan
from weir_planner.core.restarts import with_restart
from weir_runtime.clock import FakeClock

GROUP = "orders"
MEMBERS = ["orders-2-StreamThread-1-consumer-a"]
STUCK = Symptom(
    code="instance-stuck",
    operator=GROUP,
    instance="p2",
    numbers={"seconds": 75.0},
    evidence="orders-2 has committed nothing for 75 s",
)
GRAPH = Topology(operators=[Operator(name=GROUP, id=GROUP, source_partitions=12)])


def instances() -> list[Instance]:
    return [Instance(id=f"p{n}", threads=1, members=[f"orders-{n}-StreamThread-1-consumer-a"]) for n in (1, 2, 3)]


def group() -> Deployment:
    return deployment(
        {GROUP: 3},
        GRAPH,
        engine="kafka-streams",
        instances=instances(),
        group=Group(id=GROUP, state="Stable", members=3),
    )


def asked(**changes: Any) -> PlanRequest:
    """A request about a group of three instances, of which the second is stuck."""
    target = {"endpoint": {"url": "http://supervisor/scale/orders", "restartInstances": changes.pop("lets", True)}}
    document = policy(**{"behavior": {}, **changes.pop("spec", {})}).model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )
    document["spec"] |= {
        "application": {"kafkaStreams": {"applicationId": GROUP}},
        "target": target,
        "signals": {"kafka": {"bootstrapServers": "kafka:9092"}},
    }
    symptoms = changes.pop("symptoms", [STUCK])
    status = changes.pop("status", "running")
    found = analysis(
        the_policy=ScalingPolicy.model_validate(document),
        graph=GRAPH,
        deployment=group(),
        symptoms=symptoms,
        status=status,
        operators=[],
        edges=[],
    )
    return request(found, **changes)


def planned(asked_for: PlanRequest, reply: PlanReply | None = None, **state: Any) -> Plan:
    hold = PlanReply(kind="hold", code="objective-held", sentence="all is well")
    asked_for = asked_for.model_copy(update={"state": PlanState(**state)})
    made = make_plan(asked_for, reply or hold, planner="rate", created_at=NOON)
    return with_restart(made, asked_for)


def restarted(seconds_ago: float, **changes: Any) -> Outcome:
    done = action(before={GROUP: 3}, wanted={GROUP: 3}, instance=InstanceRef(id="orders-1", members=["m"]))
    return outcome(done, **{"instance_restarted_at": after(-seconds_ago), **changes})


def test_a_stuck_instance_is_restarted() -> None:
    """By its members; the sentence is the symptom's, and the next plan's state stays."""
    plan = planned(asked())
    assert (plan.kind, plan.code, plan.approved) == ("restart_instance", "instance-stuck", None)
    assert plan.restarts == InstanceRef(id="orders-2", members=MEMBERS)
    assert plan.sentence == "restart one instance: orders-2 has committed nothing for 75 s"
    assert plan.amendments == [] and plan.prediction is None
    assert plan.state == planned(asked(lets=False)).state
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_a_restart_goes_before_a_change_of_size() -> None:
    """The planner's proposal and the guards' approval stay visible."""
    plan = planned(asked(), scale({GROUP: 6}))
    assert plan.kind == "restart_instance" and plan.proposed == {GROUP: 6}
    (*_, last) = plan.amendments
    assert (last.guard, last.before, last.after) == ("restart-first", {GROUP: 6}, None)
    assert planned(asked(lets=False), scale({GROUP: 6})).approved == {GROUP: 6}


def test_before_it_has_stood_still_for_a_minute_nothing_is_restarted_or_resized() -> None:
    """A hold stays what it is. A client that says that it is broken is restarted at once."""
    early = STUCK.model_copy(update={"numbers": {"seconds": 59.0}})
    assert planned(asked(symptoms=[early])).code == "objective-held"
    plan = planned(asked(symptoms=[early]), scale({GROUP: 6}))
    assert (plan.kind, plan.code, plan.action) == ("hold", "restart-first", None)
    assert plan.sentence.startswith(
        "no change of size before the instance goes on or is restarted, after 60 s: orders-2"
    )
    assert plan.amendments[-1].before == {GROUP: 6}
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    broken = [each.model_copy(update={"state": "ERROR" if each.id == "p2" else "RUNNING"}) for each in instances()]
    there = group().model_copy(update={"instances": broken})
    assert planned(asked(symptoms=[early], deployment=there)).kind == "restart_instance"


PREVENTING: dict[str, dict[str, Any]] = {
    "not allowed": {"lets": False},
    "no symptom": {"symptoms": []},
    "two are stuck": {"symptoms": [STUCK, STUCK.model_copy(update={"instance": "p3"})]},
    "unknown instance": {"symptoms": [STUCK.model_copy(update={"instance": "p9"})]},
    "paused": {"spec": {"mode": "paused"}},
    "unreachable": {"status": "unreachable"},
    "old": {"now": after(60)},
    "in flight": {"outcomes": [outcome(action("verifying", before={GROUP: 3}, wanted={GROUP: 4}))]},
    "restarted 59 min ago": {"outcomes": [restarted(59 * 60)]},
    "failed": {"outcomes": [outcome(None, phase="failed", instance=InstanceRef(id="orders-1", members=["m"]))]},
    "unsupported": {
        "outcomes": [outcome(None, code="unsupported", instance=InstanceRef(id="orders-1", members=["m"]))]
    },
    "excluded": {"spec": {"behavior": {"excludedPeriods": [{"cron": "0 12 * * *", "duration": "1h"}]}}},
    **{
        code: {"symptoms": [STUCK, Symptom(code=code, evidence="…")]}
        for code in ("rebalancing", "migrating", "restoring", "brokers-bound", "restarting")
    },
}


@pytest.mark.parametrize("why", PREVENTING)
def test_each_of_these_prevents_it(why: str) -> None:
    """The plan comes from the planner and the guards."""
    assert planned(asked(**PREVENTING[why])).kind == "hold"


@pytest.mark.parametrize("why", list(combinations(["lets", "outcomes", "symptoms"], 2)))
def test_any_two_of_these_prevent_it_as_well(why: tuple[str, str]) -> None:
    """No reason lifts another."""
    all_of_them = {
        "lets": False,
        "outcomes": [restarted(60)],
        "symptoms": [STUCK, Symptom(code="restoring", evidence="…")],
    }
    assert planned(asked(**{name: all_of_them[name] for name in why})).kind == "hold"


def test_one_an_hour_and_the_hour_ends() -> None:
    """A refusal for another reason is no restart: the next plan repeats the proposal."""
    assert planned(asked(outcomes=[restarted(3601)])).kind == "restart_instance"
    other = outcome(None, code="policy-changed", instance=InstanceRef(id="orders-2", members=MEMBERS))
    assert planned(asked(outcomes=[other])).kind == "restart_instance"


def test_a_period_that_excludes_one_direction_lets_it_be_restarted() -> None:
    """A restart is neither growth nor a scale-down."""
    period = {"cron": "0 12 * * *", "duration": "1h", "directions": ["down"]}
    assert planned(asked(spec={"behavior": {"excludedPeriods": [period]}})).kind == "restart_instance"


@pytest.mark.parametrize(("limit", "kind"), [(1, "hold"), (2, "restart_instance"), (None, "restart_instance")])
def test_it_counts_as_an_action_of_the_hour(limit: int | None, kind: str) -> None:
    """`maxActionsPerHour` holds for both kinds together."""
    past = [PastAction(id=SPACE, at=after(-600), before={GROUP: 3}, after={GROUP: 2})]
    behavior = {} if limit is None else {"maxActionsPerHour": limit}
    assert planned(asked(spec={"behavior": behavior}), actions=past).kind == kind
    done = restarted(60)
    assert done.action is not None
    counted = outcome(done.action.model_copy(update={"requested_at": after(-60)}), instance_restarted_at=after(-3700))
    assert [each.after for each in planned(asked(outcomes=[counted])).state.actions] == [{}]


async def test_every_planner_gets_it() -> None:
    """The shell adds it after the chosen planner's reply and its candidates', whichever they are."""

    class Planners:
        async def ask(self, *_: Any) -> PlanReply:
            return PlanReply(kind="hold", code="as-it-is", sentence="…")

        async def ask_alongside(self, requests: list[Any], _: float) -> list[PlanReply]:
            return [scale({GROUP: 4}) for _ in requests]

    named = asked(spec={"planner": {"name": "static"}, "candidates": [{"name": "hpa"}]})
    plan = await plan_for(Planners(), named, FakeClock(NOON), created_at=NOON)  # type: ignore[arg-type]
    assert plan.kind == "restart_instance" and [each.label for each in plan.contenders] == ["static", "hpa"]
