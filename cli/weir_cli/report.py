"""The page of `weir run --html`: what was watched, as one file of HTML that needs no network, no script and no other file.

Every text from outside, such as names of jobs and operators, is escaped for HTML, and its control characters and marks of
direction are shown as escapes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median

from weir_contracts import Parallelism, Plan, changes, counted, printable
from weir_knowledge.core import Cycle
from weir_knowledge.spend import slots_held, unit_of
from weir_knowledge.store import StoreUnavailable
from weir_knowledge.view import View
from weir_replay import figure

from .advice import Advice, lag, parallelism, percent, proposal, sentences
from .client import CommandError, InvalidInput
from .output import number

MAX_SAMPLES = 240
"""Of an application: a curve on the page has no more pixels to show them."""
MAX_GONE = 200
"""Applications that the page has although they are gone, the newest."""
MAX_CHANGES = 60
MAX_GRAPH_OPERATORS = 60
GAP_FACTOR = 5.0
"""A distance between two samples, in median distances, from which on no line connects them."""
TEXT_CHARACTERS = 400
CHART_WIDTH = 440
NODE_WIDTH, NODE_HEIGHT, NODE_GAP, LAYER_GAP = 200, 74, 16, 34
NAME_CHARACTERS = 27
"""Of an operator in the graph; the table below has its whole name."""
PAGE_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #212529; --soft: #5c636a; --line: #dee2e6; --used: #0b7285; --alert: #c92a2a }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #16191d; --ink: #e9ecef; --soft: #adb5bd; --line: #343a40; --used: #66d9e8; --alert: #ff8787 }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 64rem; padding: 1rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.25rem; margin: 0 0 .5rem } h3 { font-size: 1rem; margin: 1.25rem 0 .5rem }
p { margin: .25rem 0 } a { color: inherit } code { font-size: .9em }
section { border-top: 1px solid var(--line); margin-top: 1.5rem; padding-top: 1.5rem }
.advice { border-left: 4px solid var(--used); padding-left: .75rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .75rem 0 }
dt { color: var(--soft) } dd { margin: 0 }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .9rem; overflow-wrap: normal }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
.right { text-align: right } td.right { white-space: nowrap }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem }
figure { margin: 0 } figure svg { display: block; width: 100% } figcaption, .when, time { color: var(--soft); font-size: .9rem }
.decisions { padding-left: 1.5rem } .decisions > li { margin-bottom: .75rem }
.when strong { color: var(--ink) }
svg.graph { display: block; max-width: none; margin: 0 auto }
.graph .node { fill: none; stroke: var(--soft); stroke-width: 1 }
.graph .bottleneck { stroke: var(--alert); stroke-width: 3 }
.graph .name { font-weight: 600 } .graph .edge { stroke: var(--soft) } .graph .head { fill: var(--soft) }
.graph .bar { fill: var(--line) } .graph .used { fill: var(--used) }
@media print {
  body { max-width: none; padding: 0; font-size: 11px } .wide { overflow: visible } svg.graph { max-width: 100% }
  figure, .decisions > li, tr { break-inside: avoid } h2, h3 { break-after: avoid }
  .graph .bar, .graph .used { print-color-adjust: exact; -webkit-print-color-adjust: exact }
}
"""


@dataclass(frozen=True)
class Sample:
    """One reading of an application. Times in seconds, rates in records/s; None is unknown."""

    at: datetime
    lag: float | None
    lag_bound: float | None
    latency: float | None
    arrivals: float | None
    arrivals_bound: float | None
    slots: int | None
    followed: int | None


@dataclass(eq=False)
class Watched:
    """One application since it was first seen."""

    advice: Advice
    samples: list[Sample] = field(default_factory=list)
    changes: list[tuple[datetime, str]] = field(default_factory=list)
    """When another parallelism was observed, and which."""
    is_gone: bool = False
    _observed: Parallelism | None = None

    def add(self, advice: Advice) -> None:
        self.advice, self.is_gone, analysis = advice, False, advice.analysis
        if analysis is None or (self.samples and analysis.observed_at <= self.samples[-1].at):
            return
        deployment = analysis.deployment
        observed = None if deployment is None or not deployment.observed else deployment.observed
        slots = slots_held(analysis.topology, deployment)
        lag_seconds, arrivals = analysis.lag_seconds, analysis.arrival_rate
        self.samples.append(
            Sample(
                analysis.observed_at,
                lag_seconds.value,
                lag_seconds.lower_bound if lag_seconds.value is None else None,
                analysis.expected_latency_seconds.value,
                arrivals.value,
                arrivals.lower_bound if arrivals.value is None else None,
                sum(observed.values()) if slots is None and observed else slots,
                advice.followed_slots,
            )
        )
        if observed is not None:
            if self._observed is not None and observed != self._observed:
                self.changes = [*self.changes, (analysis.observed_at, changes(self._observed, observed))][-MAX_CHANGES:]
            self._observed = dict(observed)
        if len(self.samples) > MAX_SAMPLES:
            # The later half of time must not look better than the earlier one: of two samples the one with more lag stays.
            pairs = zip(self.samples[::2], self.samples[1::2], strict=False)
            self.samples = [max(pair, key=lambda each: each.lag or each.latency or 0.0) for pair in pairs]


@dataclass(eq=False)
class Record:
    """Readings of all applications since a moment; `note` is a sentence for the reader of the page."""

    began: datetime
    note: str = ""
    applications: dict[str, Watched] = field(default_factory=dict)

    def add(self, advice: Sequence[Advice]) -> None:
        """Add a reading of all applications."""
        for each in advice:
            self.applications.setdefault(each.application, Watched(each)).add(each)
        present = {each.application for each in advice}
        for name, watched in self.applications.items():
            watched.is_gone = name not in present
        gone = [name for name, watched in self.applications.items() if watched.is_gone]
        for name in gone[:-MAX_GONE]:
            del self.applications[name]


async def write_page(path: Path, record: Record, view: View, now: datetime) -> str:
    """Write the page; return what was done as a sentence. `CommandError` if it cannot be read or written."""
    try:
        stored = await view.states(list(record.applications))
    except StoreUnavailable as error:
        raise CommandError(f"--html: {error}") from None
    cycles = {name: each.state.cycles for name, each in stored.items() if each is not None}

    def write() -> None:
        path.write_text(page(record, cycles, now), encoding="utf-8")

    try:
        await asyncio.to_thread(write)
    except OSError as error:
        raise InvalidInput(f"--html: {path}: cannot be written: {error.strerror}; name another place") from None
    return f"{counted(len(record.applications), 'application')} on the page {path}"


def page(record: Record, cycles: Mapping[str, Sequence[Cycle]], now: datetime) -> str:
    """Return the page. Times are those of this machine's time zone, which the page names."""
    watched = [record.applications[name] for name in sorted(record.applications)]
    began, ended = record.began.astimezone(), now.astimezone()
    title = f"Weir: {counted(len(watched), 'application')}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        # A browser refuses whatever a text might load, if one was not escaped.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{text(title)}</title><style>{PAGE_STYLE}{figure.style()}</style></head><body>",
        f"<header><h1>{text(title)}</h1>",
        f"<p>{text(f'{moment(began, began)} to {moment(ended, began)}; times are {figure.zone(began)}.')} "
        "Weir changes an application only where its policy has <code>mode: act</code>.</p>",
        f"<p>{text(record.note)}</p>" if record.note else "",
        "</header><main>",
        "" if watched else "<p>No application was found in this time.</p>",
        _overview(watched) if len(watched) > 1 else "",
        *(_application(i, each, cycles.get(each.advice.application, ()), began) for i, each in enumerate(watched)),
        "</main></body></html>\n",
    ]
    return "\n".join(filter(None, parts))


def text(value: object, characters: int = TEXT_CHARACTERS) -> str:
    """Return a text from outside as HTML, also for an attribute in quotes."""
    return escape(printable(str(value), characters), quote=True)


def name_of(value: str) -> str:
    """Return a name as HTML: one that is written from right to left does not turn what follows it."""
    return f"<bdi>{text(value)}</bdi>"


def moment(at: datetime, began: datetime) -> str:
    """Return the time of day in the zone of `began`, with the date."""
    return at.astimezone(began.tzinfo).strftime("%Y-%m-%d %H:%M:%S")


def _overview(watched: Sequence[Watched]) -> str:
    rows = "".join(
        f'<tr><td><a href="#application-{i}">{name_of(each.advice.application)}</a></td><td>{text(_status(each))}</td>'
        f'<td class="right">{text(percent(each.advice.utilization))}</td><td class="right">{text(lag(each.advice))}</td>'
        f"<td>{text(proposal(each.advice))}</td></tr>"
        for i, each in enumerate(watched)
    )
    heads = (
        '<th>Application</th><th>Status</th><th class="right">Used</th><th class="right">Lag</th><th>Weir would</th>'
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _status(watched: Watched) -> str:
    if watched.is_gone:
        return "gone"
    summary = watched.advice.summary
    return f"no message from {', '.join(summary.silent)}" if summary.silent else str(summary.status or "no reading yet")


def _application(i: int, watched: Watched, cycles: Sequence[Cycle], began: datetime) -> str:
    advice = watched.advice
    summary = advice.summary
    facts = [
        ("What it is", _kind(advice)),
        ("Status", _status(watched)),
        *(("Problem", each) for each in [*summary.problems, *filter(None, [summary.obstacle])]),
        ("Parallelism", parallelism(summary.observed)),
        ("Bottleneck", f"{summary.bottleneck or 'unknown'}, {percent(advice.utilization)} used"),
        ("Lag", lag(advice)),
        ("Weir would", proposal(advice)),
    ]
    listed = "".join(f"<dt>{what}</dt><dd>{text(value)}</dd>" for what, value in facts)
    reasons = "".join(f"<p>{text(each)}</p>" for each in sentences(advice))
    return "\n".join(
        [
            f'<section id="application-{i}"><h2>{name_of(advice.application)}</h2>',
            f'<div class="advice">{reasons}</div><dl>{listed}</dl>',
            "<h3>Operators</h3>",
            _operators(advice),
            "<h3>Over time</h3>",
            _charts(watched, began),
            "<h3>Decisions</h3>",
            _decisions(advice.plan, cycles, began),
            "</section>",
        ]
    )


def _kind(advice: Advice) -> str:
    """Return what runs, its objective, planner and mode."""
    if advice.analysis is None:
        return "unknown until its first reading"
    policy = advice.analysis.policy
    application = policy.subject.application
    if application.flink is not None:
        what = f"Flink job {application.flink.job} at {application.flink.url}"
    elif application.kafka_streams is not None:
        what = f"Kafka Streams application {application.kafka_streams.application_id}"
    elif application.consumer_group is not None:
        what = f"consumer group {application.consumer_group.group_id}"
    else:
        what = "service on Kubernetes"
    objectives = policy.to_document()["spec"]["objective"].items()
    objective = ", ".join(f"{name} {value}" for name, value in objectives if value is not None)
    return f"{what}; objective {objective}; planner {policy.spec.planner.name}; mode {policy.spec.mode}"


def _operators(advice: Advice) -> str:
    """Return the graph, and the same as a table with full names and rates."""
    analysis, plan = advice.analysis, advice.plan
    if analysis is None or analysis.topology is None:
        return "<p>The operators are unknown: no reading had them.</p>"
    rows = ""
    for name in analysis.topology.names:
        found = analysis.operator(name)
        mark = " <strong>bottleneck</strong>" if name == analysis.bottleneck else ""
        demand, capacity = (found.target_input_rate.value, found.true_processing_rate.value) if found else (None, None)
        rows += (
            f'<tr><td>{name_of(name)}{mark}</td><td class="right">{text(_subtasks(advice, name))}</td>'
            f'<td class="right">{text(percent(advice.used(name)))}</td><td class="right">{text(number(demand))}</td>'
            f'<td class="right">{text(number(capacity))}</td></tr>'
        )
    heads = "<th>Operator</th>" + "".join(
        f'<th class="right">{each}</th>' for each in ("Subtasks", "Used", "Demand, records/s", "Capacity, records/s")
    )
    table = f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    many = len(analysis.topology.names)
    graph = f"<p>The graph has {many} operators: only the table shows them.</p>"
    if many <= MAX_GRAPH_OPERATORS:
        graph = f'<div class="wide">{_graph(advice)}</div>'
    changed = plan is not None and plan.approved is not None and plan.approved != plan.current
    note = "<p>Subtasks are those that run, and those that Weir would run.</p>" if changed else ""
    return f"{graph}{table}{note}"


def _subtasks(advice: Advice, name: str) -> str:
    """Return the parallelism of an operator, and the one of a plan that changes it."""
    found = None if advice.analysis is None else advice.analysis.operator(name)
    now = None if found is None else found.parallelism
    then = None if advice.plan is None or advice.plan.approved is None else advice.plan.approved.get(name)
    return number(now) if then is None or then == now else f"{number(now)} → {then}"


def _graph(advice: Advice) -> str:
    """Return the operators in layers, sources on top, each with its subtasks and a bar of the share that is used."""
    analysis = advice.analysis
    assert analysis is not None  # noqa: S101 - its caller has a topology
    topology = analysis.topology
    assert topology is not None  # noqa: S101
    layers: dict[int, list[str]] = {}
    depth: dict[str, int] = {}
    for name in topology.names:
        depth[name] = max((depth[each] + 1 for each in topology.inputs(name)), default=0)
        layers.setdefault(depth[name], []).append(name)
    widest = max(len(names) for names in layers.values())
    width = widest * (NODE_WIDTH + NODE_GAP) + NODE_GAP
    height = len(layers) * (NODE_HEIGHT + LAYER_GAP) - LAYER_GAP + 2 * NODE_GAP
    place: dict[str, tuple[float, float]] = {}
    for layer, names in layers.items():
        left = (width - len(names) * (NODE_WIDTH + NODE_GAP) + NODE_GAP) / 2
        for i, name in enumerate(names):
            place[name] = left + i * (NODE_WIDTH + NODE_GAP), NODE_GAP + layer * (NODE_HEIGHT + LAYER_GAP)
    parts = [
        f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'style="width:{width}px" role="img" aria-label="operators of {text(advice.application)}; the table has the same">'
    ]
    for edge in topology.edges:
        (x1, y1), (x2, y2) = place[edge.source], place[edge.target]
        x1, x2, y1 = x1 + NODE_WIDTH / 2, x2 + NODE_WIDTH / 2, y1 + NODE_HEIGHT
        parts.append(f'<line class="edge" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2 - 6:.0f}"/>')
        parts.append(f'<path class="head" d="M{x2 - 4:.0f} {y2 - 8:.0f}h8l-4 8z"/>')
    for name, (x, y) in place.items():
        is_bottleneck, used = name == analysis.bottleneck, advice.used(name)
        inner = NODE_WIDTH - 20
        filled = inner * min(1.0, used or 0.0)
        subtasks = _subtasks(advice, name)
        figures = f"{subtasks} subtask{'' if subtasks == '1' else 's'}, {percent(used)} used"
        parts.append(
            f'<rect class="node{" bottleneck" if is_bottleneck else ""}" x="{x:.0f}" y="{y:.0f}" width="{NODE_WIDTH}" '
            f'height="{NODE_HEIGHT}" rx="6"/><text class="name" x="{x + 10:.0f}" y="{y + 20:.0f}">'
            f"{text(name, NAME_CHARACTERS)}</text>"
            f'<text x="{x + 10:.0f}" y="{y + 38:.0f}">{text(figures)}</text>'
            f'<rect class="bar" x="{x + 10:.0f}" y="{y + 46:.0f}" width="{inner}" height="6"/>'
            f'<rect class="used" x="{x + 10:.0f}" y="{y + 46:.0f}" width="{filled:.0f}" height="6"/>'
        )
        if is_bottleneck:
            parts.append(f'<text class="tick" x="{x + 10:.0f}" y="{y + 66:.0f}">▲ bottleneck</text>')
    return "".join([*parts, "</svg>"])


def _charts(watched: Watched, began: datetime) -> str:
    """Return lag, arrivals and parallelism as figures, each with its numbers in words, and the observed changes."""
    samples, advice = watched.samples, watched.advice
    if len(samples) < 2 or advice.analysis is None:
        return "<p>Too little was read for a curve: two readings are needed.</p>"
    first = samples[0].at.astimezone(began.tzinfo)
    usual = median((after.at - before.at).total_seconds() for before, after in pairwise(samples))

    def curve(name: str, shows: figure.Shows, field_name: str, *, stepped: bool = False) -> list[figure.Curve]:
        """Return the curve, none if nothing of it is known."""
        points: list[tuple[float, float | None]] = []
        for sample in samples:
            at = (sample.at - samples[0].at).total_seconds()
            if points and at - points[-1][0] > GAP_FACTOR * usual:
                points.append((points[-1][0], None))
            points.append((at, getattr(sample, field_name)))
        return [figure.Curve(name, shows, points, stepped)] if any(value is not None for _, value in points) else []

    policy = advice.analysis.policy
    end = (samples[-1].at - samples[0].at).total_seconds()
    bound = policy.spec.objective.bound_seconds
    objective = [] if bound is None else [figure.Curve("objective", "bound", [(0.0, bound), (end, bound)])]
    units = f"{unit_of(policy)}s"
    lags = [
        *curve("lag", "lag", "lag"),
        *curve("at least", "optimum", "lag_bound"),
        *curve("latency", "other", "latency"),
    ]
    arrivals = [*curve("arrivals", "load", "arrivals"), *curve("at least", "optimum", "arrivals_bound")]
    held = curve("running", "held", "slots", stepped=True)
    followed = curve("if plans were followed", "optimum", "followed", stepped=True)
    marks = [(at - samples[0].at).total_seconds() for at, _ in watched.changes if at >= samples[0].at]
    found = [
        _chart("Lag", "seconds", "s", 1, lags, objective, marks, first),
        _chart("Arrivals", "records/s", "records/s", 0, arrivals, [], marks, first),
        _chart("Parallelism", units, units, 0, [*followed, *held], [], marks, first),
    ]
    observed = "".join(
        f"<li><time>{moment(at, began)}</time> {text(what)}</li>" for at, what in reversed(watched.changes)
    )
    changed = f"<p>Observed changes of the parallelism, newest first:</p><ul>{observed}</ul>" if observed else ""
    return f'<div class="charts">{"".join(found)}</div>{changed}'


def _chart(
    title: str, axis: str, unit: str, digits: int, curves: Sequence[figure.Curve], bounds: Sequence[figure.Curve],
    marks: Sequence[float], began: datetime,
) -> str:  # fmt: skip
    if not curves:
        return f"<figure><figcaption>{title}: unknown in this time</figcaption></figure>"
    drawn = figure.svg(
        title, [figure.Panel(axis, [*curves, *bounds], marks=marks)], width=CHART_WIDTH, began=began, inline=True
    )
    words = []
    for each in curves:
        values = [value for _, value in each.points if value is not None]
        last = each.points[-1][1]
        now = "unknown" if last is None else number(last, f" {unit}", digits)
        words.append(f"{each.name} {now} at the end, {number(max(values), f' {unit}', digits)} at most")
    words += [f"{each.name} {number(each.points[0][1], f' {unit}', digits)}" for each in bounds]
    return f"<figure>{drawn}<figcaption>{text('; '.join(words))}</figcaption></figure>"


def _decisions(newest: Plan | None, cycles: Sequence[Cycle], began: datetime) -> str:
    """Return the decisions, newest first: of consecutive holds with one reason the latest."""
    decided = [(cycle.plan, cycle) for cycle in cycles if cycle.plan is not None]
    if not decided and newest is not None:
        decided = [(newest, Cycle(correlation_id=newest.observation_id, plan=newest))]
    if not decided:
        return "<p>Nothing was decided yet.</p>"
    items = []
    for plan, cycle in decided:
        change = "hold" if plan.kind == "hold" else "restart of an instance"
        if plan.approved is not None:
            change = changes(plan.current, plan.approved)
        others = [each.because for each in plan.amendments if each.because != plan.sentence]
        others += [each.because for each in plan.infeasible]
        lines = [text(each) for each in dict.fromkeys(others)]
        lines += [
            f"<time>{moment(each.at, began)}</time> {text(each.phase)}: {text(each.sentence)}"
            for each in cycle.outcomes
        ]
        details = f"<ul>{''.join(f'<li>{each}</li>' for each in lines)}</ul>" if lines else ""
        items.append(
            f'<li><p class="when"><time>{moment(plan.created_at, began)}</time> <strong>{text(change)}</strong> '
            f"<code>{text(plan.code)}</code></p><p>{text(plan.sentence)}</p>{details}</li>"
        )
    return f'<ol class="decisions">{"".join(items)}</ol>'
