"""Run shadows outside the loop: after a plan is published, in a separate process, with a time budget; the loop never
waits.

What exceeds the budget is dropped and counted. The state of the simulated applications is in `weir.shadows`, from which
a replica reads its partitions when it takes them over.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog
from prometheus_client import Counter, Gauge, Histogram
from weir_contracts import PlanReply, PlanRequest, Shadows, derive_id, one_line
from weir_contracts.topics import SHADOWS
from weir_planner import InvalidParameters
from weir_planner.installed import UnknownPlanner, ask, reads

from runtime.bus import Bus, BusError, Reader
from runtime.clock import Clock, SystemClock
from runtime.dead_letters import readable
from runtime.envelope import encode
from runtime.loop import Stop, run_forever
from runtime.records import partition_of

from .core.decide import FAILED, INVALID, TIMEOUT
from .core.shadows import Call, begin, finish, has_shadows
from .workers import WorkerProcess

GRACE_SECONDS = 5.0
"""A process that exceeds its budget by this time is killed."""
LAST_PUBLISH_SECONDS = 5.0
MIN_TIMER_SECONDS = 0.001
"""A much shorter timer never fires."""
_CYCLES = Counter("weir_planner_shadow_cycles_total", "Cycles of an application's shadows", ["result"])
_QUEUED = Gauge("weir_planner_shadow_cycles_queued", "Shadow cycles that wait")
_SECONDS = Histogram(
    "weir_planner_shadow_seconds",
    "For a cycle of all shadows of one application",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)

CallRegistered = Callable[[PlanRequest, str, float], Any]


@dataclass(frozen=True)
class ShadowLimits:
    """The resources that shadows may use."""

    budget_share: float = 0.2
    """Of an application's interval, for all its shadows together."""
    queued: int = 1000
    """Applications whose shadows may wait."""
    publish_seconds: float = 30.0
    """Between two messages of an application, which is the maximum loss with this process."""


@dataclass(frozen=True)
class _Kept:
    """The simulated applications of one application, as text that only the worker process parses."""

    text: str
    at: datetime
    published_at: float | None = None
    published_hour: datetime | None = None
    is_published: bool = False


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


class ShadowRunner:
    """The shadows of the applications that are assigned to this replica."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        process: WorkerProcess,
        *,
        partitions: int,
        limits: ShadowLimits = ShadowLimits(),
        registered: Callable[[], frozenset[str]] = frozenset,
        call_registered: CallRegistered | None = None,
    ) -> None:
        """`registered` names the planners that `call_registered` calls; all others are installed."""
        self._bus = bus
        self._clock = clock
        self._process = process
        self._partitions = partitions
        self._limits = limits
        self._registered = registered
        self._call_registered = call_registered
        self._kept: dict[str, _Kept] = {}
        self._queue: OrderedDict[str, PlanRequest] = OrderedDict()
        self._ended: list[str] = []
        self._assigned: frozenset[int] = frozenset()
        self._taken_over: frozenset[int] = frozenset()
        self._work = asyncio.Event()
        self._log = structlog.get_logger("shadows")

    def offer(self, request: PlanRequest) -> None:
        """Queue a finished cycle. The newest one of an application counts; with too many waiting it is dropped."""
        application = request.application
        if not has_shadows(request):
            if not request.policy.spec.shadows:
                self._forget(application)
            return
        if application in self._queue:
            _CYCLES.labels("overtaken").inc()
        elif len(self._queue) >= self._limits.queued:
            _CYCLES.labels("queue-full").inc()
            return
        self._queue[application] = request
        _QUEUED.set(len(self._queue))
        self._work.set()

    def ended(self, application: str) -> None:
        """Forget an application that ended, and publish that."""
        self._forget(application)
        self._ended.append(application)
        self._work.set()

    def assign(self, partitions: frozenset[int]) -> None:
        """Take over the shadows of these partitions, and give up all others."""
        self._assigned = partitions
        self._work.set()

    def _forget(self, application: str) -> None:
        self._queue.pop(application, None)
        self._kept.pop(application, None)

    async def run(self, stop: Stop) -> None:
        """Work until stopped; then publish what is not published yet."""
        reader = self._bus.reader(SHADOWS.name, partitions=[])
        try:
            await run_forever("shadows", lambda: self._cycle(reader, stop), stop)
        finally:
            await reader.close()
            with contextlib.suppress(TimeoutError, BusError):
                async with asyncio.timeout(LAST_PUBLISH_SECONDS):
                    for application in list(self._kept):
                        await self._publish(application)

    async def _cycle(self, reader: Reader, stop: Stop) -> None:
        if self._taken_over != self._assigned:
            await self._take_over(reader, stop)
        while self._ended:
            await self._bus.publish(SHADOWS.name, self._ended[0], None)
            del self._ended[0]
        if not self._queue:
            self._work.clear()
            await stop.race(self._wait())
            return
        _, request = self._queue.popitem(last=False)
        _QUEUED.set(len(self._queue))
        await stop.race(self._run(request))

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._work.wait(), 1.0)

    def _is_mine(self, application: str) -> bool:
        return partition_of(application, self._partitions) in self._assigned

    async def _take_over(self, reader: Reader, stop: Stop) -> None:
        """Read what other replicas published for the new assignment; forget the lost partitions."""
        assigned = self._assigned
        self._kept = {name: kept for name, kept in self._kept.items() if self._is_mine(name)}
        await reader.assign([])
        await reader.assign(assigned)
        while assigned and not stop.requested:
            for record in await reader.receive(timeout_seconds=0.2):
                if record.value is None:
                    if record.key is not None:
                        self._kept.pop(record.key, None)
                    continue
                message = readable(record, Shadows)
                if message is None:
                    continue
                before = self._kept.get(message.application)
                if before is None or before.at < message.at:
                    self._kept[message.application] = _Kept(message.model_dump_json(), message.at, is_published=True)
            if await reader.caught_up():
                break
        await reader.assign([])
        self._taken_over = assigned

    async def _run(self, request: PlanRequest) -> None:
        application, began = request.application, self._clock.monotonic()
        if not self._is_mine(application):
            return
        try:
            text = await self._advanced(request)
        except Exception as error:  # noqa: BLE001 - a failing shadow must not affect anything else
            _CYCLES.labels("failed").inc()
            self._log.warning("shadows-failed", application=application, error=one_line(error))
            return
        if text is None:
            _CYCLES.labels("unknown").inc()
            return
        now, at, before = self._clock.monotonic(), request.analysis.observed_at, self._kept.get(application)
        _CYCLES.labels("done").inc()
        _SECONDS.observe(now - began)
        published_at = before.published_at if before else None
        hour = before.published_hour if before else None
        self._kept[application] = _Kept(text, at, published_at, hour)
        if published_at is None or now - published_at >= self._limits.publish_seconds or hour != _hour(at):
            await self._publish(application)

    async def _advanced(self, request: PlanRequest) -> str | None:
        """Return the simulated applications after a cycle; None if nothing can be simulated now."""
        budget = self._limits.budget_share * request.policy.spec.interval.total_seconds()
        kept, spec = self._kept.get(request.application), request.policy.spec
        names = {spec.planner.name, *(s.name for s in spec.shadows)}
        # History is that of each simulated application; observations are needed only by planners that read them.
        observations = request.observations if any("observations" in reads(name) for name in names) else []
        needed = request.model_copy(update={"history": [], "observations": observations})
        task = {
            "before": kept.text if kept else None,
            "request": needed.model_dump_json(),
            "elsewhere": sorted(names & self._registered()),
            "seconds": budget,
        }
        limit = budget + GRACE_SECONDS
        result = json.loads(await self._process.run(run_cycle, json.dumps(task), timeout_seconds=limit))
        after: str | None = result["after"]
        if after is None or not result["calls"] or self._call_registered is None:
            return after
        replies = await asyncio.gather(*(self._called(call, result["seconds"]) for call in result["calls"]))
        return await self._process.run(
            end_cycle, json.dumps({"after": after, "replies": replies}), timeout_seconds=limit
        )

    async def _called(self, call: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._call_registered is not None  # noqa: S101 - checked by the caller
        request = PlanRequest.model_validate_json(call["request"])
        timeout = max(0.05, min(call["timeout_seconds"], seconds))
        reply: PlanReply = await self._call_registered(request, call["planner"], timeout)
        return {"call": call, "reply": reply.model_dump_json()}

    async def _publish(self, application: str) -> None:
        kept = self._kept.get(application)
        if kept is None or kept.is_published or not self._is_mine(application):
            return
        message, at = Shadows.model_validate_json(kept.text), self._clock.monotonic()
        body, headers = encode(
            message, type=SHADOWS.type, source="planner", id=derive_id(message.id, "published"), time=self._clock.now()
        )
        await self._bus.publish(SHADOWS.name, application, body, headers)
        self._kept[application] = replace(kept, published_at=at, published_hour=_hour(message.at), is_published=True)


def run_cycle(text: str) -> str:
    """Advance the simulated applications and call the installed planners; return the calls to the others."""
    task = json.loads(text)
    before = Shadows.model_validate_json(task["before"]) if task["before"] else None
    after, calls = begin(before, PlanRequest.model_validate_json(task["request"]))
    if after is None or after is before:
        return json.dumps({"after": None, "calls": [], "seconds": 0.0})
    left, replies, elsewhere = float(task["seconds"]), [], []
    for i, call in enumerate(calls):
        if call.planner in task["elsewhere"]:
            elsewhere.append({**vars(call), "request": call.request.model_dump_json()})
            continue
        # A planner that uses up its part leaves the others theirs.
        reply, took = _reply(call, left / (len(calls) - i))
        left -= took
        replies.append((call, reply))
    return json.dumps({"after": finish(after, replies).model_dump_json(), "calls": elsewhere, "seconds": left})


def end_cycle(text: str) -> str:
    """Apply the replies of planners elsewhere."""
    result = json.loads(text)
    replies = []
    for each in result["replies"]:
        request = PlanRequest.model_validate_json(each["call"]["request"])
        replies.append((Call(**{**each["call"], "request": request}), PlanReply.model_validate_json(each["reply"])))
    return finish(Shadows.model_validate_json(result["after"]), replies).model_dump_json()


def _reply(call: Call, left_seconds: float) -> tuple[PlanReply, float]:
    """Return an installed planner's reply, or a hold with the reason why there is none, and the seconds it took."""
    name, seconds = call.planner, min(left_seconds, call.timeout_seconds)
    if left_seconds < MIN_TIMER_SECONDS:
        return _hold(TIMEOUT, f"no time was left for planner {name}"), 0.0
    clock = SystemClock()
    began = clock.monotonic()
    try:
        with _time_limit(seconds):
            reply = ask(call.request, name)
    except _TooSlowError:
        reply = _hold(TIMEOUT, f"planner {name} did not reply within {seconds:g} s")
    except (UnknownPlanner, InvalidParameters) as error:
        reply = _hold(INVALID, str(error))
    except Exception as error:  # noqa: BLE001 - the other planners continue whatever one raises
        reply = _hold(FAILED, f"planner {name} failed: {one_line(error)}")
    return reply, clock.monotonic() - began


def _hold(code: str, sentence: str) -> PlanReply:
    return PlanReply(kind="hold", code=code, sentence=sentence)


class _TooSlowError(BaseException):
    """Not an `Exception`, so that it interrupts a planner that catches all of them."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block after so long; only in a process's main thread, where a pool's work runs."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise _TooSlowError

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def lower_priority() -> None:
    """Prepare the worker process: the loop has priority."""
    with contextlib.suppress(OSError):
        os.nice(10)
