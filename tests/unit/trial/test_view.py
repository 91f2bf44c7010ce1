"""The screen of a trial: the numbers of a snapshot, unknown as a dash."""

from dataclasses import replace
from io import StringIO

from weir_cli.output import number
from weir_cli.terminal import terminal
from weir_cli.trial import Screen, line, render, sparkline

SCREEN = Screen(
    elapsed_seconds=12,
    duration_seconds=180,
    trace="step",
    mode="act",
    objective_seconds=30,
    input_rates=[100.0, 1200.0],
    lags=[0.1, 31.5],
    probe_lags=[None],
    operators=["Source: orders", "enrich"],
    planned={"enrich": 5},
    requested={"enrich": 5},
    observed={"Source: orders": 1, "enrich": 2},
    slots_used=2,
    slots_total=16,
    decision="enrich 2 → 5: 1,200 records/s arrive",
    outcome="verifying: waiting for 5 subtasks",
    api_url="http://127.0.0.1:8080",
)


def shown(screen: Screen) -> str:
    console = terminal(width=120, record=True, file=StringIO())
    console.print(render(screen))
    return str(console.export_text())


def test_words_from_elsewhere_are_no_markup() -> None:
    """A planner's sentence and an operator's name, brackets and all."""
    text = shown(replace(SCREEN, decision="model [/srv/m.bin] says :smile:", operators=["work [/x]"]))
    assert "model [/srv/m.bin] says :smile:" in text
    assert "work [/x]" in text


def test_the_screen_shows_planned_requested_and_observed_apart() -> None:
    """Three facts, three columns, and where to read more."""
    text = shown(SCREEN)
    for expected in ("1,200 rec/s", "31.5 s", "planned", "requested", "observed", "2 of 16", "/docs", "–"):
        assert expected in text
    row = next(row for row in text.splitlines() if "enrich" in row and "→" not in row)
    assert [cell for cell in row.split() if cell.isdigit()] == ["5", "5", "2"]


def test_a_line_for_logs_has_the_same_content() -> None:
    """Without a terminal each snapshot is one line."""
    text = line(SCREEN)
    assert "in 1,200/s" in text
    assert "probe –" in text
    assert "enrich=2" in text


def test_unknown_is_drawn_as_unknown() -> None:
    """A blank in the curve and a dash for the number, never a zero."""
    assert number(None, " s") == "–"
    assert sparkline([1.0, None, 2.0]) == "▅ █"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""
