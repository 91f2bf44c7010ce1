"""Links between Markdown pages, pages that code, alerts and comments name, and the policies that pages show."""

import re
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
import yaml

from weir_contracts import parse_policy

ROOT = Path(__file__).parents[3]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^ *```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"\b(docs/[\w./-]+\.md)(?:#([\w-]+))?")


def _tracked(*patterns: str) -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


@lru_cache
def _anchors(page: Path) -> frozenset[str]:
    """Return a page's anchors as GitHub derives them from its headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)


def _is_broken(target: Path, anchor: str) -> bool:
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in _anchors(target))


@pytest.mark.parametrize("page", _tracked("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_has_a_target(page: Path) -> None:
    """Files, folders and headings."""
    broken = []
    for link in _LINK.findall(page.read_text()):
        name, _, anchor = link.partition("#")
        if not re.match(r"[a-z]+:", link) and _is_broken((page.parent / name).resolve() if name else page, anchor):
            broken.append(link)
    assert broken == []


def test_every_page_that_a_file_names_exists() -> None:
    """In code, alerts, dashboards and comments, as a path from the project's root."""
    found = {
        (str(path.relative_to(ROOT)), page, anchor)
        for path in _tracked("*.py", "*.yml", "*.yaml", "*.json", "*.toml", "Makefile")
        for page, anchor in _NAMED.findall(path.read_text(errors="replace"))
    }
    assert len(found) > 20
    assert {name for name in found if _is_broken(ROOT / name[1], name[2])} == set()


def test_every_page_is_in_the_index() -> None:
    """Each shelf's pages, and no page outside a shelf."""
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text()
    pages = {str(path.relative_to(docs)) for path in _tracked("docs/*.md")} - {"README.md"}
    shelves = {page for page in pages if not page.startswith("adr/")}
    assert {page.split("/")[0] for page in shelves} == {"tutorials", "how-to", "reference", "explanation"}
    assert {page for page in shelves if f"({page})" not in index} == set()


@pytest.mark.parametrize(
    ("page", "modules"),
    [
        ("runtime/README.md", "runtime/weir_runtime/*.py"),
        ("predictor/README.md", "predictor/weir_predictor/*.py"),
        ("replay/README.md", "replay/weir_replay/**/*.py"),
        ("services/analyzer/README.md", "services/analyzer/weir_analyzer/core/*.py"),
    ],
)
def test_every_module_has_its_line(page: str, modules: str) -> None:
    """In the README's table, with or without the ending of a Python file."""
    text = (ROOT / page).read_text()
    stems = {path.stem for path in ROOT.glob(modules)} - {"__init__", "__main__"}
    assert len(stems) > 10
    assert {stem for stem in stems if not re.search(rf"[`/]{stem}(\.py)?`", text)} == set()


def test_every_policy_of_a_page_is_valid() -> None:
    """As a user applies it: an unknown field is a mistake."""
    checked = set()
    for page in _tracked("*.md"):
        for block in _BLOCK.findall(page.read_text()):
            if "kind: ScalingPolicy\n" in block:
                checked.add(str(page.relative_to(ROOT)))
                try:
                    parse_policy(yaml.safe_load(block))
                except ValueError as error:
                    raise AssertionError(f"{page}: {error}") from error
    assert {"README.md", "docs/how-to/kubernetes.md", "docs/how-to/own-cluster.md"} <= checked
