"""Comparison of the capacity of scaled-up operators with the capacity before."""

from dataclasses import dataclass
from typing import Literal

from weir_contracts import ActionState, Analysis, Estimate, OperatorAnalysis, OperatorBaseline, Parallelism, short_name

from .parameters import Rules

_COLD = ("warming-up", "restarting", "gap", "retention-gap", "not-running", "unreachable")


@dataclass(frozen=True)
class CapacityComparison:
    """Result of a comparison; `unknown` (no comparable measurement) is not `fine`."""

    kind: Literal["unknown", "fine", "worse"]
    sentence: str


def baselines(
    before: Parallelism, wanted: Parallelism, analysis: Analysis | None, rules: Rules
) -> list[OperatorBaseline]:
    """Return the present capacity and input rate, in records/s, of each operator that is to be scaled up.

    Capacity is the true processing rate of this window, else an earlier measurement at this parallelism. The input rate
    is the target input rate if measured, since a backlogged operator's actual input rate is its capacity.
    """
    if analysis is None:
        return []
    found = []
    for name, parallelism in wanted.items():
        operator = analysis.operator(name)
        if operator is None or name not in before or parallelism <= before[name]:
            continue
        found.append(
            OperatorBaseline(
                operator=name,
                capacity_records_per_second=_capacity(operator, before[name], rules),
                input_rate=_demand(operator),
            )
        )
    return found


def judge(action: ActionState, analysis: Analysis | None, rules: Rules) -> CapacityComparison:
    """Compare capacities over a warm window at comparable demand."""
    cold = _not_warm(action, analysis, rules)
    if cold is not None or analysis is None:
        return CapacityComparison("unknown", cold or "there is no analysis")
    compared = []
    for baseline in action.baselines:
        operator = analysis.operator(baseline.operator)
        if operator is None or operator.parallelism != action.wanted.get(baseline.operator):
            continue
        was, is_now = baseline.capacity_records_per_second, _trusted(operator.true_processing_rate, rules)
        if was is None or is_now is None or not _is_comparable(operator, baseline, rules):
            continue
        text = (
            f"{short_name(baseline.operator)} processes {is_now:,.0f} records/s with {operator.parallelism}, "
            f"before {was:,.0f} with {action.before.get(baseline.operator)}"
        )
        if is_now < rules.capacity_share * was:
            return CapacityComparison("worse", text)
        compared.append(text)
    if not compared:
        return CapacityComparison("unknown", "no scaled-up operator was busy enough at comparable input")
    more = f" (and {len(compared) - 1} more)" if len(compared) > 1 else ""
    return CapacityComparison("fine", compared[0] + more)


def _not_warm(action: ActionState, analysis: Analysis | None, rules: Rules) -> str | None:
    if not action.baselines:
        return "no operator was scaled up, or none was measured before"
    if analysis is None or action.running_at is None:
        return "there is no analysis of the new parallelism yet"
    deployment, window = analysis.deployment, analysis.window
    if analysis.status != "running" or deployment is None or deployment.observed != action.wanted:
        return "there is no analysis of the new parallelism yet"
    if deployment.job_id != action.deployment.job_id:
        return "the analysis is of another job"
    if window.started_at is None or window.started_at < action.running_at:
        return "the window began before the new parallelism ran"
    if window.seconds < rules.capacity_window_seconds or any(analysis.has(code) for code in _COLD):
        return "there is no warm window of the new parallelism yet"
    return None


def _is_comparable(operator: OperatorAnalysis, baseline: OperatorBaseline, rules: Rules) -> bool:
    """Return whether the operator is busy enough, and its demand near enough to before, to compare capacities."""
    utilization, demand = _trusted(operator.utilization, rules), _demand(operator)
    if utilization is None or utilization < rules.min_utilization or demand is None or baseline.input_rate is None:
        return False
    return abs(demand - baseline.input_rate) <= rules.comparable_demand * baseline.input_rate


def _demand(operator: OperatorAnalysis) -> float | None:
    target = operator.target_input_rate.value
    demand = operator.input_rate.value if target is None else target
    return None if demand is None or demand < 0 else demand


def _capacity(operator: OperatorAnalysis, parallelism: int, rules: Rules) -> float | None:
    if operator.parallelism == parallelism:
        now = _trusted(operator.true_processing_rate, rules)
        if now is not None:
            return now
    measured = [c for c in operator.capacities if c.parallelism == parallelism and c.confidence >= rules.min_confidence]
    return max(measured, key=lambda point: point.measured_at).records_per_second if measured else None


def _trusted(estimate: Estimate, rules: Rules) -> float | None:
    if estimate.value is None or estimate.value < 0 or estimate.confidence < rules.min_confidence:
        return None
    return estimate.value
