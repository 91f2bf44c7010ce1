"""The gate: a plan becomes an action, or is refused with a reason."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from weir_contracts import ActionState, Analysis, Deployment, Parallelism, Plan, ScalingPolicy, derive_id

from .bounds import out_of_bounds
from .capacity import baselines
from .fleet import Fleet
from .history import ActionHistory
from .messages import changes, vector
from .observed import PolicyReading, Refusal, Snapshot
from .rules import Rules
from .table import LEGAL

ENDED = frozenset({"FAILED", "CANCELED", "CANCELLING", "FINISHED", "SUSPENDED"})
"""States that a job does not come back from, as engines name them."""


@dataclass(frozen=True)
class Context:
    """All that the gate looks at beside the plan, read just before."""

    now: datetime
    history: ActionHistory
    policy: PolicyReading
    snapshot: Snapshot
    attempt_id: UUID
    analysis: Analysis | None = None
    fleet: Fleet = field(default_factory=Fleet)
    rules: Rules = field(default_factory=Rules)


def is_for_us(plan: Plan, history: ActionHistory) -> bool:
    """Holds need nobody, and a plan that was answered once is not answered again."""
    return plan.kind == "scale" and plan.id not in history.answered


def precheck(plan: Plan, history: ActionHistory, fleet: Fleet, now: datetime, rules: Rules) -> Refusal | None:
    """What can be refused without looking at anything outside."""
    action = history.action
    if plan.mode != "act":
        return Refusal("not-act", f"the policy's mode was {plan.mode} when this was planned")
    if now >= plan.expires_at:
        late = (now - plan.expires_at).total_seconds()
        return Refusal("expired", f"the plan was good until {plan.expires_at:%H:%M:%S}, {late:.0f} s ago")
    if action is not None and not action.terminal and not may_supersede(action):
        return Refusal("in-flight", f"an action is {action.phase}: {action.sentence}")
    return fleet.input_outage(plan, now, rules)


def may_supersede(action: ActionState) -> bool:
    """A newer plan never pre-empts `applying`, a rollback, nor the time until the wanted parallelism has run."""
    return action.phase == "verifying" and action.running_at is not None


def admit(plan: Plan, context: Context) -> Refusal | ActionState | None:
    """The intent to act on `plan`, why not, or None for what needs no answer. Looks at everything anew."""
    if not is_for_us(plan, context.history):
        return None
    refusal = (
        precheck(plan, context.history, context.fleet, context.now, context.rules)
        or _by_policy(plan, context)
        or _by_target(plan, context)
        or _by_requirements(plan, context)
        or _by_bounds(plan, context)
    )
    deployment, wanted = context.snapshot.deployment, plan.approved
    if refusal is not None or deployment is None or wanted is None:
        return refusal
    return _intend(plan, wanted, deployment, context)


def _by_policy(plan: Plan, context: Context) -> Refusal | None:
    reading = context.policy
    if not reading.reachable:
        return Refusal("unreachable", f"the policy cannot be read from knowledge: {reading.because}")
    if reading.policy is None:
        return Refusal("policy-changed", "the policy was deleted")
    if reading.policy.spec.mode != "act":
        return Refusal("not-act", f"the policy's mode is {reading.policy.spec.mode}")
    version = reading.policy.metadata.resource_version
    if version != plan.policy_version:
        return Refusal("policy-changed", f"the policy is at version {version}, the plan at {plan.policy_version}")
    return context.fleet.room(plan.application, cluster_of(reading.policy), context.rules)


def cluster_of(policy: ScalingPolicy) -> str:
    """What counts as one cluster for the limit of actions at once."""
    return str(policy.spec.target.job.url)


def _by_target(plan: Plan, context: Context) -> Refusal | None:
    snapshot, planned = context.snapshot, plan.deployment
    if snapshot.unsupported:
        return Refusal("unsupported", snapshot.unsupported)
    if not snapshot.reachable:
        return Refusal("unreachable", f"the target cannot be reached: {snapshot.because}")
    if planned is None:
        return Refusal("other-deployment", "the plan does not say which deployment it was made for")
    if snapshot.deployment is None:
        return Refusal("other-deployment", f"the job is not there any more: {snapshot.because}")
    now_there = snapshot.deployment
    if now_there.job_id != planned.job_id:
        return Refusal("other-deployment", f"the plan is for job {planned.job_id}, there is {now_there.job_id} now")
    if now_there.graph_hash != planned.graph_hash:
        return Refusal("other-deployment", "the job's graph is another one than planned for")
    if now_there.state in ENDED:
        return Refusal("other-deployment", f"the job is {now_there.state}")
    return _by_scheduler(now_there.rescale.scheduler, context.policy.policy)


def _by_scheduler(scheduler: str | None, policy: ScalingPolicy | None) -> Refusal | None:
    if scheduler in (None, "adaptive"):
        return None
    if scheduler != "reactive":
        return Refusal("unsupported", f"the {scheduler} scheduler cannot rescale a running job")
    if policy is None or policy.spec.target.docker is None:
        because = "in reactive mode a job takes every slot and no requirements: it is scaled by its TaskManagers (a docker target)"
        return Refusal("unsupported", because)
    return None


def _by_requirements(plan: Plan, context: Context) -> Refusal | None:
    there, planned, wanted = context.snapshot.deployment, plan.deployment, plan.approved
    if there is None or planned is None or wanted is None:
        return None
    foreign = _contested(there, context)
    if foreign is not None:
        return foreign
    if planned.requested is not None and there.requested is not None and planned.requested != there.requested:
        return Refusal(
            "other-deployment",
            f"requirements changed since the plan was made: {changes(planned.requested, there.requested)}",
        )
    if planned.observed != there.observed:
        return Refusal(
            "other-deployment",
            f"the parallelism changed since the plan was made: {changes(planned.observed, there.observed)}",
        )
    if set(wanted) != set(there.observed):
        odd = sorted(set(wanted) ^ set(there.observed))
        return Refusal("other-deployment", f"plan and job differ in operators: {', '.join(odd[:5])}")
    asked = there.observed if there.requested is None else there.requested
    if wanted == asked and not context.snapshot.restartable:
        return Refusal("nothing-to-do", f"{vector(wanted)} is what is requested already")
    return _quarantined(wanted, context)


def _contested(there: Deployment, context: Context) -> Refusal | None:
    ours = context.history.ours(there.job_id)
    if there.requested is None or not ours or there.requested in ours:
        return None
    since, policy = context.history.contested_since, context.policy.policy
    touched_at = policy.metadata.updated_at if policy else None
    if since is not None and touched_at is not None and touched_at > since:
        return None  # somebody changed (or paused and resumed) the policy knowing of it: Weir may take over again
    return Refusal(
        "contested",
        f"somebody else set the requirements ({changes(ours[0], there.requested)}): held until they are as Weir left "
        "them or the policy is written, or paused and resumed, again",
    )


def _by_bounds(plan: Plan, context: Context) -> Refusal | None:
    there, wanted, policy = context.snapshot.deployment, plan.approved, context.policy.policy
    if there is None or wanted is None or policy is None:
        return None
    return out_of_bounds(wanted, there, policy.spec, context.snapshot.topology)


def _quarantined(wanted: Parallelism, context: Context) -> Refusal | None:
    for kept in context.history.quarantine:
        if kept.parallelism == wanted and context.now < kept.until:
            return Refusal("quarantined", f"{vector(wanted)} was rolled back and waits until {kept.until:%H:%M:%S}")
    return None


def _intend(plan: Plan, wanted: Parallelism, deployment: Deployment, context: Context) -> ActionState:
    before = deployment.observed
    last = context.history.action
    # Ending an action that is still watched takes a version of its own.
    version = 1 if last is None else last.version + (1 if last.terminal else 2)
    return ActionState(
        id=derive_id(plan.id, "action"),
        application=plan.application,
        attempt_id=context.attempt_id,
        plan_id=plan.id,
        observation_id=plan.observation_id,
        version=version,
        phase=LEGAL[(None, "admitted")],
        cluster=cluster_of(context.policy.policy) if context.policy.policy is not None else None,
        deployment=deployment.ref(),
        before=before,
        wanted=wanted,
        started_at=context.now,
        checked_at=context.now,
        deadline_at=plan.expires_at,
        restarts_before=deployment.restarts,
        baselines=baselines(before, wanted, context.analysis, context.rules),
        code="admitted",
        sentence=f"will set {changes(before, wanted)}",
    )


def still_wanted(
    action: ActionState, policy: PolicyReading, snapshot: Snapshot | None, now: datetime, planned_version: int | None
) -> Refusal | None:
    """Whether an intent is still good when it is about to be claimed or requested, perhaps by another process than the
    one that formed it. `planned_version` is the plan's policy version where it is known; else the policy must not have
    been touched since. `snapshot` is None where the driver compares the target itself. An outage is no reason: until
    the intent expires it is waited out."""
    if action.deadline_at is not None and now >= action.deadline_at:
        return Refusal("expired", "the plan expired before it was applied")
    if policy.reachable:
        if policy.policy is None:
            return Refusal("policy-changed", "the policy was deleted")
        if policy.policy.spec.mode != "act":
            return Refusal("not-act", f"the policy's mode is {policy.policy.spec.mode}")
        metadata = policy.policy.metadata
        touched = metadata.updated_at is not None and metadata.updated_at > action.started_at
        if touched if planned_version is None else metadata.resource_version != planned_version:
            return Refusal("policy-changed", "the policy changed before the plan was applied")
    if snapshot is not None and snapshot.reachable:
        there = snapshot.deployment
        if there is None or there.job_id != action.deployment.job_id:
            return Refusal("other-deployment", "the job went away before the plan was applied")
        if there.requested != action.deployment.requested or there.observed != action.deployment.observed:
            return Refusal("other-deployment", "the job's parallelism changed before the plan was applied")
    return None
