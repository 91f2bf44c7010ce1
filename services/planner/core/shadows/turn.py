"""One turn of all simulated copies of an application."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from weir_contracts import (
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

from services.planner.core.decide import make_plan, precheck
from services.planner.core.recommendations import condensed

from .copies import moved_on, newborn, standing, supplying, watched
from .hindsight import Judged, judge
from .known import Known, known_of
from .sums import Sums, added
from .virtual import Lived, request_of

OBSERVED = "observed"
NO_ANSWER = frozenset({"planner-timeout", "planner-failed", "planner-invalid", "invalid-reply"})
"""Reason codes of a planner that said nothing that could be used."""
MOST_RESCALES, MOST_HISTORY, MOST_WISHES = 20, 20, 60
SHORTEST_ARRIVED = timedelta(seconds=2.5)
"""Shorter ones are joined: what has to be kept is bounded."""
SHORTEST_GAP_SECONDS = 15.0
FORGOTTEN_AFTER_SECONDS = 600.0
"""After so long a gap the copies begin anew from the real application."""


@dataclass(frozen=True)
class Ask:
    """A question to a shadow, or to the chosen planner about its copy."""

    label: str
    planner: str
    timeout_seconds: float
    request: PlanRequest


def wants(request: PlanRequest) -> bool:
    """Whether the policy asks for shadows now."""
    spec = request.policy.spec
    return bool(spec.shadows) and spec.mode != "paused"


def begin(before: Shadows | None, request: PlanRequest) -> tuple[Shadows | None, list[Ask]]:
    """Let every copy run until now, and what is to be asked about each.

    Whoever is new, or has other parameters, begins where the real application is; so do all where the job or its graph changed. Nothing
    is simulated through a gap or on what is unknown: the copies stand still for that time, and it is not scored.
    """
    known = known_of(request) if precheck(request) is None else None
    if known is None:
        return before, []
    at = request.analysis.observed_at
    if before is not None and at <= before.at:
        return before, []
    hours = before.hours if before is not None else []
    if before is not None and not _goes_on(before, known, at):
        before = None
    seconds = (at - before.at).total_seconds() if before is not None else 0.0
    if seconds > _longest(request):
        seconds = 0.0
    candidates, sums, lived = _lived(before, known, seconds)
    _compare(known, candidates, lived, seconds, sums)
    arrived = _with_arrived(before.arrived if before is not None else [], known, at, seconds)
    judged = Judged(before.judged_until, before.judged_need) if before is not None else Judged()
    candidates, arrived, judged = judge(known, candidates, arrived, judged, sums)
    asks = [
        Ask(c.label, choice.name, choice.timeout.total_seconds(), request_of(known, c, choice, lived[c.label]))
        for c, (role, _, choice) in zip(candidates, _listed(request), strict=True)
        if role != OBSERVED and c.label in lived
    ]
    after = Shadows(
        id=derive_id(request.analysis.id, "shadows"),
        application=request.application,
        observation_id=request.analysis.observation_id,
        at=at,
        job_id=known.deployment.job_id,
        graph_hash=known.deployment.graph_hash,
        candidates=candidates,
        arrived=arrived,
        judged_until=judged.until,
        judged_need=judged.need,
        hours=added(hours, at, candidates, sums),
    )
    return after, asks


def _lived(
    before: Shadows | None, known: Known, seconds: float
) -> tuple[list[Candidate], dict[str, Sums], dict[str, Lived]]:
    """Every copy that is listed after so many seconds, with what they add to its score, and what it did in them."""
    kept = {c.label: c for c in before.candidates} if before is not None else {}
    candidates, sums, lived = [], dict[str, Sums](), dict[str, Lived]()
    for role, label, choice in _listed(known.request):
        sums[label] = Sums()
        old = kept.get(label)
        same = (choice.name, parameters_id(choice.parameters), role)
        if old is None or (old.planner, old.parameters_id, old.role) != same:
            candidate = newborn(known, role, label, choice)
            life = standing(known, candidate)
        elif role == OBSERVED:
            candidate, life = watched(known, old, seconds, sums[label])
        else:
            candidate, life = moved_on(known, old, seconds, sums[label])
        candidates.append(candidate)
        if life is not None:
            lived[label] = life
    return candidates, sums, lived


def finish(after: Shadows, answers: Sequence[tuple[Ask, PlanReply]]) -> Shadows:
    """The guards amend each answer as they would for the chosen planner, and the plan is carried out on the copy."""
    by_label = {c.label: c for c in after.candidates}
    sums = {label: Sums() for label in by_label}
    for ask, reply in answers:
        candidate = by_label[ask.label]
        by_label[ask.label], code = _planned(candidate, ask, reply)
        sums[ask.label].add(turns=1, unanswered=1 if code in NO_ANSWER else 0)
        if by_label[ask.label].rescales[:1] != candidate.rescales[:1]:
            sums[ask.label].add(rescales=1)
    candidates = list(by_label.values())
    return after.model_copy(update={"candidates": candidates, "hours": added(after.hours, after.at, candidates, sums)})


def _goes_on(before: Shadows, known: Known, at: datetime) -> bool:
    """Whether the copies are still of the same application, and not too old."""
    gap = (at - before.at).total_seconds()
    same = (before.job_id, before.graph_hash) == (known.deployment.job_id, known.deployment.graph_hash)
    return same and gap <= max(_longest(known.request), FORGOTTEN_AFTER_SECONDS)


def _longest(request: PlanRequest) -> float:
    return max(3 * request.policy.spec.interval.total_seconds(), SHORTEST_GAP_SECONDS)


def _listed(request: PlanRequest) -> list[tuple[Role, str, PlannerChoice]]:
    spec = request.policy.spec
    shadows: list[tuple[Role, str, PlannerChoice]] = [("shadow", s.called, s) for s in spec.shadows]
    return [("chosen", spec.planner.name, spec.planner), *shadows, ("observed", OBSERVED, spec.planner)]


def _compare(
    known: Known, candidates: Sequence[Candidate], lived: Mapping[str, Lived], seconds: float, sums: Mapping[str, Sums]
) -> None:
    """The chosen planner's copy beside what really happened: the mean of three relative errors, of parallelism, of utilisation (weighted
    by parallelism) and of lag (over the objective). Not where the real application does not follow its planner."""
    chosen = candidates[0]
    life, lag = lived.get(chosen.label), known.analysis.lag_seconds.value
    follows = known.request.policy.spec.mode == "act" or dict(chosen.parallelism) == known.observed
    if life is None or seconds <= 0 or lag is None or not follows:
        return
    total = sum(known.observed.values())
    of_parallelism = sum(abs(chosen.parallelism[name] - p) for name, p in known.observed.items()) / total
    weighed, weight = 0.0, 0
    for operator in known.analysis.operators:
        real, simulated = operator.utilisation.value, life.utilisation(known, operator.operator)
        if real is not None and simulated is not None:
            weighed += abs(real - simulated) * operator.parallelism
            weight += operator.parallelism
    bound = known.request.policy.spec.objective.bound_seconds or max(lag, 30.0)
    errors = [min(1.0, of_parallelism), min(1.0, abs(life.stretch.lag_seconds - lag) / bound)]
    if weight:
        errors.append(min(1.0, weighed / weight))
    sums[chosen.label].add(compared_seconds=seconds, error=sum(errors) / len(errors) * seconds)


def _with_arrived(before: Sequence[Arrived], known: Known, at: datetime, seconds: float) -> list[Arrived]:
    if seconds <= 0:
        return list(before)
    rates = {name: round(rate, 3) for name, rate in known.model.arrivals.items()}
    last = before[-1] if before else None
    if (
        last is not None
        and timedelta(seconds=last.seconds) < SHORTEST_ARRIVED
        and (at - last.at).total_seconds() <= seconds + 0.001
    ):
        both = last.seconds + seconds
        mean = {n: round((last.rates.get(n, 0.0) * last.seconds + r * seconds) / both, 3) for n, r in rates.items()}
        return [*before[:-1], Arrived(at=at, seconds=round(both, 3), rates=mean)]
    return [*before, Arrived(at=at, seconds=round(seconds, 3), rates=rates)][-MAX_ARRIVED:]


def _planned(candidate: Candidate, ask: Ask, reply: PlanReply) -> tuple[Candidate, str]:
    """The copy with a plan, and the plan's code."""
    request = ask.request
    plan = make_plan(request, reply, candidate.state, planner=ask.planner, created_at=request.now)
    state = plan.state.model_copy(update={"recommendations": condensed(plan.state.recommendations, MOST_WISHES)})
    history = list(candidate.history)
    if "history" in reads(ask.planner):
        result = plan.in_short(request.analysis.lag_seconds.value, request.analysis.arrival_rate.value)
        history = [result, *history][:MOST_HISTORY]
    kept = candidate.model_copy(update={"state": state, "history": history})
    wanted = plan.approved
    if wanted is None or wanted == dict(candidate.parallelism):
        return kept, plan.code
    known = known_of(request)
    seconds = known.restart.seconds if known else 0.0
    at = request.analysis.observed_at
    rescale = VirtualRescale(
        id=derive_id(plan.id, f"shadow {candidate.label}"),
        at=at,
        running_at=at + timedelta(seconds=seconds),
        before=candidate.parallelism,
        wanted=wanted,
    )
    rescaled = supplying(kept, at, wanted).model_copy(
        update={
            "down_seconds": seconds,
            "replay": True,
            "running_since": rescale.running_at,
            "rescales": [rescale, *kept.rescales][:MOST_RESCALES],
        }
    )
    return rescaled, plan.code
