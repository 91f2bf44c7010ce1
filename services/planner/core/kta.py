"""KTA's cycles as the planner service drives them: the three requests, the plan, and the memory. Pure; the wire is
`kta_wire`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from weir_contracts import (
    MEMORY_LIMIT_BYTES,
    VERSION,
    Operator,
    Parallelism,
    PlanReply,
    PlanRequest,
    changes,
    fitted,
    listed,
    short_name,
    sizes,
)
from weir_contracts.base import writable
from weir_planner.kta_wire import FLINK_NODE, WEIR_FIELD, InvalidAnswer, Node, parse_node, shortened

from .guards.allowed import clamped as clamped_to

TOO_LARGE = "too_large_bytes"
"""Memory field: the size of the last result, if it was too large to store."""


def node_of(operator: Operator) -> Node:
    """Return the node of a Flink operator. Raises `InvalidAnswer` for an id that the encoding, which has no escapes,
    cannot hold."""
    if any(sign in operator.id for sign in "|="):
        raise InvalidAnswer(f"{operator.name}: its id {operator.id!r} holds | or =, which KTA's encoding cannot carry")
    return Node(FLINK_NODE, frozenset({("id", operator.id)}), ("id",))


class _Kept(BaseModel):
    """A result in the planner's memory, with parallelism in the order of the nodes, which are stored once."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    started: int
    ended: int
    monitor: dict[str, Any]
    analyze: dict[str, Any]
    planned: list[int]
    clamped: list[int]
    nodes: Annotated[int, Field(ge=0)]


class _Memory(BaseModel):
    """Earlier results, newest first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    results: list[_Kept] = Field(default_factory=list)
    nodes: list[list[dict[str, str]]] = Field(default_factory=list)
    """The topologies of the results."""

    def to_wire(self, limit: int | None) -> list[dict[str, Any]]:
        """Return the history as KTA's operator writes it."""
        keys = [[json.dumps(node, separators=(",", ":")) for node in nodes] for nodes in self.nodes]
        return [
            {
                "id": kept.id,
                "udfStartTimestampMillis": kept.started,
                "udfEndTimestampMillis": kept.ended,
                "monitorResult": kept.monitor,
                "analyzeResult": kept.analyze,
                "planResult": {key: {"parallelism": p} for key, p in zip(keys[kept.nodes], kept.planned, strict=False)},
                "parallelism": dict(zip(keys[kept.nodes], kept.clamped, strict=False)),
            }
            for kept in self.results[:limit]
        ]


def _memory_of(memory: Mapping[str, Any]) -> _Memory:
    """Read the memory; empty if it is another planner's."""
    try:
        read = _Memory.model_validate(dict(memory))
    except ValidationError:
        return _Memory()
    return read if all(kept.nodes < len(read.nodes) for kept in read.results) else _Memory()


@dataclass(frozen=True)
class Cycle:
    """One cycle: what its three requests have in common."""

    request: PlanRequest
    nodes: Mapping[Node, str]
    """Operator names by node, in topological order."""
    max_results: int | None = None
    """Earlier results in a request; None: all."""
    offer_analysis: bool = True

    @property
    def started_millis(self) -> int:
        return _millis(self.request.now)

    def body(
        self, monitor: Mapping[str, Any] | None = None, analyze: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the request of a step, with `{}` for missing results."""
        body = {
            "id": str(self.request.id),
            "udfStartTimestampMillis": self.started_millis,
            "topology": [node.value for node in self.nodes],
            "monitorResult": dict(monitor or {}),
            "analyzeResult": dict(analyze or {}),
            "resultHistory": _memory_of(self.request.memory).to_wire(self.max_results),
        }
        if self.offer_analysis:
            analysis = self.request.analysis.model_dump(mode="json", exclude={"learned"})
            body[WEIR_FIELD] = {"contractVersion": VERSION, "analysis": analysis}
        return body


def cycle_of(request: PlanRequest, max_results: int | None = None, *, offer_analysis: bool = True) -> Cycle:
    """Return the cycle of a request. Raises `InvalidAnswer` if the topology is unknown or cannot be encoded."""
    if request.topology is None:
        raise InvalidAnswer("the application's graph is unknown")
    nodes: dict[Node, str] = {}
    for operator in request.topology.operators:
        node = node_of(operator)
        if node in nodes:
            raise InvalidAnswer(f"{nodes[node]} and {operator.name} have the same id {operator.id!r}")
        nodes[node] = operator.name
    return Cycle(request, nodes, max_results, offer_analysis)


def read_result(answer: Any) -> dict[str, Any]:
    """Check the response of monitor or analyze: any JSON object, passed on unchanged. Raises `InvalidAnswer`."""
    if not isinstance(answer, dict):
        raise InvalidAnswer(f"it must answer a JSON object, not {shortened(answer)}")
    try:
        return writable(answer)
    except ValueError as error:
        raise InvalidAnswer(f"its answer {error}") from None


def read_plan(answer: Any, nodes: Mapping[Node, str]) -> Parallelism:
    """Return parallelism by operator from a map with exactly the topology's nodes; for a single operator the bare
    object is valid too.

    Raises `InvalidAnswer` that names the operators.
    """
    if not isinstance(answer, dict):
        raise InvalidAnswer(f"it must answer a JSON object, not {shortened(answer)}")
    if "parallelism" in answer:
        if len(nodes) != 1:
            raise InvalidAnswer(f"it answers one parallelism for {len(nodes)} operators")
        name = next(iter(nodes.values()))
        return {name: _positive(answer["parallelism"], name)}
    found: Parallelism = {}
    for key, value in answer.items():
        operator = nodes.get(parse_node(key))
        if operator is None:
            raise InvalidAnswer(f"it names {shortened(key)}, which is no node of the topology")
        if operator in found:
            raise InvalidAnswer(f"it names {operator} twice")
        found[operator] = _positive(value.get("parallelism") if isinstance(value, dict) else value, operator)
    missing = [name for name in nodes.values() if name not in found]
    if missing:
        raise InvalidAnswer(f"it misses {listed(list(map(short_name, missing)))}")
    return {name: found[name] for name in nodes.values()}


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidAnswer(f"it wants {shortened(value)} of {name}, and parallelism is an integer of at least 1")
    return value


@dataclass(frozen=True)
class Answers:
    """The responses of a cycle's steps, and the time of the last one."""

    monitor: Mapping[str, Any]
    analyze: Mapping[str, Any]
    """`{}` where the step is skipped."""
    planned: Parallelism
    ended: datetime


def reply_of(cycle: Cycle, answers: Answers, name: str) -> PlanReply:
    """Return the reply: the plan, clamped to the policy's bounds as KTA does, and the results for the next cycle's
    history."""
    clamped = clamped_to(answers.planned, cycle.request.policy.spec.bounds)
    memory, too_large_bytes = _remembered(cycle, answers, clamped)
    cut = {operator: p for operator, p in answers.planned.items() if p != clamped[operator]}
    evidence: dict[str, float | int | str | bool | None] = {
        "results_sent": len(_memory_of(cycle.request.memory).results[: cycle.max_results]),
        "results_kept": len(memory["results"]),
        "newest_result_too_large": too_large_bytes is not None,
        "newest_result_bytes": too_large_bytes,
        **{f"wanted_{operator}": min(p, 2**53) for operator, p in list(cut.items())[:100]},
    }
    current = cycle.request.deployment.observed if cycle.request.deployment else {}
    if clamped == current:
        beyond = " at the policy's bounds" if cut else ""
        sentence, kind, code = f"{name} keeps the current parallelism{beyond}", "hold", "kta-holds"
    else:
        within = f" (it wanted {sizes(cut)}; limited by the policy's bounds)" if cut else ""
        sentence, kind, code = f"{_moves(current, clamped)}: planned by {name}{within}", "scale", "kta-plans"
    return PlanReply.model_validate(
        {
            "kind": kind,
            "parallelism": clamped if kind == "scale" else None,
            "code": code,
            "sentence": fitted(sentence, "" if too_large_bytes is None else f"; {too_large(too_large_bytes)}"),
            "evidence": evidence,
            "memory": memory,
        }
    )


def too_large(size_bytes: int) -> str:
    """Return the reason why later requests miss a result."""
    return f"its result of {size_bytes:,} bytes exceeds the memory of {MEMORY_LIMIT_BYTES:,} and is not stored"


def _remembered(cycle: Cycle, answers: Answers, clamped: Parallelism) -> tuple[dict[str, Any], int | None]:
    """Return the newest results that fit the memory, this one first, and the size of this one if it alone is too large."""
    nodes = [node.value for node in cycle.nodes]
    newest = {
        "id": str(cycle.request.id),
        "started": cycle.started_millis,
        "ended": max(cycle.started_millis, _millis(answers.ended)),
        "monitor": dict(answers.monitor),
        "analyze": dict(answers.analyze),
        "planned": [min(p, 2**31 - 1) for p in answers.planned.values()],
        "clamped": list(clamped.values()),
    }
    before = _memory_of(cycle.request.memory)
    earlier = [(kept.model_dump(exclude={"nodes"}), before.nodes[kept.nodes]) for kept in before.results]
    memory: dict[str, Any] = {"results": [], "nodes": []}
    too_large_bytes = None
    size = _size(memory)
    for i, (result, about) in enumerate([(newest, nodes), *earlier]):
        if len(memory["results"]) >= (cycle.max_results or len(earlier) + 1):
            break
        is_stored = about in memory["nodes"]
        place = memory["nodes"].index(about) if is_stored else len(memory["nodes"])
        entry = {**result, "nodes": place}
        added = _size(entry) + (0 if is_stored else _size(about)) + 2  # commas
        if size + added > MEMORY_LIMIT_BYTES:
            if i > 0:
                break  # a gap in the history would look like elapsed time
            too_large_bytes = memory[TOO_LARGE] = size + added
            size = _size(memory)
            continue
        memory["results"].append(entry)
        if not is_stored:
            memory["nodes"].append(about)
        size += added
    return memory, too_large_bytes


def _moves(current: Mapping[str, int], clamped: Parallelism) -> str:
    if set(clamped) <= set(current):
        return changes(current, clamped)
    return sizes(clamped)


def _size(value: Any) -> int:
    """Return the encoded size in bytes, as the contract counts it."""
    return len(json.dumps(value, separators=(",", ":"), default=str).encode())


def _millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)
