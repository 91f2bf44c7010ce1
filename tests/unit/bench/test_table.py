"""The page of measurements is generated from the checked-in results."""

import re

from bench.__main__ import MODULES
from bench.results_file import PROJECT, RESULTS
from bench.simulated import SCENARIOS
from bench.table import ARCHIVED, FIGURES, PAGE, page

BENCH = RESULTS.parent


def test_the_page_is_what_the_results_give() -> None:
    """After a benchmark: python -m bench.table"""
    assert PAGE.read_text() == page()


def test_every_result_is_on_the_page() -> None:
    """Each JSON file has a generator, or its rows are kept as they were made."""
    archived = set(re.findall(r"bench/results/(\w+)\.json", ARCHIVED.read_text()))
    results = {path.stem for path in RESULTS.glob("*.json")}
    assert results == FIGURES.keys() | archived | {"compare", "quality", "planners"}
    assert not FIGURES.keys() & archived


def test_every_benchmark_is_listed_by_its_runner() -> None:
    """A module that measures and is not listed could not be run by `make bench-NAME`."""
    measures = {f"bench.{path.stem}" for path in BENCH.glob("*.py") if "\ndef main() -> int:" in path.read_text()}
    measures |= {f"bench.{path.parent.name}.__main__" for path in BENCH.glob("*/__main__.py")}
    listed = [module.split() for module, _ in MODULES.values()]
    assert measures - {"bench.__main__"} == {module for module, *_ in listed}
    assert {name for _, *own in listed for name in own} == SCENARIOS.keys()


def test_the_readme_s_figures_are_on_the_page() -> None:
    """README.md repeats rows of the generated page."""
    rows = [line for line in (PROJECT / "README.md").read_text().splitlines() if line.startswith("| eight hours")]
    assert len(rows) == 4
    assert set(rows) <= set(page().splitlines())


def test_the_limits_of_one_process_are_on_the_page() -> None:
    """docs/how-to/one-process.md repeats them without the command that measured them."""
    text = (PROJECT / "docs" / "how-to" / "one-process.md").read_text()
    rows = [line.removeprefix("| ") for line in text.splitlines() if line.startswith("| one process: ")]
    assert len(rows) > 5
    assert {row for row in rows if row not in page()} == set()
