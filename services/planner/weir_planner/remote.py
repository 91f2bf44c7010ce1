"""The registered planners: their registrations, a compacted topic that every replica reads completely, and calls.
Whatever a planner does, the result is a reply that becomes a plan."""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid5

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
from weir_contracts.base import WEIR_NAMESPACE
from weir_contracts.topics import PLANNERS
from weir_runtime.bus import Bus, Record
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop
from weir_runtime.messages import Undecodable, decode, encode
from weir_runtime.reading import GlobalTable
from weir_sdk.installed import LARGE
from weir_sdk.schemas import example_parameters, parameter_problems, schema_problems

from .adapters.http import PlannerClient, read_json, usable
from .core.breaker import Breaker
from .core.candidates import for_planner
from .core.decide import FAILED, INVALID_REPLY, TIMEOUT, coverage_problem
from .telemetry import PlannerFailed, no_reply

_OPEN = Gauge("weir_planner_circuit_open", "Whether a planner is not asked for a while", ["planner"])
MAX_PLANNERS = 500
"""Each is read by every replica."""
READ_BACK_SECONDS = 5.0
"""Wait for a change to come back; it is stored either way."""
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
        if (sentence := breaker.refusal(name, now, timeout_seconds)) is not None:
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
        try:
            # Strictly: no text for a number, no fractional subtasks.
            return PlanReply.model_validate_json(body, strict=True)
        except ValidationError as error:
            wrong = InvalidDocument.of(error, "reply")
            raise PlannerFailed(f"gave a reply that is no PlanReply: {wrong}", code=INVALID_REPLY) from None

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


def checked(reply: PlanReply, request: PlanRequest) -> PlanReply:
    """Return the reply if it covers the topology and uses none of Weir's codes. Raises `PlannerFailed`."""
    if reply.code in NO_REPLY:
        raise PlannerFailed(f"gave a reply with the code {reply.code}, which is Weir's own", code=INVALID_REPLY)
    if (problem := coverage_problem(reply, request)) is not None:
        raise PlannerFailed(f"gave a reply that {problem}", code=INVALID_REPLY)
    return reply


class Registrations:
    """Reads, writes and removes registrations."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        on_removed: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._on_removed = on_removed
        self._changes = asyncio.Event()
        self._table = GlobalTable(bus, PLANNERS.name, registration_of, on_change=self._changed)

    async def follow(self, stop: Stop) -> None:
        """Read until stopped."""
        await self._table.follow(stop)

    async def ping(self) -> None:
        """Check readiness: all registrations have been read once."""
        await self._table.ping()

    async def wait_ready(self, timeout_seconds: float) -> bool:
        return await self._table.wait_ready(timeout_seconds)

    @property
    def ready(self) -> bool:
        return self._table.ready

    @property
    def latest(self) -> dict[str, PlannerRegistration]:
        return self._table.latest

    async def register(self, new: NewPlanner, description: PlannerDescription, caller: str) -> PlannerRegistration:
        """Publish a registration as the name's next version."""
        before, now = self.latest.get(new.name), self._clock.now()
        # By time, as a policy's: no version repeats, even after a removal.
        version = max((before.version if before else 0) + 1, int(now.timestamp() * 1000))
        made = PlannerRegistration(
            **new.model_dump(), version=version, description=description, registered_at=now, registered_by=caller
        )
        id = uuid5(WEIR_NAMESPACE, f"planner {made.name} {version}")
        body, headers = encode(made, type=PLANNERS.type, source="planner", id=id, time=now)
        await self._bus.publish(PLANNERS.name, made.name, body, headers)
        await self._read_back(lambda: made.name in self.latest and self.latest[made.name].version >= version)
        return made

    async def remove(self, name: str) -> None:
        """Publish a tombstone."""
        await self._bus.publish(PLANNERS.name, name, None)
        await self._read_back(lambda: name not in self.latest)

    async def _read_back(self, done: Callable[[], bool]) -> None:
        """Wait until the change has come back, so that its author finds it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_BACK_SECONDS):
                while not done():
                    self._changes.clear()
                    await self._changes.wait()

    def _changed(self, name: str, registration: PlannerRegistration | None) -> None:
        if registration is None:
            self._on_removed(name)
        self._changes.set()


def registration_of(record: Record) -> PlannerRegistration:
    """Return the registration of a record; `Undecodable` also for one under another planner's name."""
    registration = decode(record, PlannerRegistration).message
    if registration.name != record.key:
        raise Undecodable(record, f"names {registration.name}, its key {record.key}", "name", code="wrong-key")
    return registration
