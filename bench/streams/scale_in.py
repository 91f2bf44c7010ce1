"""Scale-ins of four stateful tasks from two instances to one: the longest time that a task stands still."""

import time
from typing import Any

from bench.results_file import distribution, log
from testbed.process import free_port
from testbed.trial.options import GROUP_ID, TrialOptions, short_behavior

from .running import CommitWatch, StreamsRunning, running

TASKS = 4
RATE = 100.0
COMMIT_MS = 200
"""Bounds the error of a time without progress."""
SESSION_SECONDS = 45.0
ACTION_SECONDS = 60.0


def _bounds(count: int) -> dict[str, Any]:
    return {"bounds": {"min": count, "max": count}}


def _request(bench: StreamsRunning, count: int, *, by_weir: bool) -> None:
    if by_weir:
        bench.change_policy(**_bounds(count))
    else:
        bench.scale(count)


def _two(bench: StreamsRunning, watch: CommitWatch, *, by_weir: bool) -> None:
    """Run two instances that both progress."""
    _request(bench, 2, by_weir=by_weir)
    bench.wait(lambda: bench.has(2) and bench.idle(), ACTION_SECONDS, "two instances")
    since = time.monotonic()
    bench.wait(lambda: watch.all_advance_after(since + 1.0), ACTION_SECONDS, "all tasks progress")


def _scale_in(bench: StreamsRunning, watch: CommitWatch, *, by_weir: bool) -> float | None:
    at = time.monotonic()
    _request(bench, 1, by_weir=by_weir)
    limit = ACTION_SECONDS + SESSION_SECONDS
    bench.wait(lambda: bench.has(1) and bench.idle(), limit, "one instance")
    ended = time.monotonic()
    bench.wait(lambda: watch.all_advance_after(ended + 1.0), limit, "all tasks progress again")
    return watch.max_still_seconds(at)


def measure(with_eviction: int, without: int, seconds: float) -> dict[str, Any]:
    """Return the figures, of as many scale-ins with eviction as fit the time and of some without."""
    options = TrialOptions(workload="kafka-streams", peak_rate=RATE, objective_seconds=10.0, port=free_port())
    spec = {"behavior": short_behavior(2, 0), **_bounds(1)}
    supervisor = {"commit-interval-ms": COMMIT_MS, "service-time-us": 2000}
    evicted: list[float] = []
    waited: list[float] = []
    with running(options, spec, supervisor=supervisor, partitions=TASKS) as bench:
        bench.stack.set_load(rate=RATE)
        watch = CommitWatch(bench.stack.kafka.bootstrap_servers, GROUP_ID, TASKS)
        try:
            until = time.monotonic() + seconds
            bench.wait(lambda: watch.all_advance_after(0.0), ACTION_SECONDS, "all tasks progress")
            while len(evicted) < with_eviction and time.monotonic() < until:
                _two(bench, watch, by_weir=True)
                still = _scale_in(bench, watch, by_weir=True)
                log(f"scale-in {len(evicted) + 1} with eviction: {still}")
                evicted += [] if still is None else [round(still, 2)]
            bench.change_policy(mode="advise")
            while len(waited) < without:
                _two(bench, watch, by_weir=False)
                still = _scale_in(bench, watch, by_weir=False)
                log(f"scale-in {len(waited) + 1} without eviction: {still}")
                waited += [] if still is None else [round(still, 2)]
            verified = sum(a.phase == "verified" for a in bench.actions())
        finally:
            watch.stop()
    return {
        "tasks": TASKS,
        "rate": RATE,
        "commit_interval_seconds": COMMIT_MS / 1000,
        "session_timeout_seconds": SESSION_SECONDS,
        "actions_verified": verified,
        "with_eviction_seconds": distribution(evicted),
        "without_eviction_seconds": distribution(waited),
        "with_eviction": evicted,
        "without_eviction": waited,
    }
