"""State of all forecasts of an application between two observations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .series import SeriesState

MAX_SOURCES = 16
"""Sources with a forecast; those without are planned by their present rates."""
MAX_WAIT_SECONDS = 3600.0
"""New capacity that takes longer is not coming."""


@dataclass(frozen=True, slots=True)
class ForecastState:
    """State of an application's forecasts between two observations."""

    series: dict[str, SeriesState] = field(default_factory=dict)
    asked_at: float | None = None
    """Since when more parallelism is requested than runs. None: nothing is awaited."""
    wait_seconds: float | None = None
    """Time from a request until the new parallelism ran, smoothed. None: not observed yet."""

    def to_json(self) -> list[Any]:
        """Return the state as nested lists of numbers and strings."""
        return [self.asked_at, self.wait_seconds, {name: each.to_json() for name, each in self.series.items()}]

    @classmethod
    def from_json(cls, stored: list[Any]) -> "ForecastState":
        """Read what `to_json` wrote."""
        asked_at, wait_seconds, series = stored
        return cls({name: SeriesState.from_json(each) for name, each in series.items()}, asked_at, wait_seconds)

    def learned(self) -> dict[str, Any]:
        """Return what re-seeds a lost state."""
        series = {name: found for name, each in self.series.items() if (found := each.learned()) is not None}
        return {"wait_seconds": self.wait_seconds, "series": series} if series else {}

    @classmethod
    def seeded(cls, learned: Mapping[str, Any]) -> "ForecastState":
        """Return the state that goes on from what `learned` returned; an unreadable one is empty."""
        try:
            wait = learned["wait_seconds"]
            return cls(
                {str(name): SeriesState.seeded(each) for name, each in [*learned["series"].items()][:MAX_SOURCES]},
                wait_seconds=None if wait is None else min(max(float(wait), 0.0), MAX_WAIT_SECONDS),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return cls()
