"""Runs the shadows beside the loop: after a plan is out, in processes of their own, with little time, and never waited for.

What cannot be done in time is left out and counted. The state of the simulated copies lies in `weir.shadows`: this replica's partitions
are read from there when they are taken over.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from prometheus_client import Counter, Gauge, Histogram
from weir_contracts import PlanReply, PlanRequest, Shadows, derive_id
from weir_contracts.topics import SHADOWS
from weir_planner.installed import InvalidParameters, UnknownPlanner, ask, reads

from runtime.bus import Bus, BusError, Reader
from runtime.clock import Clock, SystemClock
from runtime.dead_letters import DeadLetters
from runtime.envelope import encode
from runtime.loop import Stop, run_forever
from runtime.records import partition_of
from runtime.schema_version import NewerMessages

from .core.shadows import Ask, begin, finish, wants
from .process import WorkerProcess

GRACE_SECONDS = 5.0
"""A process that has not come back so long after its time is ended."""
LAST_WORDS_SECONDS = 5.0
SHORTEST_SECONDS = 0.001
"""A timer of much less than that never goes off."""
_TURNS = Counter("weir_planner_shadow_turns_total", "Turns of an application's shadows", ["result"])
_QUEUED = Gauge("weir_planner_shadow_turns_queued", "Turns of shadows that wait")
_SECONDS = Histogram(
    "weir_planner_shadow_seconds",
    "For a turn of all shadows of one application",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)

AskRegistered = Callable[[PlanRequest, str, float], Any]


@dataclass(frozen=True)
class Limits:
    """How much shadows may take."""

    budget_share: float = 0.2
    """Of an application's interval, for all its shadows together."""
    queued: int = 1000
    """Turns that may wait."""
    publish_seconds: float = 30.0
    """Between two messages of an application: so much is lost with this process."""


@dataclass
class _Kept:
    """The copies of one application. As text: this process never looks into them."""

    text: str
    at: datetime
    published_at: float | None = None
    hour: datetime | None = None
    is_told: bool = False


class Sideline:
    """The shadows of this replica's share of the applications."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        process: WorkerProcess,
        *,
        partitions: int,
        limits: Limits = Limits(),
        registered: Callable[[], frozenset[str]] = frozenset,
        ask_registered: AskRegistered | None = None,
        newer: NewerMessages | None = None,
    ) -> None:
        """`registered` names the planners that `ask_registered` asks; all others are built in."""
        self._bus = bus
        self._clock = clock
        self._process = process
        self._partitions = partitions
        self._limits = limits
        self._registered = registered
        self._ask_registered = ask_registered
        self._dead_letters = DeadLetters(bus, "planner", clock, newer)
        self._kept: dict[str, _Kept] = {}
        self._queue: OrderedDict[str, PlanRequest] = OrderedDict()
        self._ended: list[str] = []
        self._owned: frozenset[int] = frozenset()
        self._known: frozenset[int] = frozenset()
        self._something = asyncio.Event()
        self._log = structlog.get_logger("shadows")

    # -- called by the loop: none of these waits or raises ----------------------------------------------------------

    def offer(self, request: PlanRequest) -> None:
        """A turn that is over. The newest of an application counts; with too many waiting it is left out."""
        application = request.application
        if not wants(request):
            if not request.policy.spec.shadows:
                self._queue.pop(application, None)
                self._kept.pop(application, None)
            return
        if application in self._queue:
            _TURNS.labels("overtaken").inc()
        elif len(self._queue) >= self._limits.queued:
            _TURNS.labels("queue-full").inc()
            return
        self._queue[application] = request
        _QUEUED.set(len(self._queue))
        self._something.set()

    def ended(self, application: str) -> None:
        """The application is no more."""
        self._queue.pop(application, None)
        self._kept.pop(application, None)
        self._ended.append(application)
        self._something.set()

    def share(self, owned: frozenset[int]) -> None:
        """Whose shadows are this replica's from now on."""
        self._owned = owned
        self._something.set()

    # -- the work ---------------------------------------------------------------------------------------------------

    async def run(self, stop: Stop) -> None:
        """Work until stopped; then say where the copies are."""
        reader = self._bus.reader(SHADOWS.name, partitions=[])
        try:
            await run_forever("shadows", lambda: self._cycle(reader, stop), stop)
        finally:
            await reader.close()
            with contextlib.suppress(TimeoutError, BusError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    for application in list(self._kept):
                        await self._publish(application)

    async def _cycle(self, reader: Reader, stop: Stop) -> None:
        if self._known != self._owned:
            await self._take_over(reader, stop)
        while self._ended:
            await self._bus.publish(SHADOWS.name, self._ended[0], None)
            del self._ended[0]
        if not self._queue:
            self._something.clear()
            await stop.race(self._wait())
            return
        _, request = self._queue.popitem(last=False)
        _QUEUED.set(len(self._queue))
        await stop.race(self._turn(request))

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._something.wait(), 1.0)

    def _is_mine(self, application: str) -> bool:
        return partition_of(application, self._partitions) in self._owned

    async def _take_over(self, reader: Reader, stop: Stop) -> None:
        """What another replica has told of the new share; what was lost is forgotten."""
        owned = self._owned
        for application in [name for name in self._kept if not self._is_mine(name)]:
            del self._kept[application]
        await reader.assign([])
        await reader.assign(owned)
        while owned and not stop.requested:
            for record in await reader.receive(timeout_seconds=0.2):
                if record.value is None:
                    if record.key is not None:
                        self._kept.pop(record.key, None)
                    continue
                decoded = await self._dead_letters.decoded(record, Shadows)
                if decoded is None:
                    continue
                message = decoded.message
                known = self._kept.get(message.application)
                if known is None or known.at < message.at:
                    self._kept[message.application] = _Kept(message.model_dump_json(), message.at, is_told=True)
            if await reader.caught_up():
                break
        await reader.assign([])
        self._known = owned

    async def _turn(self, request: PlanRequest) -> None:
        application, began = request.application, self._clock.monotonic()
        if not self._is_mine(application):
            return
        try:
            moved = await self._moved(request)
        except Exception as error:  # noqa: BLE001 - whatever happens to a shadow, nothing else may notice
            _TURNS.labels("failed").inc()
            self._log.warning("shadows-failed", application=application, error=str(error) or type(error).__name__)
            return
        if moved is None:
            _TURNS.labels("unknown").inc()
            return
        _TURNS.labels("done").inc()
        _SECONDS.observe(self._clock.monotonic() - began)
        before = self._kept.get(application)
        at, hour = request.analysis.observed_at, request.analysis.observed_at.replace(minute=0, second=0, microsecond=0)
        kept = _Kept(moved, at, before.published_at if before else None, before.hour if before else None)
        self._kept[application] = kept
        due = kept.published_at is None or self._clock.monotonic() - kept.published_at >= self._limits.publish_seconds
        if due or kept.hour != hour:
            await self._publish(application)

    async def _moved(self, request: PlanRequest) -> str | None:
        """The copies after a turn; None: nothing can be simulated now."""
        budget = self._limits.budget_share * request.policy.spec.interval.total_seconds()
        kept, registered = self._kept.get(request.application), self._registered()
        names = {request.policy.spec.planner.name, *(s.name for s in request.policy.spec.shadows)}
        elsewhere = sorted(names & registered)
        question = {
            "before": kept.text if kept else None,
            "request": _needed(request, names).model_dump_json(),
            "elsewhere": elsewhere,
            "seconds": budget,
        }
        answer = json.loads(await self._process.run(turn, json.dumps(question), timeout_seconds=budget + GRACE_SECONDS))
        if answer["after"] is None or not answer["asks"] or self._ask_registered is None:
            return answer["after"]  # type: ignore[no-any-return]
        answers = await asyncio.gather(*(self._asked(open_ask, answer["seconds"]) for open_ask in answer["asks"]))
        answered = {"after": answer["after"], "answers": answers}
        return await self._process.run(end, json.dumps(answered), timeout_seconds=budget + GRACE_SECONDS)

    async def _asked(self, open_ask: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._ask_registered is not None  # noqa: S101 - checked by the caller
        request = PlanRequest.model_validate_json(open_ask["request"])
        timeout = max(0.05, min(open_ask["timeout"], seconds))
        reply: PlanReply = await self._ask_registered(request, open_ask["planner"], timeout)
        return {**open_ask, "reply": reply.model_dump_json()}

    async def _publish(self, application: str) -> None:
        kept = self._kept.get(application)
        if kept is None or kept.is_told or not self._is_mine(application):
            return
        message = Shadows.model_validate_json(kept.text)
        body, headers = encode(
            message, type=SHADOWS.type, source="planner", id=derive_id(message.id, "told"), time=self._clock.now()
        )
        await self._bus.publish(SHADOWS.name, application, body, headers)
        kept.published_at, kept.is_told = self._clock.monotonic(), True
        kept.hour = message.at.replace(minute=0, second=0, microsecond=0)


def _needed(request: PlanRequest, planners: set[str]) -> PlanRequest:
    """Without past turns, which are the copies' own, and without raw readings where nobody looks at them."""
    looked_at = any("observations" in reads(name) for name in planners)
    observations = request.observations if looked_at else []
    return request.model_copy(update={"history": [], "observations": observations})


# -- in a process of its own, text in and text out ---------------------------------------------------------------------


def turn(text: str) -> str:
    """Lets the copies run until now and asks the planners that are built in; those elsewhere are left to be asked."""
    question = json.loads(text)
    before = Shadows.model_validate_json(question["before"]) if question["before"] else None
    after, asks = begin(before, PlanRequest.model_validate_json(question["request"]))
    if after is None or (before is not None and after is before):
        return json.dumps({"after": None, "asks": [], "seconds": 0.0})
    left, answers, open_asks = float(question["seconds"]), [], []
    for i, each in enumerate(asks):
        if each.planner in question["elsewhere"]:
            open_asks.append(_written(each))
            continue
        # One that takes its whole share leaves the others theirs.
        reply, took = _answered(each, left / (len(asks) - i))
        left -= took
        answers.append((each, reply))
    return json.dumps({"after": finish(after, answers).model_dump_json(), "asks": open_asks, "seconds": left})


def end(text: str) -> str:
    """Carries out what planners elsewhere have answered."""
    question = json.loads(text)
    answers = [
        (
            Ask(a["label"], a["planner"], a["timeout"], PlanRequest.model_validate_json(a["request"])),
            PlanReply.model_validate_json(a["reply"]),
        )
        for a in question["answers"]
    ]
    return finish(Shadows.model_validate_json(question["after"]), answers).model_dump_json()


def _written(each: Ask) -> dict[str, Any]:
    return {
        "label": each.label,
        "planner": each.planner,
        "timeout": each.timeout_seconds,
        "request": each.request.model_dump_json(),
    }


def _answered(each: Ask, left_seconds: float) -> tuple[PlanReply, float]:
    """A built-in planner's reply, or a hold that says why there is none, and the seconds it took."""
    if left_seconds < SHORTEST_SECONDS:
        return _none("planner-timeout", f"no time was left for {each.planner}"), 0.0
    seconds = min(left_seconds, each.timeout_seconds)
    clock = SystemClock()
    began = clock.monotonic()
    try:
        with _at_most(seconds):
            reply = ask(each.request, each.planner)
    except _TooSlowError:
        reply = _none("planner-timeout", f"planner {each.planner} gave no answer within {seconds:g} s")
    except (UnknownPlanner, InvalidParameters) as error:
        reply = _none("planner-invalid", str(error))
    except Exception as error:  # noqa: BLE001 - whatever a planner raises, the others go on
        reply = _none("planner-failed", f"planner {each.planner} failed: {error or type(error).__name__}")
    return reply, clock.monotonic() - began


def _none(code: str, sentence: str) -> PlanReply:
    return PlanReply(kind="hold", code=code, sentence=sentence[:2000])


class _TooSlowError(BaseException):
    """No `Exception`, so that a planner that catches all of them is interrupted, too."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Interrupts what is inside after so long. For a process's main thread, which is where a pool's work runs."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise _TooSlowError

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def give_way() -> None:
    """Once in each process: the loop goes first."""
    with contextlib.suppress(OSError):
        os.nice(10)
