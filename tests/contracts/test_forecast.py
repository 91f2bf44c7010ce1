"""The forecast of a source: what a reader finds, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from weir_contracts import Analysis, SourceForecast

EXAMPLES = Path(__file__).parents[2] / "contracts" / "examples" / "v1alpha1"


def _analysis(which: str) -> Analysis:
    return Analysis.model_validate_json((EXAMPLES / "analysis" / f"{which}.json").read_text())


def _forecast() -> Any:
    return json.loads((EXAMPLES / "analysis" / "full.json").read_text())["forecasts"][0]


def test_a_source_is_found_by_its_name() -> None:
    """A source without a forecast, and an analysis without forecasts, have None."""
    found = _analysis("full").forecast("Source: orders")
    assert found is not None and found.method == "damped-trend"
    assert _analysis("full").forecast("Source: payments") is None
    assert _analysis("minimal").forecasts == [] and _analysis("minimal").forecast("Source: orders") is None


def test_the_shortest_sufficient_horizon_is_chosen() -> None:
    """A need of 61 s is covered by the horizon of 600 s, a need of 601 s by none."""
    forecast = SourceForecast.model_validate(_forecast())
    found = [forecast.within(seconds) for seconds in (0.0, 60.0, 61.0, 601.0)]
    assert [each and each.horizon_seconds for each in found] == [60.0, 60.0, 600.0, None]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", [{"after_seconds": 1.0, "records_per_second": 1.0}] * 33),
        ("horizons", [{"horizon_seconds": 60.0, "peak": 1.0, "peak_at_seconds": 0.0}] * 9),
        ("path", [{"after_seconds": 1.0, "records_per_second": -1.0}]),
        ("horizons", [{"horizon_seconds": 0.0, "peak": 1.0, "peak_at_seconds": 0.0}]),
        ("horizons", [{"horizon_seconds": 60.0, "peak": float("nan"), "peak_at_seconds": 0.0}]),
        ("horizons", [{"horizon_seconds": 60.0, "peak": 1.0, "peak_at_seconds": 0.0, "coverage": 1.1}]),
        ("method", "Last Value"),
    ],
)
def test_lengths_and_numbers_are_bounded(field: str, value: Any) -> None:
    """The error names the field."""
    with pytest.raises(ValidationError, match=field):
        SourceForecast.model_validate(_forecast() | {field: value})
