"""An incident as one file: the page with the answers of the API that it would ask for, so that it needs no network.

A browser runs the page's script and style by their hashes and nothing else, loads nothing, and no text of an application
becomes markup: the answers stand as JSON in which no `<` is left.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from weir_contracts import Analysis, ScalingPolicy
from weir_runtime.clock import Clock

from .core import HistoryLimits, State, history_at
from .decisions import BECAUSE
from .summaries import summaries
from .view import View

BEFORE, AFTER = timedelta(hours=6), timedelta(hours=1)
"""What a report of a moment shows of the course around it."""
MAX_ANALYSES = 60
"""Graphs of operators, those nearest the moment."""
MAX_ANALYSES_BYTES = 3_000_000
"""Of them, with large graphs; the file is for a mail."""
MANY_LINES, MANY_CYCLES = 500, 20
"""Of each application, newest first, in a report of several."""
EVENTS_AT_ONCE = 200
FEED_BEHIND = timedelta(minutes=1)
"""An event's time in the feed is when it was stored, later than what it tells of."""
_UNSHOWN_ANALYSIS = {"learned": True, "policy": True}
_UNSHOWN_CYCLE = {"plan": {"state": True}}


@dataclass(frozen=True)
class Period:
    """The moment that a report is of, and the time around it that it shows."""

    middle: datetime
    begin: datetime
    end: datetime

    def shows(self, at: datetime) -> bool:
        return self.begin <= at <= self.end


async def report(
    view: View, clock: Clock, limits: HistoryLimits, application: str | None = None, *, at: datetime | None = None,
    note: str = "",
) -> str:  # fmt: skip
    """Return the file on one application at a moment (None: now), or without one on all as they are now. `note` is a
    sentence for its reader."""
    names = await view.applications() if application is None else [application]
    now = clock.now()
    middle = at or now
    period = Period(middle, middle - BEFORE, middle + AFTER)
    answers: dict[str, Any] = {}
    for name, summary in zip(names, await summaries(view, clock, names), strict=True):
        path, newest = f"v1/applications/{name}", await view.newest(name, ["analysis"])
        state = await view.state(name) or State(application=name)
        lines = history_at(await view.store.history(name), now, limits)
        cycles = state.cycles
        analyses = [] if newest is None or newest.analysis is None else [newest.analysis]
        if application is None:
            lines, cycles = lines[:MANY_LINES], cycles[:MANY_CYCLES]
        else:
            lines = [each for each in lines if period.shows(each.at)]
            cycles = [each for each in cycles if each.plan is not None and period.shows(each.plan.created_at)]
            analyses = await _analyses(view, name, period, analyses)
        answers[path] = summary.model_dump(mode="json")
        answers[f"v1/policies/{name}"] = _policy(name, await view.policy(name))
        answers[f"{path}/history"] = {"items": [each.model_dump(mode="json") for each in lines]}
        answers[f"{path}/explain"] = {
            "items": [each.model_dump(mode="json", exclude=_UNSHOWN_CYCLE) for each in cycles]
        }
        shown = [each.model_dump(mode="json", exclude=_UNSHOWN_ANALYSIS) for each in analyses]
        answers[f"{path}/events"] = shown
        if shown:
            answers[f"{path}/analysis"] = shown[-1]
    answers["v1/applications"] = {"items": [answers[f"v1/applications/{name}"] for name in names], "next": None}
    given = {
        "made_at": now.isoformat(),
        "at": None if at is None else at.isoformat(),
        "application": application,
        "note": note,
        "answers": answers,
    }
    return page(given, application or "all applications")


async def _analyses(view: View, name: str, period: Period, newest: Sequence[Analysis]) -> list[Analysis]:
    """Return the analyses nearest the moment that the feed still has, oldest first."""
    found = {each.id: (0, each) for each in newest if period.shows(each.observed_at)}
    after = f"{int(period.begin.timestamp() * 1000)}-0"
    until = int((period.end + FEED_BEHIND).timestamp() * 1000)
    while (events := await view.store.events(after, EVENTS_AT_ONCE)) and int(after.partition("-")[0]) <= until:
        after = events[-1].id
        for event in events:
            if event.application == name and event.kind == "analysis":
                analysis = Analysis.model_validate_json(event.data)
                found[analysis.id] = len(event.data), analysis
        # A long feed never stands in memory as a whole.
        nearest = sorted(found.values(), key=lambda each: abs((each[1].observed_at - period.middle).total_seconds()))
        found = {analysis.id: (size, analysis) for size, analysis in nearest[:MAX_ANALYSES]}
    used = 0
    kept: list[Analysis] = []
    for size, analysis in found.values():
        used += size
        if used <= MAX_ANALYSES_BYTES or not kept:
            kept.append(analysis)
    return sorted(kept, key=lambda each: each.observed_at)


def _policy(name: str, policy: ScalingPolicy | None) -> dict[str, Any]:
    """Return the parts of a policy that the page shows: addresses and parameters are not for a mail."""
    namespace, _, own = name.partition("/")
    metadata: dict[str, Any] = {"namespace": namespace, "name": own}
    if policy is None:
        return {"metadata": metadata, "spec": {"application": {}}}
    document = policy.to_document()
    if (because := policy.metadata.annotations.get(BECAUSE)) is not None:
        metadata["annotations"] = {BECAUSE: because}
    engines: dict[str, dict[str, str]] = {engine: {} for engine in document["spec"]["application"]}
    spec = {"mode": policy.spec.mode, "application": engines, "planner": {"name": policy.spec.planner.name}}
    return {"metadata": metadata, "spec": spec}


def page(given: Mapping[str, Any], title: str) -> str:
    """Return the page with its data in it."""
    script, style, policy = _parts()
    data = json.dumps(given, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)} · Weir</title><style>{style}</style></head>"
        '<body><div id="page"></div><noscript>This report needs JavaScript, and no network.</noscript>'
        f'<script type="application/json" id="report">{data}</script><script>{script}</script></body></html>\n'
    )


@cache
def _parts() -> tuple[str, str, str]:
    """Return script, style and the policy that allows these two alone."""
    bundle = files("weir_knowledge").joinpath("bundle")
    script, style = (bundle.joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return script, style, policy
