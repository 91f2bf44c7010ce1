"""One planner, one load, one application: the loop on the simulator, and how well it was held.

A recording's day around its highest point is replayed in `DAY_SECONDS / SPEEDUP`; a pattern in its own hours. Every
planner gets the same policy, readings, guards and executor; only `spec.planner` differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from bench.compare.rules import STATIC_UTILIZATION
from bench.quality import static
from bench.sizes import SIZES
from weir_contracts import KafkaSignals, Signals
from weir_replay.options import DAY_SECONDS, START_UTILIZATION, Replay, ReplayOptions, prepare
from weir_replay.run import Point, Score, run
from weir_replay.simulator import PRESETS, Application
from weir_replay.simulator.capacity import OfflineOptimum
from weir_replay.simulator.world import START
from weir_replay.trace import BUNDLED, LoadTrace, Recording, Shape, Sine, Spike, Step, named
from weir_sdk.installed import built_in, parse_parameters

SPEEDUP = 8.0
INTERVAL_SECONDS = 15.0
PEAK_RATE = 2400.0
LOW = 0.2
"""Of the peak: the lowest that a pattern goes."""
PATTERN_SECONDS = 4800.0
PERIOD_SECONDS = 2400.0
BUCKET_SECONDS = 10.0
SIGNALS = Signals(kafka=KafkaSignals(bootstrap_servers="127.0.0.1:9092", group_id="orders"))
"""What a planner by committed offsets wants to be told; nothing is connected to."""
CLAIRVOYANT, STATIC_PEAK = "clairvoyant", "static-peak"


def _sawtooth(period_seconds: float) -> Shape:
    return Recording((0.0, period_seconds - 2, period_seconds - 1), (LOW, 1.0, 1.0))


def _flash(factor: int) -> Shape:
    return Spike(
        low=1 / factor, at_seconds=900.0, rise_seconds=60.0, hold_seconds=600.0, period_seconds=PATTERN_SECONDS
    )


def _bursts(seconds: int) -> Shape:
    # Each has begun on the full minute, so that the parallelism for the peak knows of it.
    return Spike(low=0.3, at_seconds=59.0, rise_seconds=0.5, hold_seconds=float(seconds), period_seconds=120.0)


PATTERNS: Mapping[str, Callable[[], Shape]] = {
    "step": lambda: Step(((0.0, LOW), (1200.0, 1.0), (2700.0, 0.5), (3900.0, LOW))),
    "sine": lambda: Sine(low=LOW, period_seconds=PERIOD_SECONDS),
    "spike": lambda: Spike(
        low=LOW, at_seconds=900.0, rise_seconds=30.0, hold_seconds=300.0, period_seconds=PERIOD_SECONDS
    ),
    "ramp": lambda: Recording((0.0, PATTERN_SECONDS), (LOW, 1.0)),
    # The last second of each period is the fall.
    "sawtooth": lambda: _sawtooth(PERIOD_SECONDS),
}
SWINGS: Mapping[str, Callable[[], Shape]] = {
    **{f"sawtooth-{minutes}min": partial(_sawtooth, 60.0 * minutes) for minutes in (3, 7, 15)},
    **{f"flash-x{factor}": partial(_flash, factor) for factor in (5, 10, 20)},
    **{f"bursts-{seconds}s": partial(_bursts, seconds) for seconds in (2, 5, 10)},
}
"""Loads that move faster than stabilisation, or many times as high as before; on the chain only."""
LEAPS: Mapping[str, Callable[[], Shape]] = {
    "leap": lambda: Step(((0.0, LOW), (400.0, 1.0), (1300.0, 0.5), (1900.0, LOW))),
}
"""Loads of the applications of several sizes; on those only."""
LEAP_SECONDS = 2400.0
LOOKS: Mapping[float, Sequence[str]] = {10.0: ("step", "flash-x20"), 60.0: ("step", "flash-x20", "sine")}
"""By the interval of the policy: loads that are also looked at so often, on the chain."""
SEEDS = (0, 1, 2, 3, 4)
"""Of the noise in the readings. `rate` runs with each, every other planner with the first."""


def skewed() -> Application:
    """The chain with a key that has a tenth of all records: of `enrich`, more subtasks relieve all but one."""
    application = PRESETS["chain"](1)
    operators = tuple(
        operator.model_copy(update={"hot_key_share": 0.1}) if operator.name == "enrich" else operator
        for operator in application.operators
    )
    return application.model_copy(update={"operators": operators})


TOPOLOGIES: Mapping[str, Callable[[], Application]] = {
    "chain": lambda: PRESETS["chain"](1),
    "diamond": lambda: PRESETS["diamond"](1),
    "skewed": skewed,
}


@dataclass(frozen=True)
class Situation:
    """Application and load, equal for every planner."""

    trace: str
    topology: str
    interval_seconds: float = INTERVAL_SECONDS


@dataclass(frozen=True)
class Held:
    """Result of one planner in one situation."""

    situation: Situation
    planner: str
    score: Score
    points: Sequence[Point]
    codes: Mapping[str, int]
    ends: Mapping[str, int]
    seed: int = SEEDS[0]


def traces() -> list[str]:
    """Recordings first."""
    return [*sorted(path.stem for path in BUNDLED.glob("*.csv")), *PATTERNS, *SWINGS, *LEAPS]


def topologies() -> list[str]:
    """The usual ones first."""
    return [*TOPOLOGIES, *SIZES]


def situations() -> list[Situation]:
    found = [Situation(trace, topology) for trace in traces() for topology in _topologies(trace)]
    return found + [Situation(trace, "chain", interval) for interval, names in LOOKS.items() for trace in names]


def _topologies(trace: str) -> Sequence[str]:
    return ("chain",) if trace in SWINGS else list(SIZES) if trace in LEAPS else list(TOPOLOGIES)


def seeds_of(planner: str) -> Sequence[int]:
    """Return the seeds with which a contestant runs."""
    return SEEDS if planner == "rate" else SEEDS[:1]


def contestants() -> list[str]:
    """The references and every built-in planner."""
    return [CLAIRVOYANT, STATIC_PEAK, *built_in()]


def load_of(trace: str) -> tuple[LoadTrace, float]:
    """The load and how long it lasts, in s."""
    pattern = PATTERNS.get(trace) or SWINGS.get(trace) or LEAPS.get(trace)
    if pattern is not None:
        return LoadTrace(pattern(), PEAK_RATE), LEAP_SECONDS if trace in LEAPS else PATTERN_SECONDS
    shape = named(trace)
    if not isinstance(shape, Recording):
        raise TypeError(f"{trace}: is a shape, not a recording")
    peak = shape.offsets_seconds[shape.values.index(shape.peak)]
    start = max(0.0, min(peak - DAY_SECONDS / 2, shape.period_seconds - DAY_SECONDS))
    return LoadTrace(shape, PEAK_RATE, SPEEDUP, start), DAY_SECONDS / SPEEDUP


def prepared(situation: Situation, planner: str | None, duration_seconds: float | None = None) -> Replay:
    """The run, ready; begun with what the first load needs and a little to spare."""
    load, lasts = load_of(situation.trace)
    replay = prepare(ReplayOptions(trace="sine", interval_seconds=situation.interval_seconds, duration_seconds=lasts))
    policy, size = replay.policy, SIZES.get(situation.topology)
    if size is not None:
        load, policy = replace(load, peak_rate=size.peak_rate), size.bounded(policy)
    application = TOPOLOGIES[situation.topology]() if size is None else size.application()
    max_parallelism = policy.spec.bounds.max
    optimum = OfflineOptimum(application, max_parallelism)
    if planner is not None:
        choice = policy.spec.planner.model_copy(
            update={"name": planner, "parameters": parameters_of(planner, application, load, lasts, max_parallelism)}
        )
        parse_parameters(planner, choice.parameters)
        policy = policy.model_copy(
            update={"spec": policy.spec.model_copy(update={"planner": choice, "signals": SIGNALS})}
        )
    started = application.started_with(optimum.parallelism(load.rate_at(0.0) / START_UTILIZATION))
    return replace(replay, trace=load, application=started, policy=policy, duration_seconds=duration_seconds or lasts)


def parameters_of(
    planner: str, application: Application, load: LoadTrace, seconds: float, max_parallelism: int
) -> dict[str, Any]:
    """Return a careful user's parameters: defaults, `PARAMETERS`, and for schedule and static values from the load."""
    optimum = OfflineOptimum(application, max_parallelism)
    if planner == "static":
        mean = sum(load.rate_at(at) for at in _moments(seconds)) / len(_moments(seconds))
        return {"operators": optimum.parallelism(mean / STATIC_UTILIZATION)}
    if planner == "schedule":
        return _schedule(optimum, load, seconds)
    return dict(PARAMETERS.get(planner, {}))


PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "ds2": {"scaling_factor": 0.2},
    # The loads here move in minutes and a restart takes seconds; by default its windows are made for hours.
    "flink-autoscaler": {
        "metrics_window_minutes": 3,
        "stabilization_interval_minutes": 0.5,
        "scale_down_interval_minutes": 5,
        "catch_up_duration_minutes": 3,
        "restart_time_minutes": 0.2,
        "restart_time_tracking_enabled": True,
    },
    # What a subtask of the costliest operator does in some seven seconds, the mean age of a commit and the interval.
    "keda-kafka": {"lagThreshold": 3000},
    "threshold": {"measure": "utilization", "up_above": 0.8, "down_below": 0.4},
}
"""By planner, where its defaults do not fit a job with an objective of 30 s or there are none."""

BLOCK_SECONDS = 600.0


def _schedule(optimum: OfflineOptimum, load: LoadTrace, seconds: float) -> dict[str, Any]:
    """Every ten minutes what they needed yesterday at 80 %: a recording's day before, a pattern's own."""
    if isinstance(load.shape, Recording) and load.start_seconds >= DAY_SECONDS:
        load = replace(load, start_seconds=load.start_seconds - DAY_SECONDS)
    entries: list[dict[str, Any]] = []
    before: dict[str, int] | None = None
    for begins in range(0, int(seconds), int(BLOCK_SECONDS)):
        # A minute early, so that the restart is over when the load comes.
        rate = max(load.rate_at(float(begins + at)) for at in range(0, int(BLOCK_SECONDS) + 60, 15))
        wanted = optimum.parallelism(rate / STATIC_UTILIZATION)
        at = START + timedelta(seconds=max(0, begins - 60))
        if wanted != before:
            entries.append({"cron": f"{at.minute} {at.hour} {at.day} {at.month} *", "operators": wanted})
        before = wanted
    return {"entries": entries, "time_zone": "UTC"}


def _moments(seconds: float) -> list[float]:
    return [i * 60.0 for i in range(max(1, int(seconds // 60)))]


def held(situation: Situation, contestant: str, *, seed: int = 0, duration_seconds: float | None = None) -> Held:
    if contestant == CLAIRVOYANT:
        return _optimum(situation, duration_seconds)
    if contestant == STATIC_PEAK:
        replay = prepared(situation, None, duration_seconds)
        found = static(replay, max(replay.trace.rate_at(s) for s in _moments(replay.duration_seconds)))
        return Held(situation, contestant, found.score, found.points, {}, {})
    result = run(prepared(situation, contestant, duration_seconds), seed=seed, noise=0.02)
    return Held(situation, contestant, result.score, result.points, result.codes, result.ends, seed)


def _optimum(situation: Situation, duration_seconds: float | None) -> Held:
    """Return the offline optimum's figures: it knows the load, rescales for free and is never late."""
    replay = prepared(situation, None, duration_seconds)
    optimum = OfflineOptimum(replay.job, replay.policy.spec.bounds.max)
    each = replay.duration_seconds / round(replay.duration_seconds / BUCKET_SECONDS)
    points = []
    for i in range(round(replay.duration_seconds / BUCKET_SECONDS)):
        rate = replay.trace.rate_at((i + 0.5) * each)
        slots = optimum.slots(rate, (i + 0.5) * each)
        points.append(Point(i * each, rate, 0.0, float(slots), slots))
    whole = sum(p.slots for p in points) * each
    peak = max(p.optimum_slots for p in points) * replay.duration_seconds
    score = Score(
        seconds=replay.duration_seconds,
        objective_seconds=replay.policy.spec.objective.bound_seconds,
        violation_share=0.0,
        slot_seconds=round(whole, 1),
        rescales=sum(1 for a, b in pairwise(points) if a.optimum_slots != b.optimum_slots),
        max_lag_seconds=0.0,
        optimum_slot_seconds=round(whole, 1),
        peak_slot_seconds=round(peak, 1),
    )
    return Held(situation, CLAIRVOYANT, score, points, {}, {})


def elasticity(points: Sequence[Point]) -> dict[str, float]:
    """Return under- and over-provisioning in % (SPEC RG's thU, thO, tU, tO): of slots, against the offline optimum."""
    if not points:
        return {}
    n = len(points)
    under = [max(0.0, p.optimum_slots - p.slots) / max(1, p.optimum_slots) for p in points]
    over = [max(0.0, p.slots - p.optimum_slots) / max(1, p.optimum_slots) for p in points]
    return {
        "under_accuracy_percent": round(100 * sum(under) / n, 2),
        "over_accuracy_percent": round(100 * sum(over) / n, 2),
        "under_time_percent": round(100 * sum(u > 0.01 for u in under) / n, 2),
        "over_time_percent": round(100 * sum(o > 0.01 for o in over) / n, 2),
    }
