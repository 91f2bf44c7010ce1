"""An incident as one file: complete in itself, true to what is stored, and safe whatever its texts are."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.unit.knowledge.builders import APP, NOON, analysis, at, observation, outcome, plan, policy
from tests.unit.knowledge.direct_log import PARTITIONS, complete, show, show_messages
from tests.unit.knowledge.memory_store import MemoryStore
from weir_knowledge import report as reports
from weir_knowledge.core import HistoryLimits
from weir_knowledge.report import report
from weir_knowledge.view import View
from weir_runtime.clock import FakeClock

HOSTILE = '</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> "x" &amp; \u202e \u2028 ]]>'
PATH = f"v1/applications/{APP}"


class Page(HTMLParser):
    """Elements of a page, and what stands in each script and style."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.inside: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            self.inside.append(data)

    @property
    def policy(self) -> str:
        return next(each["content"] for _, each in self.tags if each.get("http-equiv") == "Content-Security-Policy")

    @property
    def data(self) -> Any:
        return json.loads(self.inside[1])


async def seen(sentence: str = "Hold: nothing to do", cycles: int = 3, *names: str) -> View:
    """A store with some cycles of applications, in the middle of which one was changed."""
    store = complete(MemoryStore())
    for name in names or (APP,):
        await show(store, policy(name, mode="act"))
        for cycle in range(cycles):
            store.now_ms = int(at(cycle).timestamp() * 1000)
            wanted = 5 if cycle == 1 else None
            made = plan(cycle, wanted, name, sentence=sentence)
            messages = [observation(cycle, name, message=sentence), analysis(cycle, name), made]
            ends = [] if wanted is None else [outcome(made, "verified", sentence=sentence)]
            await show_messages(store, *messages, *ends)
    return View(store, PARTITIONS)


async def written(view: View, application: str | None = APP, **options: Any) -> str:
    return await report(view, FakeClock(at(10)), HistoryLimits(), application, **options)


async def test_no_text_becomes_markup_and_only_the_page_runs() -> None:
    """Whatever a policy, a job or a planner says, the elements are the same; a browser runs the page's own script and style
    by their hashes, and loads nothing."""
    usual, found = Page(await written(await seen())), Page(await written(await seen(HOSTILE)))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in usual.tags]
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert found.data["answers"][f"{PATH}/explain"]["items"][0]["plan"]["sentence"] == HOSTILE
    style, _, script = found.inside[:3]
    for kind, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in found.policy
    assert found.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in found.policy
    assert not {name for _, each in found.tags for name in each} & {"src", "href", "action", "onload", "onerror"}


async def test_a_report_has_what_the_page_asks_for() -> None:
    """Summary, past, decisions with their outcomes, and graphs; times are those of the store."""
    data = Page(await written(await seen())).data
    answers = data["answers"]
    assert (data["application"], data["at"]) == (APP, None)
    assert answers[PATH]["application"] == APP
    assert len(answers[f"{PATH}/history"]["items"]) == 3
    cycles = answers[f"{PATH}/explain"]["items"]
    assert [each["outcomes"][0]["phase"] for each in cycles if each["outcomes"]] == ["verified"]
    assert len(answers[f"{PATH}/events"]) == 3
    assert answers[f"{PATH}/analysis"] == answers[f"{PATH}/events"][-1]


async def test_a_report_is_of_its_moment() -> None:
    """What lies hours before or after is not in it; nothing is, of a time that is not kept."""
    view = await seen()
    near = Page(await written(view, at=NOON)).data
    assert near["at"] == NOON.isoformat()
    assert len(near["answers"][f"{PATH}/history"]["items"]) == 3
    after = Page(await written(view, at=NOON + 2 * reports.BEFORE)).data["answers"]
    assert after[f"{PATH}/history"]["items"] == after[f"{PATH}/explain"]["items"] == after[f"{PATH}/events"] == []


async def test_a_report_holds_neither_addresses_nor_parameters_of_the_policy() -> None:
    """It is for a mail."""
    html = await written(await seen())
    data = Page(html).data
    assert data["answers"][f"v1/policies/{APP}"]["spec"].keys() == {"mode", "application", "planner"}
    assert "127.0.0.1:8081" not in html


async def test_a_report_of_all_is_the_page_from_its_list_on() -> None:
    """Each application with its newest graph, and a sentence for the reader."""
    names = [f"shop/app-{i}" for i in range(3)]
    data = Page(await written(await seen("Hold", 2, *names), None, note="A test.")).data
    assert (data["application"], data["note"]) == (None, "A test.")
    assert [each["application"] for each in data["answers"]["v1/applications"]["items"]] == names
    assert all(len(data["answers"][f"v1/applications/{name}/events"]) == 1 for name in names)
    empty = Page(await written(View(complete(MemoryStore()), PARTITIONS), None)).data
    assert empty["answers"]["v1/applications"]["items"] == []


async def test_large_graphs_leave_room_in_a_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many analyses as fit, those nearest the moment are kept."""
    view = await seen(cycles=6)
    one = len(json.dumps(Page(await written(view)).data["answers"][f"{PATH}/analysis"]))
    monkeypatch.setattr(reports, "MAX_ANALYSES", 3)
    kept = Page(await written(view, at=at(2))).data["answers"][f"{PATH}/events"]
    assert [each["observed_at"] for each in kept] == [
        each.isoformat().replace("+00:00", "Z") for each in map(at, (1, 2, 3))
    ]
    monkeypatch.setattr(reports, "MAX_ANALYSES_BYTES", one)
    kept = Page(await written(view, at=at(2))).data["answers"][f"{PATH}/events"]
    assert [each["observed_at"] for each in kept] == [at(2).isoformat().replace("+00:00", "Z")]


def test_the_pages_files_can_stand_in_a_page() -> None:
    """The parser of a browser ends a script and a style at these."""
    script, style, _ = reports._parts()
    assert not re.search(r"</script|<!--", script, re.IGNORECASE)
    assert not re.search(r"</style", style, re.IGNORECASE)
    assert "\r" not in script + style
