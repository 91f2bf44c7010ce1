"""Forgets what is kept of applications that have no policy and are silent: they vanished without an end that was heard.

An application's end comes from its monitor, or from the publisher when its policy is deleted. Neither comes where the policy itself was
lost, or where a late message brought a part of the state back.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from weir_contracts import ended_observation

from runtime.bus import Bus
from runtime.clock import Clock
from runtime.loop import Stop, run_forever

from .publisher import end_record
from .store import Store

DELETIONS_KEPT = timedelta(days=30)
"""Much longer than a tombstone is kept by its topic, and than any process is paused and goes on."""
MAX_PAUSE_SECONDS = 300.0


class Leftovers:
    """Looks for applications without a policy, on the replica that publishes policies (`publishes`)."""

    def __init__(
        self, bus: Bus, store: Store, clock: Clock, publishes: Callable[[], bool], forget_after_seconds: float
    ) -> None:
        self._bus = bus
        self._store = store
        self._clock = clock
        self._publishes = publishes
        self._forget_after_seconds = forget_after_seconds
        self._since: dict[tuple[str, datetime | None], float] = {}
        """Monotonic seconds since which an application has had no policy and this newest message: no two clocks are compared."""
        self._log = structlog.get_logger("knowledge")

    async def run(self, stop: Stop) -> None:
        """Look ten times in `forget_after_seconds`, and at least every five minutes, until stopped."""
        pause_seconds = min(MAX_PAUSE_SECONDS, self._forget_after_seconds / 10)
        await run_forever("leftovers", self.tidy, stop, pause_seconds=pause_seconds)

    async def tidy(self) -> None:
        """Look once; end and forget applications that have been silent for long enough."""
        if not self._publishes():
            self._since.clear()
            return
        now = self._clock.monotonic()
        found = (await self._store.leftovers()).items()
        self._since = {each: self._since.get(each, now) for each in found}
        for (application, newest), since in list(self._since.items()):
            if now - since >= self._forget_after_seconds and await self._store.policy(application) is None:
                await self._forget(application, newest)
        oldest = self._clock.now() - DELETIONS_KEPT
        await self._store.forget_deletions(int(oldest.timestamp() * 1000))

    async def _forget(self, application: str, newest: datetime | None) -> None:
        """Publish its end, so that the analyzer drops its state, too; it is forgotten here even if nothing names its policy."""
        messages = await self._store.newest(application, ["observation", "analysis"])
        last = None if messages is None else messages.observation or messages.analysis
        if last is not None:
            after = max(self._clock.now(), (newest or last.observed_at) + timedelta(milliseconds=1))
            record = end_record(ended_observation(last.policy, after, "it has no policy, and nothing was heard of it"))
            await self._bus.publish(record.topic, record.key, record.value, record.headers)
        await self._store.forget(application)
        self._log.info("forgotten", application=application, silent_seconds=self._forget_after_seconds)
