"""Choose among the plans of a policy's planner and its candidates, and judge those of its shadows. Pure.

Each proposal passes the guards as if its planner were the only one, with its own memory and its own recommendations for
the stabilisation windows. The predictor then judges what each plan leads to, and the best plan wins that is no shadow's.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weir_contracts import (
    NO_REPLY,
    Contender,
    ContenderState,
    Parallelism,
    Plan,
    PlannerChoice,
    PlanRequest,
    PlanState,
    ScoredCourse,
    bounded,
    counted,
    names,
    short_name,
)
from weir_contracts.plan_state import parameters_id
from weir_predictor import Outlook, Scenario, TooLittle, scenario_of
from weir_sdk.request import Request

from .decide import assumptions_of
from .plan_state import condensed, max_kept
from .scores import basis_of, begun, continued, followed

MAX_RECOMMENDATIONS = 20
MAX_MEMORIES_BYTES = 65_536
"""Of all candidates and shadows together: a plan carries them to the next one."""


@dataclass(frozen=True)
class ContenderRequest:
    label: str
    planner: str
    request: PlanRequest
    is_shadow: bool = False
    """Whether its plan is judged only, and never chosen."""


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
    spec = policy.spec.model_copy(update={"planner": choice, "candidates": [], "shadows": []})
    return request.model_copy(update={"policy": policy.model_copy(update={"spec": spec}), "memory": memory})


def own_request(request: PlanRequest) -> ContenderRequest:
    """Return the request to the policy's planner, without the state of its candidates and shadows."""
    name, state = request.policy.spec.planner.name, request.state.model_copy(update={"contenders": [], "courses": []})
    return ContenderRequest(name, name, request.model_copy(update={"state": state}))


def other_requests(request: PlanRequest) -> list[ContenderRequest]:
    """Return the requests to the candidates and then to the shadows, each with its own memory and recommendations; with
    other parameters it starts again."""
    kept = {(each.label, each.planner, each.parameters_id): each for each in request.state.contenders}
    spec, found = request.policy.spec, []
    for i, choice in enumerate([*spec.candidates, *spec.shadows]):
        key = (choice.called, choice.name, parameters_id(choice.parameters))
        own = kept.get(key) or ContenderState(label=key[0], planner=key[1], parameters_id=key[2])
        update = {"recommendations": own.recommendations, "contenders": [], "courses": []}
        alone = for_planner(request, choice.name, choice.parameters, own.memory)
        alone = alone.model_copy(update={"state": request.state.model_copy(update=update)})
        found.append(ContenderRequest(choice.called, choice.name, alone, is_shadow=i >= len(spec.candidates)))
    return found


def best_of(request: PlanRequest, plans: Sequence[tuple[ContenderRequest, Plan]]) -> Plan:
    """Return the best plan, which lists all contenders; the first is the policy's own planner, to which ties go. With
    shadows alone the own planner's plan is the plan as it is.

    Where the predictor cannot judge, the own planner's plan is the plan; so it is without candidates.
    """
    if len(plans) == 1:
        return _idle(plans[0][1], request)
    scenario = scenario_of(Request.of(request), assumptions_of(request, plans[0][1].planner))
    contenders, not_judged = _judged(scenario, request, plans)
    own = contenders[0]
    able = [each for each in contenders if each.outlook is not None and not each.call.is_shadow]
    winner = own if not able or isinstance(scenario, TooLittle) else _best(scenario, able)
    courses = _courses(request, scenario, plans)
    scores = {each.score.label: each.score for each in courses}
    listed = [
        _contender(each, winner, scenario, not_judged).model_copy(update={"score": scores.get(each.call.label)})
        for each in contenders
    ]
    has_candidates = any(not each.call.is_shadow for each in contenders[1:])
    plan = _with_prediction(winner) if has_candidates else own.plan
    state = _state(own.plan.state, contenders[1:]).model_copy(update={"courses": courses})
    return plan.model_copy(update={"state": state, "contenders": listed})


def _idle(plan: Plan, request: PlanRequest) -> Plan:
    """Return the plan of a cycle in which no candidate and no shadow was asked. They keep their memory and scores; their
    windows must be covered again."""
    if not request.policy.spec.candidates and not request.policy.spec.shadows:
        return plan
    again = [each.model_copy(update={"recommendations": []}) for each in request.state.contenders]
    state = plan.state.model_copy(update={"contenders": again, "courses": request.state.courses})
    return plan.model_copy(update={"state": state})


def _courses(
    request: PlanRequest, scenario: Scenario | TooLittle, plans: Sequence[tuple[ContenderRequest, Plan]]
) -> list[ScoredCourse]:
    """Return the scores after this cycle. While arrivals or a capacity are unknown they stand still."""
    kept = {(each.score.label, each.score.planner, each.basis_id): each for each in request.state.courses}
    keys = [(call.label, call.planner, basis_of(call.request)) for call, _ in plans]
    if isinstance(scenario, TooLittle) or scenario.suspects or scenario.partial:
        return [kept[key] for key in keys if key in kept]
    found, now = [], request.analysis.observed_at
    for key, (_, plan) in zip(keys, plans, strict=True):
        course = kept.get(key) or begun(*key, scenario, now)
        is_other = set(course.parallelism) != set(scenario.current)
        if is_other or _unmeasured(scenario, course.parallelism) is None:
            course = continued(course, scenario, now)
        found.append(followed(course, plan, request, scenario))
    return found


def _judged(
    scenario: Scenario | TooLittle, request: PlanRequest, plans: Sequence[tuple[ContenderRequest, Plan]]
) -> tuple[list[_Judged], str | None]:
    """Return the contenders with their outlooks, and why there are none (None: there are)."""
    assert request.deployment is not None and request.topology is not None  # noqa: S101 - see `precheck`
    vectors = [plan.approved or request.deployment.observed for _, plan in plans]
    reason, outlooks = None, list[Outlook | None]([None] * len(plans))
    if isinstance(scenario, TooLittle):
        reason = scenario.sentence
    elif scenario.suspects:
        reason = _unmeasured_sentence(sorted(scenario.suspects))
    else:
        replied = [i for i, (_, plan) in enumerate(plans) if plan.code not in NO_REPLY]
        unknown = {i: name for i in replied if (name := _unmeasured(scenario, vectors[i])) is not None}
        if 0 in unknown:
            reason, replied = _unmeasured_sentence([unknown[0]]), []
        replied = [i for i in replied if i not in unknown]
        for i, outlook in zip(replied, scenario.going([vectors[i] for i in replied]), strict=True):
            outlooks[i] = outlook
    return [
        _Judged(call, plan, vector, request.topology.slots(vector), outlook)
        for (call, plan), vector, outlook in zip(plans, vectors, outlooks, strict=True)
    ], reason


def _unmeasured_sentence(operators: Sequence[str]) -> str:
    return f"the demand or capacity of {names(operators)} is unknown"


def _unmeasured(scenario: Scenario, vector: Parallelism) -> str | None:
    """Return an operator that would shrink although nothing shows that fewer subtasks suffice; the model lets it take
    in everything. None: there is none."""
    for name, p in vector.items():
        now, load = scenario.current[name], scenario.model.loads.get(name)
        if p >= now or (name in scenario.model.curves and load is not None):
            continue
        even = scenario.topology.even_subtasks
        sustained = scenario.lower_bounds.get(name, 0.0) * even(name, p) / even(name, now)
        if load is None or load > scenario.max_utilization * sustained:
            return name
    return None


def _best(scenario: Scenario, able: Sequence[_Judged]) -> _Judged:
    """Return the cheapest of those that meet the objective, else of those close to the smallest violation."""
    good = [each for each in able if _is_good(scenario, each)]
    if good:
        return min(good, key=lambda each: each.cost)
    allowed = scenario.within_tolerance(min(map(_outlook, able), key=scenario.violation_cost))
    near = [each for each in able if scenario.violation_cost(_outlook(each)) <= allowed]
    return min(near, key=lambda each: each.cost)


def _limit(scenario: Scenario, vector: Parallelism) -> float:
    """Return the load over capacity that a plan may lead to: after shrinking the one for new sizes, since an operator
    at the limit for staying would grow again with the next record."""
    shrinks = any(p < scenario.current[name] for name, p in vector.items())
    return scenario.target_utilization if shrinks else scenario.max_utilization


def _is_good(scenario: Scenario, judged: _Judged) -> bool:
    outlook = _outlook(judged)
    return scenario.is_good(outlook) and (outlook.max_utilization or 0.0) <= _limit(scenario, judged.vector)


def _outlook(judged: _Judged) -> Outlook:
    assert judged.outlook is not None  # noqa: S101 - the caller's filter
    return judged.outlook


def _contender(each: _Judged, winner: _Judged, scenario: Scenario | TooLittle, not_judged: str | None) -> Contender:
    outlook, plan = each.outlook, each.plan
    return Contender(
        label=each.call.label,
        planner=each.call.planner,
        is_shadow=each.call.is_shadow,
        proposed=plan.proposed,
        approved=plan.approved,
        code=plan.code,
        sentence=plan.sentence,
        cost_slots=each.slots if each.replied else None,
        violation_seconds=None if outlook is None else round(outlook.violation_seconds, 2),
        max_lag_seconds=None if outlook is None else outlook.max_lag_seconds,
        max_utilization=None if outlook is None else outlook.max_utilization,
        lost_because=None if each is winner else bounded(_lost(each, winner, scenario, not_judged)),
    )


def _lost(each: _Judged, winner: _Judged, scenario: Scenario | TooLittle, not_judged: str | None) -> str:
    """Return why a contender lost, with the guards that made its proposal a hold."""
    if not each.replied:
        return each.plan.sentence
    if not_judged is not None or isinstance(scenario, TooLittle):
        return f"not judged, so {winner.call.label} decides: {not_judged or ''}"
    if each.outlook is None:
        operator = short_name(_unmeasured(scenario, each.vector) or "")
        return f"not judged: what fewer subtasks of {operator} process is unknown"
    if each.call.is_shadow and (winner.outlook is None or _best(scenario, [winner, each]) is each):
        return f"would be chosen instead of {winner.call.label} if it were a candidate"
    held = each.plan.proposed is not None and each.plan.approved is None
    reason = _worse(each, winner, scenario)
    return f"{_last_guard(each.plan)} held its proposal; {reason}" if held else reason


def _worse(each: _Judged, winner: _Judged, scenario: Scenario) -> str:
    name = winner.call.label
    if each.vector == winner.vector:
        return f"leads to the same parallelism as {name}"
    own, best = _outlook(each), _outlook(winner)
    if _is_good(scenario, winner) and not _is_good(scenario, each) and own.violation_seconds == 0:
        used, limit = own.max_utilization or 0.0, _limit(scenario, each.vector)
        return f"the busiest operator would be used to {used:.0%} of its capacity, above {limit:.0%}"
    if scenario.violation_cost(own) > scenario.violation_cost(best):
        never = scenario.violation_cost(own)[0] or math.isinf(own.violation_seconds)
        late = "never meets the objective" if never else f"above the objective for {own.violation_seconds:,.0f} s"
        return f"{late}, {name} for {best.violation_seconds:,.0f} s"
    if each.slots > winner.slots:
        return f"costs {counted(each.slots, 'slot')}, {name} {winner.slots}"
    return f"is no better than {name}"


def _last_guard(plan: Plan) -> str:
    """Return the guard that made a proposal a hold; `no-change` only states that nothing is left of it."""
    guards = [each.guard for each in plan.amendments]
    return next((guard for guard in reversed(guards) if guard != "no-change"), "no-change")


def _with_prediction(winner: _Judged) -> Plan:
    """Return the winner's plan, with the prediction that it won by where its planner gave none."""
    if winner.plan.prediction is not None or winner.outlook is None:
        return winner.plan
    return winner.plan.model_copy(update={"prediction": winner.outlook.prediction()})


def _state(own: PlanState, others: Sequence[_Judged]) -> PlanState:
    """Return the state for the next plan: the own planner's, and that of each candidate and shadow.

    A memory that exceeds what all of them may keep together is left out: its planner starts again.
    """
    left, kept = MAX_MEMORIES_BYTES, []
    for each in others:
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
