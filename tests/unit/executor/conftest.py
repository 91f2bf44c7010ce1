"""Stories of replicas do not wait: their event loop jumps to its next timer where nothing else is left to do."""

import asyncio
import selectors
from collections.abc import Callable, Mapping

import pytest


class _Jumping(selectors.DefaultSelector):
    """Never waits where the loop has a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not timeout or timeout < 0:
            return super().select(timeout)
        found = super().select(0)
        self.ahead_seconds += 0.0 if found else timeout
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time. No thread may be waited for: all virtual time would pass until it is done."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return super().time() + self._jumping.ahead_seconds


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use it for tests with the marker `virtual_time`."""
    return {"loop": JumpingLoop if item.get_closest_marker("virtual_time") else asyncio.new_event_loop}
