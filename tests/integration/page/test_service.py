"""The page where the service behind it has no room for it, or is of the version before."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.integration.page.conftest import WAIT_MILLISECONDS, Visits

expect.set_options(timeout=WAIT_MILLISECONDS)
ORDERS = "#/shop/orders"
STREAMS = 100
"""`WEIR_KNOWLEDGE_EVENT_STREAMS` by default."""
NEWER = {"engine", "money", "managers"}
"""Fields that the version before did not have."""
MAY_BE_ABSENT = NEWER | {"spend", "spend_sentence", "advice", "scores", "lower_bounds", "problems", "throughput"}
MAY_BE_ABSENT |= {"contenders", "forecasts", "symptoms", "notes", "explained", "loads"}
OTHER_VERSION = "it may be of another version than this page"
NO_WORDS = re.compile(r"undefined|NaN|\bnull\b|\[object|Invalid Date")


@contextmanager
def streaming(address: str) -> Iterator[None]:
    """Hold an event stream open, as a page of another browser does."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=60) as stream:
        request = f"GET /v1/applications/shop/orders/events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n"
        stream.sendall(request.encode())
        received = b""
        while b": weir" not in received:
            received += stream.recv(4096)
            assert received.startswith(b"HTTP/1.1 200")
        yield


def follows(page: Page) -> None:
    """Wait until the feed has brought a newer cycle to a page that is live."""
    expect(page.locator(".connection")).to_have_text("Live")
    newest = page.locator(".readout dd").first
    expect(newest).not_to_contain_text(newest.inner_text().split()[0])


def test_the_hundred_and_first_page_waits_in_its_place_and_comes_in(world: str, visits: Visits) -> None:
    """It says why, and shows what can be read without a feed; the others stay live. When one of them closes it is live
    and reads what it missed."""
    visits.excused = lambda text: "503" in text
    others = [visits.open(world + ORDERS) for _ in range(2)]
    others[0].locator("li.scale > .entry").first.click()
    place = others[0].url
    others[0].goto(world + ORDERS)
    for each in others:
        follows(each)
    with ExitStack() as kept, ExitStack() as closing:
        for _ in range(STREAMS - len(others) - 1):
            kept.enter_context(streaming(world))
        closing.enter_context(streaming(world))
        late = visits.open(place)
        connection = late.locator(".connection")
        expect(connection).to_contain_text(
            f"{STREAMS} event streams are open, the limit (WEIR_KNOWLEDGE_EVENT_STREAMS): try again later. What is shown"
        )
        expect(late.locator("main")).to_have_class("stale")
        expect(late.locator(".decision-detail")).to_be_visible()
        for each in others:
            follows(each)
        with late.expect_request("**/shop/orders/history?*"):
            closing.close()
            expect(connection).to_have_text("Live")
        expect(late.locator("main")).not_to_have_class("stale")
        expect(late.locator(".decision-detail")).to_be_visible()
        assert late.url == place
        late.goto(world + ORDERS)
        for each in (*others, late):
            follows(each)


HIDDEN = "Object.defineProperty(document, 'hidden', { get: () => globalThis.isAway === true })"
TABS = 8
"""More than the six connections that a browser has to a host."""


def turn(page: Page, *, away: bool) -> None:
    """Let a tab be hidden or shown. A browser without a window shows all of them."""
    page.evaluate("away => { isAway = away; document.dispatchEvent(new Event('visibilitychange')); }", away)


def test_many_tabs_of_one_browser_stay_usable(world: str, visits: Visits) -> None:
    """A hidden tab gives up its feed, and reads what it missed when it is shown again."""
    first = visits.open(world + ORDERS, script=HIDDEN)
    tabs = [first]
    follows(first)
    while len(tabs) < TABS:
        with tabs[-1].expect_event("requestfailed", lambda request: request.url.endswith("/events")):
            turn(tabs[-1], away=True)
        tabs.append(first.context.new_page())
        tabs[-1].goto(world + ORDERS)
        follows(tabs[-1])
    before = first.locator(".readout dd").first.inner_text().split()[0]
    with first.expect_request("**/shop/orders/history?*"):
        turn(first, away=False)
    follows(first)
    expect(first.locator(".readout dd").first).not_to_contain_text(before)


def without(document: Any, fields: set[str]) -> Any:
    """Return JSON without these fields, wherever they are."""
    if isinstance(document, dict):
        return {name: without(each, fields) for name, each in document.items() if name not in fields}
    return [without(each, fields) for each in document] if isinstance(document, list) else document


@contextmanager
def api_of_before(page: Page, fields: set[str], *missing: str) -> Iterator[None]:
    """Let the API that a page asks be one without these fields and resources."""

    def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path.endswith(missing):
            route.fulfill(status=404, json={"title": "Not Found", "status": 404, "detail": "Not Found"})
        elif path.endswith("/events"):
            route.continue_()
        else:
            answered = route.fetch()
            route.fulfill(response=answered, json=without(answered.json(), fields))

    page.route("**/v1/**", answer)
    yield
    page.unroute_all(behavior="ignoreErrors")


@pytest.mark.parametrize("fields", [NEWER, MAY_BE_ABSENT], ids=["the version before", "fewer yet"])
def test_an_open_page_goes_on_with_an_api_of_before(world: str, visits: Visits, fields: set[str]) -> None:
    """While it is open the service becomes one that lacks fields and the report: the place stays, the missing file is a sentence, and
    no view shows a word of JavaScript."""
    visits.excused = lambda text: "404" in text
    page = visits.open(world + ORDERS)
    page.locator("li.scale > .entry").first.click()
    expect(page.locator(".decision-detail")).to_be_visible()
    place = page.url
    with api_of_before(page, fields, "/report"):
        page.get_by_role("button", name="Save as a file").click()
        expect(page.get_by_role("button", name=re.compile("Not saved"))).to_contain_text(OTHER_VERSION)
        expect(page.locator(".connection")).to_have_text("Live")
        expect(page.locator(".decision-detail")).to_be_visible()
        assert page.url == place
        for view in (
            f"{ORDERS}/what-if?load=2.00",
            f"{ORDERS}/compare",
            "#/",
            ORDERS,
            "#/shop/hostile",
            f"{ORDERS}/what-if?after=600",
        ):
            page.goto(world + view)
            expect(page.locator(".rows .row, .chart, .slider, tbody tr, .empty").first).to_be_visible()
            if page.locator(".entry").count() > 0:
                page.locator("li.scale > .entry").first.click()
                expect(page.locator(".decision-detail")).to_be_visible()
            expect(page.locator(".connection")).to_have_text("Live")
            assert NO_WORDS.findall(page.inner_text("body")) == [], view


def test_an_answer_of_another_form_is_a_sentence(world: str, visits: Visits) -> None:
    """A view says that it cannot be drawn where a field of every version is missing; the others are a click away."""
    page = visits.open(world)
    expect(page.get_by_role("row")).to_have_count(3)
    with api_of_before(page, {"alternatives"}):
        page.get_by_role("link", name="orders", exact=True).click()
        page.locator("li.scale > .entry").first.click()
        expect(page.get_by_role("alert")).to_contain_text("the service may be of another version than this page")
        page.get_by_role("link", name="All applications").click()
        expect(page.get_by_role("row")).to_have_count(3)


@pytest.mark.parametrize(
    ("view", "missing", "shown"),
    [
        ("#/", "/v1/applications", ".problem"),
        (ORDERS, "/explain", ".connection"),
        (ORDERS, "/events", ".connection"),
        (f"{ORDERS}/compare", "/explain", ".problem"),
        (f"{ORDERS}/what-if", "/what-if", ".problem"),
    ],
)
def test_what_an_api_of_before_does_not_have_is_a_sentence(
    world: str, visits: Visits, view: str, missing: str, shown: str
) -> None:
    """The page came by a link, and one resource that the view needs is not there."""
    visits.excused = lambda text: "404" in text
    page = visits.open(f"{world}#/shop/hostile")
    expect(page.locator(".chart").first).to_be_visible()
    with api_of_before(page, NEWER, missing):
        page.goto(world + view)
        expect(page.locator(shown).first).to_contain_text(OTHER_VERSION)
        assert page.url == world + view
        assert NO_WORDS.findall(page.inner_text("body")) == []
