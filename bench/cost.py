"""Processor time of an observation in the analyzer's core, and of a plan by `rate` with all guards; one thread, an
application of ten operators.

`make bench-advance` writes bench/results/advance.json, `python -m bench planners --requests` planner_requests.json. The
ratio to a fixed piece of pure Python on the same machine is what to compare between machines.
"""

import cProfile
import gc
import pstats
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from bench.results_file import distribution, write
from weir_analyzer.core import AnalysisSettings, AnalyzerState, advance
from weir_contracts import (
    Analysis,
    Deployment,
    Edge,
    Observation,
    Operator,
    OperatorReading,
    PartitionReading,
    Plan,
    PlanRequest,
    PlanState,
    Recommendation,
    Run,
    Topology,
    observation_id,
    policy_of,
)
from weir_planner.core.decide import plan_offline
from weir_planner.request_cache import RequestCache

OPERATORS, PARTITIONS, INTERVAL_SECONDS, OBSERVATIONS = 10, 12, 2, 600
BUDGET_MILLISECONDS = 5.0
"""Budget from bytes to bytes: 200 observations/s a core, so that one core suffices for 1,000 applications at an interval
of 5 s."""
START = datetime(2026, 6, 14, 12, tzinfo=UTC)
REQUESTS = 1000
BUDGET_SECONDS = 1.0
LOADS = {"steady": 1.0, "overloaded": 2.4, "idle": 0.3}
"""Factors on 5,000 records/s, at which each operator is busy for 60 %. They lead to a hold, to a comparison of six
candidates, and to one smaller candidate."""
CYCLES, WARM = 60, 50
ROUNDS = 15
"""The best round is the cost of the work; slower ones measure other programs (as in `timeit`)."""
MAX_FUNCTIONS = 15


def observation(
    i: int,
    *,
    application: str = "bench/advance",
    interval_seconds: float = INTERVAL_SECONDS,
    start: datetime = START,
) -> Observation:
    """The i-th scrape of a steady job that started at `start`."""
    seconds = round(interval_seconds * (i + 1))
    at = start + timedelta(seconds=seconds)
    names = [f"operator-{n}" for n in range(OPERATORS)]
    topology = Topology(
        operators=[Operator(name=n, id=n, max_parallelism=120) for n in names],
        edges=[Edge(source=a, target=b) for a, b in pairwise(names)],
    )
    policy = policy_of(
        application,
        version=1,
        application={"flink": {"url": "http://127.0.0.1:8081", "job": "bench"}},
        objective={"maxLag": "30s"},
        interval=f"{interval_seconds:g}s",
    )
    return Observation(
        id=observation_id(application, at),
        application=application,
        observed_at=at,
        policy=policy,
        status="running",
        run=Run(attempt=0, running_since=start),
        deployment=Deployment(
            job_id="b" * 32,
            job_name="bench",
            graph_hash=topology.graph_hash(),
            health="running",
            state="RUNNING",
            observed=dict.fromkeys(names, 4),
        ),
        topology=topology,
        operators=[
            OperatorReading(
                operator=n,
                parallelism=4,
                records_in=5000 * seconds,
                records_out=5000 * seconds,
                busy_ms=2400.0 * seconds,
                backpressured_ms=100.0 * seconds,
                idle_ms=1500.0 * seconds,
                busy_share_mean=0.6,
                busy_share_max=0.65,
                backpressure_share_mean=0.02,
                backpressure_share_max=0.03,
            )
            for n in names
        ],
        partitions=[
            PartitionReading(
                operator=names[0],
                topic="orders",
                partition=p,
                log_start_offset=0,
                log_end_offset=420 * seconds,
                current_offset=420 * seconds - 40,
            )
            for p in range(PARTITIONS)
        ],
    )


def baseline() -> float:
    """CPU seconds of a fixed piece of pure Python: dictionaries, strings, arithmetic."""
    begin = time.process_time()
    counts: dict[str, int] = {}
    for i in range(20_000):
        key = str(i * 7919 % 997)
        counts[key] = counts.get(key, 0) + i
    return time.process_time() - begin


def measure() -> dict[str, object]:
    """A run of observations through `advance` with the state as bytes, and through everything from bytes to bytes."""
    settings = AnalysisSettings()
    bodies = [observation(i).model_dump_json().encode() for i in range(OBSERVATIONS)]
    state: bytes | None = None
    core_ms: list[float] = []
    whole_ms: list[float] = []
    for body in bodies:
        begin = time.process_time()
        observation_read = Observation.model_validate_json(body)
        parsed = time.process_time()
        memory, analysis = advance(
            None if state is None else AnalyzerState.from_bytes(state), observation_read, settings
        )
        state = None if memory is None else memory.to_bytes()
        advanced = time.process_time()
        out = None if analysis is None else analysis.model_dump_json()
        whole_ms.append(1000 * (time.process_time() - begin))
        core_ms.append(1000 * (advanced - parsed))
    baseline_ms = 1000 * statistics.median(baseline() for _ in range(20))
    warm_core, warm_whole = core_ms[100:], whole_ms[100:]
    median = statistics.median(warm_core)
    whole = statistics.median(warm_whole)
    return {
        "what": "CPU of one observation; state read from and written to bytes",
        "operators": OPERATORS,
        "partitions": PARTITIONS,
        "advance_ms": distribution(warm_core),
        "bytes_to_bytes_ms": distribution(warm_whole),
        "budget_ms": BUDGET_MILLISECONDS,
        "within_budget": whole <= BUDGET_MILLISECONDS,
        "baseline_ms": round(baseline_ms, 3),
        "advance_in_baselines": round(median / baseline_ms, 3),
        "state_bytes": len(state or b""),
        "analysis_bytes": len(out or ""),
    }


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


def measure_requests(count: int = REQUESTS) -> dict[str, Any]:
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


def main() -> int:
    """Measure an observation and keep the figures."""
    print(write("advance", "make bench-advance", measure()).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
