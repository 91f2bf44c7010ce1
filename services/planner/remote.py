"""Asks planners that run elsewhere. Whatever they do, what comes back is a reply that a plan can be made of."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from prometheus_client import Gauge
from pydantic import ValidationError
from weir_contracts import InvalidDocument, PlannerRegistration, PlanReply, PlanRequest
from weir_planner.installed import LARGE

from runtime.clock import Clock

from .adapters.http import PlannerClient, Post, read_json, usable
from .core.breaker import Breaker
from .core.decide import FAILED, INVALID_REPLY, NO_REPLY, TIMEOUT, coverage_problem
from .failures import PlannerFailed, no_reply

_OPEN = Gauge("weir_planner_circuit_open", "Whether a planner is not asked for a while", ["planner"])
AT_ONCE = 16
"""Requests to one planner at once; further ones wait, within their own deadline, so that a slow one keeps its slowness to itself."""

Protocol = Callable[[PlanRequest, PlannerRegistration, float, Post], Awaitable[PlanReply]]
"""Asks a planner of one kind within so many seconds, over the client's `post_json`; `PlannerFailed` where there is no answer."""


class Remote:
    """The registered planners, each with a circuit of its own. A new version of a registration starts with a closed one."""

    def __init__(
        self, client: PlannerClient, clock: Clock, others: Mapping[str, Protocol], *, is_told: bool = True
    ) -> None:
        """`others`: how the kinds beside `http` are asked. `is_told`: whether its circuits and failures are the loop's metrics."""
        self.client = client
        self._is_told = is_told
        self._others = others
        self._clock = clock
        self._breakers: dict[str, tuple[int, Breaker]] = {}
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._log = structlog.get_logger("planner")

    def apart(self) -> "Remote":
        """For who asks outside the loop: the same client, and nothing else that is shared."""
        return Remote(self.client, self._clock, self._others, is_told=False)

    async def ask(self, request: PlanRequest, registration: PlannerRegistration, timeout_seconds: float) -> PlanReply:
        """The planner's reply for the whole topology, or a hold that says why there is none."""
        name, now = registration.name, self._clock.monotonic()
        breaker = self._breaker(registration)
        if (waits := breaker.waits_seconds(now, timeout_seconds)) > 0:
            why = f"after {breaker.failures} failures in a row, the last: {breaker.because}"
            sentence = f"planner {name} is not asked for another {waits:.0f} s {why}"
            return no_reply(name, FAILED, sentence, "circuit-open", of_shadow=not self._is_told)
        self._keep(registration, breaker.asked(now, timeout_seconds))
        try:
            reply = await self.try_ask(request, registration, timeout_seconds)
        except PlannerFailed as failure:
            sentence = f"planner {name} {failure.sentence}"
            self._log.warning("planner-failed", planner=name, application=request.application, reason=failure.sentence)
            self._keep(registration, self._after(self._breaker(registration), failure, timeout_seconds))
            return no_reply(name, failure.code, sentence, of_shadow=not self._is_told)
        self._keep(registration, self._breaker(registration).answered())
        return reply

    def _after(self, breaker: Breaker, failure: PlannerFailed, timeout_seconds: float) -> Breaker:
        if not failure.counts:
            return breaker.answered()
        given = timeout_seconds if failure.code == TIMEOUT else math.inf
        return breaker.failed(self._clock.monotonic(), failure.sentence, given)

    async def try_ask(
        self, request: PlanRequest, registration: PlannerRegistration, timeout_seconds: float
    ) -> PlanReply:
        """The same without a circuit; `PlannerFailed` where there is no usable answer."""
        gate = self._gates.setdefault(registration.name, asyncio.Semaphore(AT_ONCE))
        try:
            async with asyncio.timeout(timeout_seconds), gate:
                return checked(await self._reply(request, registration, timeout_seconds), request)
        except TimeoutError:
            raise PlannerFailed(f"gave no answer within {timeout_seconds:g} s", code=TIMEOUT) from None
        except PlannerFailed:
            raise
        except Exception as error:
            # A planner's answer must not be able to end a turn of the loop, whatever is made of it.
            # Without the frames: their variables may hold a credential.
            self._log.warning("planner-answer-failed", planner=registration.name, error=repr(error)[:500])
            raise PlannerFailed(f"answered something that could not be read: {type(error).__name__}") from error

    async def _reply(
        self, request: PlanRequest, registration: PlannerRegistration, timeout_seconds: float
    ) -> PlanReply:
        if registration.kind != "http":
            return await self._others[registration.kind](request, registration, timeout_seconds, self.client.post_json)
        content = self._content(request, registration)
        answer = await self.client.exchange(
            "POST", f"{registration.url}/plan", content, timeout_seconds, registration.credential
        )
        body = usable(answer)
        await read_json(body)
        return read_reply(body)

    def _content(self, request: PlanRequest, registration: PlannerRegistration) -> bytes:
        """The request without what the planner does not look at, and, where it is too large, without its large parts."""
        reads = registration.description.reads if registration.description else None
        unread = [] if reads is None else [field for field in LARGE if field not in reads]
        for left_out in (unread, [*unread, "observations"], list(LARGE)):
            asked = request.model_copy(update={field: [] for field in left_out})
            content = asked.model_dump_json().encode()
            if len(content) <= self.client.request_bytes:
                break
        return content

    def breaker(self, registration: PlannerRegistration) -> Mapping[str, Any]:
        """The circuit as people see it."""
        state, now = self._breaker(registration), self._clock.monotonic()
        return {
            "state": state.circuit(now),
            "failures_in_a_row": state.failures,
            "asked_again_in_seconds": round(state.waits_seconds(now), 1),
            "last_failure": state.because,
        }

    def _breaker(self, registration: PlannerRegistration) -> Breaker:
        version, breaker = self._breakers.get(registration.name, (0, Breaker()))
        return breaker if version == registration.version else Breaker()

    def _keep(self, registration: PlannerRegistration, breaker: Breaker) -> None:
        self._breakers[registration.name] = (registration.version, breaker)
        if self._is_told:
            _OPEN.labels(registration.name).set(0 if breaker.open_until is None else 1)

    def forget(self, name: str) -> None:
        """The planner was removed."""
        self._gates.pop(name, None)
        if self._breakers.pop(name, None) is not None and self._is_told:
            _OPEN.remove(name)


def read_reply(body: bytes) -> PlanReply:
    """A reply read strictly: no text for a number, no half subtasks. `PlannerFailed` names the fields at fault."""
    try:
        return PlanReply.model_validate_json(body, strict=True)
    except ValidationError as error:
        wrong = InvalidDocument.of(error, "reply")
        raise PlannerFailed(f"answered what is no plan reply: {wrong}", code=INVALID_REPLY) from None


def checked(reply: PlanReply, request: PlanRequest) -> PlanReply:
    """The reply, if it covers the topology and speaks for itself; `PlannerFailed` otherwise."""
    if reply.code in NO_REPLY:
        raise PlannerFailed(f"answered with the code {reply.code}, which is Weir's own", code=INVALID_REPLY)
    if (problem := coverage_problem(reply, request)) is not None:
        raise PlannerFailed(f"gave a reply that {problem}", code=INVALID_REPLY)
    return reply
