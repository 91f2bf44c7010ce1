"""Cost of plans: processor time of requests of ten operators through `rate` and all guards, on one core."""

import cProfile
import gc
import pstats
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from bench.advance import OPERATORS, PARTITIONS, baseline, observation
from bench.results_file import distribution
from weir_analyzer.core import AnalysisSettings, advance
from weir_contracts import Analysis, Plan, PlanRequest, PlanState, Recommendation
from weir_planner.core.decide import plan_offline
from weir_planner.request_cache import RequestCache

REQUESTS = 1000
BUDGET_SECONDS = 1.0
LOADS = {"steady": 1.0, "overloaded": 2.4, "idle": 0.3}
"""Times the 5,000 records/s at which each operator is busy for 60 %: nothing to do, six candidates to compare, one
smaller."""
CYCLES, WARM = 60, 50
ROUNDS = 15
"""The best round is the cost of the work; slower ones measure other programs (as in `timeit`)."""
MAX_FUNCTIONS = 15


def requests() -> dict[str, list[PlanRequest]]:
    """Return requests of a job after two minutes of observations, by load."""
    applications, memory = RequestCache(30, 20), None
    found: dict[str, list[PlanRequest]] = {name: [] for name in LOADS}
    for cycle in range(CYCLES):
        observed = observation(cycle)
        applications.observed(observed)
        memory, analysis = advance(memory, observed, AnalysisSettings())
        if analysis is None or cycle < WARM:
            continue
        for name, factor in LOADS.items():
            request = applications.request(_under(analysis, factor), analysis.observed_at)
            found[name].append(request.model_copy(update={"state": _state(request)}))
    return found


def _under(analysis: Analysis, factor: float) -> Analysis:
    sources = [
        source.model_copy(update={"arrival_rate": _times(source.arrival_rate, factor)}) for source in analysis.sources
    ]
    return analysis.model_copy(update={"sources": sources, "arrival_rate": _times(analysis.arrival_rate, factor)})


def _times(estimate: Any, factor: float) -> Any:
    return estimate.model_copy(update={"value": None if estimate.value is None else estimate.value * factor})


def _state(request: PlanRequest) -> PlanState:
    """Return a state with two minutes of recommendations for stabilisation."""
    observed = request.deployment.observed if request.deployment else {}
    recommendations = [
        Recommendation(at=request.now - timedelta(seconds=2 * i), parallelism=observed) for i in range(65, 0, -1)
    ]
    return PlanState(planner="rate", recommendations=recommendations)


def planned(request: PlanRequest) -> Plan:
    """Return the plan for a request, through planner and guards as in the planner service."""
    return plan_offline(request, "rate")


def measure(count: int = REQUESTS) -> dict[str, Any]:
    """Measure the processor time of `count` requests with alternating loads, and of each load."""
    by_load = requests()
    mixed = [request for together in zip(*by_load.values(), strict=True) for request in together]
    _seconds(mixed, len(mixed))  # warm
    rounds = [_seconds(mixed, count) for _ in range(ROUNDS)]
    each = {name: _milliseconds(loaded) for name, loaded in by_load.items()}
    return {
        "what": f"processor time of {count} requests through rate and all guards, one thread; the best of {ROUNDS} rounds",
        "operators": OPERATORS,
        "partitions": PARTITIONS,
        "seconds": round(min(rounds), 3),
        "rounds_seconds": [round(seconds, 3) for seconds in rounds],
        "budget_seconds": round(BUDGET_SECONDS * count / REQUESTS, 3),
        "within_budget": min(rounds) <= BUDGET_SECONDS * count / REQUESTS,
        "milliseconds_each": each,
        "baseline_ms": round(1000 * min(baseline() for _ in range(20)), 3),
        "codes": {name: planned(loaded[0]).code for name, loaded in by_load.items()},
    }


def _seconds(requests: Sequence[PlanRequest], count: int) -> float:
    gc.collect()
    begin = time.process_time()
    for i in range(count):
        planned(requests[i % len(requests)])
    return time.process_time() - begin


def _milliseconds(requests: Sequence[PlanRequest]) -> dict[str, Any]:
    milliseconds = []
    for i in range(100):
        begin = time.process_time()
        planned(requests[i % len(requests)])
        milliseconds.append(1000 * (time.process_time() - begin))
    return distribution(milliseconds)


def profile(count: int = 200) -> list[dict[str, Any]]:
    """Return the functions with the most own time, as shares of the total. A profile slows calls down."""
    mixed = [request for together in zip(*requests().values(), strict=True) for request in together]
    profiler = cProfile.Profile()
    profiler.enable()
    for i in range(count):
        planned(mixed[i % len(mixed)])
    profiler.disable()
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    costliest = sorted(stats.items(), key=lambda item: -item[1][2])[:MAX_FUNCTIONS]
    return [
        {
            "where": f"{'/'.join(path.split('/')[-2:])}:{line} {name}",
            "calls": calls,
            "own_share": round(own / total, 3),
            "share": round(cumulative / total, 3),
        }
        for (path, line, name), (_, calls, own, cumulative, _) in costliest
    ]
