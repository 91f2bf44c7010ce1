"""Call a planner by KTA's protocol: monitor, analyze (optional), plan, in sequence, within one deadline.

As under KTA, a timeout, a broken connection, an error status or an unreadable body fails the cycle without a retry: the
plan is the policy's fallback or a hold that names the step, and the history stays unchanged.
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
    Cycle,
    cycle_of,
    read_plan,
    read_result,
    reply_of,
    too_large,
)
from services.planner.failures import PlannerFailed

from .http import Post

log = structlog.get_logger("planner")


async def ask(request: PlanRequest, registration: PlannerRegistration, timeout_seconds: float, post: Post) -> PlanReply:
    """Return the reply of the container behind the registration. Raises `PlannerFailed` that names the step."""
    if registration.monitor_url is None or registration.plan_url is None:
        raise PlannerFailed("is registered without the addresses of its steps", code=INVALID, counts=False)
    try:
        cycle = cycle_of(
            request, registration.result_history_length, offer_analysis=registration.offer_analysis is not False
        )
    except InvalidAnswer as error:
        raise PlannerFailed(f"cannot be called: {error}", code=INVALID, counts=False) from None
    loop = asyncio.get_running_loop()
    began = loop.time()
    call = _Calls(cycle, post, registration.credential, began + timeout_seconds)
    monitor = _read("monitor", read_result, await call(registration.monitor_url, "monitor"))
    analyze: dict[str, Any] = {}
    if registration.analyze_url is not None:
        analyze = _read("analyze", read_result, await call(registration.analyze_url, "analyze", monitor))
    answer = await call(registration.plan_url, "plan", monitor, analyze)
    planned = _read("plan", lambda given: read_plan(given, cycle.nodes), answer)
    ended = request.now + timedelta(seconds=loop.time() - began)
    reply = reply_of(cycle, Answers(monitor, analyze, planned, ended), registration.name)
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
    """The steps of one cycle, within one deadline."""

    def __init__(self, cycle: Cycle, post: Post, credential: str | None, until: float) -> None:
        self._cycle, self._post, self._credential, self._until = cycle, post, credential, until

    async def __call__(
        self, url: str, step: Step, monitor: Mapping[str, Any] | None = None, analyze: Mapping[str, Any] | None = None
    ) -> Any:
        left = self._until - asyncio.get_running_loop().time()
        if left <= 0:
            raise PlannerFailed(f"used all of its time before {step}", code=TIMEOUT)
        try:
            return await self._post(url, self._cycle.body(monitor, analyze), left, self._credential)
        except PlannerFailed as failure:
            sentence = f"{failure.sentence} ({step})"
            raise PlannerFailed(sentence, code=failure.code, counts=failure.counts) from None


def _read(step: Step, read: Any, answer: Any) -> Any:
    try:
        return read(answer)
    except InvalidAnswer as error:
        raise PlannerFailed(f"gave a reply that is not KTA's ({step}): {error}", code=INVALID_REPLY) from None
