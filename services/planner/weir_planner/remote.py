"""Call remote planners. Whatever they do, the result is a reply that becomes a plan."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import structlog
from prometheus_client import Gauge
from pydantic import ValidationError

from weir_contracts import (
    NO_REPLY,
    VERSION,
    InvalidDocument,
    NewPlanner,
    PlannerDescription,
    PlannerRegistration,
    PlanReply,
    PlanRequest,
    bounded,
    example,
)
from weir_runtime.clock import Clock
from weir_sdk.installed import LARGE
from weir_sdk.schemas import example_parameters, parameter_problems, schema_problems

from .adapters.http import PlannerClient, read_json, usable
from .core.breaker import Breaker
from .core.contest import for_planner
from .core.decide import FAILED, INVALID_REPLY, TIMEOUT, coverage_problem
from .failures import PlannerFailed, no_reply

_OPEN = Gauge("weir_planner_circuit_open", "Whether a planner is not asked for a while", ["planner"])
MAX_CONCURRENT = 16
"""Requests to one planner at once; further ones wait within their own deadline, so that a slow planner delays no other.
"""


class Remote:
    """The registered planners, each with its circuit; a new version of a registration starts with a closed one."""

    def __init__(self, client: PlannerClient, clock: Clock, *, is_measured: bool = True) -> None:
        """`is_measured`: whether circuits and failures are the loop's metrics."""
        self.client = client
        self._is_measured = is_measured
        self._clock = clock
        self._breakers: dict[str, tuple[int, Breaker]] = {}
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._log = structlog.get_logger("planner")

    def apart(self) -> "Remote":
        """Return the planners for calls that decide nothing: only the client is shared."""
        return Remote(self.client, self._clock, is_measured=False)

    async def ask(self, request: PlanRequest, registration: PlannerRegistration, timeout_seconds: float) -> PlanReply:
        """Return the planner's reply for the entire topology, or a hold with the reason."""
        name, now = registration.name, self._clock.monotonic()
        breaker = self._breaker(registration)
        if (waits := breaker.waits_seconds(now, timeout_seconds)) > 0:
            sentence = (
                f"planner {name} is not called for another {waits:.0f} s after {breaker.failures} failures in a row, "
                f"the last: {breaker.last_failure}"
            )
            return no_reply(name, FAILED, sentence, "circuit-open", of_shadow=not self._is_measured)
        self._keep(registration, breaker.called(now, timeout_seconds))
        try:
            reply = await self.try_ask(request, registration, timeout_seconds)
        except PlannerFailed as failure:
            self._log.warning("planner-failed", planner=name, application=request.application, reason=failure.sentence)
            self._keep(registration, self._after(self._breaker(registration), failure, timeout_seconds))
            sentence = f"planner {name} {failure.sentence}"
            return no_reply(name, failure.code, sentence, of_shadow=not self._is_measured)
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
        """Return the planner's reply without a circuit. Raises `PlannerFailed`."""
        gate = self._gates.setdefault(registration.name, asyncio.Semaphore(MAX_CONCURRENT))
        try:
            async with asyncio.timeout(timeout_seconds), gate:
                return checked(await self._reply(request, registration, timeout_seconds), request)
        except TimeoutError:
            raise PlannerFailed(f"did not reply within {timeout_seconds:g} s", code=TIMEOUT) from None
        except PlannerFailed:
            raise
        except Exception as error:
            # Nothing in a reply may end a cycle of the loop. Without the frames, whose variables may hold a credential.
            self._log.warning("planner-reply-failed", planner=registration.name, error=bounded(repr(error), 500))
            raise PlannerFailed(f"gave a reply that could not be read: {type(error).__name__}") from error

    async def try_out(self, new: NewPlanner, timeout_seconds: float) -> tuple[PlannerDescription, PlanReply]:
        """Return the planner's description and its reply to a trial request, each within the time limit and without a
        circuit. Raises `PlannerFailed` with the reason why policies cannot use it."""
        self.client.check(new.url, new.credential)
        description = await self._description(new, timeout_seconds)
        parameters = example_parameters(description.parameters)
        request = for_planner(PlanRequest.model_validate(example("plan-request")), new.name, parameters, {})
        registration = PlannerRegistration(
            name=new.name,
            url=new.url,
            credential=new.credential,
            version=1,
            description=description,
            registered_at=request.now,
            registered_by="trial",
        )
        return description, await self.try_ask(request, registration, timeout_seconds)

    async def _description(self, new: NewPlanner, timeout_seconds: float) -> PlannerDescription:
        """Return the planner's description, with a schema by which policies' parameters can be checked."""
        document = await self.client.get_json(f"{new.url}/", timeout_seconds, new.credential)
        try:
            found = PlannerDescription.model_validate(document)
        except ValidationError as error:
            wrong = InvalidDocument.of(error, "description")
            raise PlannerFailed(f"answered without a planner description: {wrong}") from None
        if VERSION not in found.contract_versions:
            spoken = ", ".join(found.contract_versions) or "no version"
            raise PlannerFailed(f"speaks {spoken}, and Weir speaks {VERSION}")
        if wrong_schema := schema_problems(found.parameters):
            raise PlannerFailed(wrong_schema[0])
        parameters = example_parameters(found.parameters)
        if problems := parameter_problems(new.name, found.parameters, parameters, "parameters"):
            where, what = problems[0]
            tried = "its first example is invalid" if parameters else "it has no `examples`, and some are required"
            raise PlannerFailed(f"{where}: {tried}: {what}")
        return found

    async def _reply(
        self, request: PlanRequest, registration: PlannerRegistration, timeout_seconds: float
    ) -> PlanReply:
        content, url = self._content(request, registration), f"{registration.url}/plan"
        body = usable(await self.client.exchange("POST", url, content, timeout_seconds, registration.credential))
        await read_json(body)
        return read_reply(body)

    def _content(self, request: PlanRequest, registration: PlannerRegistration) -> bytes:
        """Encode the request without the fields that the planner does not read, and without its large ones if it is too
        large."""
        reads = registration.description.reads
        unread = [] if reads is None else [field for field in LARGE if field not in reads]
        for left_out in (unread, [*unread, "observations"], list(LARGE)):
            content = request.model_copy(update={field: [] for field in left_out}).model_dump_json().encode()
            if len(content) <= self.client.request_bytes:
                break
        return content

    def breaker(self, registration: PlannerRegistration) -> Mapping[str, Any]:
        """Return the circuit for users."""
        state, now = self._breaker(registration), self._clock.monotonic()
        return {
            "state": state.circuit(now),
            "failures_in_a_row": state.failures,
            "asked_again_in_seconds": round(state.waits_seconds(now), 1),
            "last_failure": state.last_failure,
        }

    def _breaker(self, registration: PlannerRegistration) -> Breaker:
        version, breaker = self._breakers.get(registration.name, (0, Breaker()))
        return breaker if version == registration.version else Breaker()

    def _keep(self, registration: PlannerRegistration, breaker: Breaker) -> None:
        self._breakers[registration.name] = (registration.version, breaker)
        if self._is_measured:
            _OPEN.labels(registration.name).set(0 if breaker.open_until is None else 1)

    def forget(self, name: str) -> None:
        """Forget a removed planner."""
        self._gates.pop(name, None)
        if self._breakers.pop(name, None) is not None and self._is_measured:
            _OPEN.remove(name)


def read_reply(body: bytes) -> PlanReply:
    """Read a reply strictly: no text for a number, no fractional subtasks. Raises `PlannerFailed` that names the
    fields."""
    try:
        return PlanReply.model_validate_json(body, strict=True)
    except ValidationError as error:
        wrong = InvalidDocument.of(error, "reply")
        raise PlannerFailed(f"gave a reply that is no PlanReply: {wrong}", code=INVALID_REPLY) from None


def checked(reply: PlanReply, request: PlanRequest) -> PlanReply:
    """Return the reply if it covers the topology and uses none of Weir's codes. Raises `PlannerFailed`."""
    if reply.code in NO_REPLY:
        raise PlannerFailed(f"gave a reply with the code {reply.code}, which is Weir's own", code=INVALID_REPLY)
    if (problem := coverage_problem(reply, request)) is not None:
        raise PlannerFailed(f"gave a reply that {problem}", code=INVALID_REPLY)
    return reply
