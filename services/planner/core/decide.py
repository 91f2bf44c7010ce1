"""A request and a planner's reply become a plan. Pure: the same request gives the same plan, down to its id."""

from datetime import datetime, timedelta
from typing import Any

from weir_contracts import (
    ActionState,
    Parallelism,
    Plan,
    PlanReply,
    PlanRequest,
    PlanState,
    Recommendation,
    ScaleAction,
    UsualArrivals,
    derive_id,
)

from .collapse import holds_for_collapse, usual_arrivals
from .guards import Context, amend
from .guards.draft import Draft
from .wishes import condensed

LEAST_EXPIRY_SECONDS = 15.0
LEAST_STALENESS_SECONDS = 10.0
MOST_RECOMMENDATIONS = 400


def precheck(request: PlanRequest) -> PlanReply | None:
    """Reasons to hold before any planner is asked; None if it is to be asked."""
    analysis, spec = request.analysis, request.policy.spec
    if spec.mode == "paused":
        return _hold("paused", "the policy is paused")
    age = (request.now - analysis.observed_at).total_seconds()
    limit = max(3 * spec.interval.total_seconds(), LEAST_STALENESS_SECONDS)
    if age > limit:
        return _hold("stale", f"the reading is {age:.0f} s old, more than {limit:.0f} s: nothing is decided on it")
    if analysis.status in ("unreachable", "not_found", "ended"):
        words = analysis.message or analysis.status
        return _hold(analysis.status.replace("_", "-"), f"nothing changes, because {words}"[:2000])
    if request.topology is None or request.deployment is None:
        return _hold("metric-missing", "the application's graph or deployment is unknown, so it stays as it is")
    if set(request.deployment.observed) != set(request.topology.names):
        return _hold("metric-missing", "parallelism is not known of every operator, so nothing changes")
    return None


def check_reply(reply: PlanReply, request: PlanRequest) -> PlanReply:
    """The reply, or a hold if it does not cover the topology: a planner answers for all of it or holds."""
    if reply.parallelism is None or request.topology is None:
        return reply
    names, given = set(request.topology.names), set(reply.parallelism)
    if given == names:
        return reply
    missing, extra = sorted(names - given), sorted(given - names)
    parts = [f"misses {', '.join(missing)}"] if missing else []
    parts += [f"names the unknown {', '.join(extra)}"] if extra else []
    return _hold("invalid-reply", f"the planner's answer {' and '.join(parts)}"[:2000])


def make_plan(
    request: PlanRequest,
    reply: PlanReply,
    state: PlanState,
    *,
    planner: str,
    created_at: datetime,
    planning_seconds: float | None = None,
) -> Plan:
    """Run the guards over a reply and write the plan, with what the next one needs."""
    reply = check_reply(reply, request)
    arrivals = usual_arrivals(state.arrivals, request.analysis, request.now)
    recommendations = _recommendations(request, reply, state, arrivals)
    draft = Draft(None, reply.code, reply.sentence, (), tuple(reply.infeasible))
    if reply.parallelism is not None and request.topology is not None and request.deployment is not None:
        context = Context(
            now=request.now,
            spec=request.policy.spec,
            topology=request.topology,
            deployment=request.deployment,
            analysis=request.analysis,
            last_action=last_action(request),
            quarantine=request.quarantine,
            recommendations=recommendations,
            arrivals=arrivals,
        )
        draft = amend(reply, context)
    return _plan(
        request=request,
        reply=reply,
        draft=draft,
        state=PlanState(
            recommendations=recommendations,
            memory=_memory(reply, state, planner),
            planner=planner,
            arrivals=arrivals,
        ),
        planner=planner,
        created_at=created_at,
        planning_seconds=planning_seconds,
    )


def last_action(request: PlanRequest) -> ActionState | None:
    """The application's newest action, as far as its outcomes tell."""
    for outcome in request.outcomes:
        if outcome.newest_action is not None:
            return outcome.newest_action
    return None


def _recommendations(
    request: PlanRequest, reply: PlanReply, state: PlanState, arrivals: UsualArrivals | None
) -> list[Recommendation]:
    """The wishes within the longer stabilisation window and the last one before it, which shows that it is covered."""
    behavior = request.policy.spec.behavior
    wanted: Parallelism | None = reply.parallelism
    if wanted is None and request.deployment is not None and reply.code not in _NO_OPINION:
        wanted = request.deployment.observed  # a hold wants what is there
    if wanted is not None and request.deployment is not None and holds_for_collapse(arrivals, behavior, request.now):
        # What is wanted of a dry input must not count when the input comes back.
        wanted = request.deployment.observed
    kept = list(state.recommendations)
    if wanted is None:
        # Nobody knows what would have been wanted: a window with a gap must be covered anew.
        return []
    kept = [r for r in kept if set(r.parallelism) == set(wanted)]
    kept.append(Recommendation(at=request.now, parallelism=wanted))
    since = request.now - max(behavior.scale_up.stabilization, behavior.scale_down.stabilization)
    before = [i for i, r in enumerate(kept) if r.at <= since]
    return condensed(kept[before[-1] if before else 0 :], MOST_RECOMMENDATIONS)


def _memory(reply: PlanReply, state: PlanState, planner: str) -> dict[str, Any]:
    """The planner's own, kept over turns in which it was not asked or gave no answer."""
    if not reply.memory and reply.code in _NO_OPINION and state.planner == planner:
        return state.memory
    return reply.memory


_NO_OPINION = frozenset(
    {
        "metric-missing",
        "stale",
        "unreachable",
        "not-found",
        "paused",
        "planner-timeout",
        "planner-failed",
        "planner-invalid",
        "invalid-reply",
    }
)


def _plan(
    *,
    request: PlanRequest,
    reply: PlanReply,
    draft: Draft,
    state: PlanState,
    planner: str,
    created_at: datetime,
    planning_seconds: float | None,
) -> Plan:
    spec, deployment = request.policy.spec, request.deployment
    lives = timedelta(seconds=max(3 * spec.interval.total_seconds(), LEAST_EXPIRY_SECONDS))
    sentence = draft.sentence
    if draft.vector is not None and draft.amendments and deployment is not None:
        moved = ", ".join(
            f"{n} {deployment.observed[n]} → {p}" for n, p in draft.vector.items() if p != deployment.observed[n]
        )
        sentence = f"{moved} (after {', '.join(a.guard for a in draft.amendments)}); {sentence}"[:2000]
    return Plan(
        id=derive_id(request.analysis.id, "plan"),
        application=request.application,
        analysis_id=request.analysis.id,
        observation_id=request.analysis.observation_id,
        observed_at=request.analysis.observed_at,
        created_at=created_at,
        expires_at=created_at + lives,
        policy_version=request.policy.metadata.resource_version,
        mode=spec.mode,
        planner=planner,
        deployment=deployment.ref() if deployment else None,
        current=deployment.observed if deployment else {},
        proposed=reply.parallelism,
        kind="hold" if draft.vector is None else "scale",
        action=None if draft.vector is None else ScaleAction(parallelism=draft.vector),
        code=draft.code,
        sentence=sentence,
        evidence=reply.evidence,
        prediction=reply.prediction,
        hold_prediction=reply.hold_prediction,
        infeasible=list(draft.infeasible)[:100],
        alternatives=reply.alternatives,
        amendments=list(draft.amendments),
        planning_seconds=planning_seconds,
        state=state,
    )


def _hold(code: str, sentence: str) -> PlanReply:
    return PlanReply(kind="hold", code=code, sentence=sentence)
