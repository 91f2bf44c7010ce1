"""Serves classes in the shape of KTA's SDK: `monitor(ctx)`, `analyze(ctx)` (optional) and `plan(ctx)`, on KTA's three
routes.

    from weir_planner.kta import Context, PlanUdfResult, serve

    class Toggler:
        def monitor(self, ctx):
            return {"turn": len(ctx.resultHistory)}

        def plan(self, ctx):
            return {node: PlanUdfResult(parallelism=1 + ctx.monitorResult.turn % 2) for node in ctx.nodes}

    serve(Toggler())

A class written for KTA's SDK needs other imports and nothing else; one that is to run under KTA, too, needs this server
and no other, for the wire is KTA's. Two things are better: instances may hold clients, locks and arrays (nothing is
copied or compared), and `analyze` may return None. Weir's own analysis is in `ctx.weir`; under KTA that is None.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from pydantic_core import to_jsonable_python
from weir_contracts import Analysis

from . import http
from .kta_wire import PREFIX, STEPS, Node, parse_node
from .planner import InvalidPlanner, InvalidReply

DEFAULT_PORT = 8096
Monitored = TypeVar("Monitored")
Analyzed = TypeVar("Analyzed")
Planned = TypeVar("Planned")


class UdfResult(BaseModel):
    """A step's result; to be derived from. What came over the wire is read as `result.name` or `result["name"]`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def __getitem__(self, name: str) -> Any:
        try:
            return self.model_dump()[name]
        except KeyError:
            raise KeyError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        """The value called `name`, or the default."""
        return self.model_dump().get(name, default)


class PlanUdfResult(UdfResult):
    """Planned parallelism of one node."""

    parallelism: PositiveInt


class TopologyNodeFields(NamedTuple):
    """Fields of a node: `id` of a Flink vertex, `kind` and `name` of a Deployment."""

    id: str | None = None
    kind: str | None = None
    name: str | None = None


class TopologyNode(NamedTuple):
    """One node of the topology; can be a key of a dict."""

    type: str
    fields: TopologyNodeFields

    def encoded(self) -> str:
        """As the key of a map on the wire."""
        named = {k: v for k, v in self.fields._asdict().items() if v is not None}
        return json.dumps(Node(self.type, frozenset(named.items()), tuple(named)).value)

    @staticmethod
    def parse(written: Any) -> "TopologyNode":
        """From a value or a key, which may be JSON text twice over. Raises `ValueError`."""
        if isinstance(written, TopologyNode):
            return written
        if not isinstance(written, str):  # perhaps a node of another library
            read = written if isinstance(written, Mapping) else _attributes(written, "type", "fields")
            fields = read.get("fields")
            if fields is not None and not isinstance(fields, str):
                named = fields if isinstance(fields, Mapping) else _attributes(fields, *TopologyNodeFields._fields)
                fields = "|".join(f"{name}={value}" for name, value in named.items() if value is not None)
            written = {"type": read.get("type"), "fields": fields}
        node = parse_node(written)
        named = dict(node.fields)
        return TopologyNode(node.type, TopologyNodeFields(*(named.get(name) for name in TopologyNodeFields._fields)))


def _attributes(value: Any, *names: str) -> dict[str, Any]:
    """Return the attributes that an object of another library may have."""
    return {name: getattr(value, name, None) for name in names}


@dataclass(frozen=True)
class Result(Generic[Monitored, Analyzed, Planned]):
    """An earlier cycle."""

    id: str
    udfStartTimestampMillis: int  # noqa: N815 - KTA's names
    udfEndTimestampMillis: int  # noqa: N815
    monitorResult: Monitored  # noqa: N815
    analyzeResult: Analyzed  # noqa: N815
    planResult: Planned  # noqa: N815
    """Planned parallelism by node."""
    parallelism: Mapping[TopologyNode, int]
    """Parallelism after the bounds."""


@dataclass(frozen=True)
class Context(Generic[Monitored, Analyzed, Planned]):
    """Input of a step."""

    id: str
    udfStartTimestampMillis: int  # noqa: N815
    topology: TopologyNode | tuple[TopologyNode, ...]
    """The one node, or all of them in topological order."""
    monitorResult: Monitored  # noqa: N815
    analyzeResult: Analyzed  # noqa: N815
    resultHistory: list[Result[Monitored, Analyzed, Planned]] = field(default_factory=list)  # noqa: N815
    """Newest first."""
    weir: Analysis | None = None
    """Weir's analysis of the application; None under KTA."""

    @property
    def nodes(self) -> tuple[TopologyNode, ...]:
        """The topology as a tuple, also where it is one node."""
        return (self.topology,) if isinstance(self.topology, TopologyNode) else self.topology


class AutoscalingAlgorithmMonitorUDF(Generic[Monitored, Analyzed, Planned]):
    """Optional base class with `monitor(ctx)`; a class of the same shape will do."""


class AutoscalingAlgorithmAnalyzeUDF(Generic[Monitored, Analyzed, Planned]):
    """Has `analyze(ctx)`."""


class AutoscalingAlgorithmPlanUDF(Generic[Monitored, Analyzed, Planned]):
    """Has `plan(ctx)`."""


class AutoscalingAlgorithmUDFs(
    AutoscalingAlgorithmMonitorUDF[Monitored, Analyzed, Planned],
    AutoscalingAlgorithmAnalyzeUDF[Monitored, Analyzed, Planned],
    AutoscalingAlgorithmPlanUDF[Monitored, Analyzed, Planned],
):
    """Has all three."""


class _Earlier(BaseModel):
    id: str
    udfStartTimestampMillis: int  # noqa: N815
    udfEndTimestampMillis: int  # noqa: N815
    monitorResult: UdfResult = Field(default_factory=UdfResult)  # noqa: N815
    analyzeResult: UdfResult = Field(default_factory=UdfResult)  # noqa: N815
    planResult: dict[str, Any]  # noqa: N815
    parallelism: dict[str, int]


class StepRequest(BaseModel):
    """A request on the wire; the same for all three steps."""

    id: str
    udfStartTimestampMillis: int  # noqa: N815
    topology: list[Any] = Field(min_length=1)
    monitorResult: UdfResult = Field(default_factory=UdfResult)  # noqa: N815
    analyzeResult: UdfResult = Field(default_factory=UdfResult)  # noqa: N815
    resultHistory: list[_Earlier] = Field(default_factory=list)  # noqa: N815
    weir: dict[str, Any] | None = None

    def context(self) -> Context[Any, Any, Any]:
        """Raises `ValueError` for what is no node."""
        nodes = tuple(TopologyNode.parse(node) for node in self.topology)
        return Context(
            id=self.id,
            udfStartTimestampMillis=self.udfStartTimestampMillis,
            topology=nodes if len(nodes) > 1 else nodes[0],
            monitorResult=self.monitorResult,
            analyzeResult=self.analyzeResult,
            resultHistory=[
                Result(
                    id=each.id,
                    udfStartTimestampMillis=each.udfStartTimestampMillis,
                    udfEndTimestampMillis=each.udfEndTimestampMillis,
                    monitorResult=each.monitorResult,
                    analyzeResult=each.analyzeResult,
                    planResult={TopologyNode.parse(k): UdfResult.model_validate(v) for k, v in each.planResult.items()},
                    parallelism={TopologyNode.parse(k): p for k, p in each.parallelism.items()},
                )
                for each in self.resultHistory
            ],
            weir=_analysis(self.weir),
        )


def _analysis(offered: Mapping[str, Any] | None) -> Analysis | None:
    """Weir's analysis, where there is one that can be read."""
    try:
        return None if offered is None else Analysis.model_validate(offered.get("analysis"))
    except ValidationError:
        return None


def _result(step: str, answer: Any, _context: Context[Any, Any, Any]) -> Any:
    if answer is None and step == "analyze":
        return {}
    plain = to_jsonable_python(answer, by_alias=True)
    if not isinstance(plain, dict):
        raise InvalidReply(f"{step} must return a dict or a UdfResult, not {type(answer).__name__}")
    return plain


def _plan(answer: Any, context: Context[Any, Any, Any]) -> Any:
    """The map form, which is what KTA's own SDK always sends."""
    if not isinstance(answer, Mapping) or "parallelism" in answer:
        if len(context.nodes) != 1:
            raise InvalidReply(f"plan returned one parallelism for {len(context.nodes)} nodes")
        answer = {context.nodes[0]: answer}
    planned = {}
    for key, value in answer.items():
        try:
            node = TopologyNode.parse(key)
        except (ValueError, TypeError):
            raise InvalidReply(f"plan returned the key {key!r}, which is no node of the topology") from None
        planned[node] = _positive(value, key)
    if set(planned) != set(context.nodes):
        raise InvalidReply(
            f"plan returned {len(planned)} nodes, and not exactly the {len(context.nodes)} of the topology"
        )
    return {node.encoded(): {"parallelism": planned[node]} for node in context.nodes}


def _positive(value: Any, key: Any) -> int:
    wanted: Any = value.get("parallelism") if isinstance(value, Mapping) else getattr(value, "parallelism", value)
    if isinstance(wanted, bool) or not hasattr(wanted, "__index__") or wanted < 1:
        raise InvalidReply(f"plan returned {wanted!r} for {key}: parallelism is a whole number from 1 on")
    return int(wanted)


def application(
    algorithm: Any, *, threads: int = 1, token: str | None = None, body_bytes: int = http.MAX_BODY_BYTES
) -> FastAPI:
    """The algorithm as an ASGI application; the steps that it has are mounted, others answer 404. `threads` as for
    planners: by default one call at a time."""
    algorithm = algorithm() if isinstance(algorithm, type) else algorithm
    steps = dict(_steps(algorithm))
    if not steps:
        raise InvalidPlanner(f"{algorithm!r} has none of {', '.join(STEPS)}")
    app = FastAPI(title=type(algorithm).__name__, docs_url=None, redoc_url=None)
    http.install(app, body_bytes)
    pool = http.Threads(threads)

    def mount(step: str, function: Callable[[Any], Any]) -> None:
        @app.post(f"{PREFIX}/{step}", summary=f"The step {step}", dependencies=[Depends(http.bearer(token))], name=step)
        async def ask(request: StepRequest) -> JSONResponse:
            try:
                context = request.context()
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                return http.problem(422, f"topology or resultHistory: {error}")
            try:
                return JSONResponse(await pool.run(lambda: _answer(step, function, context)))
            except http.Busy:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a step raises is reported to the caller
                http.log.exception("%s failed", step)
                return http.problem(500, f"{type(error).__name__}: {error}")

    for step, function in steps.items():
        mount(step, function)

    @app.get("/health/live", summary="Whether the process answers")
    async def live() -> dict[str, str]:
        return {"status": "alive"}

    return app


def _steps(algorithm: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    for step in STEPS:
        function = getattr(algorithm, step, None)
        if callable(function):
            yield step, function


def _answer(step: str, function: Callable[[Any], Any], context: Context[Any, Any, Any]) -> Any:
    answer = function(context)
    plain = _plan(answer, context) if step == "plan" else _result(step, answer, context)
    json.dumps(plain, allow_nan=False)  # raised here, where the step is known
    return plain


def serve(
    algorithm: Any,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    threads: int = 1,
    token: str | None = None,
    open_to_all: bool = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C. KTA's operator sends no token, so under KTA it is `host="0.0.0.0",
    open_to_all=True`."""
    http.run(application(algorithm, threads=threads, token=token), host, port, token, open_to_all=open_to_all)


def main(algorithm: Any, arguments: list[str] | None = None) -> None:
    """Run `serve` with a command line, as `weir_planner.main`; the algorithm's own arguments are the caller's business."""
    http.command(type(algorithm).__name__, DEFAULT_PORT, partial(application, algorithm), arguments)
