"""The page of `weir run --html`: complete in itself, true to what was read, and safe whatever a job is called."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest

from tests.unit.cli.pseudo_terminal import on_terminal
from weir_cli.advice import Advice
from weir_cli.chart import check_place
from weir_cli.client import InvalidInput
from weir_cli.report import MAX_GONE, MAX_SAMPLES, Record, page, write_page
from weir_contracts import Analysis, Plan, example
from weir_knowledge.core import Cycle, Summary
from weir_knowledge.view import View
from weir_replay import figure

HOSTILE = '<script>alert(1)</script> "x" &amp; \u202egnp.exe\x1b[2J'
BEGAN = datetime(2026, 6, 14, 18, 0, tzinfo=UTC)
VOID = {"meta", "line", "path", "rect", "br"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails for tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data + " "


def renamed(value: Any, before: str, after: str) -> Any:
    """Return a document with another name for an operator, in keys and values."""
    if isinstance(value, dict):
        return {renamed(key, before, after): renamed(each, before, after) for key, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, before, after) for each in value]
    return after if value == before else value


def reading(
    after_seconds: float = 0.0, *, operator: str = "enrich", application: str = "shop/orders", **changes: Any
) -> Advice:
    """An application with the analysis and the plan of the examples, so many seconds after the beginning."""
    at = (BEGAN + timedelta(seconds=after_seconds)).isoformat()
    seen = renamed(example("analysis"), "enrich", operator)
    analysis = Analysis.model_validate({**seen, "application": application, "observed_at": at, **changes})
    plan = Plan.model_validate({**renamed(example("plan"), "enrich", operator), "application": application})
    summary = Summary(
        application=application, mode="advise", status="running", bottleneck=analysis.bottleneck, problems=["a problem"]
    )
    return Advice(summary, analysis, plan, 6)


def rendered(record: Record, *cycles: Cycle, application: str = "shop/orders") -> Page:
    return Page(page(record, {application: cycles}, BEGAN + timedelta(seconds=60)))


def recorded(*readings: Sequence[Advice]) -> Record:
    record = Record(BEGAN)
    for each in readings:
        record.add(each)
    return record


def test_names_from_outside_are_text_and_nothing_else() -> None:
    """A job and its operators may be called anything: no element, no attribute and no mark of direction comes of it."""
    hostile = [reading(at, operator=HOSTILE) for at in (0.0, 5.0)]
    record = recorded(*([each] for each in hostile))
    usual = rendered(recorded([reading()], [reading(5.0)]))
    found = rendered(record)
    assert found.tags == usual.tags
    assert "<script>alert(1)</script>" in found.text
    assert not {"script", "img", "iframe", "link", "object"} & set(found.tags)
    html = page(record, {}, BEGAN)
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert "\\u202egnp.exe" in html


def test_the_page_needs_no_network() -> None:
    """No attribute loads anything, links stay on the page, styles import nothing, and a browser is told so."""
    found = rendered(recorded([reading(), reading(application="shop/clicks")], [reading(5.0)]))
    loading = {"src", "href", "xlink:href", "action", "data", "srcset", "poster"}
    assert [value for _, name, value in found.attributes if name in loading and not value.startswith("#")] == []
    html = page(recorded([reading()], [reading(5.0)]), {}, BEGAN)
    styles = " ".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert "url(" not in styles
    assert "@import" not in styles
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]


def test_every_decision_is_there_with_its_sentence_and_outcomes() -> None:
    """Newest first, as `weir explain` has them."""
    plan = reading().plan
    assert plan is not None
    older = plan.model_copy(update={"id": uuid4(), "sentence": "Hold: an older reason with 7 slots."})
    cycles = [Cycle(correlation_id=uuid4(), plan=each) for each in (plan, older)]
    found = rendered(recorded([reading()]), *cycles)
    newest, oldest = found.text.rindex(plan.sentence), found.text.index(older.sentence)
    assert newest < oldest
    for amendment in plan.amendments:
        assert amendment.because in found.text


def test_the_advice_has_its_cost_and_the_bottleneck_its_name() -> None:
    """What Weir would do, what that costs, and the operator that limits, in words: no colour is needed."""
    advice = reading()
    found = rendered(recorded([advice]))
    assert advice.cost
    assert advice.cost in found.text
    assert "▲ bottleneck" in found.text
    assert "a problem" in found.text


def test_charts_have_units_and_a_named_time_zone() -> None:
    """Curves of one chart differ by their dashes, and each has its numbers in words."""
    found = rendered(recorded(*([reading(at)] for at in range(0, 60, 5))))
    for words in ("seconds", "records/s", "slots", "time of day, UTC", "18:00"):
        assert words in found.text
    dashed = re.findall(r"\.curve\.(\w+) \{ stroke-dasharray", figure.style())
    curves = [
        value.split()[1] for tag, name, value in found.attributes if tag == "path" and name == "class" and " " in value
    ]
    assert "lag" in curves
    assert set(curves) - set(dashed) <= {"lag", "load", "held"}
    assert "at the end" in found.text


@pytest.mark.parametrize(
    ("name", "hours", "expected"),
    [("CEST", 2, "CEST (UTC+02:00)"), (None, -3.5, "UTC-03:30"), ("UTC", 0, "UTC")],
)
def test_a_zone_has_its_name_and_distance(name: str | None, hours: float, expected: str) -> None:
    """Of the machine that wrote the page; the reader may be elsewhere."""
    distance = timedelta(hours=hours)
    zone = timezone(distance) if name is None else timezone(distance, name)
    assert figure.zone(BEGAN.astimezone(zone)) == expected


@pytest.mark.parametrize("seconds", [5.0, 90.0, 7_200.0, 90_000.0, 30 * 86_400.0])
def test_times_of_day_fit_the_axis(seconds: float) -> None:
    """Some, none twice, from seconds to a month."""
    panels = [figure.Panel("s", [figure.Curve("lag", "lag", [(0.0, 1.0), (seconds, 2.0)])])]
    drawn = figure.svg("Lag", panels, width=440, began=BEGAN)
    times = re.findall(r'<text class="tick middle"[^>]*>([^<]*)</text>', drawn)[:-1]
    assert 1 <= len(times) <= 6
    assert len(set(times)) == len(times)


def test_unknown_is_said_and_never_drawn_as_zero() -> None:
    """Without a reading, and with one that knows nothing."""
    unknown = Advice(Summary(application="shop/orders"), None, None)
    found = rendered(recorded([unknown]))
    assert "The operators are unknown" in found.text
    assert "Nothing was decided yet" in found.text
    nothing = {"value": None, "basis": "unknown", "confidence": 0.0}
    estimates: dict[str, Any] = dict.fromkeys(("lag_seconds", "expected_latency_seconds", "arrival_rate"), nothing)
    found = rendered(recorded(*([reading(at, **estimates)] for at in (0.0, 5.0))))
    assert "Lag: unknown in this time" in found.text
    assert "Arrivals: unknown in this time" in found.text


def test_a_process_that_runs_for_days_keeps_a_bounded_record() -> None:
    """The samples thin out, and the one with the most lag stays; of applications that are gone the newest stay."""
    record = Record(BEGAN)
    base = reading()
    assert base.analysis is not None
    for i in range(2 * MAX_SAMPLES):
        lag = base.analysis.lag_seconds.model_copy(update={"value": 900.0 if i == 101 else 1.0})
        analysis = base.analysis.model_copy(update={"observed_at": BEGAN + timedelta(seconds=i), "lag_seconds": lag})
        record.add([Advice(base.summary, analysis, base.plan)])
    samples = record.applications["shop/orders"].samples
    assert MAX_SAMPLES // 2 <= len(samples) <= MAX_SAMPLES
    assert [each.lag for each in samples].count(900.0) == 1
    for i in range(MAX_GONE + 50):
        record.add([Advice(Summary(application=f"default/job-{i}"), None, None)])
    assert len(record.applications) == MAX_GONE + 1
    assert f"default/job-{MAX_GONE + 48}" in record.applications


def test_an_application_that_is_gone_stays_on_the_page() -> None:
    """A job that ended meanwhile was watched as well."""
    found = rendered(recorded([reading()], [reading(5.0, application="shop/clicks")]))
    assert "gone" in found.text
    assert "shop/orders" in found.text


async def test_a_page_that_cannot_be_written_at_the_end_is_one_sentence(tmp_path: Path) -> None:
    """The folder was removed meanwhile."""
    view = mock.Mock(spec=View)
    view.states.return_value = {}
    place = tmp_path / "gone" / "report.html"
    with pytest.raises(InvalidInput, match=r"--html: .*report.html: cannot be written: .*; name another place"):
        await write_page(place, recorded([reading()]), view, BEGAN)
    written = tmp_path / "report.html"
    assert await write_page(written, recorded([reading()]), view, BEGAN) == f"1 application on the page {written}"
    assert "shop/orders" in Page(written.read_text()).text


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    """Before minutes are spent: a folder, a folder that does not exist, and one that refuses files."""
    for place, reason in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "report.html", f"there is no folder {tmp_path / 'no'}"),
        (Path("/proc/report.html"), "cannot be written: "),
    ):
        with pytest.raises(InvalidInput, match=re.escape(f"--html: {place}: {reason}")):
            check_place(place, "--html", None)
    check_place(tmp_path / "report.html", "--html", None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "demo"])
def test_the_commands_refuse_a_place_before_they_begin(command: str, tmp_path: Path) -> None:
    """Exit code 2, and one line."""
    shown = on_terminal(200, command, "--html", str(tmp_path))
    assert (shown.code, shown.lines) == (2, [f"weir: --html: {tmp_path}: is a folder"])
