"""The page in a browser: `make bench-page`, results in bench/results/page.json.

Knowledge runs in one process on its log and store in SQLite, with applications whose messages come every 5 s, a policy's default;
1,000 of them every 30 s, as one process writes no more. The page runs in Debian's Chromium on the same two cores. Times in the
browser are those of its own clock, since its navigation began; for a timeline since the page, which shows the fleet, was told to
show it.
"""

import argparse
import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import Browser, sync_playwright

from bench.page_world import FIRST
from bench.results_file import PROJECT, distribution, earlier, log, write

ROUNDS = 20
MANY, USUAL, PAGES = 1000, 200, 10
INTERVAL_SECONDS, LONG_INTERVAL_SECONDS = 5.0, 30.0
DAY_CYCLES = 8640
"""A day at 10 s: the history keeps 10,000 at most."""
MEASURED_SECONDS, SETTLE_SECONDS = 60.0, 20.0
START_SECONDS = 900.0
_SEEN = """
new MutationObserver((_, observer) => {
  if (document.querySelector(SELECTOR)) { window.weirSeen = performance.now(); observer.disconnect(); }
}).observe(document, { childList: true, subtree: true });
"""


@contextmanager
def serving(
    applications: int, cycles: int = 0, interval_seconds: float = INTERVAL_SECONDS
) -> Iterator[tuple[str, psutil.Process]]:
    """Run the service; yields its address and process once all applications are shown."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bench.page_world", "--port", str(port), "--applications", str(applications)]
    command += ["--interval-seconds", str(interval_seconds), "--cycles", str(cycles)]
    environment = os.environ | {"WEIR_KNOWLEDGE_HISTORY_COUNT": "10000", "WEIR_KNOWLEDGE_HISTORY_AGE_SECONDS": "90000"}
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None  # noqa: S101 - asked for
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("the service ended before all applications were shown")
        yield f"http://127.0.0.1:{port}/", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("no chromium on the PATH: install Debian's package chromium")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


def seen_seconds(browser: Browser, address: str, selector: str) -> float:
    """Open an address in a browser without a past; return when an element was there."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(_SEEN.replace("SELECTOR", json.dumps(selector)))
    page = context.new_page()
    page.goto(address)
    page.locator(selector).first.wait_for(state="attached", timeout=60_000)
    seconds = float(page.evaluate("window.weirSeen")) / 1000
    context.close()
    return round(seconds, 4)


def shown_seconds(browser: Browser, address: str, fragment: str, selector: str) -> float:
    """Open the fleet in a browser without a past, then an address within the page; return when an element was there."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address)
    page.locator("[data-row]").first.wait_for(state="attached", timeout=60_000)
    began = page.evaluate(
        f"{_SEEN.replace('SELECTOR', json.dumps(selector))}; location.hash = {json.dumps(fragment)}; performance.now()"
    )
    page.locator(selector).first.wait_for(state="attached", timeout=60_000)
    seconds = (page.evaluate("window.weirSeen") - began) / 1000
    context.close()
    return round(float(seconds), 4)


def bundle() -> dict[str, Any]:
    """Return the size of the page's files, as they are and packed."""
    found = {path.name: path.read_bytes() for path in Path(str(files("weir_knowledge"))).joinpath("bundle").iterdir()}
    packed = sum(len(gzip.compress(each, 9)) for each in found.values())
    return {"bytes": sum(map(len, found.values())), "packed_bytes": packed}


def first_view(browser: Browser) -> dict[str, Any]:
    with serving(MANY, interval_seconds=LONG_INTERVAL_SECONDS) as (address, _):
        seconds = [seen_seconds(browser, address, "[data-row]") for _ in range(ROUNDS)]
    return {"applications": MANY, "interval_seconds": LONG_INTERVAL_SECONDS, "seconds": distribution(seconds)}


def open_pages(browser: Browser) -> dict[str, Any]:
    """Return the share of a core that ten open pages cost the service, above what it spends without them: before and
    afterwards, as each cycle costs more while the explained ones fill its cache."""

    def spent(process: psutil.Process) -> float:
        before, began = process.cpu_times(), time.monotonic()
        time.sleep(MEASURED_SECONDS)
        after, seconds = process.cpu_times(), time.monotonic() - began
        return (after.user + after.system - before.user - before.system) / seconds

    with serving(USUAL) as (address, process):
        time.sleep(SETTLE_SECONDS)
        without = spent(process)
        contexts = [browser.new_context() for _ in range(PAGES)]
        for context in contexts:
            context.new_page().goto(address)
        time.sleep(SETTLE_SECONDS)
        busy = spent(process)
        for context in contexts:
            context.close()
        time.sleep(SETTLE_SECONDS)
        without = (without + spent(process)) / 2
    shares = {"cores_without": round(without, 4), "cores_with": round(busy, 4)}
    return {"applications": USUAL, "pages": PAGES, **shares, "cores_of_pages": round(busy - without, 4)}


def application(browser: Browser) -> dict[str, Any]:
    """Return the times of a day's timeline and of a what-if answer."""
    with serving(1, DAY_CYCLES) as (address, _):
        opened = [seen_seconds(browser, f"{address}#/{FIRST}", ".timeline li") for _ in range(ROUNDS)]
        shown = [shown_seconds(browser, address, f"#/{FIRST}", ".timeline li") for _ in range(ROUNDS)]
        with httpx.Client(base_url=address, timeout=60.0) as http:

            def asked(path: str) -> float:
                began = time.monotonic()
                http.get(f"v1/applications/{FIRST}/{path}").raise_for_status()
                return round(time.monotonic() - began, 4)

            history = [asked("history?limit=10000") for _ in range(ROUNDS)]
            answers = [asked(f"what-if?load=x{1 + i / 10}") for i in range(ROUNDS)]
    return {
        "cycles": DAY_CYCLES,
        "opened_seconds": distribution(opened),
        "timeline_seconds": distribution(shown),
        "history_seconds": distribution(history),
        "what_if_seconds": distribution(answers),
    }


def main() -> int:
    parts = {"first_view": first_view, "open_pages": open_pages, "application": application}
    options = argparse.ArgumentParser(description=__doc__, prog="python -m bench page")
    options.add_argument(
        "--part", choices=parts, action="append", help="measure this and keep the others' earlier figures"
    )
    given = options.parse_args()
    found = earlier("page") | {"bundle": bundle()}
    with chromium() as browser:
        for name in given.part or parts:
            log(name)
            found[name] = parts[name](browser)
            log(json.dumps(found[name]))
    log(f"written: {write('page', 'make bench-page', found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
