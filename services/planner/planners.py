"""Whoever is called by a name, built in or registered, is asked in the same way; and who answers where that one does not."""

from collections.abc import Mapping
from typing import Any, Protocol

from weir_contracts import PlannerChoice, PlannerFallback, PlanReply, PlanRequest, ScalingPolicy
from weir_planner import InvalidParameters
from weir_planner.installed import LARGE, installed, parse_parameters, problems

from .core.decide import INVALID, NO_REPLY
from .core.schemas import Problems, parameter_problems
from .failures import no_reply
from .registrations import Registrations
from .remote import Remote
from .workers import Workers


class Asks(Protocol):
    """Asks a planner by name with the parameters that the request's policy has for it."""

    async def start(self) -> None: ...

    def looks_at(self, planner: str) -> frozenset[str]:
        """Which of a request's `LARGE` fields this one may look at."""
        ...

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply: ...


class Planners:
    """All planners there are. What was registered goes before a built-in one of its name, which a later version may bring."""

    def __init__(self, workers: Workers, registrations: Registrations, remote: Remote) -> None:
        self.workers = workers
        self.registrations = registrations
        self.remote = remote

    async def start(self) -> None:
        """Wait until everybody who can be asked is known and can be."""
        await self.workers.start()
        while not await self.registrations.wait_ready(1.0):
            continue

    def apart(self) -> "Planners":
        """For who asks beside the loop, with little time: what fails there must not keep the loop from asking."""
        return Planners(self.workers, self.registrations, self.remote.apart())

    async def ping(self) -> str:
        """Name the installed planners that cannot be used, for readiness; the others can be, so that it never fails."""
        return "; ".join(str(each) for each in problems()) or "ok"

    @property
    def names(self) -> list[str]:
        return sorted({*installed(), *self.registrations.latest})

    def looks_at(self, planner: str) -> frozenset[str]:
        return frozenset(LARGE) if planner in self.registrations.latest else self.workers.looks_at(planner)

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        """The planner's reply, or a hold that says why there is none."""
        registration = self.registrations.latest.get(planner)
        if registration is not None:
            return await self.remote.ask(request, registration, timeout_seconds)
        if planner in installed():
            return await self.workers.ask(request, planner, timeout_seconds)
        return no_reply(planner, INVALID, self._unknown(planner), "unknown")

    def _unknown(self, name: str) -> str:
        broken = "".join(f"; {each}" for each in problems() if each.name == name)
        return f"there is no planner {name!r}; there are: {', '.join(self.names)}{broken}"

    def problems(self, name: str, parameters: Mapping[str, Any], field: str) -> Problems:
        """What is wrong with a planner as a policy names it at `field`, as field and sentence."""
        place = f"{field}.parameters"
        registration = self.registrations.latest.get(name)
        if registration is None and name not in installed():
            return [(f"{field}.name", self._unknown(name))]
        if registration is None:
            try:
                parse_parameters(name, parameters)
            except InvalidParameters as error:
                return [(f"{place}.{at}" if at else place, what) for at, what in error.problems]
            return []
        if registration.kind == "kta":
            what = f"{name} is of kind kta, which takes its parameters when it is started"
            return [(place, what)] if parameters else []
        schema = registration.description.parameters if registration.description else {}
        return parameter_problems(name, schema, parameters, place)


def observations_wanted(planners: Asks, policy: ScalingPolicy) -> bool:
    """Whether anybody looks at raw samples whom this policy lets plan, now or in another's place, or be scored."""
    choice = policy.spec.planner
    names = [choice.name, *([choice.fallback.name] if choice.fallback else []), *(s.name for s in policy.spec.shadows)]
    return any("observations" in planners.looks_at(name) for name in names)


async def decide(planners: Asks, request: PlanRequest) -> PlanReply:
    """The reply of the policy's planner; where it gives no usable one, its fallback's, which says so."""
    choice = request.policy.spec.planner
    timeout_seconds = choice.timeout.total_seconds()
    reply = await planners.ask(request, choice.name, timeout_seconds)
    if reply.code not in NO_REPLY or choice.fallback is None:
        return reply
    instead = await planners.ask(with_planner(request, choice.fallback), choice.fallback.name, timeout_seconds)
    if instead.code in NO_REPLY:
        sentence = f"{reply.sentence}; and its fallback: {instead.sentence}"
        return reply.model_copy(update={"sentence": sentence[:2000]})
    told = {"planner_failure": reply.code, "answered_by": choice.fallback.name}
    return instead.model_copy(
        update={
            "sentence": f"{reply.sentence}, so {choice.fallback.name} decides: {instead.sentence}"[:2000],
            "evidence": {**dict(list(instead.evidence.items())[: 200 - len(told)]), **told},
            # The chosen planner's own, for when it is back.
            "memory": request.memory,
        }
    )


def with_planner(request: PlanRequest, fallback: PlannerFallback) -> PlanRequest:
    """The request as another planner than the policy's is asked: with its parameters, and without the first one's memory."""
    policy = request.policy
    choice = PlannerChoice(
        name=fallback.name, parameters=fallback.parameters, timeout=policy.spec.planner.timeout, fallback=None
    )
    spec = policy.spec.model_copy(update={"planner": choice})
    return request.model_copy(update={"policy": policy.model_copy(update={"spec": spec}), "memory": {}})
