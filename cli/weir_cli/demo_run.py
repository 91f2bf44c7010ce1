"""A simulated application under Weir's loop in simulated time, paced so that a day's load takes two minutes; its messages
go to this process's knowledge, so that the screen and every other command show it as they show a real one."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weir_contracts import ScalingPolicy, counted
from weir_contracts.topics import TOPICS
from weir_knowledge.settings import KnowledgeSettings
from weir_knowledge.view import View
from weir_replay.loop import Loop
from weir_replay.options import InvalidReplay, Replay, ReplayOptions, prepare
from weir_replay.simulator import Noise, Simulation
from weir_runtime.bus import Bus, Outgoing
from weir_runtime.loop import Stop
from weir_runtime.messages import encode
from weir_runtime.service import run_service

from .advice import Advice
from .chart import check_place
from .client import CommandError, InvalidInput
from .single import LocalApi, SingleSettings, compose_knowledge, of_environment
from .single_run import Display, address_of, log_and_store, page_of, write_page
from .terminal import say
from .trial import sparkline

NAMESPACE, NAME = "demo", "orders"
TRACE = "nyc_taxi"
SPEEDUP = 12.0
"""A day's load takes two hours of the application's time: its restarts, windows and cooldowns are those of a real job."""
DAY_SECONDS = 86_400.0 / SPEEDUP
PACE = 60.0
"""Seconds of the application's time in one second: the day passes in two minutes."""
INTERVAL_SECONDS = 10.0
NOISE = 0.02
DAY_NOTE = "A simulated application: its day's load takes two hours, and all times are those of the simulation."
POINT_SECONDS = 150.0
"""Of the curves on the screen: 48 in a day."""


def run_demo(planner: str, listen: str, html: Path | None = None) -> int:
    """Run until the day is over or the user stops it, then write the page, if one is wanted; returns the exit code."""
    if html is not None:
        check_place(html, "--html", None)
    return asyncio.run(_run(prepared_day(planner), listen, html))


def prepared_day(planner: str) -> Replay:
    """Return the first day of the recording with the ready-made job. `InvalidInput` for an unknown planner."""
    options = ReplayOptions(
        trace=TRACE,
        planner=planner,
        speedup=SPEEDUP,
        interval_seconds=INTERVAL_SECONDS,
        duration_seconds=DAY_SECONDS,
    )
    try:
        return prepare(options)
    except InvalidReplay as error:
        raise InvalidInput(str(error)) from None


async def _run(prepared: Replay, listen: str, html: Path | None) -> int:
    host, port = address_of(listen)
    settings = of_environment(SingleSettings, http_host=host, http_port=port)
    messages: list[Any] = []

    def carry(message: Any) -> Any:
        messages.append(message)
        return message

    loop = Loop(carry=carry)
    with log_and_store(None, loop.clock) as (bus, store):
        one = compose_knowledge(settings, bus, store, loop.clock)
        view = View(store, settings.partitions, of_environment(KnowledgeSettings).prices)
        day = Day(prepared, loop, one.api, view, bus, messages, page_of(settings))
        display = Display(view, loop.clock, day.notes, settings.log_level)

        async def show(stop: Stop) -> None:
            await display.follow(stop, day.is_seen)
            if html is not None:
                try:
                    say(await write_page(html, view, loop.clock, DAY_NOTE), error=True)
                except CommandError as error:
                    day.error = error

        async def close() -> None:
            await asyncio.to_thread(loop.close)
            await one.close()

        tasks = {**one.tasks, "day": day.simulate, "screen": show}
        code = await run_service("weir", settings, app=one.app, tasks=tasks, on_stopped=close)
    if day.error is not None:
        raise day.error
    say(day.result())
    return code


@dataclass(eq=False)
class Day:
    """The simulated application and its day."""

    prepared: Replay
    loop: Loop
    api: LocalApi
    view: View
    bus: Bus
    messages: list[Any]
    """Of the loop, until they are published."""
    address: str
    is_over: bool = field(default=False, init=False)
    error: CommandError | None = field(default=None, init=False)
    _seconds: float = field(default=0.0, init=False)
    _late_seconds: float = field(default=0.0, init=False)
    _rates: list[float | None] = field(default_factory=list, init=False)
    _slots: list[float | None] = field(default_factory=list, init=False)
    _spend: str = field(default="", init=False)

    async def simulate(self, stop: Stop) -> None:
        """Let the day pass."""
        policy = await self._stored_policy(stop)
        if policy is None:
            return
        simulation = Simulation(self.prepared.job, self.prepared.trace.rate_at, step_seconds=self.prepared.step_seconds)
        simulation.on_step = self._count_late(simulation, policy)
        application = self.loop.add(simulation, policy, noise=Noise(relative=NOISE))
        began = time.monotonic()
        while self._seconds < self.prepared.duration_seconds and not stop.requested:
            # In a thread: the loop in simulated time is an event loop of its own.
            await asyncio.to_thread(self.loop.run, INTERVAL_SECONDS)
            self._seconds += INTERVAL_SECONDS
            await self._publish()
            if self._seconds // POINT_SECONDS > len(self._rates):
                self._rates.append(self.prepared.trace.rate_at(self._seconds))
                self._slots.append(float(simulation.slots_used))
            application.policy = await self.view.policy(policy.application) or application.policy
            await stop.wait(max(0.0, began + self._seconds / PACE - time.monotonic()))
        self.is_over = True

    async def _stored_policy(self, stop: Stop) -> ScalingPolicy | None:
        document = self.prepared.policy.to_document()
        document["metadata"] = {"namespace": NAMESPACE, "name": NAME}
        application = f"{NAMESPACE}/{NAME}"
        refused = await self.api.put(application, document)
        if refused is None:
            return await self.view.policy(application)
        self.error = CommandError(f"the policy of the demo was refused: {refused.text}")
        stop.request("the policy was refused")
        return None

    def _count_late(self, simulation: Simulation, policy: ScalingPolicy) -> Any:
        bound = policy.spec.objective.bound_seconds or 0.0

        def step(seconds: float) -> None:
            self._late_seconds += seconds if simulation.lag_seconds > bound else 0.0

        return step

    async def _publish(self) -> None:
        """Publish what the loop wrote meanwhile."""
        arrived, self.messages[:] = list(self.messages), []
        records = []
        for message in arrived:
            topic = next(topic for topic in TOPICS if isinstance(message, topic.contract))
            at = getattr(message, "observed_at", None) or self.loop.now
            body, headers = encode(message, type=topic.type, source="demo", id=message.id, time=at)
            records.append(Outgoing(topic.name, message.application, body, headers))
        await self.bus.publish_many(records)

    def is_seen(self, advice: Sequence[Advice]) -> bool:
        """Keep what was spent until now; return whether the day is over."""
        self._spend = next((each.summary.spend_sentence or "" for each in advice), self._spend)
        return self.is_over

    def notes(self, _advice: Sequence[Advice]) -> list[str]:
        """Return the lines above the table: the hour of the day, and the curves so far."""
        hour = self._seconds / self.prepared.duration_seconds * 24
        return [
            f"a day's load at a simulated job: {int(hour) % 24:02}:{int(hour % 1 * 60):02} · {self.address}/ · Ctrl-C ends it",
            f"load   {sparkline(self._rates)}",
            f"slots  {sparkline(self._slots)}",
        ]

    def result(self) -> str:
        """Return the day in a sentence."""
        rescales, late = len(self.loop.driver.accepted_at), self._late_seconds / max(1.0, self._seconds)
        hours = self._seconds / self.prepared.duration_seconds * 24
        spend = f"; {self._spend}" if self._spend else ""
        return f"{hours:.0f} h of load: {counted(rescales, 'rescale')}, lag above the objective in {late:.1%} of the time{spend}"
