"""Options and choices of the steps of `rate`, and the reply that takes one."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from weir_contracts import Alternative, Infeasible, Parallelism, PlanReply, counted
from weir_predictor import Outlook, Scenario


class Option(NamedTuple):
    """A vector with its outlook."""

    vector: Parallelism
    outlook: Outlook
    cost: tuple[int, int]
    """Slots; of equal slots the number of subtasks."""


def options_of(scenario: Scenario, vectors: Sequence[Parallelism]) -> list[Option]:
    outlooks = scenario.going(vectors)
    return [Option(v, outlook, cost_of(scenario, v)) for v, outlook in zip(vectors, outlooks, strict=True)]


def cost_of(scenario: Scenario, vector: Parallelism) -> tuple[int, int]:
    """Return slots and subtasks."""
    return scenario.topology.slots(vector), sum(vector.values())


class Choice(NamedTuple):
    """The decision of a step."""

    scale: Option | None
    """None: hold."""
    code: str
    sentence: str
    refused: Sequence[Option] = ()


def holding(scenario: Scenario) -> Option:
    return Option(scenario.current, scenario.staying, cost_of(scenario, scenario.current))


def reply_of(scenario: Scenario, choice: Choice, infeasible: Sequence[Infeasible]) -> PlanReply:
    scale, code, sentence, refused = choice
    hold = holding(scenario)
    chosen, doubtful = scale or hold, bool(scenario.suspects or scenario.partial)
    confidences = [curve.confidence for curve in scenario.model.curves.values()]
    return PlanReply(
        kind="scale" if scale else "hold",
        parallelism=scale.vector if scale else None,
        code=code,
        sentence=sentence,
        evidence=_evidence(scenario),
        prediction=None if doubtful else chosen.outlook.prediction(),
        hold_prediction=None if doubtful or not scale else hold.outlook.prediction(),
        infeasible=list(infeasible)[:100],
        alternatives=[
            Alternative(
                parallelism=option.vector,
                cost_slots=option.cost[0],
                violation_seconds=round(option.outlook.violation_seconds, 2),
                because=_reason_for(option, chosen),
            )
            for option in ([] if doubtful else refused[:20])
        ],
        confidence=round(min(confidences), 3) if confidences else None,
    )


def _evidence(scenario: Scenario) -> dict[str, float | int | str | bool | None]:
    lag = scenario.analysis.lag_seconds
    evidence: dict[str, float | int | str | bool | None] = {
        "arrival_rate_records_per_second": round(sum(scenario.model.arrivals.values()), 1),
        "backlog_records": round(scenario.backlog_records, 0),
        "lag_seconds": None if lag.value is None else round(lag.value, 2),
        "restart_seconds": round(scenario.restart.seconds, 2),
        "objective_seconds": scenario.objective.bound_seconds,
        "horizon_seconds": round(scenario.horizon_seconds, 1),
    }
    if lag.lower_bound is not None:
        evidence["lag_seconds_at_least"] = round(lag.lower_bound, 2)
    loads, capacities, bounds = scenario.model.loads, scenario.staying.capacities, scenario.lower_bounds
    for name in scenario.topology.names[:100]:
        evidence[f"target_rate[{name}]"] = round(loads[name], 1) if name in loads else None
        evidence[f"capacity[{name}]"] = round(capacities[name], 1) if name in capacities else None
        if name in bounds:
            evidence[f"capacity_at_least[{name}]"] = round(bounds[name], 1)
    return evidence if len(evidence) <= 200 else dict(list(evidence.items())[:200])


def _reason_for(option: Option, chosen: Option) -> str:
    late = option.outlook.late_seconds
    if late > chosen.outlook.late_seconds:
        return f"above the objective for {late:,.0f} s" if math.isfinite(late) else "never meets the objective"
    if option.cost > chosen.cost:
        return f"costs {counted(option.cost[0], 'slot')} and {counted(option.cost[1], 'subtask')}, and is no better"
    return "no better than the chosen vector"
