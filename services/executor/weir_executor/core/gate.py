"""The gate: a plan becomes an action, or is refused with a reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from weir_contracts import (
    ActionState,
    Analysis,
    Deployment,
    InstanceRef,
    Parallelism,
    Plan,
    ScalingPolicy,
    derive_id,
    following,
)

from . import messages
from .bounds import out_of_bounds
from .capacity import baselines
from .fleet import Fleet
from .history import ActionHistory
from .observed import PolicyReading, Refusal, Snapshot
from .rules import Rules
from .table import LEGAL


@dataclass(frozen=True)
class Context:
    """Input of the gate next to the plan, read just before."""

    now: datetime
    history: ActionHistory
    policy: PolicyReading
    snapshot: Snapshot
    attempt_id: UUID
    analysis: Analysis | None = None
    fleet: Fleet = field(default_factory=Fleet)
    rules: Rules = field(default_factory=Rules)


def is_for_us(plan: Plan, history: ActionHistory) -> bool:
    """Return whether the plan is a change that was not answered before."""
    return plan.kind != "hold" and plan.id not in history.answered


def precheck(plan: Plan, history: ActionHistory, fleet: Fleet, now: datetime, rules: Rules) -> Refusal | None:
    """Return a refusal that needs neither policy nor target, or None."""
    action = history.action
    if plan.mode != "act":
        return Refusal("not-act", messages.planned_in_mode(plan.mode))
    if now >= plan.expires_at:
        return Refusal("expired", messages.expired(plan.expires_at, now))
    if action is not None and not action.terminal and not has_run(action):
        return Refusal("in-flight", messages.in_flight(action.phase, action.sentence))
    return fleet.input_outage(plan, now, rules)


def has_run(action: ActionState) -> bool:
    """Return whether the wanted parallelism has run: from then on a newer plan may end the action, and it does not count
    against the limits of concurrent actions."""
    return action.phase == "verifying" and action.running_at is not None


def admit(plan: Plan, context: Context) -> Refusal | ActionState | None:
    """Return the intent to apply `plan`, or the refusal, or None if the plan needs no answer."""
    if not is_for_us(plan, context.history):
        return None
    refusal = (
        precheck(plan, context.history, context.fleet, context.now, context.rules)
        or _by_policy(plan, context)
        or _by_target(plan, context)
        or _by_requirements(plan, context)
    )
    if refusal is None and context.snapshot.deployment is not None:
        decide = _scale if plan.restarts is None else _restart
        return decide(plan, context.snapshot.deployment, context)
    return refusal


def _scale(plan: Plan, there: Deployment, context: Context) -> Refusal | ActionState | None:
    wanted = plan.approved
    if wanted is None:
        return None
    refusal = _by_operators(wanted, there, context) or _by_bounds(plan, context)
    return refusal or _intend(plan, wanted, there, context)


def _restart(plan: Plan, there: Deployment, context: Context) -> Refusal | ActionState | None:
    """Restart an instance only while all else is settled, and if it still has the members that the plan names."""
    snapshot, last_at = context.snapshot, context.history.instance_restarted_at
    until = None if last_at is None else last_at + timedelta(seconds=context.rules.restart_pause_seconds)
    instance = snapshot.instance_of(plan.restarts.members if plan.restarts is not None else ())
    if not snapshot.can_restart_instances:
        return Refusal("unsupported", messages.NO_RESTARTS)
    if last_at is not None and until is not None and context.now < until:
        return Refusal("restarted-recently", messages.restarted_recently(last_at, until))
    if there.health != "running" or snapshot.departed or there.requested not in (None, there.observed):
        return Refusal("tasks-move", messages.moving(there.state))
    if instance is None:
        return Refusal("other-deployment", messages.INSTANCE_CHANGED)
    ref = InstanceRef(id=instance.id, members=list(instance.members), uid=instance.uid)
    return _intend(plan, there.observed, there, context, ref)


def _by_policy(plan: Plan, context: Context) -> Refusal | None:
    reading = context.policy
    if not reading.reachable:
        return Refusal("unreachable", messages.policy_unreadable(reading.reason))
    if reading.policy is None:
        return Refusal("policy-changed", messages.POLICY_DELETED)
    if reading.policy.spec.mode != "act":
        return Refusal("not-act", messages.mode_is(reading.policy.spec.mode))
    now = reading.latest(context.now)
    if now >= plan.expires_at:
        return Refusal("expired", messages.expired(plan.expires_at, now))
    version = reading.policy.metadata.version
    if version != plan.policy_version:
        return Refusal("policy-changed", messages.policy_version_differs(version, plan.policy_version))
    return context.fleet.room(plan.application, reading.policy.subject.cluster, context.rules)


def _by_target(plan: Plan, context: Context) -> Refusal | None:
    snapshot, planned = context.snapshot, plan.deployment
    if snapshot.refusal is not None:
        return snapshot.refusal
    if not snapshot.reachable:
        return Refusal("unreachable", messages.target_unreachable(snapshot.reason))
    if planned is None:
        return Refusal("other-deployment", messages.NO_DEPLOYMENT)
    if snapshot.deployment is None:
        return Refusal("other-deployment", messages.job_missing(snapshot.reason))
    now_there = snapshot.deployment
    if now_there.job_id != planned.job_id:
        return Refusal("other-deployment", messages.other_job(planned.job_id, now_there.job_id))
    if now_there.graph_hash != planned.graph_hash:
        return Refusal("other-deployment", messages.GRAPH_CHANGED)
    if now_there.is_final:
        return Refusal("other-deployment", messages.job_state(now_there.state))
    return _by_scheduler(now_there.rescale.scheduler, context.policy.policy)


def _by_scheduler(scheduler: str | None, policy: ScalingPolicy | None) -> Refusal | None:
    if scheduler in (None, "adaptive"):
        return None
    if scheduler != "reactive":
        return Refusal("unsupported", messages.unsupported_scheduler(scheduler))
    if policy is None or policy.spec.target.unit is None:
        return Refusal("unsupported", messages.REACTIVE_WITHOUT_INSTANCES)
    return None


def _by_requirements(plan: Plan, context: Context) -> Refusal | None:
    there, planned = context.snapshot.deployment, plan.deployment
    if there is None or planned is None:
        return None
    foreign = _contested(there, context)
    if foreign is not None:
        return foreign
    if planned.requested is not None and there.requested is not None and planned.requested != there.requested:
        return Refusal(
            "other-deployment",
            messages.changed_since_plan("requirements", planned.requested, there.requested),
        )
    if planned.observed != there.observed:
        return Refusal(
            "other-deployment",
            messages.changed_since_plan("the parallelism", planned.observed, there.observed),
        )
    return None


def _by_operators(wanted: Parallelism, there: Deployment, context: Context) -> Refusal | None:
    if set(wanted) != set(there.observed):
        odd = sorted(set(wanted) ^ set(there.observed))
        return Refusal("other-deployment", messages.operators_differ(odd))
    requested = there.observed if there.requested is None else there.requested
    if wanted == requested:
        return Refusal("nothing-to-do", messages.already_requested(wanted))
    return _quarantined(wanted, context)


def _contested(there: Deployment, context: Context) -> Refusal | None:
    ours = context.history.ours(there.job_id)
    writers = context.snapshot.writers
    if there.requested is None or not ours or _is_ours(there.requested, ours, writers):
        return None
    history, policy = context.history, context.policy.policy
    since, touched_at = history.contested_since, policy.metadata.updated_at if policy else None
    if since is not None and touched_at is not None and touched_at > since:
        return None  # changing (or pausing and resuming) the policy hands the requirements back to Weir
    known = history.contested_requested
    began = context.now if since is None or known not in (None, there.requested) else since
    hold_seconds = context.rules.contested_seconds(history.contests)
    until = None if hold_seconds is None else began + timedelta(seconds=hold_seconds)
    if until is not None and context.now >= until:
        return None
    by = messages.writer(writers, ours[0], there.requested)
    return Refusal("contested", messages.contested_until(ours[0], there.requested, by, until))


def _is_ours(requested: Parallelism, ours: list[Parallelism], writers: Mapping[str, str] | None) -> bool:
    """Return whether Weir set the requirements. A target that records writers never falls back to earlier ones by
    itself."""
    if writers is None or not requested.keys() <= writers.keys():
        return requested in ours
    return all(not writers.get(name) or p == ours[0].get(name) for name, p in requested.items())


def _by_bounds(plan: Plan, context: Context) -> Refusal | None:
    there, wanted, policy = context.snapshot.deployment, plan.approved, context.policy.policy
    if there is None or wanted is None or policy is None:
        return None
    return out_of_bounds(wanted, there, policy.spec, context.snapshot.topology)


def _quarantined(wanted: Parallelism, context: Context) -> Refusal | None:
    for kept in context.history.quarantine:
        if kept.parallelism == wanted and context.now < kept.until:
            return Refusal("quarantined", messages.quarantined(wanted, kept.until))
    return None


def _intend(
    plan: Plan, wanted: Parallelism, deployment: Deployment, context: Context, instance: InstanceRef | None = None
) -> ActionState:
    before = deployment.observed
    last = context.history.action
    # Ending an action that is still watched takes one version.
    version = 1 if last is None else following(last.version, 1 if last.terminal else 2)
    return ActionState(
        id=derive_id(plan.id, "action"),
        application=plan.application,
        attempt_id=context.attempt_id,
        plan_id=plan.id,
        observation_id=plan.observation_id,
        version=version,
        phase=LEGAL[(None, "admitted")],
        cluster=context.policy.policy.subject.cluster if context.policy.policy is not None else None,
        deployment=deployment.ref(),
        before=before,
        wanted=wanted,
        instance=instance,
        started_at=context.now,
        checked_at=context.now,
        # A planner whose clock is ahead prolongs no plan either.
        deadline_at=min(plan.expires_at, context.now + (plan.expires_at - plan.created_at)),
        restarts_before=deployment.restarts,
        baselines=baselines(before, wanted, context.analysis, context.rules),
        code="admitted",
        sentence=messages.will_do(before, wanted, instance),
    )


def still_wanted(
    action: ActionState, policy: PolicyReading, snapshot: Snapshot | None, now: datetime, planned_version: int | None
) -> Refusal | None:
    """Return the refusal of an intent that is about to be stored or requested, or None if it is still valid.

    `planned_version` is the plan's policy version; if it is None, the policy must be unchanged since the action began.
    `snapshot` is None if the driver compares the target itself. An outage is waited out until the intent expires.
    """
    if action.deadline_at is not None and policy.latest(now) >= action.deadline_at:
        return Refusal("expired", messages.PLAN_EXPIRED)
    if policy.reachable:
        if policy.policy is None:
            return Refusal("policy-changed", messages.POLICY_DELETED)
        if policy.policy.spec.mode != "act":
            return Refusal("not-act", messages.mode_is(policy.policy.spec.mode))
        metadata = policy.policy.metadata
        touched = metadata.updated_at is not None and metadata.updated_at > action.started_at
        if touched if planned_version is None else metadata.version != planned_version:
            return Refusal("policy-changed", messages.POLICY_CHANGED)
    if snapshot is not None and snapshot.refusal is not None:
        return snapshot.refusal
    if snapshot is not None and snapshot.reachable:
        there = snapshot.deployment
        if there is None or there.job_id != action.deployment.job_id:
            return Refusal("other-deployment", messages.JOB_ENDED)
        if there.requested != action.deployment.requested or there.observed != action.deployment.observed:
            return Refusal("other-deployment", messages.PARALLELISM_CHANGED)
    return None
