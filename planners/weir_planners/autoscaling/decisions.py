"""Decisions of the autoscalers `hpa` and `keda-kafka` about their workloads, and the reply built from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weir_contracts import Infeasible, Parallelism, PlanReply, PlanRequest, changes, listed, short_name

from . import v2
from .records import Ask, TooManyWorkloads, Workloads


@dataclass(frozen=True)
class Decision:
    """Size that a workload's autoscaler wants, or the reason for none."""

    current: int
    wanted: int
    proposal: int | None = None
    allowed: int | None = None
    """The proposal within the limits."""
    able: str = ""
    limited: str = ""
    missing: str | None = None


def narrowed(minimum: int, maximum: int, low: int | None, high: int | None) -> tuple[int, int]:
    """Return the parameters' bounds, by default the policy's; the lower one yields."""
    low, high = minimum if low is None else low, maximum if high is None else high
    return min(low, high), high


def decide(
    workloads: Workloads,
    name: str,
    limits: v2.Limits,
    current: int,
    *,
    proposals: Sequence[int | v2.NoMetric],
    now: float,
) -> Decision:
    """Run one sync of a workload; update its records in `workloads`."""
    records = v2.begun(workloads.observed(name, limits, current, now), current, now)
    wanted = v2.outside(limits, current)
    if wanted is not None:
        decision = Decision(current, wanted, limited="TooManyReplicas" if wanted < current else "TooFewReplicas")
    else:
        try:
            proposal = v2.max_proposal(proposals, current)
        except v2.NoMetric as error:
            decision = Decision(current, current, missing=str(error))
        else:
            settled, records = v2.settle(records, limits, current, proposal, now)
            allowed = max(limits.minimum, min(proposal, limits.maximum))
            decision = Decision(current, settled.replicas, proposal, allowed, settled.able, settled.limited)
    workloads.keep(name, records, current, Ask(now, decision.wanted) if decision.wanted != current else None)
    return decision


def spread(decisions: Mapping[str, Decision], observed: Parallelism, request: PlanRequest) -> Parallelism:
    """Return the vector of the workloads' sizes; an application's size applies to each operator within its limits."""
    whole = decisions.get("")
    if whole is None:
        return {name: decisions[name].wanted if name in decisions else p for name, p in observed.items()}
    if whole.wanted == whole.current or request.topology is None:
        return dict(observed)
    limits = request.topology.limits(request.policy.spec.bounds)
    return {name: max(found.min, min(whole.wanted, found.max_allowed)) for name, found in limits.items()}


def answer(
    request: PlanRequest,
    decisions: Mapping[str, Decision],
    observed: Parallelism,
    workloads: Workloads,
    *,
    evidence: Mapping[str, float | int | str | bool | None],
    infeasible: Sequence[Infeasible] = (),
) -> PlanReply:
    """Return the reply built from the workloads' decisions."""
    wanted = spread(decisions, observed, request)
    try:
        memory = workloads.memory()
    except TooManyWorkloads as error:
        return PlanReply(kind="hold", code="too-many-operators", sentence=str(error))
    numbers: dict[str, float | int | str | bool | None] = dict(evidence)
    for name, decision in decisions.items():
        numbers[label("proposal", name)] = decision.proposal
        numbers[label("wanted", name)] = decision.wanted
    code, reason = _reasons(decisions, observed, wanted)
    moved = changes(observed, wanted)
    is_scale = wanted != observed
    return PlanReply(
        kind="scale" if is_scale else "hold",
        parallelism=wanted if is_scale else None,
        code=code,
        sentence=f"{moved}: {reason}" if is_scale else reason,
        evidence=dict(list(numbers.items())[:200]),
        infeasible=list(infeasible)[:100],
        memory=memory,
    )


_LIMITED = {
    "ScaleUpLimit": "no more can be added at once",
    "ScaleDownLimit": "no more can be removed at once",
    "TooManyReplicas": "the maximum is reached",
    "TooFewReplicas": "the minimum is reached",
}
_STABILISED = {
    "ScaleUpStabilized": "the stabilisation window contains a smaller recommendation",
    "ScaleDownStabilized": "the stabilisation window contains a larger recommendation",
}


def _reasons(decisions: Mapping[str, Decision], observed: Parallelism, wanted: Parallelism) -> tuple[str, str]:
    """Return code and text: the first reason other than being on target."""
    moved = {name: d for name, d in decisions.items() if d.wanted != d.current}
    missing = [d.missing for d in decisions.values() if d.missing is not None]
    if wanted != observed:
        grows = any(wanted[name] > observed[name] for name in wanted)
        reasons = [_explained(name, d) for name, d in moved.items()] + missing
        return ("above-target" if grows else "below-target"), listed(reasons, 90, "; ")
    if missing:
        return "metric-missing", f"{listed(missing, 130, '; ')}, so nothing changes"
    held = [(n, d) for n, d in decisions.items() if d.allowed not in {None, d.current}]
    for name, decision in held:
        reason = decision.able if decision.able in _STABILISED else decision.limited
        return _kebab(reason), _explained(name, decision)
    now = listed([f"{short_name(name) or 'the application'} at {d.current}" for name, d in decisions.items()])
    return "within-tolerance", f"{now}: on target, or too close to it for a change"


def _explained(workload: str, decision: Decision) -> str:
    """`the metric asks work for 9, and no more can be added at once`."""
    who = short_name(workload) or "the application"
    if decision.proposal is None:
        return f"{who} runs at {decision.current}, outside its limits"
    parts = [f"the metric asks {who} for {decision.proposal}"]
    parts += [text[r] for text, r in ((_STABILISED, decision.able), (_LIMITED, decision.limited)) if r in text]
    return " and ".join(parts)


def _kebab(reason: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in reason).lstrip("-")


def label(metric: str, workload: str) -> str:
    """Return the name of a piece of evidence."""
    return f"{metric}[{workload}]" if workload else metric
