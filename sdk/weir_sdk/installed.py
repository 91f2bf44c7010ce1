"""The planners that are installed on this machine, Weir's own and those of users' packages alike.

A package names its planners as entry points of the group `weir.planners`, each a function or class as
`weir_sdk.Planner` takes it:

    [project.entry-points."weir.planners"]
    my-planner = "my_package:plan"

One that cannot be used is left out and named in `problems`; the others are not affected. Two packages may not name the
same planner: Weir's own comes first, then the package whose name comes first.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel, ConfigDict

from weir_contracts import NAME_PATTERN, InvalidDocument, PlanReply, PlanRequest, PlanState, read_document

from .planner import Planner
from .request import InvalidParameters, Request

GROUP = "weir.planners"
OWN_PACKAGE = "weir-autoscaler"
LARGE = ("observations", "history")
"""Fields of a request that are most of its size."""


class UnknownPlanner(ValueError):
    """There is no planner of that name; the sentence lists those there are."""


@dataclass(frozen=True)
class Installed:
    """A planner, and the package that brings it."""

    planner: Planner
    package: str

    @property
    def is_built_in(self) -> bool:
        return self.package == OWN_PACKAGE

    @property
    def parameters(self) -> type[BaseModel]:
        return self.planner.parameters or _NoParameters

    @property
    def reads(self) -> frozenset[str]:
        """Return which of the `LARGE` fields of a request the planner looks at."""
        found = self.planner.description.reads
        return frozenset(LARGE if found is None else found)


@dataclass(frozen=True)
class Problem:
    """An entry point that cannot be used, and why."""

    name: str
    package: str
    reason: str

    def __str__(self) -> str:
        return f"planner {self.name} of package {self.package} cannot be used: {self.reason}"[:500]


class _NoParameters(BaseModel):
    model_config = ConfigDict(extra="forbid")


@cache
def _found() -> tuple[Mapping[str, Installed], tuple[Problem, ...]]:
    planners: dict[str, Installed] = {}
    problems: list[Problem] = []
    for point in sorted(entry_points(group=GROUP), key=_precedence):
        package = _package(point)
        if point.name in planners:
            if planners[point.name].package != package:  # the same package may be on the path twice
                taken = f"the package {planners[point.name].package} has a planner of that name"
                problems.append(Problem(point.name, package, taken))
            continue
        try:
            if not re.fullmatch(NAME_PATTERN, point.name):
                raise ValueError("its name may have lower-case letters, digits, dashes and dots only")  # noqa: TRY301
            planners[point.name] = Installed(Planner(point.load()), package)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the package is anybody's; its fault is reported
            problems.append(Problem(point.name, package, f"{point.value}: {type(error).__name__}: {error}"))
    return planners, tuple(problems)


def _precedence(point: EntryPoint) -> tuple[bool, str, str]:
    return _package(point) != OWN_PACKAGE, _package(point), point.name


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


def installed() -> Mapping[str, Installed]:
    """Return the planners by name, imported once in a process."""
    return _found()[0]


def problems() -> tuple[Problem, ...]:
    """Return the entry points that cannot be used."""
    return _found()[1]


def built_in() -> Iterator[str]:
    """Return the names of Weir's own planners."""
    return (name for name, found in installed().items() if found.is_built_in)


def planner_of(name: str) -> Installed:
    """Return the planner called `name`. Raises `UnknownPlanner` if there is none."""
    found = installed().get(name)
    if found is None:
        broken = next((f"; {each}" for each in problems() if each.name == name), "")
        raise UnknownPlanner(f"there is no planner {name!r}; there are: {', '.join(sorted(installed()))}{broken}")
    return found


class _Refused(InvalidDocument):
    unknown_field = "is not a parameter of this planner"


@cache
def _defaults(parameters: type[BaseModel]) -> BaseModel:
    """Return the parameters of a policy that sets none; raises as `read_document`."""
    return read_document(parameters, {}, root="", refusal=_Refused)


def parse_parameters(name: str, values: Mapping[str, Any]) -> BaseModel:
    """Return a planner's parameters, checked. Raises `InvalidParameters` that names the first wrong or unknown ones."""
    entry = planner_of(name)
    try:
        if not values and entry.parameters.model_config.get("frozen"):
            return _defaults(entry.parameters)
        return read_document(entry.parameters, dict(values), root="", refusal=_Refused)
    except _Refused as error:
        accepted = ", ".join(field.alias or name for name, field in entry.parameters.model_fields.items())
        wrong = [(field, f"{what} (it has: {accepted})") for field, what in error.problems]
        more = [("", f"and {error.more:,} more")] if error.more else []
        raise InvalidParameters(f"planner {name}: {error} (it has: {accepted})", wrong + more) from None


def reads(name: str) -> frozenset[str]:
    """Return which of the `LARGE` fields of a request the planner called `name` looks at; all of them for one that is
    not installed."""
    found = installed().get(name)
    return frozenset(LARGE) if found is None else found.reads


def needed(request: PlanRequest, name: str) -> PlanRequest:
    """The request without what the planner called `name` never looks at: on its way to another process that is nine
    tenths of the work."""
    if name not in installed():
        return request
    unread: dict[str, Any] = {field: [] for field in set(LARGE) - reads(name)}
    # The guards' memory is separate from the planner's.
    return request.model_copy(update={**unread, "state": PlanState()})


def ask(request: PlanRequest, name: str) -> PlanReply:
    """Let the planner called `name` answer the request with the policy's parameters, or hold where nothing is known of
    the application."""
    found, parameters = planner_of(name), parse_parameters(name, request.policy.spec.planner.parameters)
    try:
        plan_request = Request.of(request, parameters)
    except ValueError:
        sentence = "the application's graph or parallelism is unknown, so it stays as it is"
        return PlanReply(kind="hold", code="metric-missing", sentence=sentence, memory=request.memory)
    try:
        return found.planner.plan(plan_request)
    except SystemExit as error:  # it would end the process that asks
        raise RuntimeError(f"the planner called exit({error.code})") from None
