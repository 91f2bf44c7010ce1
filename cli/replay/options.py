"""What a replay is asked to do, checked before it starts. Pure but for reading files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir_contracts import InvalidPolicy, ScalingPolicy, parse_policy

from cli import yaml_file
from cli.errors import InvalidInput
from services.planner.core.planners import InvalidParameters, UnknownPlanner, parse_parameters
from simulator import PRESETS, Application, InvalidApplication, load
from simulator.clairvoyant import Clairvoyant
from workloads.loadgen.trace import InvalidTrace, LoadTrace, Recording, named

DAY_SECONDS = 86_400.0
SHAPE_SECONDS = 1_200.0
SLOW_STEP_SECONDS = 60.0
"""Between samples that lie so far apart nothing happens that a look every minute would miss."""
START_UTILISATION = 0.7
"""A replay begins with what the first load needs, with a little to spare."""


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
    def step_seconds(self) -> float:
        """Of the model: fine enough to see what happens between two scrapes, no finer."""
        return min(1.0, self.policy.spec.interval.total_seconds() / 4)


def prepare(options: ReplayOptions) -> Replay:
    """Read what the options name. Raises `InvalidInput` naming option, file and field."""
    trace = _trace(options)
    policy = _policy(options, trace)
    application = _application(options, policy, trace)
    return Replay(trace, application, policy, _duration(options, trace))


def _trace(options: ReplayOptions) -> LoadTrace:
    try:
        return LoadTrace(named(options.trace), options.peak_rate, options.speedup)
    except InvalidTrace as error:
        raise InvalidInput(f"--trace: {error}") from None


def _duration(options: ReplayOptions, trace: LoadTrace) -> float:
    if options.duration_seconds is not None:
        if not 10 <= options.duration_seconds <= 366 * DAY_SECONDS:
            raise InvalidInput("--duration: must lie between 10 seconds and 366 days")
        return options.duration_seconds
    if isinstance(trace.shape, Recording):
        return min(DAY_SECONDS, max(10.0, trace.shape.period_seconds / options.speedup))
    return SHAPE_SECONDS


def _application(options: ReplayOptions, policy: ScalingPolicy, trace: LoadTrace) -> Application:
    try:
        if options.topology in PRESETS:
            application = PRESETS[options.topology](1)
            started = Clairvoyant(application, policy.spec.bounds.max).least(trace.rate_at(0.0) / START_UTILISATION)
            bounds = {name: policy.spec.bounds.of(name) for name in started}
            return application.started_with({n: min(bounds[n][1], max(bounds[n][0], p)) for n, p in started.items()})
        return load(Path(options.topology))
    except InvalidApplication as error:
        known = "" if Path(options.topology).exists() else f" (ready-made: {', '.join(sorted(PRESETS))})"
        raise InvalidInput(f"--topology: {error}{known}") from None


def _policy(options: ReplayOptions, trace: LoadTrace) -> ScalingPolicy:
    document = _written(options.policy_file) if options.policy_file else _default(trace)
    spec = document.setdefault("spec", {}) if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        raise InvalidInput(f"--policy: {options.policy_file}: is not a policy: it has no spec")
    # The target is the simulation, whatever cluster the policy is made for.
    spec["target"] = {"flink": {"url": "http://127.0.0.1:8081", "job": "replay"}}
    spec["mode"] = "act"
    metadata = document.get("metadata")
    document["metadata"] = {"namespace": "replay", "name": "replay", **(metadata if isinstance(metadata, dict) else {})}
    document["metadata"]["resourceVersion"] = 1
    if options.interval_seconds is not None:
        if not 1 <= options.interval_seconds <= 600:
            raise InvalidInput(f"--interval: must lie between 1 and 600 seconds, is {options.interval_seconds:g}")
        spec["interval"] = f"{options.interval_seconds:.3f}s"
    chosen = spec.get("planner")
    named_already = chosen.get("name", "rate") if isinstance(chosen, dict) else "rate"
    if options.planner is not None and options.planner != named_already:
        # Parameters belong to the planner they were written for.
        spec["planner"] = {"name": options.planner}
    try:
        policy = parse_policy(document)
    except InvalidPolicy as error:
        raise InvalidInput(f"--policy: {options.policy_file}: {error}" if options.policy_file else str(error)) from None
    try:
        parse_parameters(policy.spec.planner.name, policy.spec.planner.parameters)
    except UnknownPlanner as error:
        raise InvalidInput(f"--planner: {error}") from None
    except InvalidParameters as error:
        where = "" if chosen else "; parameters stand in the file of --policy, in spec.planner.parameters"
        raise InvalidInput(f"--planner: {error}{where}") from None
    return policy


def _written(file: Path) -> Any:
    try:
        return yaml_file.document(file)
    except InvalidInput as error:
        raise InvalidInput(f"--policy: {error}") from None


def _default(trace: LoadTrace) -> dict[str, Any]:
    shape = trace.shape
    slow = isinstance(shape, Recording) and shape.step_seconds >= trace.speedup * SLOW_STEP_SECONDS
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "replay", "name": "replay"},
        "spec": {
            # The simulated source commits what it has read, and some planners go by that.
            "signals": {"kafka": {"bootstrapServers": "127.0.0.1:9092", "groupId": "replay"}},
            "objective": {"maxLag": "30s"},
            "bounds": {"min": 1, "max": 16},
            "interval": "60s" if slow else "10s",
        },
    }
