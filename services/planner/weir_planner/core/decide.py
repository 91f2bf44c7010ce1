"""Turn a request and a planner's reply into a plan. Pure: the same request gives the same plan, down to its id."""

from datetime import datetime, timedelta

from pydantic import ValidationError

from weir_contracts import (
    MAX_SENTENCE,
    NO_OPINION,
    Parallelism,
    Plan,
    PlanReply,
    PlanRequest,
    Prediction,
    ScaleAction,
    bounded,
    changes,
    derive_id,
    fitted,
    listed,
    names,
    sizes,
)
from weir_predictor import Assumptions, Compared, compare
from weir_sdk.installed import ask, planner_of
from weir_sdk.request import Request

from .guards import Proposal, amend
from .guards.proposal import MAX_UTILIZATION, allowed, known_in_part
from .plan_state import next_state

MIN_EXPIRY_SECONDS = 15.0
MIN_STALENESS_SECONDS = 10.0
TIMEOUT, FAILED, INVALID, INVALID_REPLY = "planner-timeout", "planner-failed", "planner-invalid", "invalid-reply"


def precheck(request: PlanRequest) -> PlanReply | None:
    """Return a hold if there is a reason for one before any planner is called."""
    analysis, spec = request.analysis, request.policy.spec
    if spec.mode == "paused":
        return _hold("paused", "the policy is paused")
    age = (request.now - analysis.observed_at).total_seconds()
    limit = max(3 * spec.interval.total_seconds(), MIN_STALENESS_SECONDS)
    if age > limit:
        sentence = f"the observation is {age:.0f} s old, more than {limit:.0f} s: it is too old to plan on"
        return _hold("stale", sentence)
    if analysis.status in ("unreachable", "not_found", "ended"):
        reason = analysis.message or f"it is {analysis.status.replace('_', ' ')}"
        return _hold(analysis.status.replace("_", "-"), f"the application cannot be scaled: {reason}")
    if request.topology is None or request.deployment is None:
        return _hold("metric-missing", "the application's graph or deployment is unknown")
    if set(request.deployment.observed) != set(request.topology.names):
        return _hold("metric-missing", "the parallelism of at least one operator is unknown")
    if request.deployment.is_final:
        state = request.deployment.state
        return _hold("job-ended", f"the job is {state}; it can be scaled once it is submitted again")
    return None


def plan_offline(request: PlanRequest, planner: str | None = None) -> Plan:
    """Return the plan of the installed `planner` (default: the policy's) and the guards at the request's own time,
    without servers.

    Raises `UnknownPlanner` or `InvalidParameters`, both `ValueError`s whose sentence names the mistake.
    """
    name = planner or request.policy.spec.planner.name
    planner_of(name)
    reply = precheck(request)
    if reply is None:
        request = Request.of(request)  # planner and guards read it once
        reply = ask(request, name)
    return make_plan(request, reply, planner=name, created_at=request.now)


def coverage_problem(reply: PlanReply, request: PlanRequest) -> str | None:
    """Return what is wrong with a reply that does not cover exactly the topology's operators."""
    if reply.parallelism is None or request.topology is None:
        return None
    wanted, given = set(request.topology.names), set(reply.parallelism)
    if given == wanted:
        return None
    missing, extra = sorted(wanted - given), sorted(given - wanted)
    parts = [f"misses {names(missing)}"] if missing else []
    parts += [f"names the unknown operator {names(extra)}"] if extra else []
    return " and ".join(parts)


def make_plan(
    request: PlanRequest,
    reply: PlanReply,
    *,
    planner: str,
    created_at: datetime,
    planning_seconds: float | None = None,
) -> Plan:
    """Apply the guards to a reply and make the plan, with the state for the next one."""
    if (problem := coverage_problem(reply, request)) is not None:
        reply = _hold(INVALID_REPLY, f"the planner's reply {problem}")
    reply = _into_limits(reply, request)
    state = next_state(request, reply, planner)
    if reply.parallelism is None or request.topology is None or request.deployment is None:
        proposal, predicted = None, None
    else:
        proposal = amend(reply, Request.of(request).model_copy(update={"state": state}))
        predicted = _predicted(reply, proposal, planner)
        proposal = _worth_it(reply, proposal, predicted)
    spec, deployment, approved = request.policy.spec, request.deployment, proposal.vector if proposal else None
    lives = timedelta(seconds=max(3 * spec.interval.total_seconds(), MIN_EXPIRY_SECONDS))
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
        kind="hold" if approved is None else "scale",
        action=None if approved is None else ScaleAction(parallelism=approved),
        code=proposal.code if proposal else reply.code,
        sentence=bounded(_sentence(reply, proposal, predicted), MAX_SENTENCE),
        evidence=reply.evidence,
        prediction=_prediction(reply, approved, predicted),
        hold_prediction=reply.hold_prediction,
        infeasible=list(proposal.infeasible if proposal else reply.infeasible)[:100],
        alternatives=reply.alternatives,
        amendments=list(proposal.amendments) if proposal else [],
        planning_seconds=planning_seconds,
        state=state,
    )


def _prediction(reply: PlanReply, approved: Parallelism | None, predicted: Compared | None) -> Prediction | None:
    """Return the prediction of what the plan leads to: of a vector that guards have changed, or of a hold they made."""
    if approved is None and reply.parallelism is not None:
        return reply.hold_prediction
    if approved == reply.parallelism:
        return reply.prediction
    return predicted.going if predicted else None


def _predicted(reply: PlanReply, proposal: Proposal, planner: str) -> Compared | None:
    """Predict holding and a vector that the guards have changed; None if they have not."""
    if proposal.vector is None or proposal.vector == reply.parallelism:
        return None
    request = proposal.request
    try:
        assumptions = _given_assumptions(request, planner)
    except ValidationError:
        return None
    return compare(request, proposal.vector, assumptions)


def _given_assumptions(request: PlanRequest, planner: str) -> Assumptions:
    # `rate` decides by the same model, with the assumptions that its policy sets.
    given = request.policy.spec.planner.parameters if planner == "rate" else {}
    return Assumptions.model_validate({name: given[name] for name in Assumptions.model_fields if name in given})


def assumptions_of(request: PlanRequest, planner: str) -> Assumptions:
    """Return the assumptions that `rate` gets, where it is the policy's planner; else, or if they are invalid, the
    defaults."""
    try:
        return _given_assumptions(request, planner)
    except ValidationError:
        return Assumptions()


def _worth_it(reply: PlanReply, proposal: Proposal, predicted: Compared | None) -> Proposal:
    """Hold if the guards have left so little growth that its restart gains nothing."""
    current = proposal.current
    if predicted is None or proposal.vector is None or reply.code in ("out-of-bounds", "saturated", "before-the-peak"):
        return proposal
    if len(proposal.movable) < len(current):
        return proposal  # the policy requires another vector, whatever that gains
    grows = all(p >= current[name] for name, p in proposal.vector.items())
    # The busiest operator gains something, and needs it.
    used = predicted.staying.max_utilization or 0.0
    relieved = used > MAX_UTILIZATION and (predicted.going.max_utilization or 0.0) < used - 0.01
    if not grows or relieved or predicted.gains:
        return proposal
    limited = f"{changes(current, proposal.vector)}, limited by {listed(_guards(proposal), 40)}"
    return proposal.held("worth-it", "no-gain", f"{limited}, would gain nothing for its restart")


def _sentence(reply: PlanReply, proposal: Proposal | None, predicted: Compared | None) -> str:
    if proposal is None:
        return reply.sentence
    text, current = _reason(reply, proposal, predicted), proposal.current
    grows = any(p > current.get(name, p) for name, p in proposal.wanted.items())
    bound = known_in_part(proposal.request) if grows else None
    return text if bound is None else f"{text}; {bound}"


def _reason(reply: PlanReply, proposal: Proposal, predicted: Compared | None) -> str:
    """Say what will be done, what was proposed and which guards limited it, then the planner's reason.

    Of the reason the first clause without the proposed change: what follows it predicts the proposed vector.
    """
    if proposal.vector is None or proposal.vector == reply.parallelism or reply.parallelism is None:
        return proposal.sentence
    current, approved, proposed = proposal.current, proposal.vector, reply.parallelism
    differ = {name: p for name, p in proposed.items() if approved.get(name) != p}
    other = str(*differ.values()) if len(differ) == 1 else sizes(differ, 30)
    cause = proposal.sentence.removeprefix(f"{changes(current, proposed)}: ").partition("; ")[0]
    lag_seconds = predicted.going.max_lag_seconds if predicted else None
    return fitted(
        f"{changes(current, approved)} (the planner proposed {other}; limited by {listed(_guards(proposal), 30)})",
        f": {cause}",
        "" if lag_seconds is None else f"; lag peaks at {lag_seconds:.1f} s",
    )


def _guards(proposal: Proposal) -> list[str]:
    return list(dict.fromkeys(amendment.guard for amendment in proposal.amendments))


def _into_limits(reply: PlanReply, request: PlanRequest) -> PlanReply:
    """Bring an application that runs outside the policy's limits into them, also if the planner holds."""
    deployment, topology = request.deployment, request.topology
    if reply.parallelism is not None or reply.code in NO_OPINION or deployment is None or topology is None:
        return reply
    wanted, reasons = allowed(deployment.observed, request.policy.spec, topology, request.analysis)
    if wanted == deployment.observed:
        return reply
    reason, *others = reasons
    return PlanReply(
        kind="scale",
        parallelism=wanted,
        code="out-of-bounds",
        sentence=fitted(f"{changes(deployment.observed, wanted)}: {reason}", *(f"; {other}" for other in others)),
        evidence=reply.evidence,
        hold_prediction=reply.prediction,
        infeasible=reply.infeasible,
        alternatives=reply.alternatives,
        memory=reply.memory,
    )


def _hold(code: str, sentence: str) -> PlanReply:
    return PlanReply(kind="hold", code=code, sentence=sentence)
