"""Restart of a stuck instance: what a plan becomes if one instance of a consumer group stands still and others do not. Pure.

A planner sizes the application and knows no single instance, so this follows its reply and the guards. A restart goes before
a change of size: a stuck instance keeps its share of the tasks, however many instances there are.
"""

from datetime import datetime, timedelta

from weir_contracts import Amendment, Instance, InstanceRef, Plan, PlanRequest, RestartInstanceAction, Symptom, bounded

from .decide import precheck
from .guards.times import MOVING, ends_at

STUCK = "instance-stuck"
FIRST = "restart-first"
PAUSE = timedelta(hours=1)
"""Minimum time between two restarts of instances of one application."""
STANDS_STILL_SECONDS = 60.0
"""Minimum time without a commit before a restart: longer than a session, so that a process that has ended is out of the group
by then."""
_BROKEN = ("PENDING_ERROR", "ERROR", "NOT_RUNNING")
"""States of a Kafka Streams client that ends only by a restart, so that nothing is waited for."""
_PREVENTING = MOVING | {"brokers-bound", "restarting"}
_NOT_POSSIBLE = frozenset({"unsupported", "forbidden"})
"""Codes of refusals that the next plan would get again."""


def with_restart(plan: Plan, request: PlanRequest) -> Plan:
    """Return the plan to restart the stuck instance, or the plan itself if there is none or it must not be restarted.

    Before it has stood still for long enough, a change of size is a hold.
    """
    stuck = [symptom for symptom in request.analysis.symptoms if symptom.code == STUCK]
    if len(stuck) != 1 or not request.policy.spec.target.restarts_instances or precheck(request) is not None:
        return plan
    (symptom,) = stuck
    instance = _instance(symptom, request)
    if instance is None or _is_prevented(request, len(plan.state.actions)):
        return plan
    if instance.state not in _BROKEN and (symptom.numbers.get("seconds") or 0.0) < STANDS_STILL_SECONDS:
        return plan if plan.approved is None else _waiting(plan, symptom)
    sentence = bounded(f"restart one instance: {symptom.evidence}")
    ref = InstanceRef(id=instance.name, members=instance.members)
    action = RestartInstanceAction(instance=ref)
    return _instead(plan, sentence).model_copy(update={"kind": action.kind, "action": action, "code": STUCK})


def _waiting(plan: Plan, symptom: Symptom) -> Plan:
    sentence = bounded(
        "no change of size before the instance goes on or is restarted, "
        f"after {STANDS_STILL_SECONDS:.0f} s: {symptom.evidence}"
    )
    return _instead(plan, sentence).model_copy(update={"kind": "hold", "action": None, "code": FIRST})


def _instead(plan: Plan, sentence: str) -> Plan:
    """Return the plan with this sentence; a change of size that it no longer makes is an amendment."""
    amendments = plan.amendments
    if plan.approved is not None:
        amendments = [*amendments[:99], Amendment(guard=FIRST, code=STUCK, because=sentence, before=plan.approved)]
    return plan.model_copy(update={"amendments": amendments, "sentence": sentence, "prediction": None})


def _instance(symptom: Symptom, request: PlanRequest) -> Instance | None:
    instances = request.deployment.instances if request.deployment is not None else []
    return next((each for each in instances if each.id == symptom.instance and each.members), None)


def _is_prevented(request: PlanRequest, actions: int) -> bool:
    """Return whether nothing may be restarted now. `actions` are those of the last hour."""
    behavior, now, action = request.policy.spec.behavior, request.now, request.newest_action
    if any(symptom.code in _PREVENTING for symptom in request.analysis.symptoms):
        return True
    if action is not None and not action.terminal:
        return True
    if behavior.max_actions_per_hour is not None and actions >= behavior.max_actions_per_hour:
        return True
    excluded = {d for each in behavior.excluded_periods if ends_at(each, now) is not None for d in each.directions}
    return excluded == {"up", "down"} or any(now < at + PAUSE for at in _attempts(request))


def _attempts(request: PlanRequest) -> list[datetime]:
    """Return when an instance was restarted, or could not be."""
    newest = request.outcomes[0].instance_restarted_at if request.outcomes else None
    failed = [
        outcome.at
        for outcome in request.outcomes
        if outcome.instance is not None and (outcome.phase == "failed" or outcome.code in _NOT_POSSIBLE)
    ]
    return failed if newest is None else [newest, *failed]
