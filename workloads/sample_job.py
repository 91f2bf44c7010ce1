"""The sample job in figures, as the trial and the benchmarks run it: what it is started with, and what it can therefore do."""

from collections.abc import Mapping

SLOWEST = "enrich"
"""The operator that everything waits for under load; the others carry ten times as much."""
SERVICE_MICROS: Mapping[str, float] = {"parse": 100.0, SLOWEST: 2000.0, "aggregate": 200.0, "sink": 100.0}
"""What a record takes one subtask that is alone, by operator."""
CONTENTION: Mapping[str, float] = {SLOWEST: 0.03}
"""s in capacity(p) = c·p / (1 + s·(p − 1)); the other operators' subtasks take nothing from each other."""
WINDOW_SECONDS = 1.0
"""Length of `aggregate`'s windows."""
CHECKPOINT_INTERVAL_SECONDS = 10.0

SUBTASK_RATE = 485.0
"""Records/s of one subtask of the slowest operator: measured, 2 ms each and what the clock of a busy machine adds."""


def arguments() -> list[str]:
    """All of this on the job's command line."""
    times = ",".join(f"{operator}={micros:g}" for operator, micros in SERVICE_MICROS.items())
    shares = ",".join(f"{operator}={share:g}" for operator, share in CONTENTION.items())
    return [
        *("--service-time-us", times),
        *("--contention", shares),
        *("--window-ms", f"{1000 * WINDOW_SECONDS:.0f}"),
        *("--checkpoint-interval-ms", f"{1000 * CHECKPOINT_INTERVAL_SECONDS:.0f}"),
    ]


def capacity(parallelism: int) -> float:
    """Records/s that the slowest operator really does."""
    return SUBTASK_RATE * parallelism / (1 + CONTENTION[SLOWEST] * (parallelism - 1))
