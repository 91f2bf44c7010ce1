"""One cycle of the simulated applications of one real application."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from weir_contracts import (
    NO_REPLY,
    Arrived,
    Candidate,
    PlannerChoice,
    PlanReply,
    PlanRequest,
    Shadows,
    VirtualRescale,
    derive_id,
)
from weir_contracts.shadows import MAX_ARRIVED, Role, parameters_id
from weir_planner.installed import reads

from predictor import restart_of
from services.planner.core.decide import make_plan, precheck
from services.planner.core.recommendations import condensed

from .real import Real, real_of
from .scoring import Figures, Judged, added, judge, together
from .simulated import Elapsed, advanced, at_rest, initial, observed, rescaled
from .view import request_of

OBSERVED = "observed"
MAX_RESCALES, MAX_HISTORY, MAX_RECOMMENDATIONS = 20, 20, 60
MIN_ARRIVED = timedelta(seconds=2.5)
"""Shorter intervals of arrivals are joined, which bounds the message."""
MIN_GAP_SECONDS = 15.0
FORGOTTEN_AFTER_SECONDS = 600.0
"""After a longer gap the simulated applications start again from the real one."""


@dataclass(frozen=True)
class Call:
    """A call to a shadow, or to the chosen planner about its simulated application."""

    label: str
    planner: str
    timeout_seconds: float
    request: PlanRequest


def has_shadows(request: PlanRequest) -> bool:
    """Return whether the policy lists shadows and is not paused."""
    spec = request.policy.spec
    return bool(spec.shadows) and spec.mode != "paused"


def begin(before: Shadows | None, request: PlanRequest) -> tuple[Shadows | None, list[Call]]:
    """Advance every simulated application to now, and return the planner calls to make.

    A new planner, or one with other parameters, starts from the real application; so do all after another job or graph.
    During a gap, or while something is unknown, the simulated applications stand still unscored.
    """
    real = real_of(request) if precheck(request) is None else None
    at = request.analysis.observed_at
    if real is None or (before is not None and at <= before.at):
        return before, []
    hours = before.hours if before is not None else []
    if before is not None and not _continues(before, real, at):
        before = None
    seconds = (at - before.at).total_seconds() if before is not None else 0.0
    if seconds > _max_gap_seconds(request):
        seconds = 0.0
    candidates, ran, elapsed = _advance_all(before, real, seconds)
    compared = {candidates[0].label: _compared(real, candidates[0], elapsed.get(candidates[0].label), seconds)}
    arrived = _with_arrived(before.arrived if before is not None else [], real, at, seconds)
    judged = Judged(before.judged_until, before.judged_need) if before is not None else Judged()
    candidates, arrived, judged, scored = judge(real, candidates, arrived, judged)
    figures = {c.label: together(*(each.get(c.label, {}) for each in (ran, compared, scored))) for c in candidates}
    calls = [
        Call(c.label, choice.name, choice.timeout.total_seconds(), request_of(real, c, choice, elapsed[c.label]))
        for c, (role, _, choice) in zip(candidates, _listed(request), strict=True)
        if role != OBSERVED and c.label in elapsed
    ]
    after = Shadows(
        id=derive_id(request.analysis.id, "shadows"),
        application=request.application,
        observation_id=request.analysis.observation_id,
        at=at,
        job_id=real.request.deployment.job_id,
        graph_hash=real.request.deployment.graph_hash,
        candidates=candidates,
        arrived=arrived,
        judged_until=judged.until,
        judged_need=judged.need,
        hours=added(hours, at, candidates, figures),
    )
    return after, calls


def _advance_all(
    before: Shadows | None, real: Real, seconds: float
) -> tuple[list[Candidate], dict[str, Figures], dict[str, Elapsed]]:
    """Return every listed candidate after so many seconds, the figures of its score, and its elapsed time."""
    kept = {c.label: c for c in before.candidates} if before is not None else {}
    candidates, figures, all_elapsed = [], dict[str, Figures](), dict[str, Elapsed]()
    for role, label, choice in _listed(real.request):
        elapsed, old = None, kept.get(label)
        same = (choice.name, parameters_id(choice.parameters), role)
        if old is None or (old.planner, old.parameters_id, old.role) != same:
            candidate = initial(real, role, label, choice)
            elapsed = at_rest(real, candidate)
        elif role == OBSERVED:
            candidate, figures[label] = observed(real, old, seconds)
        else:
            candidate, elapsed, figures[label] = advanced(real, old, seconds)
        candidates.append(candidate)
        if elapsed is not None:
            all_elapsed[label] = elapsed
    return candidates, figures, all_elapsed


def finish(after: Shadows, replies: Sequence[tuple[Call, PlanReply]]) -> Shadows:
    """Amend each reply by the guards as for the chosen planner, and apply the plan to its simulated application."""
    by_label = {c.label: c for c in after.candidates}
    figures: dict[str, Figures] = {}
    for call, reply in replies:
        before = by_label[call.label]
        by_label[call.label], code = _planned(before, call, reply)
        is_rescaled = by_label[call.label].rescales[:1] != before.rescales[:1]
        figures[call.label] = {"cycles": 1, "unanswered": int(code in NO_REPLY), "rescales": int(is_rescaled)}
    candidates = list(by_label.values())
    return after.model_copy(
        update={"candidates": candidates, "hours": added(after.hours, after.at, candidates, figures)}
    )


def _continues(before: Shadows, real: Real, at: datetime) -> bool:
    """Return whether the simulated applications are of the same job and graph, and not too old."""
    gap = (at - before.at).total_seconds()
    same = (before.job_id, before.graph_hash) == (real.request.deployment.job_id, real.request.deployment.graph_hash)
    return same and gap <= max(_max_gap_seconds(real.request), FORGOTTEN_AFTER_SECONDS)


def _max_gap_seconds(request: PlanRequest) -> float:
    return max(3 * request.policy.spec.interval.total_seconds(), MIN_GAP_SECONDS)


def _listed(request: PlanRequest) -> list[tuple[Role, str, PlannerChoice]]:
    spec = request.policy.spec
    shadows: list[tuple[Role, str, PlannerChoice]] = [("shadow", s.called, s) for s in spec.shadows]
    return [("chosen", spec.planner.name, spec.planner), *shadows, ("observed", OBSERVED, spec.planner)]


def _compared(real: Real, chosen: Candidate, elapsed: Elapsed | None, seconds: float) -> Figures:
    """Compare the chosen planner's simulated application with the real one, if that follows its planner.

    The error is the mean of three relative errors: parallelism, utilization (weighted by parallelism) and lag (over the
    objective).
    """
    lag, spec = real.request.analysis.lag_seconds.value, real.request.policy.spec
    follows = spec.mode == "act" or chosen.parallelism == real.request.current
    if elapsed is None or seconds <= 0 or lag is None or not follows:
        return {}
    differing = sum(abs(chosen.parallelism[name] - p) for name, p in real.request.current.items())
    weighed, weight = 0.0, 0
    for operator in real.request.analysis.operators:
        measured, simulated = operator.utilization.value, elapsed.utilization(real, operator.operator)
        if measured is not None and simulated is not None:
            weighed += abs(measured - simulated) * operator.parallelism
            weight += operator.parallelism
    errors = [
        differing / sum(real.request.current.values()),
        abs(elapsed.interval.lag_seconds - lag) / (spec.objective.bound_seconds or max(lag, 30.0)),
    ]
    if weight:
        errors.append(weighed / weight)
    mean = sum(min(1.0, error) for error in errors) / len(errors)
    return {"compared_seconds": seconds, "error": mean * seconds}


def _with_arrived(before: Sequence[Arrived], real: Real, at: datetime, seconds: float) -> list[Arrived]:
    if seconds <= 0:
        return list(before)
    rates = {name: round(rate, 3) for name, rate in real.model.arrivals.items()}
    last = before[-1] if before else None
    if (
        last is None
        or timedelta(seconds=last.seconds) >= MIN_ARRIVED
        or (at - last.at).total_seconds() > seconds + 0.001
    ):
        return [*before, Arrived(at=at, seconds=round(seconds, 3), rates=rates)][-MAX_ARRIVED:]
    both = last.seconds + seconds
    mean = {n: round((last.rates.get(n, 0.0) * last.seconds + r * seconds) / both, 3) for n, r in rates.items()}
    return [*before[:-1], Arrived(at=at, seconds=round(both, 3), rates=mean)]


def _planned(candidate: Candidate, call: Call, reply: PlanReply) -> tuple[Candidate, str]:
    """Return the candidate with a plan, and the plan's code."""
    request, analysis = call.request, call.request.analysis
    plan = make_plan(request, reply, candidate.state, planner=call.planner, created_at=request.now)
    recommendations = condensed(plan.state.recommendations, MAX_RECOMMENDATIONS)
    history = list(candidate.history)
    if "history" in reads(call.planner):
        result = plan.in_short(analysis.lag_seconds.value, analysis.arrival_rate.value)
        history = [result, *history][:MAX_HISTORY]
    kept = candidate.model_copy(
        update={"state": plan.state.model_copy(update={"recommendations": recommendations}), "history": history}
    )
    wanted, at = plan.approved, analysis.observed_at
    if wanted is None or wanted == candidate.parallelism:
        return kept, plan.code
    seconds = restart_of(analysis, request.deployment, request.outcomes).seconds
    rescale = VirtualRescale(
        id=derive_id(plan.id, f"shadow {candidate.label}"),
        at=at,
        running_at=at + timedelta(seconds=seconds),
        before=candidate.parallelism,
        wanted=wanted,
    )
    update = {
        "down_seconds": seconds,
        "replay": True,
        "running_since": rescale.running_at,
        "rescales": [rescale, *kept.rescales][:MAX_RESCALES],
    }
    return rescaled(kept, at, wanted).model_copy(update=update), plan.code
