"""KTA's turns as the planner service asks for them: the three requests, the plan, and what is remembered. Pure.

The wire itself is `weir_planner.kta_wire`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from weir_contracts import MEMORY_LIMIT_BYTES, VERSION, Operator, Parallelism, PlanReply, PlanRequest
from weir_contracts.base import writable
from weir_planner.kta_wire import FLINK_NODE, WEIR_FIELD, InvalidAnswer, Node, parse_node, shortened

from predictor.words import changes

TOO_LARGE = "too_large_bytes"
"""In the memory: the size of the last result, where it was too large to be remembered."""


def node_of(operator: Operator) -> Node:
    """The node of an operator of a Flink job. Raises `InvalidAnswer` for an id that the encoding cannot hold: it has no escapes."""
    if any(sign in operator.id for sign in "|="):
        raise InvalidAnswer(f"{operator.name}: its id {operator.id!r} holds | or =, which KTA's encoding cannot carry")
    return Node(FLINK_NODE, frozenset({("id", operator.id)}), ("id",))


class _Kept(BaseModel):
    """A result as the planner's memory holds it: the nodes once for all, parallelism in their order."""

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
    """Topologies that the results are about."""

    def to_wire(self, most: int | None) -> list[dict[str, Any]]:
        """The history as KTA's operator writes it."""
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
            for kept in self.results[:most]
        ]


def _memory_of(memory: Mapping[str, Any]) -> _Memory:
    """What was kept; nothing, where it is not ours."""
    try:
        read = _Memory.model_validate(dict(memory))
    except ValidationError:
        return _Memory()
    return read if all(kept.nodes < len(read.nodes) for kept in read.results) else _Memory()


@dataclass(frozen=True)
class Turn:
    """One turn of the loop: what its three requests have in common."""

    request: PlanRequest
    nodes: Mapping[Node, str]
    """The operators' names by node, in topological order."""
    most_results: int | None = None
    """How many earlier results are sent along; None: as many as there are."""
    offer_analysis: bool = True

    @property
    def started_millis(self) -> int:
        return _millis(self.request.now)

    def body(
        self, monitor: Mapping[str, Any] | None = None, analyze: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The request of a step; what is not there yet is `{}`."""
        body = {
            "id": str(self.request.id),
            "udfStartTimestampMillis": self.started_millis,
            "topology": [node.value for node in self.nodes],
            "monitorResult": dict(monitor or {}),
            "analyzeResult": dict(analyze or {}),
            "resultHistory": _memory_of(self.request.memory).to_wire(self.most_results),
        }
        if self.offer_analysis:
            analysis = self.request.analysis.model_dump(mode="json", exclude={"learnt"})
            body[WEIR_FIELD] = {"contractVersion": VERSION, "analysis": analysis}
        return body


def turn_of(request: PlanRequest, most_results: int | None = None, *, offer_analysis: bool = True) -> Turn:
    """The turn that a request asks for. Raises `InvalidAnswer` where the topology is unknown or cannot be written."""
    if request.topology is None:
        raise InvalidAnswer("the application's graph is unknown, and KTA is asked about nothing else")
    nodes: dict[Node, str] = {}
    for operator in request.topology.operators:
        node = node_of(operator)
        if node in nodes:
            raise InvalidAnswer(f"{nodes[node]} and {operator.name} have the same id {operator.id!r}")
        nodes[node] = operator.name
    return Turn(request, nodes, most_results, offer_analysis)


def read_result(answer: Any) -> dict[str, Any]:
    """What monitor or analyze answered: any JSON object, passed on untouched. Raises `InvalidAnswer`."""
    if not isinstance(answer, dict):
        raise InvalidAnswer(f"it must answer a JSON object, not {shortened(answer)}")
    try:
        return writable(answer)
    except ValueError as error:
        raise InvalidAnswer(f"its answer {error}") from None


def read_plan(answer: Any, nodes: Mapping[Node, str]) -> Parallelism:
    """Parallelism by operator from a map with exactly the topology's nodes, or, of a single one, the bare object.

    Raises `InvalidAnswer` naming the operators at fault.
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
        raise InvalidAnswer(f"it says nothing of {', '.join(missing)}")
    return {name: found[name] for name in nodes.values()}


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidAnswer(f"it wants {shortened(value)} of {name}, and parallelism is a whole number from 1 on")
    return value


@dataclass(frozen=True)
class Answers:
    """What the steps of a turn answered, and when the last of them did."""

    monitor: Mapping[str, Any]
    analyze: Mapping[str, Any]
    """`{}` where the step is skipped."""
    planned: Parallelism
    ended: datetime


def reply_of(turn: Turn, answers: Answers, name: str) -> PlanReply:
    """The planner's reply: the plan, clamped to the policy's bounds as KTA clamps it, and the results for the next turn's history."""
    bounds = turn.request.policy.spec.bounds
    clamped = {}
    for operator, p in answers.planned.items():
        low, high = bounds.of(operator)
        clamped[operator] = max(low, min(high, p))
    memory, too_large_bytes = _remembered(turn, answers, clamped)
    cut = {operator: p for operator, p in answers.planned.items() if p != clamped[operator]}
    evidence: dict[str, float | int | str | bool | None] = {
        "results_sent": len(_memory_of(turn.request.memory).results[: turn.most_results]),
        "results_kept": len(memory["results"]),
        "newest_result_too_large": too_large_bytes is not None,
        "newest_result_bytes": too_large_bytes,
        **{f"wanted_{operator}": min(p, 2**53) for operator, p in list(cut.items())[:100]},
    }
    current = turn.request.deployment.observed if turn.request.deployment else {}
    if clamped == current:
        wish = ", beyond the policy's bounds" if cut else ""
        sentence, kind, code = f"{name} keeps every parallelism as it is{wish}", "hold", "kta-holds"
    else:
        within = (
            f" (within the policy's bounds; it wanted {', '.join(f'{o} {p}' for o, p in cut.items())})" if cut else ""
        )
        sentence, kind, code = f"{_moves(current, clamped)}: so {name} plans{within}", "scale", "kta-plans"
    return PlanReply.model_validate(
        {
            "kind": kind,
            "parallelism": clamped if kind == "scale" else None,
            "code": code,
            "sentence": (sentence if too_large_bytes is None else f"{sentence}; {too_large(too_large_bytes)}")[:2000],
            "evidence": evidence,
            "memory": memory,
        }
    )


def too_large(size_bytes: int) -> str:
    """Say that a result is not remembered."""
    return f"its result takes {size_bytes:,} bytes and the memory holds {MEMORY_LIMIT_BYTES:,}, so later requests do not have it"


def _remembered(turn: Turn, answers: Answers, clamped: Parallelism) -> tuple[dict[str, Any], int | None]:
    """Return the newest results that fit the memory, this one first, and the bytes of this one if it is too large by itself."""
    nodes = [node.value for node in turn.nodes]
    newest = {
        "id": str(turn.request.id),
        "started": turn.started_millis,
        "ended": max(turn.started_millis, _millis(answers.ended)),
        "monitor": dict(answers.monitor),
        "analyze": dict(answers.analyze),
        "planned": [min(p, 2**31 - 1) for p in answers.planned.values()],
        "clamped": list(clamped.values()),
    }
    before = _memory_of(turn.request.memory)
    earlier = [(kept.model_dump(exclude={"nodes"}), before.nodes[kept.nodes]) for kept in before.results]
    memory: dict[str, Any] = {"results": [], "nodes": []}
    too_large_bytes = None
    size = _size(memory)
    for i, (result, about) in enumerate([(newest, nodes), *earlier]):
        if len(memory["results"]) >= (turn.most_results or len(earlier) + 1):
            break
        known = about in memory["nodes"]
        place = memory["nodes"].index(about) if known else len(memory["nodes"])
        entry = {**result, "nodes": place}
        added = _size(entry) + (0 if known else _size(about)) + 2  # commas
        if size + added > MEMORY_LIMIT_BYTES:
            if i > 0:
                break  # a gap in the history would be read as time that went by
            too_large_bytes = memory[TOO_LARGE] = size + added
            size = _size(memory)
            continue
        memory["results"].append(entry)
        if not known:
            memory["nodes"].append(about)
        size += added
    return memory, too_large_bytes


def _moves(current: Mapping[str, int], clamped: Parallelism) -> str:
    if set(clamped) <= set(current):
        return changes(current, clamped)
    return ", ".join(f"{name} {p}" for name, p in clamped.items())


def _size(value: Any) -> int:
    """As the contract counts it."""
    return len(json.dumps(value, separators=(",", ":"), default=str).encode())


def _millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)
