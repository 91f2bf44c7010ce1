"""A planner: a function or an object with `plan(request) -> reply`, and what it says of itself."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from weir_contracts import VERSION, InvalidDocument, PlannerDescription, PlanReply, listed

from .request import MetricMissing, Request

Scope = Literal["operator", "application"]
Answer = PlanReply | Mapping[str, Any]
Decorated = TypeVar("Decorated")
_KEY = "__weir_planner__"


class InvalidPlanner(TypeError):
    """Something that cannot plan, or describes itself wrongly."""


class InvalidReply(ValueError):
    """A planner's result is not a reply to its request; the sentence has the reason."""


def planner(
    *,
    name: str | None = None,
    version: str | None = None,
    description: str | None = None,
    parameters: type[BaseModel] | None = None,
    scope: Scope | None = None,
    reads: list[Literal["observations", "history"]] | None = None,
) -> Callable[[Decorated], Decorated]:
    """Decorate a function or class with the description that `GET /` returns. All are optional: by default its name,
    its docstring, no parameters, scope `operator`, and all of the request."""
    given = {
        "name": name,
        "version": version,
        "description": description,
        "parameters": parameters,
        "scope": scope,
        "reads": reads,
    }

    def decorate(target: Decorated) -> Decorated:
        setattr(target, _KEY, {key: value for key, value in given.items() if value is not None})
        return target

    return decorate


class Planner:
    """Planner that is served: `wrapped` is a function, an object, or a class without required arguments."""

    def __init__(self, wrapped: Any) -> None:
        if isinstance(wrapped, Planner):
            wrapped = wrapped.wrapped
        described = getattr(wrapped, _KEY, {})
        self.wrapped: Any = wrapped() if inspect.isclass(wrapped) else wrapped
        function = getattr(self.wrapped, "plan", self.wrapped)
        if not callable(function):
            raise InvalidPlanner(f"{wrapped!r} cannot plan: give a function, or an object with plan(request)")
        self._plan: Callable[[Request], Answer | Awaitable[Answer]] = function
        self.parameters: type[BaseModel] | None = described.get("parameters")
        self.description = _description(wrapped, self.wrapped, described)

    @property
    def is_async(self) -> bool:
        """Whether `plan` is a coroutine function, which runs on the server's event loop."""
        return inspect.iscoroutinefunction(self._plan) or inspect.iscoroutinefunction(
            getattr(self._plan, "__call__", None)  # noqa: B004 - an object's own, which may be async
        )

    def plan(self, request: Request) -> PlanReply:
        """The checked reply. Raises `InvalidParameters`, `InvalidReply`, or whatever the planner raises."""
        self._check_parameters(request)
        try:
            answer = self._plan(request)
            if not isinstance(answer, PlanReply) and inspect.isawaitable(answer):
                answer = asyncio.run(_awaited(answer))
        except MetricMissing as missing:
            return _missing(request, missing)
        return checked(answer, request)

    async def plan_async(self, request: Request) -> PlanReply:
        """The same for a planner whose `plan` is a coroutine function."""
        self._check_parameters(request)
        try:
            answer = self._plan(request)
            if inspect.isawaitable(answer):
                answer = await answer
        except MetricMissing as missing:
            return _missing(request, missing)
        return checked(answer, request)

    def _check_parameters(self, request: Request) -> None:
        if self.parameters is not None:
            request.parameters(self.parameters)


async def _awaited(answer: Awaitable[Answer]) -> Answer:
    return await answer


def _missing(request: Request, missing: MetricMissing) -> PlanReply:
    sentence = f"{missing}, so everything stays as it is"
    return PlanReply(kind="hold", code="metric-missing", sentence=sentence, memory=request.memory)


def checked(answer: Any, request: Request) -> PlanReply:
    """The answer as a reply that covers the topology, or `InvalidReply`: found here, its author sees it first."""
    try:
        reply = answer if isinstance(answer, PlanReply) else PlanReply.model_validate(answer)
    except ValidationError as error:
        raise InvalidReply(f"the planner returned no reply: {InvalidDocument.of(error, 'it')}") from None
    if reply.parallelism is not None and reply.parallelism.keys() != request.current.keys():
        missing = sorted(set(request.operators) - set(reply.parallelism))
        extra = sorted(set(reply.parallelism) - set(request.operators))
        parts = [f"misses {listed(missing)}"] if missing else []
        parts += [f"names the unknown {listed(extra)}"] if extra else []
        raise InvalidReply(f"the planner's parallelism {' and '.join(parts)}")
    return reply


def _description(original: Any, instance: Any, described: Mapping[str, Any]) -> PlannerDescription:
    own = getattr(original, "__name__", None) or type(instance).__name__
    name = described.get("name") or re.sub(
        r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", own).lower()
    ).strip("-")
    text = described.get("description") or inspect.getdoc(original) or f"the planner {name}"
    parameters = described.get("parameters")
    schema = {"type": "object", "additionalProperties": False} if parameters is None else parameters.model_json_schema()
    try:
        return PlannerDescription(
            name=name or "planner",
            version=described.get("version", "0.1.0"),
            contract_versions=[VERSION],
            parameters=schema,
            scope=described.get("scope", "operator"),
            description=text.split("\n\n")[0].replace("\n", " "),
            reads=described.get("reads"),
        )
    except ValidationError as error:
        raise InvalidPlanner(f"the planner describes itself wrongly: {error}") from None
