"""The trial's live view: one screen made from one snapshot. Pure but for the terminal it is drawn on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

SPARKLINE_WIDTH = 48
_BARS = "▁▂▃▄▅▆▇█"


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


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """A value with its unit, or a dash where it is unknown."""
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


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
