"""`weir replay`: options, run and output."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from weir_runtime.clock import SystemClock
from weir_runtime.http_client import Event

from . import recorded as history
from .chart import LABEL, WIDTH, charts, check_place, save
from .client import (
    LOCAL,
    TRACE,
    InvalidInput,
    Server,
    TokenFile,
    application_id,
    connect,
    in_seconds,
)
from .client import duration as parse_duration
from .completion import complete_application, complete_installed_planner
from .output import Format, show
from .terminal import Progress, terminal

if TYPE_CHECKING:
    from weir_contracts import PlanReply, PlanRequest
    from weir_replay.options import Replay, ReplayOptions
    from weir_replay.run import Result, Score


_OF_TRACE = ("topology", "interval", "speedup", "peak_rate", "duration", "seed", "noise", "plot")
_OF_RECORDED = ("since", "export", "server", "token_file")


def replay(
    context: typer.Context,
    trace: Annotated[str | None, TRACE] = None,
    recorded: Annotated[
        str | None,
        typer.Option(
            help="namespace/name: instead of a trace, decide again what was decided for this application.",
            autocompletion=complete_application,
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="With --recorded: how far back, 1m to 31d; by default 24h.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Decide again what this file recorded (see --export), instead of the server.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="With --recorded: write the history to this file.")] = None,
    planner: Annotated[
        str | None,
        typer.Option(
            help="The planner that decides; by default the policy's.",
            autocompletion=complete_installed_planner,
        ),
    ] = None,
    topology: Annotated[
        str,
        typer.Option(
            help="chain, diamond, two-sources, streams, streams-stateful, or a YAML file of a job (see replay/README.md)."
        ),
    ] = "chain",
    policy: Annotated[
        Path | None, typer.Option(help="Policy file; with --trace the simulation takes the place of its target.")
    ] = None,
    interval: Annotated[
        float | None,
        in_seconds(
            "--interval",
            "Seconds between two scrapes; by default the policy's, else 10 to 60, by the length of the replay and the "
            "recording (see replay/README.md).",
        ),
    ] = None,
    speedup: Annotated[float, typer.Option(help="Replay the trace this many times faster.")] = 1.0,
    peak_rate: Annotated[float, typer.Option(help="Records/s at the trace's highest point.")] = 2400.0,
    duration: Annotated[
        float | None,
        in_seconds(
            "--duration",
            "Simulated time, in seconds or such as 1h; by default a recording's first day, else 20 minutes.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise in the readings.")] = 0,
    noise: Annotated[float, typer.Option(help="Noise of each reading of a Flink job, as a share of it.")] = 0.02,
    plot: Annotated[Path | None, typer.Option(help="Write the curves to this file (.svg).")] = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
) -> None:
    """Run the loop on a simulated application (--trace), or compare what was decided for a real one with what would be
    decided today (--recorded, --file)."""
    if output not in ("table", "json"):
        raise InvalidInput(f"--output: {output!r} is neither table nor json")
    is_recorded = recorded is not None or file is not None
    if is_recorded == (trace is not None):
        raise InvalidInput("name either --trace, or --recorded with an application, or --file")
    _check_use(context, _OF_TRACE if is_recorded else _OF_RECORDED, "--trace" if is_recorded else "--recorded")
    if is_recorded:
        _replay_recorded(recorded, since, file, export, planner, policy, server, token_file, Format(output))
        return
    assert trace is not None  # noqa: S101 - see above
    if plot is not None:
        check_place(plot)
    if not 0 <= noise <= 1:
        raise InvalidInput(f"--noise: must lie between 0 and 1, is {noise:g}")
    # These imports take a second, and no other command needs them.
    from weir_replay.options import InvalidReplay, ReplayOptions, prepare
    from weir_replay.run import run, run_panels
    from weir_replay.simulator.world import START
    from weir_sdk.installed import ask

    options = ReplayOptions(
        trace=trace,
        planner=planner,
        topology=topology,
        policy_file=policy,
        interval_seconds=interval,
        speedup=speedup,
        peak_rate=peak_rate,
        duration_seconds=duration,
        seed=seed,
        noise=noise,
    )
    try:
        prepared = prepare(options)
    except InvalidReplay as error:
        raise InvalidInput(str(error)) from None
    progress, hours = Progress(f"replaying {trace}"), prepared.duration_seconds / 3600

    def asked(request: "PlanRequest", name: str) -> "PlanReply":
        progress.show(f"{(request.now - START).total_seconds() / 3600:,.1f} of {hours:,.1f} h")
        return ask(request, name)

    try:
        result = run(prepared, seed=seed, noise=noise, asks=asked)
    finally:
        progress.end()
    objective = prepared.policy.spec.objective.bound_seconds
    if output == "json":
        sys.stdout.write(json.dumps(_document(options, prepared, result), indent=2) + "\n")
    else:
        console = terminal()
        console.print(charts(result.points, objective, width=max(20, min(WIDTH, console.width - LABEL))))
        console.print(_table(prepared, result))
    if plot is not None:
        title = f"weir replay {trace}, planner {prepared.policy.spec.planner.name}"
        save(plot, title, run_panels(result.points, objective, result.rescales_at_seconds))


def _check_use(context: typer.Context, names: Sequence[str], only_with: str) -> None:
    """Refuse options that would have no effect. A variable of the environment is for other commands, too."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidInput(f"--{name.replace('_', '-')}: is for {only_with} only")


def _replay_recorded(
    application: str | None, since: str | None, file: Path | None, export: Path | None, planner: str | None,
    policy: Path | None, server: str, token_file: Path | None, form: Format,
) -> None:  # fmt: skip
    name, changed, begin = application and application_id(application), history.changed(planner, policy), None
    if file is not None:
        if since is not None:
            raise InvalidInput("--since: a file is replayed as a whole")
        events = history.events_in(file)
        if name is None:
            name, events = history.application_of(events)
    else:
        assert name is not None  # noqa: S101 - the caller checks
        begin = SystemClock().now() - parse_duration("--since", since or "24h", "1m", "31d")
        events = history.stored_events(connect(server, token_file), name)
    if export is not None:
        events = history.exported(events, export)
    progress = Progress(f"replaying the history of {name}")
    try:
        found = history.replayed(_counted(events, progress), name, begin, changed)
    finally:
        progress.end()
    show(history.document(found, begin), form, lambda: history.comparison_panel(found, begin))


def _counted(events: Iterator[Event], progress: Progress) -> Iterator[Event]:
    for count, event in enumerate(events, 1):
        progress.show(f"{count:,} messages")
        yield event


def _document(options: "ReplayOptions", prepared: "Replay", result: "Result") -> dict[str, Any]:
    return {
        "trace": options.trace,
        "planner": prepared.policy.spec.planner.name,
        "topology": options.topology,
        "peak_rate": options.peak_rate,
        "speedup": options.speedup,
        "interval_seconds": prepared.policy.spec.interval.total_seconds(),
        "seed": options.seed,
        "score": result.score.to_document(),
        "plans": result.codes,
        "outcomes": result.ends,
        "wall_seconds": result.wall_seconds,
        "notes": result.notes,
        "points": [
            {name: round(value, 1 if name == "at_seconds" else 2) for name, value in asdict(p).items()}
            for p in result.points
        ],
    }


def _table(prepared: "Replay", result: "Result") -> RenderableType:
    score, table = result.score, Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    objective = score.objective_seconds
    if score.violation_share is not None:
        what = "lag" if prepared.policy.spec.objective.max_latency is None else "latency"
        table.add_row("violation", f"{score.violation_share:.2%} of the time above {objective:g} s of {what}")
    table.add_row("largest lag", f"{score.max_lag_seconds:,.1f} s")
    table.add_row("slot-seconds", f"{score.slot_seconds:,.0f}{_times_optimum(score)}")
    table.add_row("offline optimum", f"{score.optimum_slot_seconds:,.0f}: knows the load and rescales for free")
    table.add_row("static peak", f"{score.peak_slot_seconds:,.0f} with as much as the highest load needs, all the time")
    table.add_row(
        "rescales",
        f"{score.rescales}  ({', '.join(f'{n} {phase}' for phase, n in result.ends.items()) or 'no action'})",
    )
    table.add_row("plans", ", ".join(f"{n} {code}" for code, n in result.codes.items()))
    for note in result.notes:
        table.add_row("note", note)
    hours = prepared.duration_seconds / 3600
    table.add_row(
        "simulated", f"{hours:,.1f} h in {result.wall_seconds:.1f} s, planner {prepared.policy.spec.planner.name}"
    )
    return table


def _times_optimum(score: "Score") -> str:
    times = score.times_optimum
    if times is None:
        return ""
    text = f", {times:.2f} times the offline optimum"
    if round(times, 2) >= 1:
        return text
    # The optimum carries each load as it arrives; a planner that lets work wait needs fewer slots.
    return text + (": the run was late, so it used less" if score.violation_share else ": some work waited")
