"""The page of measurements is generated from the checked-in results."""

from bench.results_file import PROJECT, RESULTS
from bench.table import FIGURES, PAGE, page


def test_the_page_is_what_the_results_give() -> None:
    """After a benchmark: python -m bench.table"""
    assert PAGE.read_text() == page()


def test_every_result_is_on_the_page() -> None:
    """Each JSON file has a generator."""
    results = {path.stem for path in RESULTS.glob("*.json")}
    assert results == FIGURES.keys() | {"compare", "quality", "planners"}


def test_the_readme_s_figures_are_on_the_page() -> None:
    """README.md repeats rows of the generated page."""
    rows = [line for line in (PROJECT / "README.md").read_text().splitlines() if line.startswith("| eight hours")]
    assert len(rows) == 4
    assert set(rows) <= set(page().splitlines())
