"""An event loop in simulated time: it never waits, and jumps to its next timer instead. Unmodified asyncio code runs
hours in seconds."""

import asyncio
import selectors
from datetime import datetime, timedelta


class _Jumping(selectors.SelectSelector):
    """Moves the time on by each wait that the event loop asks for."""

    def __init__(self, start_seconds: float) -> None:
        super().__init__()
        self.now = start_seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for something that no timer will bring")
        self.now += max(0.0, timeout)
        return []


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything can run; with nothing left to run it jumps to the next timer."""

    def __init__(self, start_seconds: float = 0.0) -> None:
        self._jumping = _Jumping(start_seconds)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class SimulatedClock:
    """Clock of a simulated event loop, whose second 0 is `start`. To the millisecond, as observations are."""

    def __init__(self, loop: SimulatedTimeLoop, start: datetime) -> None:
        self._loop = loop
        self._start = start

    def now(self) -> datetime:
        return self._start + timedelta(seconds=round(self._loop.time(), 3))

    def monotonic(self) -> float:
        return self._loop.time()
