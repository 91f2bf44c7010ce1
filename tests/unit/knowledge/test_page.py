"""The page's files, as the service serves them: without a token, with a strict policy, and nothing of another host."""

import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from weir_knowledge.__main__ import api
from weir_knowledge.page import PATHS, POLICY
from weir_runtime.access import Caller, Tokens

WEB = Path(__file__).parents[3] / "web"
GIVEN = "reading-is-allowed"
NAMESPACES = {"http://www.w3.org"}
"""Names of markup, which no browser asks."""


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """The API that wants a token."""
    app = api()
    app.state.tokens = Tokens({GIVEN: Caller("ada", frozenset({"read"}))})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as found:
        yield found


@pytest.mark.parametrize("path", sorted(PATHS))
async def test_the_page_needs_no_token_and_runs_nothing_of_others(client: httpx.AsyncClient, path: str) -> None:
    """A browser sends none with an address that is typed. Each file has the policy, also one that is opened alone."""
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    assert (await client.head(path)).status_code == 200


async def test_everything_else_needs_a_token(client: httpx.AsyncClient) -> None:
    """Addresses that look like the page's are no way around it."""
    for path in (
        "/v1/applications",
        "/page",
        "/page/",
        "/page/../v1/policies",
        "/page/other.js",
        "/docs",
        "/index.html",
    ):
        assert (await client.get(path)).status_code == 401, path


async def test_a_file_that_the_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    """By its tag, so that a new version shows at the next visit."""
    first = await client.get("/page/page.js")
    again = await client.get("/page/page.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_files_name_no_other_host() -> None:
    """And have nothing inline that the policy would refuse."""
    bundle = files("weir_knowledge").joinpath("bundle")
    for name in ("index.html", "page.js", "page.css", "icon.svg"):
        text = bundle.joinpath(name).read_text()
        assert set(re.findall(r"(?:https?|wss?)://[^\s/\"'`)]+", text)) <= NAMESPACES, name
    page = bundle.joinpath("index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=)|<style| style=| on\w+=", page) == []


def test_the_lock_file_names_no_registry() -> None:
    """Where packages come from is the environment's."""
    lock = (WEB / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert '"integrity"' in lock


def test_the_pages_pure_parts() -> None:
    """Words, addresses, folding, layout, forecasts and the feed, by node's own runner."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on the PATH: install Debian's package nodejs")
    done = subprocess.run([node, "--test"], cwd=WEB, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"^(# |ℹ )pass [1-9]", done.stdout, re.MULTILINE), done.stdout[-400:]
