"""`weir planner kta-bridge`: serves Weir's planner contract and calls an unchanged container of KTA for each plan.

KTA (Kubernetes Topology Autoscaler, `v1alpha1`) asks an algorithm in up to three steps: monitor, analyze, plan. Each is a
POST with the same id and start, the results of the steps before it, and the results of earlier cycles, newest first:

    {"id", "udfStartTimestampMillis", "topology": [node, …], "monitorResult", "analyzeResult", "resultHistory": [result, …]}

A node is `{"type": "flinkStreamingGraphNode", "fields": "id=<vertex id>"}`; as the key of a map, that object as JSON text.
Writers differ in the blanks of that text, so keys are parsed and never compared. Each request also has a field `weir` with
Weir's analysis, which KTA's SDK ignores. As under KTA, a timeout, a broken connection, an error status or an unreadable body
fails the cycle without a retry, and the history stays as it was. Unlike there, a parallelism of 0 is refused.
Source: dynatrace-oss/kubernetes-topology-autoscaler v0.1.0-alpha.1.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from weir_contracts import MEMORY_LIMIT_BYTES, VERSION, Parallelism
from weir_contracts.base import bounded, changes, fitted, listed, short_name, sizes
from weir_sdk import Reply, Request, planner

Post = Callable[[str, Any, float, str | None], Awaitable[Any]]
"""`PlannerClient.post_json`: address, body, time limit in seconds, credential."""
FLINK_NODE = "flinkStreamingGraphNode"
TOO_LARGE = "too_large_bytes"
"""Memory field: size of the last result, if it was too large to be stored."""
USED_SHARE = 0.9
"""Share of the policy's timeout that the steps may use together, so that the name of a slow one still arrives."""
log = logging.getLogger("weir_sdk")


class KtaFailed(Exception):
    """A step failed, or its answer or the graph is not KTA's; the sentence has the reason."""


class _Result(BaseModel):
    """An earlier cycle, as the planner's memory holds it."""

    id: str
    started: int
    ended: int
    monitor: dict[str, Any]
    analyze: dict[str, Any]
    vertices: list[str]
    """In the memory once for all results of the newest graph."""
    sizes: list[tuple[int, int]]
    """Planned parallelism and that within the policy's bounds, of each vertex."""

    def to_wire(self) -> dict[str, Any]:
        """Return the result as KTA's operator writes it."""
        keys = [json.dumps(_node(vertex), separators=(",", ":")) for vertex in self.vertices]
        sizes_by_key = dict(zip(keys, self.sizes, strict=False))
        return {
            "id": self.id,
            "udfStartTimestampMillis": self.started,
            "udfEndTimestampMillis": self.ended,
            "monitorResult": self.monitor,
            "analyzeResult": self.analyze,
            "planResult": {key: {"parallelism": planned} for key, (planned, _) in sizes_by_key.items()},
            "parallelism": {key: within for key, (_, within) in sizes_by_key.items()},
        }


_RESULTS = TypeAdapter(list[_Result])


def _node(vertex: str) -> dict[str, str]:
    return {"type": FLINK_NODE, "fields": f"id={vertex}"}


def earlier_results(memory: Mapping[str, Any]) -> list[_Result]:
    """Return the memory's results, newest first; none if the memory is another planner's."""
    shared = {"vertices": memory.get("vertices")}
    try:
        return _RESULTS.validate_python([shared | result for result in memory.get("results", [])])
    except (ValidationError, TypeError):
        return []


def vertices(request: Request) -> dict[str, str]:
    """Return the operators' names by vertex id, in topological order. Raises `KtaFailed` for ids that the encoding,
    which has no escapes, cannot carry."""
    found: dict[str, str] = {}
    for operator in request.topology.operators:
        if any(sign in operator.id for sign in "|="):
            raise KtaFailed(f"{operator.name}: its id {operator.id!r} holds | or =, which KTA's encoding cannot carry")
        if operator.id in found:
            raise KtaFailed(f"{found[operator.id]} and {operator.name} have the same id {operator.id!r}")
        found[operator.id] = operator.name
    return found


def read_result(answer: Any) -> dict[str, Any]:
    """Check the answer of monitor or analyze: any JSON object, passed on unchanged. Raises `KtaFailed`."""
    if not isinstance(answer, dict):
        raise KtaFailed(f"it must answer a JSON object, not {_shown(answer)}")
    return answer


def read_plan(answer: Any, names: Mapping[str, str]) -> Parallelism:
    """Return parallelism by operator from a map with exactly the graph's nodes; for one operator the bare object is valid,
    too. `names`: operators by vertex id. Raises `KtaFailed` that names the operators."""
    answer = read_result(answer)
    if "parallelism" in answer:
        if len(names) != 1:
            raise KtaFailed(f"it answers one parallelism for {len(names)} operators")
        (name,) = names.values()
        return {name: _positive(answer["parallelism"], name)}
    nodes = {(FLINK_NODE, f"id={vertex}"): name for vertex, name in names.items()}
    found: Parallelism = {}
    for key, value in answer.items():
        operator = nodes.get(_parsed(key))
        if operator is None:
            raise KtaFailed(f"it names {_shown(key)}, which is no node of the topology")
        if operator in found:
            raise KtaFailed(f"it names {operator} twice")
        found[operator] = _positive(value.get("parallelism") if isinstance(value, dict) else value, operator)
    missing = [short_name(name) for name in names.values() if name not in found]
    if missing:
        raise KtaFailed(f"it misses {listed(missing)}")
    return {name: found[name] for name in names.values()}


def _parsed(key: str) -> tuple[Any, Any]:
    """Return a node's type and fields from a map's key, which may be JSON text twice over."""
    read: Any = key
    for _ in range(2):
        if isinstance(read, str):
            try:
                read = from_json(read)
            except (ValueError, TypeError):  # the latter for a lone surrogate
                raise KtaFailed(f"it names {_shown(key)}, which is no node") from None
    if not isinstance(read, dict) or not all(isinstance(read.get(name), str) for name in ("type", "fields")):
        raise KtaFailed(f"it names {_shown(key)}, which is no node: it needs the texts type and fields")
    return read["type"], read["fields"]


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise KtaFailed(f"it wants {_shown(value)} of {name}, and parallelism is an integer of at least 1")
    return value


def _shown(value: Any) -> str:
    return repr(bounded(value if isinstance(value, str) else repr(value), 120))


@planner(name="kta", version=VERSION, description="Calls the steps of a KTA container.", reads=[])
class KtaBridge:
    """A planner that calls a container's steps; a step without address has the result `{}`."""

    def __init__(
        self,
        post: Post,
        plan_url: str,
        monitor_url: str | None = None,
        analyze_url: str | None = None,
        *,
        max_results: int | None = None,
        offer_analysis: bool = True,
    ) -> None:
        """`max_results`: of earlier cycles in a request; None: all. `offer_analysis`: whether requests have the field `weir`."""
        self._post = post
        self._plan_url, self._monitor_url, self._analyze_url = plan_url, monitor_url, analyze_url
        self._max_results = max_results
        self._offer_analysis = offer_analysis

    async def plan(self, request: Request) -> Reply:
        """Return the container's plan within the policy's bounds. Raises `KtaFailed` that names the step."""
        names, earlier = vertices(request), earlier_results(request.memory)[: self._max_results]
        began, started = monotonic(), round(request.now.timestamp() * 1000)
        ends = began + USED_SHARE * request.policy.spec.planner.timeout.total_seconds()
        body: dict[str, Any] = {
            "id": str(request.id),
            "udfStartTimestampMillis": started,
            "topology": [_node(vertex) for vertex in names],
            "monitorResult": {},
            "analyzeResult": {},
            "resultHistory": [result.to_wire() for result in earlier],
        }
        if self._offer_analysis:
            analysis = request.analysis.model_dump(mode="json", exclude={"learned"})
            body["weir"] = {"contractVersion": VERSION, "analysis": analysis}
        for step, url in (("monitor", self._monitor_url), ("analyze", self._analyze_url)):
            if url is not None:
                body[f"{step}Result"] = await self._call(step, url, body, ends, read_result)
        planned = await self._call("plan", self._plan_url, body, ends, lambda answer: read_plan(answer, names))
        bounds = request.policy.spec.bounds
        within = {name: max(low, min(p, high)) for name, p in planned.items() for low, high in [bounds.of(name)]}
        newest = _Result(
            id=str(request.id),
            started=started,
            ended=started + round((monotonic() - began) * 1000),
            monitor=body["monitorResult"],
            analyze=body["analyzeResult"],
            vertices=list(names),
            sizes=[(min(planned[name], 2**31 - 1), within[name]) for name in names.values()],
        )
        return _reply(request, planned, within, _remembered(newest, earlier, self._max_results))

    async def _call(self, step: str, url: str, body: Mapping[str, Any], ends: float, read: Callable[[Any], Any]) -> Any:
        from weir_planner.telemetry import PlannerFailed

        left_seconds = ends - monotonic()
        if left_seconds <= 0:
            raise KtaFailed(f"{step} was not called: no time was left within the policy's timeout")
        try:
            return read(await self._post(url, body, round(left_seconds, 3), None))
        except PlannerFailed as failure:
            raise KtaFailed(f"{step} {failure.sentence}") from None
        except KtaFailed as failure:
            raise KtaFailed(f"{step} gave an answer that is not KTA's: {failure}") from None


def _remembered(newest: _Result, earlier: Sequence[_Result], max_results: int | None) -> dict[str, Any]:
    """Return the memory with the newest results that fit, or without `newest` if that does not fit by itself."""
    vertices, results = newest.vertices, (newest, *earlier)
    own = [
        each.model_dump(mode="json", exclude={"vertices"} if each.vertices == vertices else None) for each in results
    ]
    memory: dict[str, Any] = {"results": own[:1], "vertices": vertices}
    if (size_bytes := _size_bytes(memory)) > MEMORY_LIMIT_BYTES:
        memory[TOO_LARGE] = size_bytes
        own = own[1:]
    memory["results"] = own[:max_results]
    while memory["results"] and _size_bytes(memory) > MEMORY_LIMIT_BYTES:
        memory["results"].pop()
    return memory if memory["results"] else memory | {"vertices": []}


def _size_bytes(memory: Mapping[str, Any]) -> int:
    """Return the size as the contract counts it."""
    return len(json.dumps(memory, separators=(",", ":")).encode())


def _reply(request: Request, planned: Parallelism, within: Parallelism, memory: Mapping[str, Any]) -> Reply:
    too_large, note = memory.get(TOO_LARGE), ""
    if too_large is not None:
        note = f"; its result of {too_large:,} bytes exceeds the memory of {MEMORY_LIMIT_BYTES:,} and is not stored"
        if TOO_LARGE not in request.memory:  # once, not every cycle
            log.warning("%s%s", request.application, note)
    cut = {name: p for name, p in planned.items() if p != within[name]}
    evidence: dict[str, Any] = {f"wanted_{name}": min(p, 2**53) for name, p in list(cut.items())[:100]}
    evidence |= {"results_kept": len(memory["results"]), "newest_result_bytes": too_large}
    if within == request.current:
        beyond = " at the policy's bounds" if cut else ""
        sentence = fitted(f"the KTA planner keeps the current parallelism{beyond}", note)
        return request.hold("kta-holds", sentence, memory=memory, **evidence)
    limited = f" (it wanted {sizes(cut)}; limited by the policy's bounds)" if cut else ""
    sentence = fitted(f"{changes(request.current, within)}: planned by KTA{limited}", note)
    return request.scale(within, "kta-plans", sentence, memory=memory, **evidence)
