"""Cost of plans: requests of ten operators through `rate` and the whole guard chain, on one core, in processor time."""

import cProfile
import gc
import pstats
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from weir_contracts import Analysis, Plan, PlanRequest, PlanState, Recommendation
from weir_planner.installed import ask

from bench.advance import OPERATORS, PARTITIONS, baseline, observation
from bench.results_file import distribution
from services.analyzer.core import AnalysisSettings, advance
from services.planner.core.decide import make_plan, precheck
from services.planner.request_cache import RequestCache

REQUESTS = 1000
BUDGET_SECONDS = 1.0
LOADS = {"steady": 1.0, "overloaded": 2.4, "idle": 0.3}
"""Times the 5,000 records/s at which each operator is busy for 60 %: nothing to do, six candidates to compare, one smaller."""
TURNS, WARM = 60, 50
ROUNDS = 15
"""The best of them tells what the work costs, the rest what else the machine did (as `timeit` has it)."""
MAX_FUNCTIONS = 15


def requests() -> dict[str, list[PlanRequest]]:
    """Requests of a job that was watched for two minutes, under each load."""
    applications, memory = RequestCache(30, 20), None
    found: dict[str, list[PlanRequest]] = {name: [] for name in LOADS}
    for turn in range(TURNS):
        seen = observation(turn)
        applications.observed(seen)
        memory, analysis = advance(memory, seen, AnalysisSettings())
        if analysis is None or turn < WARM:
            continue
        for name, factor in LOADS.items():
            asked = applications.request(_under(analysis, factor), analysis.observed_at)
            found[name].append(asked.model_copy(update={"state": _state(asked)}))
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
    """One request through planner and guards, as the planner does it."""
    reply = precheck(request) or ask(request, "rate")
    return make_plan(request, reply, request.state, planner="rate", created_at=request.now)


def measure(count: int = REQUESTS) -> dict[str, Any]:
    """Processor time of `count` requests, the loads in turn, and of each load by itself."""
    by_load = requests()
    mixed = [request for together in zip(*by_load.values(), strict=True) for request in together]
    _seconds(mixed, len(mixed))  # warm
    rounds = [_seconds(mixed, count) for _ in range(ROUNDS)]
    each = {name: _milliseconds(asked) for name, asked in by_load.items()}
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
        "codes": {name: planned(asked[0]).code for name, asked in by_load.items()},
    }


def _seconds(asked: Sequence[PlanRequest], count: int) -> float:
    gc.collect()
    begin = time.process_time()
    for i in range(count):
        planned(asked[i % len(asked)])
    return time.process_time() - begin


def _milliseconds(asked: Sequence[PlanRequest]) -> dict[str, Any]:
    told = []
    for i in range(100):
        begin = time.process_time()
        planned(asked[i % len(asked)])
        told.append(1000 * (time.process_time() - begin))
    return distribution(told)


def profile(count: int = 200) -> list[dict[str, Any]]:
    """Where the time goes: the functions with the most of their own, as shares of the whole (a profile slows calls down)."""
    asked = [request for together in zip(*requests().values(), strict=True) for request in together]
    profiler = cProfile.Profile()
    profiler.enable()
    for i in range(count):
        planned(asked[i % len(asked)])
    profiler.disable()
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    whole = sum(own for _, _, own, _, _ in stats.values())
    largest = sorted(stats.items(), key=lambda item: -item[1][2])[:MAX_FUNCTIONS]
    return [
        {
            "where": f"{'/'.join(path.split('/')[-2:])}:{line} {name}",
            "calls": calls,
            "own_share": round(own / whole, 3),
            "share": round(cumulative / whole, 3),
        }
        for (path, line, name), (_, calls, own, cumulative, _) in largest
    ]
