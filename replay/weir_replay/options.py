"""Options of a replay, read and checked before it starts."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir_contracts import Bounds, InvalidPolicy, ScalingPolicy, parse_policy
from weir_runtime.documents import Unreadable, read_file
from weir_sdk import InvalidParameters
from weir_sdk.installed import UnknownPlanner, parse_parameters

from .simulator import PRESETS, STREAMS_PRESETS, Application, InvalidApplication, StreamsApplication, parse
from .simulator.capacity import OfflineOptimum, StreamsOptimum
from .trace import InvalidTrace, LoadTrace, Recording, named

DAY_SECONDS = 86_400.0
SHAPE_SECONDS = 1_200.0
SLOW_STEP_SECONDS, FAST_STEP_SECONDS = 60.0, 10.0
"""Default intervals for a recording by the minute, or coarser, and for a finer one."""
MIN_RISE_SECONDS = 0.2
"""Minimum time from a trough of the load to its peak at the chosen speed; a faster one would need steps of less than 50
ms."""
MAX_SCRAPES = 1440
"""Default maximum of scrapes in a day of a shape: as many as of a recorded day by the minute."""
LOOK_SECONDS = 10.0
"""Maximum time between two calculations of the optimum, however long a point of the curves is: a load that rises and
falls within one would look like its mean, which is never late and needs half."""
POINTS = 352
"""Points of a curve: two dots a character, and twice as many for a figure."""
START_UTILIZATION = 0.7
"""Utilization of the initial parallelism by the first load."""


class InvalidReplay(ValueError):
    """The replay cannot be run; the sentence names the option, and the file and field if there are any."""


@dataclass(frozen=True)
class ReplayOptions:
    """One replay. Times in seconds, rates in records/s."""

    trace: str
    planner: str | None = None
    topology: str = "chain"
    policy_file: Path | None = None
    interval_seconds: float | None = None
    speedup: float = 1.0
    peak_rate: float = 2400.0
    duration_seconds: float | None = None
    seed: int = 0
    noise: float = 0.02


@dataclass(frozen=True)
class Replay:
    """A replay, ready to run."""

    trace: LoadTrace
    application: Application | StreamsApplication
    policy: ScalingPolicy
    duration_seconds: float

    @property
    def job(self) -> Application:
        """The simulated Flink job; `TypeError` for a group."""
        if not isinstance(self.application, Application):
            raise TypeError(f"{self.application.name} is a Kafka Streams application")
        return self.application

    @property
    def look_seconds(self) -> float:
        """Interval in which the optimum is calculated: short enough that no peak falls between two calculations."""
        return min(LOOK_SECONDS, self.trace.turn_seconds / 4)

    @property
    def point_seconds(self) -> float:
        """Length of one point of the curves."""
        return max(LOOK_SECONDS, self.duration_seconds / POINTS)

    @property
    def step_seconds(self) -> float:
        """Length of the model's steps: at least four in a scrape interval, and an integer number of them between two
        looks."""
        max_step = min(1.0, self.policy.spec.interval.total_seconds() / 4)
        return self.look_seconds / math.ceil(self.look_seconds / max_step)


def prepare(options: ReplayOptions) -> Replay:
    """Read what the options name. Raises `InvalidReplay` naming option, file and field."""
    trace = _trace(options)
    duration = _duration(options, trace)
    policy = _policy(options, trace, duration)
    if options.topology in STREAMS_PRESETS:
        return Replay(trace, _streams(options, policy, trace), policy, duration)
    application = _application(options, policy, trace)
    return Replay(trace, application, policy, duration)


def _trace(options: ReplayOptions) -> LoadTrace:
    try:
        shape = named(options.trace)
    except InvalidTrace as error:
        raise InvalidReplay(f"--trace: {error}") from None
    try:
        trace = LoadTrace(shape, options.peak_rate, options.speedup)
    except InvalidTrace as error:
        parameter, _, problem = str(error).partition(": ")
        raise InvalidReplay(f"--{parameter.replace('_', '-')}: {problem}") from None
    if trace.turn_seconds < MIN_RISE_SECONDS:
        limit = shape.turn_seconds / MIN_RISE_SECONDS
        raise InvalidReplay(
            f"--speedup: a replay sees the peaks of {options.trace} up to {limit:g}, is {options.speedup:g}"
        )
    return trace


def _duration(options: ReplayOptions, trace: LoadTrace) -> float:
    if options.duration_seconds is not None:
        if not 10 <= options.duration_seconds <= 366 * DAY_SECONDS:
            raise InvalidReplay("--duration: must lie between 10 seconds and 366 days")
        return options.duration_seconds
    if isinstance(trace.shape, Recording):
        return min(DAY_SECONDS, max(10.0, trace.shape.period_seconds / options.speedup))
    return SHAPE_SECONDS


def _application(options: ReplayOptions, policy: ScalingPolicy, trace: LoadTrace) -> Application:
    bounds = policy.spec.bounds
    if options.topology in PRESETS:
        application = _with_room(PRESETS[options.topology](1), bounds)
        _check_min(application, bounds, options)
        started = OfflineOptimum(application, bounds).parallelism(trace.rate_at(0.0) / START_UTILIZATION)
        return application.started_with({name: max(bounds.of(name)[0], p) for name, p in started.items()})
    try:
        return parse(read_file(options.topology), options.topology)
    except (Unreadable, InvalidApplication) as error:
        presets = (
            ""
            if Path(options.topology).exists()
            else f" (ready-made: {', '.join(sorted((*PRESETS, *STREAMS_PRESETS)))})"
        )
        raise InvalidReplay(f"--topology: {error}{presets}") from None


def _streams(options: ReplayOptions, policy: ScalingPolicy, trace: LoadTrace) -> StreamsApplication:
    """Return a ready-made group with enough instances for the first load, within the policy's bounds."""
    application = STREAMS_PRESETS[options.topology](1)
    minimum, maximum = policy.spec.bounds.of(application.name)
    needed = StreamsOptimum(application, policy.spec.bounds).slots(trace.rate_at(0.0) / START_UTILIZATION)
    return application.started_with(min(maximum, max(minimum, needed // application.threads)))


def _with_room(application: Application, bounds: Bounds) -> Application:
    """Return the application on a cluster with slots for all that the bounds allow."""
    upper = {o.name: min(bounds.of(o.name)[1], o.max_parallelism) for o in application.operators}
    return application.on(slots=max(application.cluster.slots, application.topology().slots(upper)))


def _check_min(application: Application, bounds: Bounds, options: ReplayOptions) -> None:
    for operator in application.operators:
        name, lower = operator.name, bounds.of(operator.name)[0]
        if lower > operator.max_parallelism:
            own = bounds.operators.get(name)
            field = "min" if own is None or own.min is None else f"operators.{name}.min"
            raise InvalidReplay(
                f"--policy: {options.policy_file}: spec.bounds.{field}: {lower} is more than the {operator.max_parallelism} subtasks "
                f"that {name!r} of {options.topology} can have"
            )


def _policy(options: ReplayOptions, trace: LoadTrace, duration_seconds: float) -> ScalingPolicy:
    try:
        document = read_file(options.policy_file) if options.policy_file else _default(trace, duration_seconds)
    except Unreadable as error:
        raise InvalidReplay(f"--policy: {error}") from None
    spec = document.setdefault("spec", {}) if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        raise InvalidReplay(f"--policy: {options.policy_file}: is not a policy: it has no spec")
    # The simulation runs in place of the cluster that the policy names.
    spec |= _group(spec) if options.topology in STREAMS_PRESETS else _JOB
    spec["mode"] = "act"
    metadata = document.get("metadata")
    document["metadata"] = {"namespace": "replay", "name": "replay", **(metadata if isinstance(metadata, dict) else {})}
    document["metadata"]["version"] = 1
    if options.interval_seconds is not None:
        if not 1 <= options.interval_seconds <= 600:
            raise InvalidReplay(f"--interval: must lie between 1 and 600 seconds, is {options.interval_seconds:g}")
        spec["interval"] = f"{options.interval_seconds:.3f}s"
    chosen = spec.get("planner")
    named_already = chosen.get("name", "rate") if isinstance(chosen, dict) else "rate"
    replaced = options.planner is not None and options.planner != named_already
    if replaced:
        # Parameters belong to the planner they were written for.
        spec["planner"] = {"name": options.planner}
    try:
        policy = parse_policy(document)
    except InvalidPolicy as error:
        raise InvalidReplay(
            f"--policy: {options.policy_file}: {error}" if options.policy_file else str(error)
        ) from None
    _check_planner(policy, options, written=bool(chosen) and not replaced)
    return policy


_JOB = {"application": {"flink": {"url": "http://127.0.0.1:8081", "job": "replay"}}}


def _group(spec: dict[str, Any]) -> dict[str, Any]:
    """Return application, target and signals of a simulated group. It has a metrics endpoint unless the policy names a
    Kafka Streams application without one."""
    application, signals = spec.get("application"), spec.get("signals")
    named = application.get("kafkaStreams") if isinstance(application, dict) else None
    has_metrics = not isinstance(named, dict) or named.get("metrics") is not None
    name = STREAMS_PRESETS["streams"](1).name
    streams: dict[str, Any] = {"applicationId": name}
    if has_metrics:
        streams["metrics"] = {"port": 9404}
    signals = dict(signals) if isinstance(signals, dict) else {}
    kafka = signals.get("kafka", {"bootstrapServers": "127.0.0.1:9092"})
    # Some planners go by the group's commits.
    signals["kafka"] = {**kafka, "groupId": name} if isinstance(kafka, dict) else kafka
    return {
        "application": {"kafkaStreams": streams},
        "target": {"endpoint": {"url": "http://127.0.0.1:8070/scale/replay"}},
        "signals": signals,
    }


def _check_planner(policy: ScalingPolicy, options: ReplayOptions, *, written: bool) -> None:
    """Raise for an unknown planner or wrong parameters; `written`: they are those of the policy's file."""
    place = f"--policy: {options.policy_file}: spec.planner"
    try:
        parse_parameters(policy.spec.planner.name, policy.spec.planner.parameters)
    except UnknownPlanner as error:
        raise InvalidReplay(f"--planner: {error}" if options.planner else f"{place}.name: {error}") from None
    except InvalidParameters as error:
        if written:
            raise InvalidReplay(f"{place}.parameters: {error}") from None
        where = "parameters stand in the file of --policy, in spec.planner.parameters"
        raise InvalidReplay(f"--planner: {error}; {where}") from None


def _interval(trace: LoadTrace, duration_seconds: float) -> float:
    """Return the default scrape interval: 10 to 60 s, in integer seconds."""
    shape = trace.shape
    if isinstance(shape, Recording):
        return SLOW_STEP_SECONDS if shape.step_seconds >= trace.speedup * SLOW_STEP_SECONDS else FAST_STEP_SECONDS
    interval = min(SLOW_STEP_SECONDS, trace.turn_seconds // 2, math.ceil(duration_seconds / MAX_SCRAPES))
    return max(FAST_STEP_SECONDS, interval)


def _default(trace: LoadTrace, duration_seconds: float) -> dict[str, Any]:
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "replay", "name": "replay"},
        "spec": {
            # The simulated source commits what it has read, and some planners go by that.
            "signals": {"kafka": {"bootstrapServers": "127.0.0.1:9092", "groupId": "replay"}},
            "objective": {"maxLag": "30s"},
            "bounds": {"min": 1, "max": 16},
            "interval": f"{_interval(trace, duration_seconds):.0f}s",
        },
    }
