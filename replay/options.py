"""What a replay is asked to do, checked before it starts. Pure but for reading files."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir_contracts import Bounds, InvalidPolicy, ScalingPolicy, parse_policy
from weir_planner.installed import InvalidParameters, UnknownPlanner, parse_parameters

from runtime.documents import Unreadable, read_file
from simulator import PRESETS, Application, InvalidApplication, parse
from workloads.loadgen.trace import InvalidTrace, LoadTrace, Recording, Shape, named

from .score import LOOK_SECONDS, BoundedOptimum

DAY_SECONDS = 86_400.0
SHAPE_SECONDS = 1_200.0
SLOW_STEP_SECONDS = 60.0
"""Between samples that lie so far apart nothing happens that a look every minute would miss."""
FAST_STEP_SECONDS = 10.0
SHORTEST_TURN_SECONDS = 0.2
"""Of a load at the asked speed; a faster one would take steps of less than 50 ms."""
LOOKS = 1440
"""Where nobody says how often, a day of a shape has no more of them, if that shows its peaks: as many as a recorded day by the minute."""
START_UTILISATION = 0.7
"""A replay begins with what the first load needs, with a little to spare."""


class InvalidReplay(ValueError):
    """A replay that cannot be run as asked; the sentence names the option, and the file and field where there are such."""


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
    plot: Path | None = None


@dataclass(frozen=True)
class Replay:
    """A replay, ready to run."""

    trace: LoadTrace
    application: Application
    policy: ScalingPolicy
    duration_seconds: float

    @property
    def look_seconds(self) -> float:
        """Between two looks at what the load needs: short enough that no peak falls between them."""
        return min(LOOK_SECONDS, self.trace.turn_seconds / 4)

    @property
    def step_seconds(self) -> float:
        """Of the model: fine enough to see what happens between two scrapes and two looks, no finer. Looks are whole steps."""
        longest = min(1.0, self.policy.spec.interval.total_seconds() / 4)
        return self.look_seconds / math.ceil(self.look_seconds / longest)


def prepare(options: ReplayOptions) -> Replay:
    """Read what the options name. Raises `InvalidReplay` naming option, file and field."""
    trace = _trace(options)
    duration = _duration(options, trace)
    policy = _policy(options, trace, duration)
    application = _application(options, policy, trace)
    return Replay(trace, application, policy, duration)


def _trace(options: ReplayOptions) -> LoadTrace:
    shape = _shape(options.trace)
    try:
        trace = LoadTrace(shape, options.peak_rate, options.speedup)
    except InvalidTrace as error:
        parameter, _, problem = str(error).partition(": ")
        raise InvalidReplay(f"--{parameter.replace('_', '-')}: {problem}") from None
    if trace.turn_seconds < SHORTEST_TURN_SECONDS:
        most = shape.turn_seconds / SHORTEST_TURN_SECONDS
        raise InvalidReplay(
            f"--speedup: a replay sees the peaks of {options.trace} up to {most:g}, is {options.speedup:g}"
        )
    return trace


def _shape(name: str) -> Shape:
    try:
        return named(name)
    except InvalidTrace as error:
        raise InvalidReplay(f"--trace: {error}") from None


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
        application = _roomy(PRESETS[options.topology](1), bounds)
        _check_least(application, bounds, options)
        started = BoundedOptimum(application, bounds).parallelism(trace.rate_at(0.0) / START_UTILISATION)
        return application.started_with({name: max(bounds.of(name)[0], p) for name, p in started.items()})
    try:
        return parse(read_file(options.topology), options.topology)
    except (Unreadable, InvalidApplication) as error:
        known = "" if Path(options.topology).exists() else f" (ready-made: {', '.join(sorted(PRESETS))})"
        raise InvalidReplay(f"--topology: {error}{known}") from None


def _roomy(application: Application, bounds: Bounds) -> Application:
    """The same with slots for all that the bounds allow: a cluster that nobody described is not what holds a run back."""
    most = {o.name: min(bounds.of(o.name)[1], o.max_parallelism) for o in application.operators}
    return application.on(slots=max(application.cluster.slots, application.topology().slots(most)))


def _check_least(application: Application, bounds: Bounds, options: ReplayOptions) -> None:
    for operator in application.operators:
        name, least = operator.name, bounds.of(operator.name)[0]
        if least > operator.max_parallelism:
            own = bounds.operators.get(name)
            field = "min" if own is None or own.min is None else f"operators.{name}.min"
            raise InvalidReplay(
                f"--policy: {options.policy_file}: spec.bounds.{field}: {least} is more than the {operator.max_parallelism} subtasks "
                f"that {name!r} of {options.topology} can have"
            )


def _policy(options: ReplayOptions, trace: LoadTrace, duration_seconds: float) -> ScalingPolicy:
    document = _written(options.policy_file) if options.policy_file else _default(trace, duration_seconds)
    spec = document.setdefault("spec", {}) if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        raise InvalidReplay(f"--policy: {options.policy_file}: is not a policy: it has no spec")
    # The simulation runs in place of the cluster that the policy names.
    spec["application"] = {"flink": {"url": "http://127.0.0.1:8081", "job": "replay"}}
    spec["target"] = {"flink": {}}
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


def _check_planner(policy: ScalingPolicy, options: ReplayOptions, *, written: bool) -> None:
    """`written`: name or parameters are those of the policy's file."""
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


def _written(file: Path) -> Any:
    try:
        return read_file(file)
    except Unreadable as error:
        raise InvalidReplay(f"--policy: {error}") from None


def _interval(trace: LoadTrace, duration_seconds: float) -> float:
    """Between two scrapes where nobody says it: whole seconds, 10 to 60."""
    shape = trace.shape
    if isinstance(shape, Recording):
        return SLOW_STEP_SECONDS if shape.step_seconds >= trace.speedup * SLOW_STEP_SECONDS else FAST_STEP_SECONDS
    longest = min(SLOW_STEP_SECONDS, trace.turn_seconds // 2, math.ceil(duration_seconds / LOOKS))
    return max(FAST_STEP_SECONDS, longest)


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
