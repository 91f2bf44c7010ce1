"""Time that passes only when a test lets it: hours of cadence in milliseconds."""

import asyncio

from weir_runtime.clock import FakeClock


async def settle(rounds: int = 40) -> None:
    """Let everything run that can without time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class VirtualTime(FakeClock):
    """A clock whose sleepers wake when it passes their time."""

    def __init__(self) -> None:
        super().__init__()
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        """A watch's pause."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.Event()
        sleeper = (self.monotonic() + seconds, woken)
        self._sleepers.append(sleeper)
        waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(woken.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sleepers.remove(sleeper)
            for wait in waits:
                wait.cancel()

    async def sleep(self, seconds: float) -> None:
        """For fakes that take their time."""
        await self.pause(asyncio.Event(), seconds)

    async def run(self, seconds: float) -> None:
        """Let time pass, sleeper by sleeper."""
        end = self.monotonic() + seconds
        await settle()
        while due := [at for at, _ in self._sleepers if at <= end]:
            self.advance(max(0.0, min(due) - self.monotonic()))
            for at, woken in list(self._sleepers):
                if at <= self.monotonic():
                    woken.set()
            await settle()
        self.advance(end - self.monotonic())
        await settle()
