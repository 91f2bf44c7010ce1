"""Sentences for users: refusals of plans and transitions of actions, with parallelism in a readable form."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from weir_contracts import InstanceRef, Parallelism, bounded, changes, fitted, listed, short_name, sizes

MAX_INSTANCE_LENGTH = 20

POLICY_DELETED = "the policy was deleted"
POLICY_CHANGED = "the policy changed before the plan was applied"
PLAN_EXPIRED = "the plan expired before it was applied"
JOB_ENDED = "the job ended before the plan was applied"
PARALLELISM_CHANGED = "the job's parallelism changed before the plan was applied"
GRAPH_CHANGED = "the job's graph differs from the one the plan was made for"
NO_DEPLOYMENT = "the plan names no deployment"
ACTION_ELSEWHERE = "another executor holds an action of this application"
ENDPOINT_WITHOUT_APPLICATION = "the endpoint does not know the application (404)"
NO_CHECKPOINTS = "the application has no checkpoints"
NO_INSTANCES = "the endpoint has 0 replicas: scale it to 1 by hand"
NO_GROUP = "the application is not a consumer group"
NO_RESTARTS = "this target cannot restart a single instance, or the policy does not let it (restartInstances)"
DISRUPTION_BUDGET = "the disruption budget of its pod allows no eviction now"
INSTANCE_CHANGED = "the instance has other members than the plan names: it was restarted, or its tasks have moved"
REACTIVE_WITHOUT_INSTANCES = (
    "a job in reactive mode takes every slot and no requirements: scale its TaskManagers with a kubernetes target"
)
UNKNOWN_GRAPH = "the policy has a budget, but the slots cannot be counted: the job's graph is unknown"


# -- the gate ------------------------------------------------------------------------------------------------------


def planned_in_mode(mode: str) -> str:
    return f"the policy's mode was {mode} when the plan was made"


def mode_is(mode: str) -> str:
    return f"the policy's mode is {mode}"


def expired(expires_at: datetime, now: datetime) -> str:
    return f"the plan expired at {expires_at:%H:%M:%S}, {(now - expires_at).total_seconds():.0f} s ago"


def in_flight(phase: str, sentence: str) -> str:
    return f"an action is {phase}: {sentence}"


def policy_unreadable(reason: str) -> str:
    return f"the policy cannot be read from knowledge: {reason}"


def policy_version_differs(version: int | None, planned: int | None) -> str:
    return f"the policy is at version {version}, the plan was made for version {planned}"


def target_unreachable(reason: str) -> str:
    return f"the target cannot be reached: {reason}"


def job_missing(reason: str) -> str:
    return f"the job is missing: {reason}"


def other_job(planned: str, present: str) -> str:
    return f"the plan is for job {planned}, but job {present} runs now"


def job_state(state: str) -> str:
    return f"the job is {state}"


def unsupported_scheduler(scheduler: str | None) -> str:
    return f"the {scheduler} scheduler cannot rescale a running job"


def changed_since_plan(noun: str, before: Parallelism, after: Parallelism) -> str:
    return f"{noun} changed since the plan was made: {changes(before, after)}"


def operators_differ(odd: list[str]) -> str:
    return f"plan and job differ in operators: {', '.join(odd[:5])}"


def already_requested(wanted: Parallelism) -> str:
    return f"{sizes(wanted)} is already requested"


def writer(writers: Mapping[str, str] | None, ours: Parallelism, there: Parallelism) -> str:
    """Return the client that set the first requirement that differs; empty if unknown."""
    return next((by for name, by in (writers or {}).items() if by and there.get(name) != ours.get(name)), "")


def contested_until(ours: Parallelism, there: Parallelism, by: str, until: datetime | None) -> str:
    """Say who set the requirements, and until when Weir holds. None: until a user acts."""
    what = f"{short_name(by) or 'another client'} set the requirements ({changes(ours, there, 40)}): held until "
    if until is None:
        return f"{what}they are restored, or the policy is changed, or paused and resumed"
    return f"{what}{until:%H:%M:%S} if no client writes again; pause and resume ends it at once"


def contested_now(there: str, by: str = "") -> str:
    return f"{short_name(by) or 'another client'} set the requirements meanwhile: {there}"


def unfinished(sentence: str, before: Parallelism, there: Parallelism) -> str:
    """Add the requirements that were written before a request ended early."""
    return sentence if before == there else f"{sentence}; {changes(before, there)} was written before"


def moving(state: str) -> str:
    return f"nothing is restarted while tasks move: the group is {short_name(state)}"


def restarted_recently(at: datetime, until: datetime) -> str:
    return f"an instance was restarted at {at:%H:%M:%S}, the next restart may be at {until:%H:%M:%S}"


def quarantined(wanted: Parallelism, until: datetime) -> str:
    return f"{sizes(wanted)} was rolled back and is quarantined until {until:%H:%M:%S}"


def out_of_bounds(change: str, low: int, high: int) -> str:
    return f"{change} is outside the policy's bounds of {low} to {high}"


def over_budget(slots: int, limit: int, budget: str) -> str:
    return f"{slots} slots exceed the {limit} of the budget's {budget}"


def above_total(count: int, limit: int) -> str:
    return f"{count} subtasks exceed the policy's total of {limit}"


def below_total(count: int, limit: int) -> str:
    return f"{count} subtasks are fewer than the policy's total minimum of {limit}"


def too_many_actions(count: int, limit: int, cluster: str | None = None) -> str:
    return f"{count} applications restart at the moment{f' on {cluster}' if cluster else ''}; the limit is {limit}"


def fleet_shrinking(count: int, total: int, window_seconds: float, until: datetime) -> str:
    return (
        f"{count} of {total} applications began to need less within {window_seconds:.0f} s, "
        f"probably an input or metric outage: no scale-down before {until:%H:%M:%S}"
    )


# -- actions -------------------------------------------------------------------------------------------------------


def change(before: Parallelism, wanted: Parallelism, instance: InstanceRef | None) -> str:
    """Format what an action changes: `enrich 1 → 4` or `a restart of orders-2`."""
    return changes(before, wanted) if instance is None else f"a restart of {short_name(instance.id)}"


def will_do(before: Parallelism, wanted: Parallelism, instance: InstanceRef | None) -> str:
    verb = "restart" if instance is not None else "set"
    return f"will {verb} {_object(before, wanted, instance)}"


def taken_over(before: Parallelism, wanted: Parallelism, instance: InstanceRef | None) -> str:
    return f"taken over: {will_do(before, wanted, instance)}"


def doing(before: Parallelism, wanted: Parallelism, instance: InstanceRef | None) -> str:
    verb = "restarting" if instance is not None else "setting"
    return f"{verb} {_object(before, wanted, instance)}"


def _object(before: Parallelism, wanted: Parallelism, instance: InstanceRef | None) -> str:
    return changes(before, wanted) if instance is None else short_name(instance.id)


def done(before: Parallelism, wanted: Parallelism, instance: InstanceRef | None) -> str:
    """Format an action that was done: `enrich 1 → 4`, or `the instance in place of orders-2`."""
    return changes(before, wanted) if instance is None else f"the instance in place of {short_name(instance.id)}"


def restarted(instance: InstanceRef, took_seconds: float) -> str:
    return f"{done({}, {}, instance)} settled, {took_seconds:.1f} s from request to running"


def restart_failed(instance: InstanceRef, progress: str) -> str:
    reason = progress or "its process still runs"
    return f"past the deadline the restart of {short_name(instance.id)} is not complete: {reason}"


def superseded(before: Parallelism, wanted: Parallelism, took_seconds: float | None) -> str:
    after = "" if took_seconds is None else f" after {took_seconds:.1f} s"
    return f"a newer plan follows; {changes(before, wanted)} ran{after}"


def back_to(reason: str, target: Parallelism) -> str:
    return f"{reason}: back to {sizes(target)}"


def refused_by_engine(request: str, reason: str) -> str:
    """The engine's own reason comes first: it is what a reader cannot know."""
    return fitted(f"the engine refused: {reason}", f"; asked for {request}")


def request_unanswered(deadline_at: datetime | None, reason: str) -> str:
    return f"the request was not sent or not answered before {deadline_at:%H:%M:%S}{f': {reason}' if reason else ''}"


def requested(change: str, limit_seconds: float) -> str:
    return f"requested {change}, which has {limit_seconds:.0f} s to run"


def restart_loop(extra: int) -> str:
    return f"the job restarted {extra} times beyond the rescale itself"


def below_requested(wanted: Parallelism, there: Parallelism) -> str:
    return f"past the deadline the job runs below the requested parallelism ({changes(wanted, there)})"


def not_running(state: str, progress: str = "") -> str:
    return f"past the deadline {progress or f'the job is {state} and not all of its tasks run'}"


def waiting(before: Parallelism, wanted: Parallelism, progress: str) -> str:
    return f"waiting for {changes(before, wanted)}: {progress}"


def evicted(instances: list[str], count: int) -> str:
    members = "1 member" if count == 1 else f"{count} members"
    verb = "which has ended" if len(instances) == 1 else "which have ended"
    return f"evicted {members} of {listed([bounded(each, MAX_INSTANCE_LENGTH) for each in instances])}, {verb}"


def instances_ready(ready: int, wanted: int, running: int, noun: str = "instances") -> str:
    more = "" if running <= wanted else f", and {running} run"
    return f"{ready} of {wanted} {noun} are ready{more}"


def pods_end(count: int) -> str:
    return f"{count} {'pod has' if count == 1 else 'pods have'} not ended yet"


def group_waits(count: int) -> str:
    return f"the group waits for {count} {'member' if count == 1 else 'members'} of instances that have ended"


def group_is(state: str) -> str:
    return f"the group is {short_name(state)}"


def without_member(count: int) -> str:
    return f"{count} {'instance has' if count == 1 else 'instances have'} no member of the group"


def unassigned(count: int) -> str:
    return f"{count} {'partition has' if count == 1 else 'partitions have'} no member of the group"


def odd_members(count: int, wanted: int) -> str:
    return f"the group has {count} {'member' if count == 1 else 'members'} instead of {wanted}"


def more_threads(threads: int, slots: int) -> str:
    return f"each instance has {threads} members of the group or more, and the target's slots say {slots}: correct them"


def running(subject: str, took_seconds: float) -> str:
    return f"{subject} is running, {took_seconds:.1f} s after the request"


def verified(
    before: Parallelism, wanted: Parallelism, took_seconds: float, *, capacity_is_fine: bool, comparison: str
) -> str:
    capacity = "capacity holds" if capacity_is_fine else "capacity is not judged yet"
    return fitted(
        f"{changes(before, wanted)} settled, {took_seconds:.1f} s from request to running",
        f"; {capacity}",
        f": {comparison}",
    )


def not_rolled_back(target: Parallelism, reason: str) -> str:
    return f"not rolled back to {sizes(target)}: {reason}"


def rollback_stuck(target: Parallelism, state: str, progress: str = "") -> str:
    return f"{sizes(target)} was requested again but does not run ({progress or f'the job is {state}'}): check the job"


def rollback_unanswered(target: Parallelism) -> str:
    return f"the request to return to {sizes(target)} was not answered"


def restored(target: Parallelism) -> str:
    return f"{sizes(target)} runs again"


def job_replaced(before: str, after: str) -> str:
    return f"job {before} was replaced by {after}"


def unreachable_for(unobserved: timedelta, reason: str) -> str:
    return f"the target was unreachable for {unobserved.total_seconds() / 60:.0f} min: {reason}"
