"""Load steps of ×3: how long until Weir requested more instances, and until the objective was held."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.results_file import distribution, log
from bench.running import recovery
from testbed.process import free_port
from testbed.trial.options import TrialOptions, short_behavior

from .running import StreamsRunning, running

BASE_RATE, FACTOR = 150.0, 3.0
"""An instance carries 250 records/s: one is enough for the base, the step needs two or three."""
OBJECTIVE_SECONDS = 10.0
MAX_INSTANCES = 4
COMMIT_SECONDS = {"endpoint": 1.0, "agentless": 5.0}
STEP_SECONDS = 60.0
SETTLE_SECONDS = 40.0


@dataclass(frozen=True)
class Step:
    """One load step. None: not within its time."""

    asked_seconds: float | None
    """Until the endpoint was asked for more instances."""
    to_replicas: int
    held_seconds: float | None
    """Until the lag at the output was within the objective for good; 0 if it never left it."""
    max_lag_seconds: float | None


def _bounds(maximum: int) -> dict[str, Any]:
    return {"bounds": {"min": 1, "max": maximum}}


def _settle(bench: StreamsRunning) -> bool:
    """Return to one instance at the base load, by the policy's bounds: what is measured is the way up."""
    bench.stack.set_load(rate=BASE_RATE)
    bench.change_policy(**_bounds(1))
    bench.wait(lambda: bench.has(1) and bench.idle(), SETTLE_SECONDS, "one instance")
    bench.wait(lambda: (bench.lag_seconds() or 99.0) < 3.0, SETTLE_SECONDS, "little lag")
    bench.change_policy(**_bounds(MAX_INSTANCES))
    plans = len(bench.plans())

    def quiet() -> bool:
        latest = bench.plans()[plans:][-3:]
        return len(latest) == 3 and all(p.kind == "hold" for p in latest) and bench.has(1)

    return bench.wait(quiet, SETTLE_SECONDS, "three holds in a row")


def _step(bench: StreamsRunning) -> Step:
    before = bench.endpoint().replicas
    at = bench.stack.set_load(rate=BASE_RATE * FACTOR)
    requested: float | None = None
    lags: list[tuple[float, float | None]] = []

    def held() -> bool:
        nonlocal requested
        now = time.time() - at
        replicas = bench.endpoint().replicas
        if requested is None and replicas > before:
            requested = now
        lags.append((now, bench.lag_seconds()))
        last = lags[-1][1]
        return requested is not None and now > 10.0 and bench.idle() and last is not None and last < 3.0

    bench.wait(held, STEP_SECONDS, "the step answered and the lag small again")
    recovered, max_lag = recovery(lags, OBJECTIVE_SECONDS)
    return Step(None if requested is None else round(requested, 2), bench.endpoint().replicas, recovered, max_lag)


def measure(way: str, count: int, seconds: float) -> dict[str, Any]:
    """Return the figures of steps with the metrics endpoint or without (`agentless`), as many as fit the time."""
    options = TrialOptions(
        workload="kafka-streams",
        peak_rate=BASE_RATE * FACTOR,
        objective_seconds=OBJECTIVE_SECONDS,
        port=free_port(),
    )
    application: dict[str, Any] = {"kafkaStreams": {"applicationId": "orders", "metrics": {"port": 9404}}}
    if way == "agentless":
        application = {"kafkaStreams": {"applicationId": "orders"}}
    spec = {"application": application, "behavior": short_behavior(12, 3), **_bounds(MAX_INSTANCES)}
    commit_ms = round(1000 * COMMIT_SECONDS[way])
    found: list[Step] = []
    with running(options, spec, supervisor={"commit-interval-ms": commit_ms}) as bench:
        until = time.monotonic() + seconds
        _settle(bench)
        # reported by itself: an unknown application's capacity is learned by it
        first = _step(bench)
        log(f"first step, {way}: {asdict(first)}")
        _settle(bench)
        while len(found) < count and time.monotonic() < until:
            found.append(_step(bench))
            log(f"step {len(found)} of {count}, {way}: {asdict(found[-1])}")
            if len(found) < count:
                _settle(bench)
        explained = [p.sentence for p in bench.plans() if p.kind == "scale"][-6:]
    requested = [step.asked_seconds for step in found if step.asked_seconds is not None]
    return {
        "interval_seconds": options.interval_seconds,
        "commit_interval_seconds": COMMIT_SECONDS[way],
        "base_rate": BASE_RATE,
        "factor": FACTOR,
        "objective_seconds": OBJECTIVE_SECONDS,
        "steps_unanswered": len(found) - len(requested),
        "step_to_replicas_asked_seconds": distribution(requested),
        "step_to_held_seconds": distribution([s.held_seconds for s in found if s.held_seconds is not None]),
        "max_lag_seconds": distribution([s.max_lag_seconds for s in found if s.max_lag_seconds is not None]),
        "first_step": asdict(first),
        "last_plans": explained,
        "steps": [asdict(step) for step in found],
    }
