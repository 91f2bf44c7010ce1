"""What is done while the memory is full: wait, and say it once instead of at every try."""

from typing import Any

from runtime.loop import Stop

from .store import StoreFull

AGAIN_SECONDS = 5.0
"""Between two tries."""


class Patience:
    """Of one loop that writes to the store."""

    def __init__(self, logger: Any, again_seconds: float = AGAIN_SECONDS) -> None:
        self._log = logger
        self._again_seconds = again_seconds
        self._full = False

    async def refused(self, error: StoreFull, stop: Stop) -> None:
        """Nothing was written: what was received is to be kept, and tried again after this wait."""
        if not self._full:
            self._full = True
            self._log.warning("memory-full", reason=str(error), tried_again_every_seconds=self._again_seconds)
        await stop.wait(self._again_seconds)

    def written(self) -> None:
        """There was room."""
        if self._full:
            self._full = False
            self._log.info("memory-has-room")
