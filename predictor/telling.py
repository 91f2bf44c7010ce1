"""The answer to a what-if in words."""

from weir_contracts import WhatIf, WhatIfOperator

from .trajectory import LEAST_RATE
from .words import changes


def sentence_of(answer: WhatIf, at_least: str | None = None) -> str:
    """What a person wants to know first: does it keep up, what becomes of the lag, where does it break, can it be had. `at_least`
    says what is carried where it is unknown from where on it breaks."""
    load = f"{answer.arrival_rate:,.0f} records/s"
    if answer.load_factor is not None:
        load += f" (x{answer.load_factor:.3g})"
    moved = changes(answer.parallelism_now, answer.parallelism)
    vector = "the present parallelism" if moved == "no change" else moved
    parts = [f"At {load} with {vector} {_verdict(answer)}"]
    if answer.breaks_at_load is not None and answer.breaks_at_rate is not None:
        parts.append(
            f"{'It breaks beyond' if answer.keeps_up else 'It carries up to'} x{answer.breaks_at_load:.3g} "
            f"({answer.breaks_at_rate:,.0f} records/s), where {answer.bottleneck} is full"
        )
    if at_least is not None:
        parts.append(at_least)
    if not answer.possible:
        parts.append("It cannot be had: " + "; ".join(dict.fromkeys(one.because for one in answer.infeasible)))
    elif answer.infeasible:
        parts.append("; ".join(one.because for one in answer.infeasible))
    return (". ".join(parts) + ".")[:2000]


def carries_at_least(operator: str, rate: float, rate_now: float) -> str:
    """Up to which records/s at all sources it does not break, for a bound of what `operator` sustains."""
    load = f"x{rate / rate_now:.3g} ({rate:,.0f} records/s)" if rate_now > LEAST_RATE else f"{rate:,.0f} records/s"
    return f"It carries at least {load}: what {operator} does beyond that was never seen"


def _verdict(answer: WhatIf) -> str:
    if answer.keeps_up is None:
        gaps = [
            f"the {gap.what} of {gap.operator} is unknown ({gap.because})"
            for gap in answer.unknown
            if gap.what != "lag"
        ]
        rest = f", and {len(gaps) - 1} more" if len(gaps) > 1 else ""
        return f"it cannot be told whether it keeps up: {gaps[0]}{rest}"
    busiest = next((o for o in answer.operators if o.operator == answer.bottleneck), None)
    if answer.keeps_up:
        return f"it keeps up{_busy(busiest)}{_lag(answer)}"
    return f"it does not keep up: {_shortage(answer, busiest)}{_lag(answer)}"


def _busy(busiest: WhatIfOperator | None) -> str:
    if busiest is None or busiest.utilisation is None:
        return ""
    return f", with {busiest.operator} at {busiest.utilisation:.0%} of its capacity"


def _shortage(answer: WhatIf, busiest: WhatIfOperator | None) -> str:
    if busiest is None or busiest.capacity is None or busiest.arrival_rate is None:
        return "more arrives than is taken in"
    text = f"{busiest.arrival_rate:,.0f} records/s would arrive at {busiest.operator}"
    text += f", {busiest.parallelism} process {busiest.capacity:,.0f}"
    if busiest.least_parallelism is not None and busiest.least_parallelism > busiest.parallelism:
        text += f" (it needs {busiest.least_parallelism})"
    if answer.arrival_rate > 0 and answer.throughput is not None:
        text += f"; {answer.throughput:,.0f} of {answer.arrival_rate:,.0f} are taken in"
    return text


def _lag(answer: WhatIf) -> str:
    found, objective = answer.prediction, answer.objective_seconds
    if found is None:
        lost = next((gap for gap in answer.unknown if gap.what == "lag"), None)
        return f"; its lag cannot be told, for the lag of {lost.operator} is unknown ({lost.because})" if lost else ""
    within = f"{found.horizon_seconds:,.0f} s"
    if answer.keeps_up:
        peak = f"; lag peaks at {found.max_lag_seconds:,.1f} s"
        peak += f" in a restart of {found.downtime_seconds:.2g} s" if found.downtime_seconds > 0 else ""
    else:
        peak = f"; lag reaches {found.final_lag_seconds:,.0f} s in {within}"
    if objective is None:
        return peak
    left, met = found.objective_left_at_seconds, found.objective_met_at_seconds
    if left is None:
        return f"{peak}, within the objective of {objective:g} s"
    if met is None:
        since = "from the start" if left == 0 else f"from {left:,.0f} s on"
        return f"{peak}, above the objective of {objective:g} s {since}"
    return f"{peak}, above the objective of {objective:g} s until {met:,.0f} s from now"
