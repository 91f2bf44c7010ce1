"""Figures as their viewer's XML parser sees them."""

from xml.etree import ElementTree

import pytest

from weir_replay.figure import Curve, Panel, nice_top, svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*panels: Panel, title: str = "a run") -> ElementTree.Element:
    return ElementTree.fromstring(svg(title, panels))  # noqa: S314 - made here


def texts(figure: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in figure.iter(f"{SVG}text")]


def test_a_figure_has_a_title_axes_with_units_and_a_legend() -> None:
    """A reader needs no other page to know what is drawn."""
    load = Curve("arrivals", "load", [(0.0, 100.0), (600.0, 480.0), (1200.0, 300.0)])
    found = texts(drawn(Panel("records/s", [load], marks=[300.0])))
    assert found[0] == "a run"
    assert "records/s━ arrivals┆ rescale" in found
    assert {"0", "250", "500"} <= set(found), "the axis of values ends at a round number"
    assert "time, minutes" in found
    assert "20" in found


def test_equal_tops_make_panels_comparable() -> None:
    """The same value is drawn at the same height of two panels, though their largest values differ."""
    low = Panel("a", [Curve("lag", "lag", [(0.0, 5.0), (1.0, 5.0)])], top=50.0)
    high = Panel("b", [Curve("lag", "lag", [(0.0, 5.0), (1.0, 50.0)])], top=50.0)
    heights = []
    for panel in (low, high):
        path = next(drawn(panel).iter(f"{SVG}path")).attrib["d"]
        heights.append(float(path.split("L")[0].split(" ")[1]))
    assert heights[0] == heights[1]


def test_an_unknown_value_breaks_the_curve() -> None:
    """None is no 0: two strokes, and nothing between them."""
    curve = Curve("lag", "lag", [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 2.0)])
    path = next(drawn(Panel("lag, s", [curve])).iter(f"{SVG}path")).attrib["d"]
    assert path.count("M") == 2
    assert path.count("L") == 1


def test_a_stepped_curve_holds_its_value_until_the_next() -> None:
    """Slots do not glide from 2 to 4."""
    curve = Curve("slots", "held", [(0.0, 2.0), (1.0, 4.0)], stepped=True)
    path = next(drawn(Panel("slots", [curve])).iter(f"{SVG}path")).attrib["d"]
    assert path.count("L") == 2


@pytest.mark.parametrize("text", ['<script>alert("x")</script>', "a & b", "]]>"])
def test_names_of_applications_are_text(text: str) -> None:
    """Whatever an operator is called, it is no markup."""
    figure = drawn(Panel(text, [Curve(text, "load", [(0.0, 1.0)])]), title=text)
    assert texts(figure)[0] == text
    assert not list(figure.iter(f"{SVG}script"))


@pytest.mark.parametrize(
    ("largest", "top"), [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (16.0, 20.0), (2001.0, 2500.0), (float("inf"), 1.0)]
)
def test_axes_end_at_round_numbers(largest: float, top: float) -> None:
    assert nice_top(largest) == pytest.approx(top)


def test_nothing_is_fetched_and_both_colour_schemes_are_there() -> None:
    """A figure is complete in itself, on a light page and on a dark one."""
    text = svg("a run", [Panel("lag, s", [Curve("lag", "lag", [(0.0, 1.0)])])])
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in text
