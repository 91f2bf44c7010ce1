"""Time since which the observed state of applications has not changed."""

from dataclasses import dataclass
from datetime import datetime

MAX_OBSERVED = 10_000
"""Applications whose last state is kept; a forgotten one is observed from its beginning again."""


@dataclass(frozen=True)
class _Observed:
    state: tuple[object, ...]
    since: datetime


class Steadiness:
    """Last observed state of each application."""

    def __init__(self) -> None:
        self._observed: dict[str, _Observed] = {}

    def since(self, application: str, state: tuple[object, ...], now: datetime) -> datetime:
        """Return the first observation of this state in a row."""
        previous = self._observed.get(application)
        if previous is None or previous.state != state:
            if previous is None and len(self._observed) >= MAX_OBSERVED:
                self._observed.clear()
            previous = self._observed[application] = _Observed(state, now)
        return previous.since
