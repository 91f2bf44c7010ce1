"""Applications on the simulator under a strategy: prepares and runs the rows of `scenarios.yaml`.

Within a benchmark every strategy gets the same policy, load, readings, guards and executor. The same seed gives the same
figures on every machine.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from bench import strategies
from bench.strategies import STATIC_UTILIZATION
from weir_contracts import Analysis, KafkaSignals, Signals
from weir_replay.options import DAY_SECONDS, START_UTILIZATION, Replay, ReplayOptions, prepare
from weir_replay.run import Point, Score, run
from weir_replay.simulator import PRESETS, Application, parse
from weir_replay.simulator.capacity import OfflineOptimum
from weir_replay.simulator.world import START
from weir_replay.trace import BUNDLED, LoadTrace, Recording, Shape, Sine, Spike, Step, named
from weir_sdk.installed import built_in, parse_parameters

PEAK_RATE = 2400.0
"""Records/s at the highest point of a load, unless its application has its own."""
NOISE = 0.02
"""Relative, of each reading."""
BLOCK_SECONDS = 600.0
"""Of the schedule that a careful user would write."""
SIGNALS = Signals(kafka=KafkaSignals(bootstrap_servers="127.0.0.1:9092", group_id="orders"))
"""Signals that a planner by committed offsets requires; nothing connects to the address."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DailyPeak(_Part):
    """A series with a value per minute that rises at the same time each day, to a height that varies by a tenth."""

    low: float
    at_minute: int
    rise_minutes: int
    hold_minutes: int
    days: int
    seed: int

    def recording(self) -> Recording:
        """Return the series."""
        chance = random.Random(self.seed)
        values: list[float] = []
        for _ in range(self.days):
            height = chance.uniform(0.9, 1.0)
            for minute in range(24 * 60):
                since = minute - self.at_minute
                until = 2 * self.rise_minutes + self.hold_minutes - since
                share = min(1.0, max(0.0, min(since, until) / self.rise_minutes))
                values.append((self.low + (height - self.low) * share) * chance.uniform(0.97, 1.03))
        return Recording(tuple(60.0 * i for i in range(len(values))), tuple(values))


class Load(_Part):
    """A synthetic load: one shape, and its length in s. None: as long as the benchmark's recordings."""

    seconds: float | None = None
    step: Step | None = None
    sine: Sine | None = None
    spike: Spike | None = None
    samples: Recording | None = None
    daily_peak: DailyPeak | None = None

    def shape(self) -> Shape:
        """Return the only shape that the load names."""
        daily = None if self.daily_peak is None else self.daily_peak.recording()
        (shape,) = [each for each in (self.step, self.sine, self.spike, self.samples, daily) if each is not None]
        return shape


class Variant(_Part):
    """An application that is not a preset: a changed preset, or a document in the format of `weir replay --topology FILE`."""

    preset: str = ""
    hot_key_shares: Mapping[str, float] = {}
    document: Mapping[str, Any] | None = None
    peak_rate: float = PEAK_RATE

    def application(self) -> Application:
        """Return the application."""
        if self.document is not None:
            return parse(dict(self.document))
        application = PRESETS[self.preset](1)
        operators = tuple(
            each.model_copy(update={"hot_key_share": self.hot_key_shares.get(each.name, each.hot_key_share)})
            for each in application.operators
        )
        return application.model_copy(update={"operators": operators})


class Recordings(_Part):
    """The part of a recording that is run: the days around its highest point."""

    days: float
    speedup: float = 1.0
    from_midnight: bool = False

    def load(self, recording: Recording, days: float) -> LoadTrace:
        """Return the days around the highest point, from a midnight of the recording if `from_midnight`."""
        seconds = days * DAY_SECONDS
        peak = recording.offsets_seconds[recording.values.index(recording.peak)]
        start = max(0.0, min(peak - seconds / 2, recording.period_seconds - seconds))
        if self.from_midnight:
            start -= start % DAY_SECONDS
        return LoadTrace(recording, PEAK_RATE, self.speedup, start)


class Row(_Part):
    """Loads and applications; every load is run on every application."""

    traces: Sequence[str]
    """`recordings` stands for all that are bundled."""
    topologies: Sequence[str]
    interval_seconds: float | None = None
    days: float | None = None
    new_slot_seconds: float | None = None
    """Time until slots that a scale-up requests are available."""


@dataclass(frozen=True)
class Situation:
    """Load and application, the same for every strategy. None: the benchmark's value."""

    trace: str
    topology: str
    interval_seconds: float
    days: float | None = None
    new_slot_seconds: float | None = None


class Scenario(_Part):
    """One benchmark: its rows and the strategies that run on them."""

    recordings: Recordings
    interval_seconds: float
    strategies: Sequence[str]
    """`planners` stands for all that are built in."""
    seeds: Mapping[str, Sequence[int]] = {}
    """Of the noise in the readings, by strategy; others run with the first alone."""
    parameters: Mapping[str, Mapping[str, Any]] = {}
    """Of planners."""
    keeps_parts: bool = False
    """Whether results are written while other runs continue."""
    rows: Sequence[Row]

    def situations(self) -> list[Situation]:
        """Return all situations, in the order of the rows."""
        return [
            Situation(trace, topology, row.interval_seconds or self.interval_seconds, row.days, row.new_slot_seconds)
            for row in self.rows
            for trace in _expanded(row.traces, "recordings", recordings())
            for topology in row.topologies
        ]

    def contestants(self) -> list[str]:
        """Return the names of all strategies."""
        return _expanded(self.strategies, "planners", list(built_in()))

    def seeds_of(self, strategy: str) -> Sequence[int]:
        """Return the seeds with which a strategy runs."""
        return self.seeds.get(strategy, (0,))


class _Document(_Part):
    loads: Mapping[str, Load]
    applications: Mapping[str, Variant]
    benchmarks: Mapping[str, Scenario]


def _expanded(names: Sequence[str], general: str, members: Sequence[str]) -> list[str]:
    return [each for name in names for each in (members if name == general else [name])]


def recordings() -> list[str]:
    """Return the names of the bundled recordings."""
    return sorted(path.stem for path in BUNDLED.glob("*.csv"))


_DOCUMENT = _Document.model_validate(yaml.safe_load(Path(__file__).with_name("scenarios.yaml").read_text()))
LOADS, APPLICATIONS, SCENARIOS = _DOCUMENT.loads, _DOCUMENT.applications, _DOCUMENT.benchmarks


@dataclass(frozen=True)
class Held:
    """Result of one strategy in one situation."""

    situation: Situation
    strategy: str
    seed: int
    score: Score
    points: Sequence[Point]
    codes: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)

    @property
    def late_seconds(self) -> float:
        """Time above the objective."""
        return (self.score.violation_share or 0.0) * self.score.seconds


def load_of(scenario: Scenario, situation: Situation) -> tuple[LoadTrace, float]:
    """The load and how long it lasts, in s."""
    days = min(situation.days or scenario.recordings.days, scenario.recordings.days)
    lasts = days * DAY_SECONDS / scenario.recordings.speedup
    if situation.trace in LOADS:
        load = LOADS[situation.trace]
        return LoadTrace(load.shape(), PEAK_RATE), load.seconds or lasts
    shape = named(situation.trace)
    if not isinstance(shape, Recording):
        raise TypeError(f"{situation.trace}: is a shape, not a recording")
    return scenario.recordings.load(shape, days), lasts


def prepared(
    scenario: Scenario, situation: Situation, planner: str | None = None, duration_seconds: float | None = None
) -> Replay:
    """Return the run, started with the parallelism that the first load needs at the start's utilization."""
    load, lasts = load_of(scenario, situation)
    # Only the policy is taken from here.
    options = ReplayOptions(trace="sine", interval_seconds=situation.interval_seconds, duration_seconds=lasts)
    replay, variant = prepare(options), APPLICATIONS.get(situation.topology)
    spec = replay.policy.spec
    if variant is None:
        application = PRESETS[situation.topology](1)
    else:
        application, load = variant.application(), replace(load, peak_rate=variant.peak_rate)
        if variant.document is not None:
            spec = spec.model_copy(update={"bounds": spec.bounds.model_copy(update={"max": application.cluster.slots})})
    if situation.new_slot_seconds is not None:
        waits = max(application.cluster.stabilization_seconds, situation.new_slot_seconds)
        application = application.on(new_slot_seconds=situation.new_slot_seconds, stabilization_seconds=waits)
    optimum = OfflineOptimum(application, spec.bounds.max)
    if planner is not None:
        parameters = _parameters(scenario, planner, optimum, load, lasts)
        parse_parameters(planner, parameters)
        choice = spec.planner.model_copy(update={"name": planner, "parameters": parameters})
        spec = spec.model_copy(update={"planner": choice, "signals": SIGNALS})
    return replace(
        replay,
        trace=load,
        application=application.started_with(optimum.parallelism(load.rate_at(0.0) / START_UTILIZATION)),
        policy=replay.policy.model_copy(update={"spec": spec}),
        duration_seconds=duration_seconds or lasts,
    )


def _parameters(
    scenario: Scenario, planner: str, optimum: OfflineOptimum, load: LoadTrace, seconds: float
) -> dict[str, Any]:
    """Return a careful user's parameters: the scenario's, or for `schedule` and `static` values from the load."""
    if planner == "static":
        return {"operators": optimum.parallelism(_mean_rate(load, seconds) / STATIC_UTILIZATION)}
    if planner == "schedule":
        return _schedule(optimum, load, seconds)
    return dict(scenario.parameters.get(planner, {}))


def _schedule(optimum: OfflineOptimum, load: LoadTrace, seconds: float) -> dict[str, Any]:
    """Return the parallelism of each ten minutes that the day before needed at 80 %; for a pattern, that of its own load."""
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


def _rates(load: LoadTrace, seconds: float) -> list[float]:
    """Return the load at each full minute."""
    return [load.rate_at(i * 60.0) for i in range(max(1, int(seconds // 60)))]


def _mean_rate(load: LoadTrace, seconds: float) -> float:
    rates = _rates(load, seconds)
    return sum(rates) / len(rates)


def held(
    scenario: Scenario, situation: Situation, strategy: str, *, seed: int = 0, duration_seconds: float | None = None
) -> Held:
    """Run one situation under a strategy: a reference, a rule, Weir with its default planner, or one of its planners."""
    planner = strategy if strategy in built_in() else None
    replay = prepared(scenario, situation, planner, duration_seconds)
    match strategy:
        case "clairvoyant":
            score, points = strategies.clairvoyant(replay)
        case "static-peak":
            score, points = strategies.static(replay, max(_rates(replay.trace, replay.duration_seconds)))
        case "static-mean":
            score, points = strategies.static(replay, _mean_rate(replay.trace, replay.duration_seconds))
        case "reactive":
            score, points = strategies.reactive(replay)
        case _:
            carry = _without_forecasts if strategy == "without-forecast" else None
            result = run(replay, seed=seed, noise=NOISE, carry=carry)
            return Held(situation, strategy, seed, result.score, result.points, result.codes, result.ends)
    return Held(situation, strategy, seed, score, points)


def _without_forecasts(message: Any) -> Any:
    """Return the message as it was before there were forecasts."""
    return message.model_copy(update={"forecasts": []}) if isinstance(message, Analysis) else message
