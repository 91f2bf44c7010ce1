"""Asks a planner that speaks KTA's protocol: monitor, analyze (where there is one), plan, one after the other, within one deadline.

Under KTA a timeout, a connection that breaks, a status that is no success, or a body that cannot be read fails the turn, without a second
try. So it is here: the plan is the policy's fallback or a hold that names the step, and the history stays as it was.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import structlog
from weir_contracts import PlannerRegistration, PlanReply, PlanRequest
from weir_planner.kta_wire import InvalidAnswer, Step

from services.planner.core.decide import INVALID, INVALID_REPLY, TIMEOUT
from services.planner.core.kta import (
    TOO_LARGE,
    Answers,
    Turn,
    read_plan,
    read_result,
    reply_of,
    too_large,
    turn_of,
)
from services.planner.failures import PlannerFailed

from .http import Post

log = structlog.get_logger("planner")


async def ask(request: PlanRequest, registration: PlannerRegistration, timeout_seconds: float, post: Post) -> PlanReply:
    """The plan of the container behind the registration. Raises `PlannerFailed` that names the step."""
    if registration.monitor_url is None or registration.plan_url is None:
        raise PlannerFailed("is registered without the addresses of its steps", code=INVALID, counts=False)
    try:
        turn = turn_of(
            request, registration.result_history_length, offer_analysis=registration.offer_analysis is not False
        )
    except InvalidAnswer as error:
        raise PlannerFailed(f"cannot be asked: {error}", code=INVALID, counts=False) from None
    loop = asyncio.get_running_loop()
    began = loop.time()
    call = _Calls(turn, post, registration.credential, began + timeout_seconds)
    monitor = _read("monitor", read_result, await call(registration.monitor_url, "monitor"))
    analyze: dict[str, Any] = {}
    if registration.analyze_url is not None:
        analyze = _read("analyze", read_result, await call(registration.analyze_url, "analyze", monitor))
    answer = await call(registration.plan_url, "plan", monitor, analyze)
    planned = _read("plan", lambda given: read_plan(given, turn.nodes), answer)
    ended = request.now + timedelta(seconds=loop.time() - began)
    reply = reply_of(turn, Answers(monitor, analyze, planned, ended), registration.name)
    size_bytes = reply.memory.get(TOO_LARGE)
    if size_bytes is not None and TOO_LARGE not in request.memory:  # once, not every cycle
        log.warning(
            "kta-result-too-large",
            planner=registration.name,
            application=request.application,
            reason=too_large(size_bytes),
        )
    return reply


class _Calls:
    """The steps of one turn, on one deadline."""

    def __init__(self, turn: Turn, post: Post, credential: str | None, until: float) -> None:
        self._turn, self._post, self._credential, self._until = turn, post, credential, until

    async def __call__(
        self, url: str, step: Step, monitor: Mapping[str, Any] | None = None, analyze: Mapping[str, Any] | None = None
    ) -> Any:
        left = self._until - asyncio.get_running_loop().time()
        if left <= 0:
            raise PlannerFailed(f"took all of its time before it was asked to {step}", code=TIMEOUT)
        try:
            return await self._post(url, self._turn.body(monitor, analyze), left, self._credential)
        except PlannerFailed as failure:
            sentence = f"{failure.sentence} (asked to {step})"
            raise PlannerFailed(sentence, code=failure.code, counts=failure.counts) from None


def _read(step: Step, read: Any, answer: Any) -> Any:
    try:
        return read(answer)
    except InvalidAnswer as error:
        raise PlannerFailed(f"answered what is not KTA's (asked to {step}): {error}", code=INVALID_REPLY) from None
