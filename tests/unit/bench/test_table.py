"""The page of measurements is generated from the checked-in results."""

from bench.results_file import RESULTS
from bench.table import FIGURES, PAGE, page


def test_the_page_is_what_the_results_give() -> None:
    """After a benchmark: python -m bench.table"""
    assert PAGE.read_text() == page()


def test_every_result_is_on_the_page() -> None:
    """Each JSON file has a generator, except the second chaos campaign."""
    results = {path.stem for path in RESULTS.glob("*.json")}
    assert results == FIGURES.keys() | {"compare", "quality", "planners", "chaos_outage"}
