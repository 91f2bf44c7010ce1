"""A browser, and processes that serve the page to it."""

import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

ROOT = Path(__file__).parents[3]
START_SECONDS = 540.0
"""For the past of a world to happen on a busy machine."""
WAIT_MILLISECONDS = 60_000
"""For anything to appear on the page."""


@contextmanager
def serving(log: Path, *arguments: str, **environment: str) -> Iterator[str]:
    """Run a world; yields its address once its past is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.integration.page.world", "--port", str(port), *arguments]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        assert process.stdout is not None
        until = time.monotonic() + START_SECONDS
        while not select.select([process.stdout], [], [], 1.0)[0]:
            assert time.monotonic() < until, log.read_text()[-2000:]
        assert process.stdout.readline() == b"ready\n", log.read_text()[-2000:]
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium."""
    program = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no chromium on the PATH: install Debian's package chromium")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for each module: Playwright holds an event loop, which later tests would meet."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def world(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page with an application under load and a hostile one."""
    with serving(tmp_path_factory.mktemp("world") / "log", WEIR_KNOWLEDGE_SLOT_HOUR_PRICE="12.50 EUR") as address:
        yield address


@dataclass
class Visits:
    """Pages of one test, and what they did that no page may."""

    browser: Browser
    faults: list[str] = field(default_factory=list)
    excused: Callable[[str], bool] = lambda _: False
    _contexts: list[BrowserContext] = field(default_factory=list)

    def open(
        self,
        address: str,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        zone: str = "UTC",
        *,
        script: str | None = None,
    ) -> Page:
        """Open an address in a browser without a past. `script` runs before the page's."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            timezone_id=zone,
            permissions=["clipboard-read", "clipboard-write"],
        )
        self._contexts.append(context)
        if script is not None:
            context.add_init_script(script)
        page = context.new_page()
        page.set_default_timeout(WAIT_MILLISECONDS)
        origin = address.partition("#")[0].rstrip("/")
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

        def asked(request: Request) -> None:
            if request.url != origin and not request.url.startswith(f"{origin}/"):
                self.faults.append(f"another host: {request.url}")

        page.on("request", asked)
        page.goto(address)
        return page

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not self.excused(message.text):
            self.faults.append(f"console: {message.text}")

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def visits(browser: Browser) -> Iterator[Visits]:
    """Opens pages. At the end of each test no page has written an error or asked another host."""
    opened = Visits(browser)
    yield opened
    opened.close()
    assert opened.faults == []


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `web/` with the packages of its lock file."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on the PATH: install Debian's packages nodejs and npm")
    place = tmp_path_factory.mktemp("sources") / "web"
    shutil.copytree(ROOT / "web", place, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run([npm, "ci"], cwd=place, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return place
