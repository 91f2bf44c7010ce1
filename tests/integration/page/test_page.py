"""The page in a real browser, on a loop that runs."""

import json
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import yaml
from playwright.sync_api import Page, expect

from tests.integration.page.conftest import WAIT_MILLISECONDS, Visits, serving
from tests.integration.page.world import LONG, MARKUP

expect.set_options(timeout=WAIT_MILLISECONDS)
ORDERS = "#/shop/orders"
COMPARE = f"{ORDERS}/compare"
VIEWS = ("", ORDERS, "#/shop/hostile", f"{ORDERS}/what-if", "#/shop/hostile/what-if", COMPARE, "#/shop/hostile/compare")


def choices(page: Page) -> dict[str, list[str]]:
    """What the address says after the application."""
    return parse_qs(urlsplit(page.url).fragment.partition("?")[2])


def test_why_it_is_at_its_parallelism_is_two_clicks_away(world: str, visits: Visits) -> None:
    """The fleet shows the application, a click opens it, a click on a change shows reading, plan, guards and outcome."""
    page = visits.open(world)
    expect(page.get_by_role("row")).to_have_count(3)
    expect(page.get_by_role("status")).to_have_text("Live")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("heading", name="orders", exact=True)).to_be_visible()
    expect(page.locator(".chart canvas")).to_have_count(3)
    expect(page.locator(".operator")).to_have_count(5)
    expect(page.locator(".operator.bottleneck")).to_have_count(1)
    page.locator("li.scale > .entry").first.click()
    detail = page.locator(".decision-detail")
    for title in ("Reading", "Plan by rate", "Guards", "Outcome"):
        expect(detail.get_by_role("heading", name=title)).to_be_visible()
    expect(detail).to_contain_text("verified")
    # The moment of the decision is the graph's: it was read from the feed.
    expect(page.locator(".operator")).to_have_count(5)


def test_an_address_shows_another_person_the_same(world: str, visits: Visits) -> None:
    """It names application, moment and decision; times are in each viewer's zone."""
    page = visits.open(world + ORDERS)
    entry = page.locator("li.scale > .entry").last
    entry.click()
    expect(page.locator(".decision-detail")).to_be_visible()
    assert choices(page).keys() >= {"at", "plan"}
    page.get_by_role("button", name="Copy link").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(world + ORDERS)
    assert parse_qs(copied.partition("?")[2])["plan"] == choices(page)["plan"]
    sentence, when = entry.locator(".what").inner_text(), entry.locator("time").inner_text()
    other = visits.open(copied, zone="Asia/Tokyo")
    expect(other.locator(".decision-detail")).to_be_visible()
    expect(other.locator("li.scale > .entry[aria-expanded=true] .what")).to_have_text(sentence)
    hours = (int(when.split(":")[0]) + 9) % 24
    expect(other.locator(".entry[aria-expanded=true] time")).to_contain_text(f"{hours:02}:{when.split(':', 1)[1]}")


def test_the_feed_brings_what_happens_now(world: str, visits: Visits) -> None:
    """The newest cycle of an open page grows by itself."""
    page = visits.open(world + ORDERS)
    newest = page.locator(".readout dd").first
    first = newest.inner_text().split()[0]
    expect(newest).not_to_contain_text(first)


def test_a_moment_is_chosen_with_the_keyboard_alone(world: str, visits: Visits) -> None:
    """From the fleet to an earlier cycle and its graph, and back to now."""
    page = visits.open(world)
    expect(page.get_by_role("row")).to_have_count(3)
    page.get_by_role("link", name="hostile", exact=True).focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    moment = page.get_by_role("slider", name=re.compile("Moment"))
    moment.focus()
    before = moment.get_attribute("aria-valuetext")
    for key in ("PageDown", "ArrowLeft", "PageUp"):
        page.keyboard.press(key)
    expect(moment).not_to_have_attribute("aria-valuetext", before or "")
    assert "at" in choices(page)
    expect(page.locator(".operator")).to_have_count(5)
    page.keyboard.press("End")
    page.wait_for_function("!location.hash.includes('at=')")


def test_what_if_answers_beside_holding(world: str, visits: Visits) -> None:
    """Load and parallelism by sliders; the command that asks the same is copied."""
    page = visits.open(f"{world}{ORDERS}/what-if?load=2.00")
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("(x2)")
    expect(answer.locator("canvas")).to_have_count(1)
    slider = page.get_by_role("slider", name="enrich")
    now = int(slider.input_value())
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(answer).to_contain_text(f"enrich {now} → {now + 1}")
    expect(answer.get_by_role("columnheader", name="Holding")).to_be_visible()
    expect(answer.get_by_role("row", name="Late")).to_be_visible()
    page.get_by_role("button", name="Copy as command").click()
    assert page.evaluate("navigator.clipboard.readText()") == f"weir what-if shop/orders --load x2 -p enrich={now + 1}"
    page.goto(f"{world}{ORDERS}/what-if?p=nothing%3D3")
    expect(page.get_by_role("alert")).to_contain_text("there is no operator 'nothing'")
    visits.faults[:] = [each for each in visits.faults if "422" not in each]


def test_what_if_at_a_time_of_the_forecast_and_what_it_leads_to(world: str, visits: Visits) -> None:
    """The load is then the forecast's, its middle and its upper edge; what was found can be copied into the policy, which takes
    it."""
    page = visits.open(f"{world}{ORDERS}/what-if")
    when = page.get_by_label("At a time of the forecast")
    when.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("cell", name="its upper edge")).to_be_visible()
    assert int(choices(page)["after"][0]) > 60
    expect(page.locator("code.command")).to_contain_text("--at 'in ")
    slider = page.locator("#operator-1")
    slider.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("button", name="Copy as policy bounds")).to_be_visible()
    page.get_by_role("button", name="Copy as policy bounds").click()
    copied = yaml.safe_load(page.evaluate("navigator.clipboard.readText()"))
    ((_, limits),) = copied["bounds"]["operators"].items()
    assert limits["min"] == int(slider.input_value())
    path = f"{world}v1/policies/shop/orders"
    document = httpx.get(path).json()
    document["spec"]["bounds"] = document["spec"].get("bounds", {}) | copied["bounds"]
    assert httpx.put(path, params={"dry_run": True}, json=document).status_code == 200


def test_planners_are_compared_and_a_difference_leads_to_its_decision(world: str, visits: Visits) -> None:
    """The policy's planner beside its shadow, in slot-hours and late time; a click shows the decision in which they differed."""
    page = visits.open(world + ORDERS)
    page.get_by_role("link", name="Planners").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("rate (the policy's planner)")
    expect(rows.last).to_contain_text("hpa (shadow)")
    expect(rows.last).to_contain_text(re.compile(r"more|less|as many"))
    difference = page.locator(".differences li").first
    expect(difference.locator("dt")).to_have_text(["rate", "hpa"])
    difference.get_by_role("link").click()
    expect(page.locator(".decision-detail")).to_contain_text("Candidates and shadows")


def test_a_pause_has_a_reason(world: str, visits: Visits) -> None:
    """It is shown with who paused, as text, and ends with resuming."""
    page = visits.open(world + ORDERS)
    page.get_by_role("button", name="Pause …").click()
    expect(page.get_by_label("Reason")).to_be_focused()
    page.get_by_label("Reason").fill("<b>migration</b> until 15:00")
    page.keyboard.press("Enter")
    expect(page.locator(".pause")).to_contain_text("Paused by local")
    expect(page.locator(".pause")).to_contain_text("<b>migration</b> until 15:00")
    expect(page.locator(".heading .level")).to_contain_text("Paused")
    page.get_by_role("button", name="Resume …").click()
    page.get_by_role("button", name="Resume planning").click()
    expect(page.get_by_role("button", name="Pause …")).to_be_visible()
    expect(page.locator(".pause")).not_to_contain_text("Paused by")


def test_advice_becomes_action_behind_what_it_would_have_done(world: str, visits: Visits) -> None:
    """Slot-hours, money and changes of following the plans are shown before the button that lets Weir act."""
    path = f"{world}v1/policies/shop/orders"
    document = httpx.get(path).json()
    document["spec"]["mode"] = "advise"
    assert httpx.put(path, json=document).status_code == 200
    page = visits.open(world + ORDERS)
    page.get_by_role("button", name="Let it act …").click()
    panel = page.get_by_role("group", name="What it would have done")
    expect(panel).to_contain_text(re.compile("following the plans|saving unknown yet"))
    expect(panel).to_contain_text("Its bounds are")
    panel.get_by_role("button", name="Act from now on").click()
    expect(page.get_by_role("button", name="Let it act …")).to_have_count(0)
    assert httpx.get(path).json()["spec"]["mode"] == "act"


def test_what_is_used_is_shown_as_hours_and_money(world: str, visits: Visits) -> None:
    """Against the static peak, of the applications that the filter leaves."""
    page = visits.open(world)
    cost = page.locator("main > .under")
    expect(cost).to_have_text(
        re.compile(r"used [\d.,]+ of the [\d.,]+ slot-hours of a static peak.*That is [\d.,]+ of [\d.,]+ EUR\.")
    )
    page.get_by_label("Text").fill("nothing is called so")
    expect(cost).to_have_count(0)


def test_a_lost_connection_is_said_and_nothing_old_looks_fresh(world: str, visits: Visits) -> None:
    """Until it is regained, which needs no reload and loses no place."""
    visits.excused = lambda text: "ERR_INTERNET_DISCONNECTED" in text
    page = visits.open(world + ORDERS)
    network = page.context.new_cdp_session(page)

    def emulate(*, offline: bool) -> None:
        """The browser cuts only connections that were opened under some emulation, such as a latency."""
        conditions = {"offline": offline, "latency": 1, "downloadThroughput": -1, "uploadThroughput": -1}
        network.send("Network.emulateNetworkConditions", conditions)

    network.send("Network.enable")
    emulate(offline=False)
    page.reload()
    expect(page.locator(".connection")).to_have_text("Live")
    page.locator("li.scale > .entry").first.click()
    place = page.url
    emulate(offline=True)
    expect(page.locator(".connection")).to_contain_text("Connection lost")
    expect(page.locator(".connection")).to_contain_text("What is shown is from before")
    expect(page.locator("main")).to_have_class("stale")
    emulate(offline=False)
    expect(page.locator(".connection")).to_have_text("Live")
    expect(page.locator("main")).not_to_have_class("stale")
    expect(page.locator(".decision-detail")).to_be_visible()
    assert page.url == place


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(403, "The token does not allow this."), (429, "The API has too many requests."), (500, "The service failed")],
)
def test_a_refusal_in_the_middle_is_a_sentence_and_no_lost_place(
    world: str, visits: Visits, status: int, sentence: str
) -> None:
    """The bar says what the API answers, everything stays where it was and turns grey, and goes on by itself; a question that is
    refused keeps the last answer."""
    visits.excused = lambda text: str(status) in text
    page = visits.open(world + ORDERS)
    page.locator(".entry").first.click()
    expect(page.locator(".decision-detail")).to_be_visible()
    place, canvases = page.url, page.locator(".chart canvas").count()
    page.route("**/v1/**", lambda route: route.fulfill(status=status, body="<html>not of the API</html>"))
    expect(page.locator(".connection")).to_contain_text(sentence)
    expect(page.locator(".connection")).to_contain_text("What is shown is from before")
    expect(page.locator("main")).to_have_class("stale")
    expect(page.locator(".decision-detail")).to_be_visible()
    assert (page.url, page.locator(".chart canvas").count()) == (place, canvases)
    page.unroute("**/v1/**")
    expect(page.locator(".connection")).to_have_text("Live")
    expect(page.locator("main")).not_to_have_class("stale")
    page.goto(f"{world}{ORDERS}/what-if")
    expect(page.locator(".verdict")).to_be_visible()
    page.route("**/what-if?**", lambda route: route.fulfill(status=status))
    page.get_by_label("Times the present load").press("ArrowRight")
    expect(page.get_by_role("alert")).to_contain_text(sentence)
    expect(page.locator(".verdict")).to_be_visible()
    assert page.locator(".slider").count() > 1


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wrong_clock_of_the_browser_makes_nothing_old_or_fresh(world: str, visits: Visits, hours: int) -> None:
    """Ages are those of the service's times."""
    script = (
        f"const Own = Date; const shift = {hours} * 3600_000;"
        "globalThis.Date = class extends Own { constructor(...given) { given.length ? super(...given) : super(Own.now() + shift); }"
        " static now() { return Own.now() + shift; } };"
    )
    page = visits.open(world, script=script)
    age = page.get_by_role("row").filter(has_text="orders").locator(".decision time")
    expect(age).to_have_text(re.compile(r"^[\d.]+\s(s|min) ago$"))
    page.goto(world + ORDERS)
    expect(page.locator(".readout dd").first).to_have_text(re.compile(r"\d\d:\d\d:\d\d [\d.]+\ss ago"))


@pytest.mark.parametrize("view", VIEWS[2:5:2], ids=["application", "what-if"])
def test_texts_from_outside_stay_texts(world: str, visits: Visits, view: str) -> None:
    """Markup, 300 letters without a space, and signs that turn the direction of what stands beside them."""
    page = visits.open(world + view)
    if view == VIEWS[2]:
        page.locator(".entry").first.click()
        expect(page.locator(".decision-detail")).to_contain_text(MARKUP)
    expect(page.get_by_text(MARKUP).first).to_be_attached()
    expect(page.get_by_text(LONG).first).to_be_attached()
    assert page.title() == "shop/hostile · Weir"
    assert page.locator("img[src=x], main script").count() == 0
    assert "\u202e" not in page.inner_text("main")


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "light"), (360, "dark"), (768, "light"), (1280, "dark"), (3840, "light")]
)
def test_each_view_fits_its_window(world: str, visits: Visits, width: int, scheme: str) -> None:
    """From a telephone to a wall: nothing makes the page itself scroll sideways, and the scheme is the viewer's."""
    for view in VIEWS:
        page = visits.open(world + view, width=width, scheme=scheme)
        expect(page.locator(".rows .row, .chart, .slider, tbody tr").first).to_be_visible()
        if page.locator(".entry").count() > 0:
            page.locator(".entry").first.click()
            expect(page.locator(".decision-detail")).to_be_visible()
        sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert sizes[0] <= sizes[1], view
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", paper)[:3])) > 384
        assert light == (scheme == "light")
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_rules_for_access_find_nothing_serious(world: str, visits: Visits, sources: Path, scheme: str) -> None:
    """Names for screen readers, contrast, roles: axe's rules, for each view with a decision open."""
    axe = (sources / "node_modules" / "axe-core" / "axe.min.js").read_text()
    for view in VIEWS:
        page = visits.open(world + view, scheme=scheme)
        expect(page.locator(".rows .row, .chart, .slider, tbody tr").first).to_be_visible()
        if page.locator(".entry").count() > 0:
            page.locator(".entry").first.click()
            expect(page.locator(".decision-detail")).to_be_visible()
        page.evaluate(axe)
        found = page.evaluate("axe.run().then((found) => found.violations)")
        serious = [
            (each["id"], each["nodes"][0]["html"][:200], each["nodes"][0].get("failureSummary"))
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], json.dumps(serious, indent=1)
        page.close()


def test_a_token_is_asked_for_and_kept_in_memory_alone(visits: Visits, tmp_path: Path) -> None:
    """A wrong one is refused; the right one shows the applications; a reload forgets it."""
    visits.excused = lambda text: "401" in text
    given = "reading-and-writing"
    tokens = json.dumps({given: {"name": "ada", "role": "write"}})
    with serving(tmp_path / "log", WEIR_TOKENS=tokens) as address:
        page = visits.open(address)
        for typed, count in (("a-wrong-token-of-hers", 0), (given, 3)):
            page.get_by_label("Token").fill(typed)
            page.keyboard.press("Enter")
            expect(page.get_by_role("row")).to_have_count(count)
        expect(page.get_by_label("Token")).to_have_count(0)
        page.get_by_role("link", name="orders", exact=True).click()
        expect(page.locator(".chart canvas")).to_have_count(3)
        kept = page.evaluate(
            "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href, history.state])"
        )
        assert given not in kept
        page.reload()
        expect(page.get_by_label("Token")).to_be_visible()
        page.close()


def test_a_thousand_applications_stay_fluid(visits: Visits, tmp_path: Path) -> None:
    """Only the rows in the window are drawn; keys and filters reach all of them, and the address keeps the filter."""
    with serving(tmp_path / "log", "--many", "998") as address:
        page = visits.open(address)
        table, rows = page.get_by_role("table", name="Applications"), page.locator(".rows .row")
        expect(table).to_have_attribute("aria-rowcount", "1001")
        assert 10 < rows.count() < 40
        page.keyboard.press("End")
        expect(page.locator("[data-row='999']")).to_be_visible()
        assert rows.count() < 40
        page.locator("[data-row='990'] a").focus()
        for _ in range(40):
            page.keyboard.press("ArrowUp")
        expect(page.locator("[data-row='950'] a")).to_be_focused()
        page.get_by_label("Text").fill("app-07")
        expect(table).to_have_attribute("aria-rowcount", "101")
        page.get_by_label("Namespace").select_option("shop")
        expect(page.get_by_text("None of 1,000 applications is like that.")).to_be_visible()
        page.get_by_label("Namespace").select_option("many")
        other = visits.open(page.url)
        expect(other.get_by_role("table", name="Applications")).to_have_attribute("aria-rowcount", "101")
        other.close()
        page.close()


@pytest.mark.parametrize("width", [360, 1280])
def test_an_incident_is_one_file_that_needs_no_network(world: str, visits: Visits, tmp_path: Path, width: int) -> None:
    """Saved from the page at a moment, it opens elsewhere without the service: that moment, its graph and its decisions, and
    nothing in it asks anything or claims to be live."""
    page = visits.open(world + ORDERS)
    page.locator("li.scale > .entry").first.click()
    expect(page.locator(".decision-detail")).to_be_visible()
    sentence = page.locator("li.scale > .entry[aria-expanded=true] .what").inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as a file").click()
    place = tmp_path / download.value.suggested_filename
    assert place.name == "weir-shop-orders.html"
    download.value.save_as(place)
    page.context.set_offline(True)
    report = visits.open(f"file://{place}", width=width)
    expect(report.locator(".connection")).to_contain_text("nothing here is live")
    expect(report.locator(".chart canvas")).to_have_count(3)
    expect(report.locator(".operator")).to_have_count(5)
    for absent in ("Pause …", "Save as a file"):
        expect(report.get_by_role("button", name=absent)).to_have_count(0)
    expect(report.get_by_role("link", name="What if")).to_have_count(0)
    report.locator(".entry").filter(has_text=sentence.partition(": ")[2]).first.click()
    expect(report.locator(".decision-detail")).to_contain_text("Guards")
    assert report.evaluate("document.documentElement.scrollWidth") <= width


def test_a_report_of_hostile_texts_stays_text(world: str, visits: Visits, tmp_path: Path) -> None:
    """Names and sentences that end scripts, and letters of other scripts, in a file that a mail carried."""
    place = tmp_path / "hostile.html"
    place.write_bytes(httpx.get(f"{world}v1/applications/shop/hostile/report", timeout=60).content)
    report = visits.open(f"file://{place}")
    expect(report.locator(".operator")).to_have_count(3)
    assert report.title() == "shop/hostile · Weir"
    assert MARKUP in report.locator("main").inner_text()
    assert report.locator("main img, main script, main iframe").count() == 0


def test_scrubbing_moves_the_moment_and_nothing_else(world: str, visits: Visits) -> None:
    """Under the pointer the figures and the graph are those of then, also while new cycles arrive; then they are of now."""
    page = visits.open(world + ORDERS)
    expect(page.locator(".operator")).to_have_count(5)
    newest = page.get_by_text("Newest cycle")
    expect(newest).to_be_visible()
    for place in (0.9, 0.5, 0.2):
        box = page.locator(".u-over").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + place * box["width"], box["y"] + 20)
        expect(newest).to_have_count(0)
        expect(page.locator(".operator")).to_have_count(5)
        moment = page.locator(".readout dd").first.inner_text().split()[0]
        expect(page.locator("#graph-title")).to_contain_text(moment)
    page.mouse.move(2, 2)
    expect(newest).to_be_visible()
