"""Cost of one observation: `advance` of a 10-operator application, state read from and written to bytes.

`make bench-advance`; writes bench/results/advance.json. Times are CPU time of one thread. The ratio to a fixed piece of
pure Python on the same machine is what to compare between machines.
"""

import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from bench.results_file import distribution, write
from weir_analyzer.core import AnalysisSettings, AnalyzerState, advance
from weir_contracts import (
    Deployment,
    Edge,
    Observation,
    Operator,
    OperatorReading,
    PartitionReading,
    Run,
    Topology,
    observation_id,
    policy_of,
)

OPERATORS, PARTITIONS, INTERVAL_SECONDS, OBSERVATIONS = 10, 12, 2, 600
BUDGET_MILLISECONDS = 5.0
"""From bytes to bytes: 200 observations/s a core, so that 1,000 applications at an interval of 5 s need no more than
one."""
START = datetime(2026, 6, 14, 12, tzinfo=UTC)


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


def main() -> int:
    """Measure and keep."""
    print(write("advance", "make bench-advance", measure()).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
