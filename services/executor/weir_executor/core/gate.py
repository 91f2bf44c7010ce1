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
    RescaleSettings,
    ScalingPolicy,
    changes,
    derive_id,
    following,
    short_name,
    sizes,
)
from weir_engines.driver import Refusal, Snapshot
from weir_executor.core.observed import PolicyReading, writer

from .capacity import baselines
from .history import ActionHistory
from .limits import Fleet, out_of_bounds
from .managers import managers_refusal
from .parameters import Rules
from .resubmission import resubmission_refusal
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


POLICY_DELETED = Refusal("policy-changed", "the policy was deleted")


def is_for_us(plan: Plan, history: ActionHistory) -> bool:
    """Return whether the plan is a change that was not answered before."""
    return plan.kind != "hold" and plan.id not in history.answered


def precheck(plan: Plan, history: ActionHistory, fleet: Fleet, now: datetime, rules: Rules) -> Refusal | None:
    """Return a refusal that needs neither policy nor target, or None."""
    action = history.action
    if plan.mode != "act":
        return Refusal("not-act", f"the policy's mode was {plan.mode} when the plan was made")
    if now >= plan.expires_at:
        return _expired(plan, now)
    if action is not None and not action.terminal and not action.has_run:
        return Refusal("in-flight", f"an action is {action.phase}: {action.sentence}")
    return fleet.fleet_shrinking(plan, now, rules)


def _expired(plan: Plan, now: datetime) -> Refusal:
    late_seconds = (now - plan.expires_at).total_seconds()
    return Refusal("expired", f"the plan expired at {plan.expires_at:%H:%M:%S}, {late_seconds:.0f} s ago")


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
    refusal = (
        _by_operators(wanted, there, context)
        or _by_bounds(plan, context)
        or managers_refusal(context.snapshot, wanted)
        or resubmission_refusal(context.snapshot, wanted)
    )
    return refusal or _intend(plan, wanted, there, context)


def _restart(plan: Plan, there: Deployment, context: Context) -> Refusal | ActionState | None:
    """Restart an instance only while all else is settled, and if it still has the members that the plan names."""
    snapshot, last_at = context.snapshot, context.history.instance_restarted_at
    until = None if last_at is None else last_at + timedelta(seconds=context.rules.restart_pause_seconds)
    instance = snapshot.instance_of(plan.restarts.members if plan.restarts is not None else ())
    if not snapshot.can_restart_instances:
        return Refusal(
            "unsupported",
            "this target cannot restart a single instance, or the policy does not let it (restartInstances)",
        )
    if last_at is not None and until is not None and context.now < until:
        return Refusal(
            "restarted-recently",
            f"an instance was restarted at {last_at:%H:%M:%S}, the next restart may be at {until:%H:%M:%S}",
        )
    if there.health != "running" or snapshot.departed or there.requested not in (None, there.observed):
        state = short_name(there.state)
        return Refusal("tasks-move", f"nothing is restarted while tasks move: the group is {state}")
    if instance is None:
        return Refusal(
            "other-deployment",
            "the instance has other members than the plan names: it was restarted, or its tasks have moved",
        )
    ref = InstanceRef(id=instance.id, members=list(instance.members), uid=instance.uid)
    return _intend(plan, there.observed, there, context, ref)


def _by_policy(plan: Plan, context: Context) -> Refusal | None:
    reading = context.policy
    if not reading.reachable:
        return Refusal("unreachable", f"the policy cannot be read from knowledge: {reading.reason}")
    if reading.policy is None:
        return POLICY_DELETED
    if reading.policy.spec.mode != "act":
        return _not_act(reading.policy)
    now = reading.latest(context.now)
    if now >= plan.expires_at:
        return _expired(plan, now)
    version = reading.policy.metadata.version
    if version != plan.policy_version:
        return Refusal(
            "policy-changed", f"the policy is at version {version}, the plan was made for version {plan.policy_version}"
        )
    return context.fleet.too_many_actions(plan.application, reading.policy.subject.cluster, context.rules)


def _not_act(policy: ScalingPolicy) -> Refusal:
    return Refusal("not-act", f"the policy's mode is {policy.spec.mode}")


def _by_target(plan: Plan, context: Context) -> Refusal | None:
    snapshot, planned = context.snapshot, plan.deployment
    if snapshot.refusal is not None:
        return snapshot.refusal
    if not snapshot.reachable:
        return Refusal("unreachable", f"the target cannot be reached: {snapshot.reason}")
    if planned is None:
        return Refusal("other-deployment", "the plan names no deployment")
    if snapshot.deployment is None:
        return Refusal("other-deployment", f"the job is missing: {snapshot.reason}")
    now_there = snapshot.deployment
    if now_there.job_id != planned.job_id:
        return Refusal("other-deployment", f"the plan is for job {planned.job_id}, but job {now_there.job_id} runs now")
    if now_there.graph_hash != planned.graph_hash:
        return Refusal("other-deployment", "the job's graph differs from the one the plan was made for")
    if now_there.is_final:
        return Refusal("other-deployment", f"the job is {now_there.state}")
    return _by_scheduler(now_there.rescale, context.policy.policy)


def _by_scheduler(rescale: RescaleSettings, policy: ScalingPolicy | None) -> Refusal | None:
    scheduler = rescale.scheduler
    if scheduler in (None, "adaptive") or rescale.by_restart:
        return None
    if scheduler != "reactive":
        return Refusal("unsupported", f"the {scheduler} scheduler cannot rescale a running job")
    if policy is None or policy.spec.target.unit is None:
        return Refusal(
            "unsupported",
            "a job in reactive mode takes every slot and no requirements: set target.flink.taskManagers with reactive: true",
        )
    return None


def _by_requirements(plan: Plan, context: Context) -> Refusal | None:
    there, planned = context.snapshot.deployment, plan.deployment
    if there is None or planned is None:
        return None
    foreign = _contested(there, context)
    if foreign is not None:
        return foreign
    if planned.requested is not None and there.requested is not None and planned.requested != there.requested:
        changed = changes(planned.requested, there.requested)
        return Refusal("other-deployment", f"requirements changed since the plan was made: {changed}")
    if planned.observed != there.observed:
        changed = changes(planned.observed, there.observed)
        return Refusal("other-deployment", f"the parallelism changed since the plan was made: {changed}")
    return None


def _by_operators(wanted: Parallelism, there: Deployment, context: Context) -> Refusal | None:
    if set(wanted) != set(there.observed):
        odd = sorted(set(wanted) ^ set(there.observed))
        return Refusal("other-deployment", f"plan and job differ in operators: {', '.join(odd[:5])}")
    requested = there.observed if there.requested is None else there.requested
    if wanted == requested:
        return Refusal("nothing-to-do", f"{sizes(wanted)} is already requested")
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
    by, changed = writer(writers, ours[0], there.requested), changes(ours[0], there.requested, 40)
    held = f"{short_name(by) or 'another client'} set the requirements ({changed}): held until "
    if until is None:
        return Refusal("contested", f"{held}they are restored, or the policy is changed, or paused and resumed")
    ends = f"{until:%H:%M:%S} if no client writes again; pause and resume ends it at once"
    return Refusal("contested", held + ends)


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
            return Refusal(
                "quarantined", f"{sizes(wanted)} was rolled back and is quarantined until {kept.until:%H:%M:%S}"
            )
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
        # A return from less capacity would stop the job once more, so that a successor's is not compared.
        baselines=[]
        if context.snapshot.jobs is not None
        else baselines(before, wanted, context.analysis, context.rules),
        code="admitted",
        sentence=intention(before, wanted, instance),
    )


def intention(before: Parallelism, wanted: Parallelism, instance: InstanceRef | None) -> str:
    """Format what an action will do: `will set enrich 1 → 4`, `will restart orders-2`."""
    return f"will set {changes(before, wanted)}" if instance is None else f"will restart {short_name(instance.id)}"


def still_wanted(
    action: ActionState, policy: PolicyReading, snapshot: Snapshot | None, now: datetime, planned_version: int | None
) -> Refusal | None:
    """Return the refusal of an intent that is about to be stored or requested, or None if it is still valid.

    `planned_version` is the plan's policy version; if it is None, the policy must be unchanged since the action began.
    `snapshot` is None if the driver compares the target itself. An outage is waited out until the intent expires.
    """
    if action.deadline_at is not None and policy.latest(now) >= action.deadline_at:
        return Refusal("expired", "the plan expired before it was applied")
    if policy.reachable:
        if policy.policy is None:
            return POLICY_DELETED
        if policy.policy.spec.mode != "act":
            return _not_act(policy.policy)
        metadata = policy.policy.metadata
        touched = metadata.updated_at is not None and metadata.updated_at > action.started_at
        if touched if planned_version is None else metadata.version != planned_version:
            return Refusal("policy-changed", "the policy changed before the plan was applied")
    if snapshot is not None and snapshot.refusal is not None:
        return snapshot.refusal
    if snapshot is not None and snapshot.reachable:
        there = snapshot.deployment
        if there is None or there.job_id != action.deployment.job_id:
            return Refusal("other-deployment", "the job ended before the plan was applied")
        if there.requested != action.deployment.requested or there.observed != action.deployment.observed:
            return Refusal("other-deployment", "the job's parallelism changed before the plan was applied")
    return None
