"""Costs of the sample job as the trial and the benchmarks run it, and the resulting capacity."""

from collections.abc import Mapping

SLOWEST = "enrich"
"""The bottleneck; the other operators carry ten times as much."""
SERVICE_MICROS: Mapping[str, float] = {"parse": 100.0, SLOWEST: 2000.0, "aggregate": 200.0, "sink": 100.0}
"""Microseconds per record of a single subtask, by operator."""
CONTENTION: Mapping[str, float] = {SLOWEST: 0.03}
"""s in capacity(p) = c·p / (1 + s·(p − 1)); the other operators have none."""
WINDOW_SECONDS = 1.0
"""Length of `aggregate`'s windows."""
CHECKPOINT_INTERVAL_SECONDS = 10.0

SUBTASK_RATE = 485.0
"""Records/s of one subtask of the slowest operator: measured, 2 ms each and the overhead of a busy machine's clock."""


def arguments() -> list[str]:
    """Return these costs as the job's command-line arguments."""
    times = ",".join(f"{operator}={micros:g}" for operator, micros in SERVICE_MICROS.items())
    shares = ",".join(f"{operator}={share:g}" for operator, share in CONTENTION.items())
    return [
        *("--service-time-us", times),
        *("--contention", shares),
        *("--window-ms", f"{1000 * WINDOW_SECONDS:.0f}"),
        *("--checkpoint-interval-ms", f"{1000 * CHECKPOINT_INTERVAL_SECONDS:.0f}"),
    ]


def capacity(parallelism: int) -> float:
    """Return the measured records/s of the slowest operator."""
    return SUBTASK_RATE * parallelism / (1 + CONTENTION[SLOWEST] * (parallelism - 1))
