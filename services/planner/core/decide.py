"""A request and a planner's reply become a plan. Pure: the same request gives the same plan, down to its id."""

from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from weir_contracts import (
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

from predictor import Assumptions, Compared, compare
from predictor.words import changes

from .collapse import holds_for_collapse, usual_arrivals
from .guards import Context, amend
from .guards.allowed import allowed
from .guards.draft import HIGHEST_UTILISATION, Draft
from .guards.history import past_actions
from .wishes import condensed, gathered

LEAST_EXPIRY_SECONDS = 15.0
LEAST_STALENESS_SECONDS = 10.0
MOST_RECOMMENDATIONS = 400
"""States that a job does not come back from, as engines name them."""


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
    if request.deployment.is_final:
        return _hold(
            "job-ended", f"the job is {request.deployment.state}: there is nothing to scale until it is submitted again"
        )
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
    reply = _into_bounds(check_reply(reply, request), request)
    arrivals = usual_arrivals(state.arrivals, request.analysis, request.now)
    recommendations = _recommendations(request, reply, state, arrivals)
    actions = past_actions(state.actions, request.outcomes, request.now)
    draft = Draft(None, reply.code, reply.sentence, (), tuple(reply.infeasible))
    if reply.parallelism is not None and request.topology is not None and request.deployment is not None:
        context = Context(
            now=request.now,
            spec=request.policy.spec,
            topology=request.topology,
            deployment=request.deployment,
            analysis=request.analysis,
            last_action=request.newest_action,
            quarantine=request.quarantine,
            recommendations=recommendations,
            arrivals=arrivals,
            actions=actions,
        )
        draft = amend(reply, context)
    foreseen = _foreseen(request, reply, draft, planner)
    draft = _worth_it(request, reply, draft, foreseen)
    return _plan(
        request=request,
        reply=reply,
        draft=draft,
        foreseen=foreseen,
        state=PlanState(
            recommendations=recommendations,
            memory=_memory(reply, state, planner),
            planner=planner,
            arrivals=arrivals,
            actions=actions,
        ),
        planner=planner,
        created_at=created_at,
        planning_seconds=planning_seconds,
    )


def _foreseen(request: PlanRequest, reply: PlanReply, draft: Draft, planner: str) -> Compared | None:
    """What staying and the amended vector would bring, by the one predictor; None for what no guard has changed."""
    if draft.vector is None or draft.vector == reply.parallelism:
        return None
    # `rate` decides by the same model, with the assumptions that its policy sets.
    given = request.policy.spec.planner.parameters if planner == "rate" else {}
    try:
        assumptions = Assumptions.model_validate(
            {name: given[name] for name in Assumptions.model_fields if name in given}
        )
    except ValidationError:
        return None
    return compare(request, draft.vector, assumptions)


def _worth_it(request: PlanRequest, reply: PlanReply, draft: Draft, foreseen: Compared | None) -> Draft:
    """Growth of which the guards have left so little that its restart gains nothing is not worth one."""
    deployment = request.deployment
    if foreseen is None or draft.vector is None or deployment is None or reply.code in ("out-of-bounds", "saturated"):
        return draft
    if _nearest_allowed(request)[0] != deployment.observed:
        return draft  # the policy wants it away from there, whatever that gains
    staying, going, gains = foreseen
    grows = any(p > deployment.observed[name] for name, p in draft.vector.items())
    # The busiest operator gains something, and needs it.
    used = staying.max_utilisation or 0.0
    steadier = used > HIGHEST_UTILISATION and (going.max_utilisation or 0.0) < used - 0.01
    if not grows or steadier or gains:
        return draft
    left = changes(deployment.observed, draft.vector)
    guards = ", ".join(dict.fromkeys(a.guard for a in draft.amendments))
    return draft.held(
        "worth-it", "no-gain", f"what {guards} left of the wish, {left}, would gain nothing for its restart"
    )


def _cut_sentence(draft: Draft, request: PlanRequest, foreseen: Compared | None) -> str:
    """First what will be done, then what was wished for and why less of it was left."""
    observed = request.deployment.observed if request.deployment else {}
    guards = ", ".join(dict.fromkeys(a.guard for a in draft.amendments))
    outlook = f", lag peaks at {foreseen.going.max_lag_seconds:.1f} s" if foreseen else ""
    return f"{changes(observed, draft.vector or {})}{outlook}; that is what {guards} left of: {draft.sentence}"[:2000]


def _into_bounds(reply: PlanReply, request: PlanRequest) -> PlanReply:
    """What runs outside the policy's bounds is brought into them, whatever the planner would rather hold for."""
    if reply.parallelism is not None or reply.code in _NO_OPINION or request.deployment is None:
        return reply
    observed = request.deployment.observed
    wanted, why = _nearest_allowed(request)
    if wanted == observed:
        return reply
    moved = changes(observed, wanted)
    return reply.model_copy(
        update={
            "kind": "scale",
            "parallelism": wanted,
            "code": "out-of-bounds",
            "sentence": f"{moved}: {', '.join(why)}"[:2000],
            "prediction": None,
            "hold_prediction": reply.prediction,
        }
    )


def _nearest_allowed(request: PlanRequest) -> tuple[Parallelism, list[str]]:
    """What comes nearest to the present of what the policy allows, and why it is another than the present."""
    observed = request.deployment.observed if request.deployment else {}
    if request.topology is None:
        return observed, []
    busy = {found.operator: found.utilisation.value for found in request.analysis.operators}
    return allowed(observed, request.policy.spec, request.topology, busy)


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
    if wanted is None:
        # Nobody knows what would have been wanted: a window with a gap must be covered anew.
        return []
    since = request.now - max(behavior.scale_up.stabilization, behavior.scale_down.stabilization)
    latest = Recommendation(at=request.now, parallelism=wanted)
    return condensed(gathered(latest, state.recommendations, since), MOST_RECOMMENDATIONS)


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
        "job-ended",
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
    foreseen: Compared | None,
    state: PlanState,
    planner: str,
    created_at: datetime,
    planning_seconds: float | None,
) -> Plan:
    spec, deployment = request.policy.spec, request.deployment
    lives = timedelta(seconds=max(3 * spec.interval.total_seconds(), LEAST_EXPIRY_SECONDS))
    cut = draft.vector is not None and draft.vector != reply.parallelism
    return Plan(
        id=derive_id(request.analysis.id, "plan"),
        application=request.application,
        analysis_id=request.analysis.id,
        observation_id=request.analysis.observation_id,
        observed_at=request.analysis.observed_at,
        created_at=created_at,
        expires_at=created_at + lives,
        policy_version=request.policy.metadata.version,
        mode=spec.mode,
        planner=planner,
        deployment=deployment.ref() if deployment else None,
        current=deployment.observed if deployment else {},
        proposed=reply.parallelism,
        kind="hold" if draft.vector is None else "scale",
        action=None if draft.vector is None else ScaleAction(parallelism=draft.vector),
        code=draft.code,
        sentence=_cut_sentence(draft, request, foreseen) if cut else draft.sentence,
        evidence=reply.evidence,
        # Of what is left after the guards, not of what was wished for.
        prediction=(foreseen.going if foreseen else None) if cut else reply.prediction,
        hold_prediction=reply.hold_prediction,
        infeasible=list(draft.infeasible)[:100],
        alternatives=reply.alternatives,
        amendments=list(draft.amendments),
        planning_seconds=planning_seconds,
        state=state,
    )


def _hold(code: str, sentence: str) -> PlanReply:
    return PlanReply(kind="hold", code=code, sentence=sentence)
