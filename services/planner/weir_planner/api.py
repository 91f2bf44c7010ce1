"""The planner's HTTP API: list, register and check planners, and plan without acting."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from weir_contracts import (
    MAX_SENTENCE,
    InvalidDocument,
    Judgement,
    NewPlanner,
    Plan,
    PlannerRegistration,
    PlanReply,
    PlanRequest,
    bounded,
)
from weir_predictor import InvalidQuestion, NotYet
from weir_runtime.access import Caller, Problem, invalid, requires
from weir_runtime.bus import BusError, Refused
from weir_runtime.clock import Clock
from weir_runtime.documents import Unreadable, read_json
from weir_sdk.installed import Problem as InstallationProblem
from weir_sdk.installed import installed, problems
from weir_sdk.schemas import Problems

from .calls import Choice, Planners, plan_for
from .documents import (
    ERRORS,
    NOT_JUDGED,
    REFUSED,
    ChoiceProblem,
    ChoiceProblems,
    Choices,
    CircuitView,
    PlannerName,
    PlannerToRegister,
    PlannerView,
    PlannerViews,
    Proposal,
    Registered,
    Trial,
)
from .remote import MAX_PLANNERS
from .telemetry import PlannerFailed

Reader = Annotated[Caller, Depends(requires("read"))]
Admin = Annotated[Caller, Depends(requires("planner-admin"))]
Seconds = Annotated[float, Query(ge=0.05, le=20, description="how long one exchange of a trial may take, in s")]
TRIAL_SECONDS = 5.0


def planner_router(planners: Planners, clock: Clock) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["planners"], responses=ERRORS)
    _register(routes, planners)
    _judge(routes, planners)

    @routes.get("/planners", summary="The planners and their parameters")
    async def list_planners(_caller: Reader) -> PlannerViews:
        registered = planners.registrations.latest
        here = [_installed(name) for name in installed() if name not in registered]
        broken = [_broken(each) for each in problems()]
        elsewhere = [_view(planners, registered[name]) for name in sorted(registered)]
        return PlannerViews(planners=[*here, *broken, *elsewhere])

    @routes.get("/planners/{name}", summary="One planner")
    async def get_planner(name: PlannerName, _caller: Reader) -> PlannerView:
        if name in planners.registrations.latest:
            return _view(planners, planners.registrations.latest[name])
        if name in installed():
            return _installed(name)
        if broken := [each for each in problems() if each.name == name]:
            return _broken(broken[0])
        raise _unknown(planners, name)

    @routes.post(
        "/planners/validate",
        summary="Check planners as a policy names them",
        description="Checks for each choice that the planner exists and takes these parameters.",
    )
    async def validate(body: Choices, _caller: Reader) -> ChoiceProblems:
        _ready(planners)
        found = await _problems(planners, [(each.field, each.name, each.parameters) for each in body.choices])
        return ChoiceProblems(problems=[ChoiceProblem(field=field, message=message) for field, message in found])

    # A trial must neither open the loop's circuits nor count as its failure.
    tried = planners.apart()

    @routes.post(
        "/plan",
        summary="Plan without acting",
        description="Evaluates a request with its policy's planner and all guards. Nothing is published or executed.",
    )
    async def plan(request: PlanRequest, _caller: Reader) -> Plan:
        choice = request.policy.spec.planner
        named: list[Choice] = [("policy.spec.planner", choice.name, choice.parameters)]
        if choice.fallback is not None:
            named.append(("policy.spec.planner.fallback", choice.fallback.name, choice.fallback.parameters))
        for field in ("candidates", "shadows"):
            for i, each in enumerate(getattr(request.policy.spec, field)):
                named.append((f"policy.spec.{field}.{i}", each.name, each.parameters))
        if wrong := await _problems(planners, named):
            raise invalid(InvalidDocument(wrong))
        return await plan_for(tried, request, clock, created_at=request.now)

    return routes


def _register(routes: APIRouter, planners: Planners) -> None:
    """Add the routes that change planners."""
    registrations = planners.registrations

    @routes.post(
        "/planners",
        status_code=201,
        summary="Register a planner",
        dependencies=[Depends(_has_unique_keys)],
        description="Reads its description and sends it one trial request first; without a valid answer it is refused with the reason.",
        responses=REFUSED,
    )
    async def register(
        body: PlannerToRegister,
        caller: Admin,
        replace: Annotated[bool, Query(description="replace the planner of this name, as its next version")] = False,
        timeout_seconds: Seconds = TRIAL_SECONDS,
    ) -> Registered:
        _may_be_registered(planners, body, replace)
        try:
            description, reply = await planners.remote.apart().try_out(body, timeout_seconds)
        except PlannerFailed as failure:
            raise Problem(422, bounded(f"{body.name} failed its trial request: {failure.sentence}")) from None
        _may_be_registered(planners, body, replace)  # another request may have been faster
        try:
            made = await registrations.register(body, description, caller.name)
        except Refused as error:
            raise Problem(422, bounded(f"the registration cannot be stored: {error}")) from None
        except BusError as error:
            raise Problem(503, f"the registration was not stored: {error}") from None
        return Registered(planner=_view(planners, made), trial=_answered(reply))

    @routes.delete("/planners/{name}", status_code=204, summary="Remove a planner")
    async def remove(name: PlannerName, _caller: Admin) -> Response:
        _ready(planners)
        if name not in registrations.latest:
            raise _not_registered(planners, name, "removed")
        try:
            await registrations.remove(name)
        except BusError as error:
            raise Problem(503, f"the registration was not removed: {error}") from None
        return Response(status_code=204)

    @routes.post(
        "/planners/{name}/check",
        summary="Try a registered planner again",
        description="Sends it the trial request of a registration, also while its circuit is open. Changes nothing.",
    )
    async def check(name: PlannerName, _caller: Admin, timeout_seconds: Seconds = TRIAL_SECONDS) -> Trial:
        registration = registrations.latest.get(name)
        if registration is None:
            raise _not_registered(planners, name, "checked")
        try:
            _description, reply = await planners.remote.apart().try_out(registration, timeout_seconds)
        except PlannerFailed as failure:
            return Trial(ok=False, sentence=failure.sentence)
        return _answered(reply)


def _judge(routes: APIRouter, planners: Planners) -> None:
    """Add the route that judges a proposal."""

    @routes.post(
        "/judge",
        tags=["judgement"],
        summary="Judge any parallelism without acting",
        dependencies=[Depends(_has_unique_keys)],
        description="Predicts lateness and cost of a parallelism under the forecast's middle and its upper edge, or under the present "
        "load where no source has a forecast, each next to holding. 409: the analysis has no graph, no arrival rate or no capacity. "
        "422: an invalid analysis, operator, parallelism or horizon.",
        responses=NOT_JUDGED,
    )
    async def judge(body: Proposal, _caller: Reader) -> Judgement:
        try:
            return await planners.workers.judge(
                body.analysis, body.parallelism, body.outcomes, horizon_seconds=body.horizon_seconds
            )
        except InvalidQuestion as wrong:
            raise Problem(422, str(wrong), errors=[(f"body.{wrong.field}", str(wrong))]) from None
        except NotYet as missing:
            sentence = f"{body.analysis.application} cannot be judged yet: {missing}"
            raise Problem(409, bounded(sentence, MAX_SENTENCE)) from None
        except PlannerFailed as failure:
            sentence = f"{body.analysis.application} was not judged: {failure.sentence}"
            raise Problem(503, bounded(sentence, MAX_SENTENCE)) from None


async def _has_unique_keys(request: Request) -> None:
    """Refuse duplicate keys, of which FastAPI would take the last."""
    try:
        read_json((await request.body()).decode())
    except Unreadable as error:
        raise Problem(422, f"the body {error}", errors=[("body", str(error))]) from None


async def _problems(planners: Planners, choices: Sequence[Choice]) -> Problems:
    """Return what is wrong with the planners of a policy; 503 if they were not checked."""
    try:
        return await planners.problems(choices)
    except PlannerFailed as failure:
        raise Problem(503, bounded(f"the planners were not checked: {failure.sentence}", MAX_SENTENCE)) from None


def _ready(planners: Planners) -> None:
    if not planners.registrations.ready:
        raise Problem(503, "the registered planners are still being read")


def _may_be_registered(planners: Planners, new: NewPlanner, replace: bool) -> None:
    _ready(planners)
    registered = planners.registrations.latest
    if new.name in installed() and new.name not in registered:
        raise _installed_already(new.name, "choose another name")
    if new.name in registered and not replace:
        version = registered[new.name].version
        sentence = f"{new.name} is registered already, with version {version}: replace it with replace=true (--replace)"
        raise Problem(409, sentence, errors=[("name", "is taken")], extra={"currentVersion": version})
    if new.name not in registered and len(registered) >= MAX_PLANNERS:
        raise Problem(409, f"there are {len(registered)} registered planners, the maximum")


def _installed_already(name: str, remedy: str) -> Problem:
    found = installed()[name]
    if found.is_built_in:
        taken = f"{name} is the name of a built-in planner"
        return Problem(422, f"{name} is built in: {remedy}", errors=[("name", taken)])
    taken = f"{name} is the name of a planner of the installed package {found.package}"
    return Problem(422, f"{name} is installed: {remedy}", errors=[("name", taken)])


def _not_registered(planners: Planners, name: str, participle: str) -> Problem:
    """Return the problem of a planner that cannot be removed or checked."""
    if name in installed():
        return _installed_already(name, f"only registered planners are {participle}")
    return _unknown(planners, name)


def _unknown(planners: Planners, name: str) -> Problem:
    return Problem(404, f"there is no planner {name!r}; there are: {', '.join(planners.names)}")


def _answered(reply: PlanReply) -> Trial:
    return Trial(ok=True, sentence=bounded(f"{reply.kind} ({reply.code}): {reply.sentence}"))


def _installed(name: str) -> PlannerView:
    found = installed()[name]
    return PlannerView(
        name=name,
        kind="built-in" if found.is_built_in else "installed",
        description=found.planner.description.description,
        parameters=found.parameters.model_json_schema(),
        package=found.package,
    )


def _broken(each: InstallationProblem) -> PlannerView:
    return PlannerView(
        name=each.name, kind="installed", description=None, parameters=None, package=each.package, problem=each.reason
    )


def _view(planners: Planners, registration: PlannerRegistration) -> PlannerView:
    description = registration.description
    return PlannerView(
        **registration.model_dump(exclude={"description"}),
        kind="http",
        description=description.description,
        parameters=description.parameters,
        scope=description.scope,
        planner_version=description.version,
        contract_versions=description.contract_versions,
        breaker=CircuitView(**planners.remote.breaker(registration)),
    )
