"""Work that the planner service runs in separate processes: installed planners that decide, candidates, shadows, checks of
parameters, and judgements."""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from cachetools import LRUCache

from weir_contracts import (
    MAX_REPLY_BYTES,
    Analysis,
    Judgement,
    Outcome,
    Parallelism,
    PlanReply,
    PlanRequest,
    one_line,
)
from weir_contracts.plan_state import parameters_id
from weir_predictor import InvalidQuestion, NotYet, judged
from weir_sdk import InvalidParameters
from weir_sdk.installed import UnknownPlanner, ask, installed, needed, parse_parameters, reads
from weir_sdk.schemas import Problems, parameter_problems

from .core.breaker import Breaker
from .core.candidates import ContenderRequest, for_planner
from .core.decide import FAILED, INVALID, TIMEOUT
from .pool import Answer, Ended, NoProcess, Pool
from .telemetry import PlannerFailed, no_reply

CALLS_WAITING = 4
"""Encoded calls for each process that decides: the next one is sent before the last reply is read."""
CANDIDATES, SHADOWS, REQUESTS = 15, 8, 6
"""Processes for candidates, for shadows, and for requests to the API."""
ALONGSIDE_PRIORITY = 5
REQUEST_SECONDS = 5.0
"""Time limit of a judgement and of a check of parameters, including the start of the processes."""
DOUBTFUL = ""
"""Holder of all calls to candidates and shadows that failed the last time: together they get no more processes than one
application."""
CIRCUITS_KEPT = 10_000
NOT_YET, INVALID_QUESTION = "not-yet", "invalid-question"
STARTING = "the process that calls are forked from is still starting"


class Workers:
    """Processes for planners that decide, for candidates, for shadows and for requests to the API. None of these can take
    the others' processes."""

    def __init__(self, count: int = 1) -> None:
        """`count`: processes for planners that decide."""
        self._deciding = Pool(count)
        self._room = asyncio.Semaphore(count * CALLS_WAITING)
        self._candidates = Pool(CANDIDATES, is_kept=False, niceness=ALONGSIDE_PRIORITY)
        self._shadows = Pool(SHADOWS, is_kept=False, niceness=ALONGSIDE_PRIORITY)
        self._requests = Pool(REQUESTS, is_kept=False, niceness=ALONGSIDE_PRIORITY)
        self._circuits: LRUCache[tuple[str, str, str], Breaker] = LRUCache(CIRCUITS_KEPT)
        self._log = structlog.get_logger("planner")

    async def start(self) -> None:
        """Start the processes that decide; the others start with the first call."""
        await self._deciding.start()

    def looks_at(self, planner: str) -> frozenset[str]:
        """Return which of a request's `LARGE` fields the planner may read."""
        return reads(planner)

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        """Return the planner's reply, or a hold with the reason."""
        try:
            async with self._room:
                question = _encoded(request, planner)
                return await _reply(self._deciding, planner, question, timeout_seconds=timeout_seconds)
        except PlannerFailed as failure:
            if failure.code == FAILED:
                self._log.warning("planner-failed", planner=planner, reason=failure.sentence)
            return no_reply(planner, failure.code, failure.sentence)

    async def ask_alongside(self, requests: Sequence[ContenderRequest], timeout_seconds: float) -> list[PlanReply]:
        """Return the reply of each candidate, or of each shadow, or a hold with the reason; the time starts now."""
        if not requests:
            return []
        pool = self._shadows if any(each.is_shadow for each in requests) else self._candidates
        until = asyncio.get_running_loop().time() + timeout_seconds
        try:
            async with asyncio.timeout_at(until):
                await pool.start()
            # They differ in their parameters and memories: the request is encoded once.
            widest = max((each.planner for each in requests), key=lambda name: len(reads(name)))
            question = _encoded(requests[0].request, widest)
        except OSError:
            return [no_reply(each.planner, FAILED, STARTING, "starting", of_shadow=each.is_shadow) for each in requests]
        except PlannerFailed as failure:
            return [no_reply(each.planner, FAILED, failure.sentence, of_shadow=each.is_shadow) for each in requests]
        calls = [self._ask_contender(pool, each, question, until, timeout_seconds) for each in requests]
        return list(await asyncio.gather(*calls))

    async def _ask_contender(
        self, pool: Pool, call: ContenderRequest, question: str, until: float, timeout_seconds: float
    ) -> PlanReply:
        """Return a candidate's or a shadow's reply, or a hold with the reason. One that gives no reply five times in a
        row about an application is not called about it for a while."""
        name, parameters = call.planner, call.request.policy.spec.planner.parameters
        application = call.request.application
        key = application, call.label, parameters_id(parameters)
        circuit, now = self._circuits.get(key, Breaker()), time.monotonic()
        if (sentence := circuit.refusal(name, now, timeout_seconds)) is not None:
            return no_reply(name, FAILED, sentence, "circuit-open", of_shadow=call.is_shadow)
        self._circuits[key] = circuit.called(now, timeout_seconds)
        own = json.dumps({"parameters": parameters, "memory": call.request.memory})
        holder = DOUBTFUL if circuit.failures else application
        try:
            reply = await _reply(pool, name, question, own, timeout_seconds=timeout_seconds, until=until, holder=holder)
        except PlannerFailed as failure:
            if failure.counts:
                given = timeout_seconds if failure.code == TIMEOUT else math.inf
                circuit = self._circuits.get(key, Breaker())
                self._circuits[key] = circuit.failed(time.monotonic(), failure.sentence, given)
            event = "shadow-failed" if call.is_shadow else "candidate-failed"
            self._log.warning(event, planner=name, application=application, reason=failure.sentence)
            return no_reply(name, failure.code, failure.sentence, of_shadow=call.is_shadow)
        self._circuits[key] = Breaker()
        return reply

    async def judge(
        self, analysis: Analysis, parallelism: Parallelism, outcomes: Sequence[Outcome], *, horizon_seconds: float
    ) -> Judgement:
        """Return the predictor's judgement. Raises `InvalidQuestion`, `NotYet`, and `PlannerFailed` if there is none."""
        question = analysis, parallelism, list(outcomes), horizon_seconds
        try:
            found = await self._request(_judged, *question, subject="the predictor", holder=analysis.application)
        except PlannerFailed as failure:
            code, _, field = failure.code.partition(":")
            if code == NOT_YET:
                raise NotYet(failure.sentence) from None
            if code == INVALID_QUESTION:
                raise InvalidQuestion(field, failure.sentence) from None
            raise
        return Judgement.model_validate_json(found)

    async def parameter_problems(
        self, planner: str, schema: Mapping[str, Any] | None, values: Mapping[str, Any], field: str
    ) -> Problems:
        """Return what is wrong with parameters at `field`: by a registered planner's `schema`, else by the installed
        planner. Raises `PlannerFailed` if they were not checked."""
        question = planner, schema, dict(values), field
        found = await self._request(_parameter_problems, *question, subject=f"planner {planner}", holder=planner)
        return [(str(place), str(what)) for place, what in json.loads(found)]

    async def _request(self, work: Callable[..., Answer], *arguments: Any, subject: str, holder: str) -> str:
        """Return the result of work for a request to the API. Raises `PlannerFailed`."""
        until = asyncio.get_running_loop().time() + REQUEST_SECONDS
        try:
            async with asyncio.timeout_at(until):
                await self._requests.start()
        except OSError:
            raise PlannerFailed(STARTING, counts=False) from None
        return await _called(
            self._requests, subject, work, *arguments, timeout_seconds=REQUEST_SECONDS, until=until, holder=holder
        )

    def close(self) -> None:
        """Kill the processes."""
        for pool in (self._deciding, self._candidates, self._shadows, self._requests):
            pool.close()


def _encoded(request: PlanRequest, planner: str) -> str:
    """Return as JSON what the planner may read. Raises `PlannerFailed`."""
    try:
        return needed(request, planner).model_dump_json()
    except ValueError as error:
        raise PlannerFailed(
            f"planner {planner} was not called: its request cannot be encoded: {one_line(error)}"
        ) from None


async def _reply(pool: Pool, planner: str, *arguments: str, **limits: Any) -> PlanReply:
    """Return the planner's reply. Raises `PlannerFailed`; `limits` as of `_called`."""
    text = await _called(pool, f"planner {planner}", _answer, planner, *arguments, **limits)
    try:
        return PlanReply.model_validate_json(text)
    except ValueError:
        raise PlannerFailed(f"planner {planner} failed: its reply cannot be read") from None


async def _called(
    pool: Pool,
    subject: str,
    work: Callable[..., Answer],
    *arguments: Any,
    timeout_seconds: float,
    until: float | None = None,
    holder: str | None = None,
) -> str:
    """Return the result of the work. Raises `PlannerFailed` about the subject, also at `until`, a time of the event loop."""
    try:
        code, text = await pool.run(work, *arguments, timeout_seconds=timeout_seconds, until=until, holder=holder)
    except TimeoutError:
        raise PlannerFailed(f"{subject} did not reply within {timeout_seconds:g} s", code=TIMEOUT) from None
    except NoProcess:
        sentence = f"{subject} was not called: no process was free for {timeout_seconds:g} s"
        raise PlannerFailed(sentence, counts=False) from None
    except Ended:
        raise PlannerFailed(f"{subject} ended its process") from None
    except OSError as error:
        raise PlannerFailed(f"{subject} failed: {one_line(error)}") from None
    if code is not None:
        raise PlannerFailed(text, code=code)
    return text


def _answer(planner: str, request: str, own: str = "") -> Answer:
    """Call the planner in the process; `own`: the parameters and the memory of a candidate or shadow, as JSON."""
    try:
        question = PlanRequest.model_validate_json(request)
        if own:
            question = for_planner(question, planner, **json.loads(own))
        reply = ask(question, planner).model_dump_json()
    except (UnknownPlanner, InvalidParameters) as error:
        return INVALID, str(error)
    except BaseException as error:  # noqa: BLE001 - whatever a planner raises costs only its own reply
        return FAILED, f"planner {planner} failed: {one_line(error)}"
    if len(reply.encode()) > MAX_REPLY_BYTES:
        return FAILED, f"planner {planner} failed: its reply has more than {MAX_REPLY_BYTES:,} bytes"
    return None, reply


def _parameter_problems(
    planner: str, schema: Mapping[str, Any] | None, values: Mapping[str, Any], field: str
) -> Answer:
    """Check parameters in the process."""
    found: Problems = []
    try:
        if schema is not None:
            found = parameter_problems(planner, schema, values, field)
        else:
            parse_parameters(planner, values)
    except InvalidParameters as error:
        found = [(f"{field}.{at}" if at else field, what) for at, what in error.problems]
    except BaseException as error:  # noqa: BLE001 - a package's own check may raise anything
        return FAILED, f"planner {planner} failed: {one_line(error)}"
    return None, json.dumps(found)


def _judged(
    analysis: Analysis, parallelism: Parallelism, outcomes: Sequence[Outcome], horizon_seconds: float
) -> Answer:
    """Judge in the process."""
    try:
        return None, judged(analysis, parallelism, outcomes, horizon_seconds=horizon_seconds).model_dump_json()
    except InvalidQuestion as wrong:
        return f"{INVALID_QUESTION}:{wrong.field}", str(wrong)
    except NotYet as missing:
        return NOT_YET, str(missing)
    except Exception as error:  # noqa: BLE001 - odd numbers cost their own judgement
        return FAILED, f"the predictor failed: {one_line(error)}"


installed()  # for the process that calls are forked from
