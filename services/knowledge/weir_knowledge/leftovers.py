"""Deletes silent applications without a policy that never ended.

An application's end comes from its monitor, or from the publisher when its policy is deleted. Neither comes if the
policy itself was lost, or if a late message restored a part of the state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from weir_contracts import ended_observation
from weir_runtime.bus import Bus
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, run_forever

from .publisher import end_record
from .store import Store

DELETIONS_KEPT = timedelta(days=30)
"""Much longer than a topic keeps a tombstone, and than a process may be paused."""
MAX_PAUSE_SECONDS = 300.0


@dataclass(eq=False, repr=False)
class Leftovers:
    """Deletes silent applications without a policy, on the replica that publishes policies (`publishes`)."""

    bus: Bus
    store: Store
    clock: Clock
    publishes: Callable[[], bool]
    forget_after_seconds: float
    _since: dict[tuple[str, datetime | None], float] = field(default_factory=dict, init=False)
    """Monotonic seconds since which an application has no policy and this newest message."""

    async def run(self, stop: Stop) -> None:
        """Check ten times in `forget_after_seconds`, and at least every five minutes, until stopped."""
        pause_seconds = min(MAX_PAUSE_SECONDS, self.forget_after_seconds / 10)
        await run_forever("leftovers", self.tidy, stop, pause_seconds=pause_seconds)

    async def tidy(self) -> None:
        """Check once; end and delete applications that have been silent for long enough."""
        if not self.publishes():
            self._since.clear()
            return
        now = self.clock.monotonic()
        found = (await self.store.leftovers()).items()
        self._since = {each: self._since.get(each, now) for each in found}
        for (application, newest), since in list(self._since.items()):
            if now - since >= self.forget_after_seconds and await self.store.policy(application) is None:
                await self._forget(application, newest)
        oldest = self.clock.now() - DELETIONS_KEPT
        await self.store.forget_deletions(int(oldest.timestamp() * 1000))

    async def _forget(self, application: str, newest: datetime | None) -> None:
        """Publish the end if a message has the policy, so that the analyzer drops its state as well; delete the
        application."""
        messages = await self.store.newest(application, ["observation", "analysis"])
        last = None if messages is None else messages.observation or messages.analysis
        if last is not None:
            after = max(self.clock.now(), (newest or last.observed_at) + timedelta(milliseconds=1))
            record = end_record(ended_observation(last.policy, after, "it has no policy and sends no messages"))
            await self.bus.publish(record.topic, record.key, record.value, record.headers)
        await self.store.forget(application)
        structlog.get_logger("knowledge").info(
            "forgotten", application=application, silent_seconds=self.forget_after_seconds
        )
