"""`weir trial`: its options, and its screen, made from one snapshot of the loop; `trial_run` runs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .client import TRACE, InvalidInput, in_seconds
from .completion import complete_installed_planner
from .output import number
from .terminal import terminal

SPARKLINE_WIDTH = 48
_BARS = "▁▂▃▄▅▆▇█"


def trial(
    workload: Annotated[
        str, typer.Option(help="flink: a Flink job. kafka-streams: instances of a Kafka Streams application.")
    ] = "flink",
    duration: Annotated[
        float | None, in_seconds("--duration", "Time to run, in seconds or such as 10m; default: until Ctrl-C.")
    ] = None,
    trace: Annotated[str, TRACE] = "step",
    mode: Annotated[
        str | None,
        typer.Option(help="act: rescale the job. advise: only publish decisions. By default the policy's, else act."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the report (JSON) to this file.")] = None,
    speedup: Annotated[
        float | None, typer.Option(help="Replay a recording this many times faster than recorded; default: 120.")
    ] = None,
    peak_rate: Annotated[
        float | None, typer.Option(help="Records/s at the trace's highest point; default: 2400, Kafka Streams 900.")
    ] = None,
    planner: Annotated[
        str | None,
        typer.Option(
            help="The planner that decides. By default the policy's, else rate.",
            autocompletion=complete_installed_planner,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="Policy file, used with the trial's addresses; --mode and --planner override it."),
    ] = None,
    external_flink: Annotated[
        str | None, typer.Option(help="Run the job on this cluster (REST address) instead of starting one.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the API.")] = 8080,
) -> None:
    """Run the complete loop on this machine: Kafka, Redis, the five services, a real application and its load.

    Exit codes: 0 at least one rescale was verified and the job is within its objective at the end (by an independent
    probe); 1 not, or a part failed; 2 the trial cannot start with these options; 130 interrupted.
    """
    if find_spec("testbed") is None:
        raise InvalidInput(
            "a trial starts the real parts and the sample applications, which are not installed: run it in a clone of the project"
        )
    # The parts it starts are a second of imports, which no other command needs.
    from testbed.trial.options import PEAK_RATES, TrialOptions

    from .trial_run import run_trial

    options = TrialOptions(
        workload=workload,
        duration_seconds=duration,
        trace=trace,
        mode=mode,
        report=report,
        speedup=speedup,
        peak_rate=PEAK_RATES.get(workload, 0.0) if peak_rate is None else peak_rate,
        planner=planner,
        policy_file=policy,
        external_flink=external_flink,
        port=port,
    )
    raise typer.Exit(run_trial(options, terminal()))


@dataclass(frozen=True)
class Screen:
    """Content of the view. None is unknown and drawn as a dash."""

    elapsed_seconds: float
    duration_seconds: float | None
    trace: str
    mode: str
    objective_seconds: float
    input_rates: Sequence[float | None]
    lags: Sequence[float | None]
    probe_lags: Sequence[float | None]
    operators: Sequence[str] = ()
    planned: Mapping[str, int] = field(default_factory=dict)
    requested: Mapping[str, int] = field(default_factory=dict)
    observed: Mapping[str, int] = field(default_factory=dict)
    slots_used: int | None = None
    slots_total: int | None = None
    decision: str = ""
    outcome: str = ""
    api_url: str = ""
    notes: Sequence[str] = ()


def sparkline(values: Sequence[float | None]) -> str:
    """The last `SPARKLINE_WIDTH` values as bars, scaled to the largest of them; unknown is a blank."""
    shown = list(values)[-SPARKLINE_WIDTH:]
    top = max((v for v in shown if v is not None), default=0.0)
    return "".join(
        " " if v is None else _BARS[min(len(_BARS) - 1, int(v / top * (len(_BARS) - 1) + 0.5))] if top > 0 else _BARS[0]
        for v in shown
    )


def _last(values: Sequence[float | None]) -> float | None:
    return values[-1] if values else None


def _lag_text(value: float | None, objective_seconds: float) -> Text:
    style = "dim" if value is None else "bold red" if value > objective_seconds else "bold green"
    return Text(number(value, " s", 1), style=style)


def render(screen: Screen) -> RenderableType:
    return Panel(
        Group(_curves(screen), _operators(screen), _sentences(screen)),
        title=Text.assemble(("weir trial", "bold"), f" · {screen.trace} · mode {screen.mode}"),
        subtitle=_clock(screen),
        padding=(0, 1),
    )


def _clock(screen: Screen) -> str:
    until = "" if screen.duration_seconds is None else f" of {screen.duration_seconds:.0f} s"
    return f"{screen.elapsed_seconds:.0f} s{until} · Ctrl-C stops everything"


def _curves(screen: Screen) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right", min_width=12)
    table.add_column()
    table.add_row("input", number(_last(screen.input_rates), " rec/s"), Text(sparkline(screen.input_rates), "cyan"))
    for name, values in (("lag (Weir)", screen.lags), ("lag (probe)", screen.probe_lags)):
        table.add_row(name, _lag_text(_last(values), screen.objective_seconds), Text(sparkline(values), "yellow"))
    table.add_row("objective", f"{screen.objective_seconds:g} s", "")
    slots = f"{number(screen.slots_used)} of {number(screen.slots_total)}"
    table.add_row("slots in use", slots, "")
    return table


def _operators(screen: Screen) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="bold")
    table.add_column("operator", overflow="fold")
    for heading in ("planned", "requested", "observed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in screen.operators:
        planned, requested, observed = (
            vector.get(name) for vector in (screen.planned, screen.requested, screen.observed)
        )
        moving = requested is not None and requested != observed
        table.add_row(name, number(planned), number(requested), Text(number(observed), "bold yellow" if moving else ""))
    return table


def _sentences(screen: Screen) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("decision", screen.decision or "–")
    table.add_row("last action", screen.outcome or "–")
    table.add_row("API", f"{screen.api_url}/docs" if screen.api_url else "–")
    for note in screen.notes:
        table.add_row("", Text(note, "yellow"))
    return table


def line(screen: Screen) -> str:
    """The same snapshot as one line, where there is no terminal."""
    observed = " ".join(f"{name}={screen.observed[name]}" for name in screen.operators if name in screen.observed)
    return (
        f"{screen.elapsed_seconds:6.0f} s  in {number(_last(screen.input_rates))}/s  lag {number(_last(screen.lags), ' s', 1)}"
        f"  probe {number(_last(screen.probe_lags), ' s', 1)}  slots {number(screen.slots_used)}  [{observed}]  "
        f"{screen.decision}"
    )
