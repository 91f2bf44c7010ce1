"""Call planners by name, installed or registered, in the same way; and the fallback if the chosen one fails."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import structlog

from weir_contracts import NO_REPLY, Plan, PlanReply, PlanRequest, ScalingPolicy, bounded, fitted, one_line
from weir_runtime.clock import Clock
from weir_sdk.installed import LARGE, installed, problems
from weir_sdk.schemas import Problems

from .core.candidates import ContenderRequest, best_of, for_planner, other_requests, own_request
from .core.decide import INVALID, make_plan, precheck
from .core.restarts import with_restart
from .remote import Registrations, Remote
from .telemetry import PlannerFailed, no_reply
from .workers import Workers

Choice = tuple[str, str, Mapping[str, Any]]
"""A planner as a policy names it: field of the policy, name, parameters."""

SHADOWS_SHARE = 0.1
"""Of the interval: the time in which shadows have to reply, so that they delay a plan by no more."""
MIN_SHADOWS_SECONDS = 0.25
"""Time for shadows at short intervals: to fork a process takes some hundredths of a second."""


class CallsPlanners(Protocol):
    """Calls a planner by name with the parameters in the request's policy."""

    async def start(self) -> None: ...

    def looks_at(self, planner: str) -> frozenset[str]:
        """Return which of a request's `LARGE` fields the planner may read."""

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply: ...

    async def ask_alongside(self, requests: Sequence[ContenderRequest], timeout_seconds: float) -> list[PlanReply]:
        """Ask a policy's candidates, or its shadows, side by side; none delays another one."""


class Planners:
    """All planners. A registered one takes precedence over an installed one of its name, which a later version may
    bring."""

    def __init__(self, workers: Workers, registrations: Registrations, remote: Remote) -> None:
        self.workers = workers
        self.registrations = registrations
        self.remote = remote
        # Failures of shadows, within a shorter time, must not open the circuits of planners that decide.
        self._remote_of_shadows = remote.apart()

    async def start(self) -> None:
        """Wait until the workers run and all registrations are read."""
        await self.workers.start()
        while not await self.registrations.wait_ready(1.0):
            continue

    def apart(self) -> "Planners":
        """Return the planners for calls outside the loop, whose failures must not open the loop's circuits."""
        return Planners(self.workers, self.registrations, self.remote.apart())

    async def ping(self) -> str:
        """Name the installed planners that cannot be used, for readiness; it never fails, because the others work."""
        return "; ".join(str(each) for each in problems()) or "ok"

    @property
    def names(self) -> list[str]:
        return sorted({*installed(), *self.registrations.latest})

    def looks_at(self, planner: str) -> frozenset[str]:
        return frozenset(LARGE) if planner in self.registrations.latest else self.workers.looks_at(planner)

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        """Return the planner's reply, or a hold with the reason."""
        registration = self.registrations.latest.get(planner)
        if registration is not None:
            return await self.remote.ask(request, registration, timeout_seconds)
        if planner in installed():
            return await self.workers.ask(request, planner, timeout_seconds)
        return no_reply(planner, INVALID, self._unknown(planner), "unknown")

    async def ask_alongside(self, requests: Sequence[ContenderRequest], timeout_seconds: float) -> list[PlanReply]:
        """Return each planner's reply, or a hold with the reason. Registered planners are called as usual."""
        elsewhere = self.registrations.latest
        here = [each for each in requests if each.planner in installed() and each.planner not in elsewhere]
        others = [each for each in requests if each not in here]
        calls = asyncio.gather(*(self._ask_elsewhere(each, timeout_seconds) for each in others))
        of_here, of_others = await asyncio.gather(self.workers.ask_alongside(here, timeout_seconds), calls)
        replies = {id(each): reply for each, reply in zip([*here, *others], [*of_here, *of_others], strict=True)}
        return [replies[id(each)] for each in requests]

    async def _ask_elsewhere(self, call: ContenderRequest, timeout_seconds: float) -> PlanReply:
        registration = self.registrations.latest.get(call.planner)
        if registration is None:
            return no_reply(call.planner, INVALID, self._unknown(call.planner), "unknown", of_shadow=call.is_shadow)
        remote = self._remote_of_shadows if call.is_shadow else self.remote
        return await remote.ask(call.request, registration, timeout_seconds)

    def _unknown(self, name: str) -> str:
        broken = "".join(f"; {each}" for each in problems() if each.name == name)
        return f"there is no planner {name!r}; there are: {', '.join(self.names)}{broken}"

    async def problems(self, choices: Sequence[Choice]) -> Problems:
        """Return the problems of a policy's planners, as field and sentence; a check that exceeds its time limit is one.
        Raises `PlannerFailed` if no process was free and no other problem was found."""
        found = await asyncio.gather(*(self._problems(*choice) for choice in choices), return_exceptions=True)
        wrong = [problem for each in found if not isinstance(each, BaseException) for problem in each]
        if not wrong and (failures := [each for each in found if isinstance(each, BaseException)]):
            raise failures[0]
        return wrong

    async def _problems(self, field: str, name: str, parameters: Mapping[str, Any]) -> Problems:
        registration = self.registrations.latest.get(name)
        if registration is None and name not in installed():
            return [(f"{field}.name", self._unknown(name))]
        schema = None if registration is None else registration.description.parameters
        place = f"{field}.parameters"
        try:
            return await self.workers.parameter_problems(name, schema, parameters, place)
        except PlannerFailed as failure:
            if failure.counts:
                return [(place, failure.sentence)]
            raise


def reads_observations(planners: CallsPlanners, policy: ScalingPolicy) -> bool:
    """Return whether the chosen planner, its fallback, a candidate or a shadow may read raw observations."""
    choice = policy.spec.planner
    names = [choice.name, *([choice.fallback.name] if choice.fallback else [])]
    names += [each.name for each in policy.spec.candidates] + [each.name for each in policy.spec.shadows]
    return any("observations" in planners.looks_at(name) for name in names)


async def plan_for(
    planners: CallsPlanners, request: PlanRequest, clock: Clock, *, created_at: datetime | None = None
) -> Plan:
    """Make a plan by the policy's planner, its candidates and the guards, or to restart a stuck instance; `created_at` is now
    by default. It lists what the policy's shadows would have done, and is the same without them."""
    began, held = clock.monotonic(), precheck(request)
    own = own_request(request)
    others = other_requests(request) if held is None else []
    candidates, shadows = ([each for each in others if each.is_shadow is kind] for kind in (False, True))
    timeout_seconds = request.policy.spec.planner.timeout.total_seconds()
    if others:
        reply, *of_others = await asyncio.gather(
            decide(planners, own.request),
            planners.ask_alongside(candidates, timeout_seconds),
            planners.ask_alongside(shadows, _shadows_seconds(request.policy)),
        )
    else:
        reply, of_others = held or await decide(planners, own.request), [[], []]
    at, seconds = created_at or clock.now(), round(clock.monotonic() - began, 4)

    def plans_of(
        calls: Sequence[ContenderRequest], replies: Sequence[PlanReply]
    ) -> list[tuple[ContenderRequest, Plan]]:
        return [
            (each, make_plan(each.request, answer, planner=each.planner, created_at=at, planning_seconds=seconds))
            for each, answer in zip(calls, replies, strict=True)
        ]

    plans = plans_of([own, *candidates], [reply, *of_others[0]])
    try:
        best = best_of(request, [*plans, *plans_of(shadows, of_others[1])])
    except Exception as error:
        if not shadows:
            raise
        # Whatever a shadow replied, the plan is made.
        structlog.get_logger("planner").warning(
            "shadows-failed", application=request.application, error=one_line(error)
        )
        best = best_of(request, plans)
    return with_restart(best, request)


def _shadows_seconds(policy: ScalingPolicy) -> float:
    """Return the time in which shadows have to reply."""
    spec = policy.spec
    share = SHADOWS_SHARE * spec.interval.total_seconds()
    return min(spec.planner.timeout.total_seconds(), max(share, MIN_SHADOWS_SECONDS))


async def decide(planners: CallsPlanners, request: PlanRequest) -> PlanReply:
    """Return the reply of the policy's planner, or of its fallback if that one gives none."""
    choice = request.policy.spec.planner
    timeout_seconds = choice.timeout.total_seconds()
    reply = await planners.ask(request, choice.name, timeout_seconds)
    if reply.code not in NO_REPLY or choice.fallback is None:
        return reply
    # With its own parameters, and without the chosen planner's memory.
    other = for_planner(request, choice.fallback.name, choice.fallback.parameters, {})
    instead = await planners.ask(other, choice.fallback.name, timeout_seconds)
    if instead.code in NO_REPLY:
        sentence = f"{reply.sentence}; its fallback: {instead.sentence}"
        return reply.model_copy(update={"sentence": bounded(sentence)})
    about = {"planner_failure": reply.code, "answered_by": choice.fallback.name}
    return instead.model_copy(
        update={
            "sentence": fitted(instead.sentence, f"; by the fallback {choice.fallback.name}", f", as {reply.sentence}"),
            "evidence": {**dict(list(instead.evidence.items())[: 200 - len(about)]), **about},
            # The chosen planner's own, for its next call.
            "memory": request.memory,
        }
    )
