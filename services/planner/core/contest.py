"""Choose among the plans of a policy's planner and its candidates. Pure.

Each proposal passes the guards as if its planner were the only one, with its own memory and its own recommendations for
the stabilisation windows. The predictor then judges what each plan leads to, and the best plan wins.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir_contracts import (
    NO_REPLY,
    Contender,
    ContenderState,
    Parallelism,
    Plan,
    PlannerChoice,
    PlanReply,
    PlanRequest,
    PlanState,
    bounded,
)
from weir_contracts.shadows import parameters_id
from weir_planner.request import Request

from predictor import Comparison, Outlook, TooLittle, comparison_of, within_tolerance

from . import messages
from .decide import assumptions_of, make_plan
from .recommendations import condensed, max_kept

MAX_RECOMMENDATIONS = 20
MAX_MEMORIES_BYTES = 65_536
"""Of all candidates together: a plan carries them to the next one."""


@dataclass(frozen=True)
class ContenderRequest:
    label: str
    planner: str
    request: PlanRequest


@dataclass(frozen=True)
class _Judged:
    call: ContenderRequest
    plan: Plan
    vector: Parallelism
    """Parallelism that the plan leads to."""
    slots: int
    outlook: Outlook | None
    """None: not judged."""

    @property
    def replied(self) -> bool:
        return self.plan.code not in NO_REPLY

    @property
    def cost(self) -> tuple[int, int]:
        return self.slots, sum(self.vector.values())


def for_planner(request: PlanRequest, planner: str, parameters: dict[str, Any], memory: dict[str, Any]) -> PlanRequest:
    """Return the request as a policy with this planner alone would make it."""
    policy = request.policy
    choice = PlannerChoice(name=planner, parameters=parameters, timeout=policy.spec.planner.timeout)
    spec = policy.spec.model_copy(update={"planner": choice, "candidates": []})
    return request.model_copy(update={"policy": policy.model_copy(update={"spec": spec}), "memory": memory})


def own_request(request: PlanRequest) -> ContenderRequest:
    """Return the request to the policy's planner, without the state of its candidates."""
    name, state = request.policy.spec.planner.name, request.state.model_copy(update={"contenders": []})
    return ContenderRequest(name, name, request.model_copy(update={"state": state}))


def candidate_requests(request: PlanRequest) -> list[ContenderRequest]:
    """Return the requests to the candidates, each with its own memory and recommendations; with other parameters it
    starts again."""
    kept = {(each.label, each.planner, each.parameters_id): each for each in request.state.contenders}
    found = []
    for candidate in request.policy.spec.candidates:
        key = (candidate.called, candidate.name, parameters_id(candidate.parameters))
        own = kept.get(key) or ContenderState(label=key[0], planner=key[1], parameters_id=key[2])
        state = request.state.model_copy(update={"recommendations": own.recommendations, "contenders": []})
        alone = for_planner(request, candidate.name, candidate.parameters, own.memory)
        found.append(ContenderRequest(candidate.called, candidate.name, alone.model_copy(update={"state": state})))
    return found


def planned(
    call: ContenderRequest, reply: PlanReply, *, created_at: datetime, planning_seconds: float | None = None
) -> Plan:
    """Return the plan of one contender after the guards."""
    request, planner = call.request, call.planner
    state = request.state.model_copy(update={"memory": request.memory, "planner": planner})
    return make_plan(request, reply, state, planner=planner, created_at=created_at, planning_seconds=planning_seconds)


def best_of(request: PlanRequest, plans: Sequence[tuple[ContenderRequest, Plan]]) -> Plan:
    """Return the best plan, which lists all contenders; the first is the policy's own planner, to which ties go.

    Where the predictor cannot judge, the own planner's plan is the plan; so it is without candidates.
    """
    if len(plans) == 1:
        return _idle(plans[0][1], request)
    comparison = comparison_of(Request.of(request), assumptions_of(request, plans[0][1].planner))
    contenders, not_judged = _judged(comparison, request, plans)
    own = contenders[0]
    able = [each for each in contenders if each.outlook is not None]
    winner = own if not able or isinstance(comparison, TooLittle) else _best(comparison, able)
    listed = [_contender(each, winner, comparison, not_judged) for each in contenders]
    return _with_prediction(winner).model_copy(
        update={"state": _state(own.plan.state, contenders[1:]), "contenders": listed}
    )


def _idle(plan: Plan, request: PlanRequest) -> Plan:
    """Return the plan of a cycle without candidates. They keep their memory; their windows must be covered again."""
    kept = request.state.contenders if request.policy.spec.candidates else []
    if not kept:
        return plan
    again = [each.model_copy(update={"recommendations": []}) for each in kept]
    return plan.model_copy(update={"state": plan.state.model_copy(update={"contenders": again})})


def _judged(
    comparison: Comparison | TooLittle, request: PlanRequest, plans: Sequence[tuple[ContenderRequest, Plan]]
) -> tuple[list[_Judged], str | None]:
    """Return the contenders with their outlooks, and why there are none (None: there are)."""
    assert request.deployment is not None and request.topology is not None  # noqa: S101 - see `precheck`
    vectors = [plan.approved or request.deployment.observed for _, plan in plans]
    reason, outlooks = None, list[Outlook | None]([None] * len(plans))
    if isinstance(comparison, TooLittle):
        reason = comparison.sentence
    elif comparison.suspects:
        reason = messages.unmeasured(sorted(comparison.suspects))
    else:
        replied = [i for i, (_, plan) in enumerate(plans) if plan.code not in NO_REPLY]
        unknown = {i: name for i in replied if (name := _unmeasured(comparison, vectors[i])) is not None}
        if 0 in unknown:
            reason, replied = messages.unmeasured([unknown[0]]), []
        replied = [i for i in replied if i not in unknown]
        for i, outlook in zip(replied, comparison.going([vectors[i] for i in replied]), strict=True):
            outlooks[i] = outlook
    return [
        _Judged(call, plan, vector, request.topology.slots(vector), outlook)
        for (call, plan), vector, outlook in zip(plans, vectors, outlooks, strict=True)
    ], reason


def _unmeasured(comparison: Comparison, vector: Parallelism) -> str | None:
    """Return an operator that would shrink although nothing shows that fewer subtasks suffice; the model lets it take
    in everything. None: there is none."""
    for name, p in vector.items():
        now, load = comparison.current[name], comparison.model.loads.get(name)
        if p >= now or (name in comparison.model.curves and load is not None):
            continue
        even = comparison.topology.even_subtasks
        sustained = comparison.lower_bounds.get(name, 0.0) * even(name, p) / even(name, now)
        if load is None or load > comparison.max_utilization * sustained:
            return name
    return None


def _best(comparison: Comparison, able: Sequence[_Judged]) -> _Judged:
    """Return the cheapest of those that meet the objective, else of those close to the smallest violation."""
    good = [each for each in able if _is_good(comparison, each)]
    if good:
        return min(good, key=lambda each: each.cost)
    smallest = min(comparison.violation_cost(_outlook(each)) for each in able)
    near = [each for each in able if comparison.violation_cost(_outlook(each)) <= within_tolerance(smallest)]
    return min(near, key=lambda each: each.cost)


def _limit(comparison: Comparison, vector: Parallelism) -> float:
    """Return the load over capacity that a plan may lead to: after shrinking the one for new sizes, since an operator
    at the limit for staying would grow again with the next record."""
    shrinks = any(p < comparison.current[name] for name, p in vector.items())
    return comparison.target_utilization if shrinks else comparison.max_utilization


def _is_good(comparison: Comparison, judged: _Judged) -> bool:
    outlook = _outlook(judged)
    return comparison.is_good(outlook) and (outlook.max_utilization or 0.0) <= _limit(comparison, judged.vector)


def _outlook(judged: _Judged) -> Outlook:
    assert judged.outlook is not None  # noqa: S101 - the caller's filter
    return judged.outlook


def _contender(each: _Judged, winner: _Judged, comparison: Comparison | TooLittle, not_judged: str | None) -> Contender:
    outlook, plan = each.outlook, each.plan
    return Contender(
        label=each.call.label,
        planner=each.call.planner,
        proposed=plan.proposed,
        approved=plan.approved,
        code=plan.code,
        sentence=plan.sentence,
        cost_slots=each.slots if each.replied else None,
        violation_seconds=None if outlook is None else round(outlook.violation_seconds, 2),
        max_lag_seconds=None if outlook is None else outlook.max_lag_seconds,
        max_utilization=None if outlook is None else outlook.max_utilization,
        lost_because=None if each is winner else bounded(_lost(each, winner, comparison, not_judged)),
    )


def _lost(each: _Judged, winner: _Judged, comparison: Comparison | TooLittle, not_judged: str | None) -> str:
    """Return why a contender lost, with the guards that made its proposal a hold."""
    if not each.replied:
        return each.plan.sentence
    if not_judged is not None or isinstance(comparison, TooLittle):
        return messages.undecided(not_judged or "", winner.call.label)
    if each.outlook is None:
        return messages.not_known_to_suffice(_unmeasured(comparison, each.vector) or "")
    held = each.plan.proposed is not None and each.plan.approved is None
    reason = _worse(each, winner, comparison)
    return messages.held_by(_last_guard(each.plan), reason) if held else reason


def _worse(each: _Judged, winner: _Judged, comparison: Comparison) -> str:
    name = winner.call.label
    if each.vector == winner.vector:
        return messages.same_as(name)
    own, best = _outlook(each), _outlook(winner)
    if _is_good(comparison, winner) and not _is_good(comparison, each) and own.violation_seconds == 0:
        return messages.too_busy(own.max_utilization or 0.0, _limit(comparison, each.vector))
    if comparison.violation_cost(own) > comparison.violation_cost(best):
        late = math.inf if comparison.violation_cost(own)[0] else own.violation_seconds
        return messages.later_than(late, name, best.violation_seconds)
    if each.slots > winner.slots:
        return messages.dearer_than(each.slots, name, winner.slots)
    return messages.no_better_than(name)


def _last_guard(plan: Plan) -> str:
    """Return the guard that made a proposal a hold; `no-change` only states that nothing is left of it."""
    guards = [each.guard for each in plan.amendments]
    return next((guard for guard in reversed(guards) if guard != "no-change"), "no-change")


def _with_prediction(winner: _Judged) -> Plan:
    """Return the winner's plan, with the prediction that it won by where its planner gave none."""
    if winner.plan.prediction is not None or winner.outlook is None:
        return winner.plan
    return winner.plan.model_copy(update={"prediction": winner.outlook.prediction()})


def _state(own: PlanState, candidates: Sequence[_Judged]) -> PlanState:
    """Return the state for the next plan: the own planner's, and that of each candidate.

    A memory that exceeds what all candidates may keep together is left out: its planner starts again.
    """
    left, kept = MAX_MEMORIES_BYTES, []
    for each in candidates:
        state, memory = each.plan.state, each.plan.state.memory
        size = len(json.dumps(memory, default=str).encode()) if memory else 0
        if size > left:
            memory, size = {}, 0
        left -= size
        parameters = each.call.request.policy.spec.planner.parameters
        kept.append(
            ContenderState(
                label=each.call.label,
                planner=each.call.planner,
                parameters_id=parameters_id(parameters),
                memory=memory,
                recommendations=condensed(state.recommendations, max_kept(each.plan.current, MAX_RECOMMENDATIONS)),
            )
        )
    return own.model_copy(update={"contenders": kept})
