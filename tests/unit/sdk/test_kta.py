"""Classes in the shape of KTA's SDK, served by ours and asked by Weir as any other container."""

import json
import threading
from typing import Any

import httpx
import pytest
from weir_contracts import PlannerRegistration, PlanReply
from weir_planner import InvalidPlanner
from weir_planner.kta import (
    AutoscalingAlgorithmUDFs,
    Context,
    PlanUdfResult,
    TopologyNode,
    TopologyNodeFields,
    UdfResult,
    application,
)
from weir_planner.testing import request, running

from services.planner.adapters.http import PlannerClient
from services.planner.adapters.kta import ask
from services.planner.failures import PlannerFailed
from tests.unit.planner.build import NOON
from tests.unit.planner.plugin import LOOPBACK


class Cycles(UdfResult):
    turn: int


class Side(UdfResult):
    side: int


class Toggler(AutoscalingAlgorithmUDFs[Cycles, Side, dict[TopologyNode, PlanUdfResult]]):
    """Count cycles through its history, and toggle every second one; hold a lock, which cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.contexts: list[Context[Any, Any, Any]] = []

    def monitor(self, ctx: Context[Cycles, Side, Any]) -> Cycles:
        self.contexts.append(ctx)
        return Cycles(turn=ctx.resultHistory[0].monitorResult.turn + 1 if ctx.resultHistory else 1)

    def analyze(self, ctx: Context[Cycles, Side, Any]) -> Side:
        return Side(side=ctx.monitorResult.turn // 2 % 2)

    def plan(self, ctx: Context[Cycles, Side, Any]) -> dict[TopologyNode, PlanUdfResult]:
        with self.lock:
            return {node: PlanUdfResult(parallelism=3 + ctx.analyzeResult.side) for node in ctx.nodes}


def registration(url: str, **changes: Any) -> PlannerRegistration:
    """All three steps of a container at `url`."""
    steps = {f"{step}_url": f"{url}/api/v1alpha1/{step}" for step in ("monitor", "analyze", "plan")}
    record = {"name": "toggler", "kind": "kta", "version": 1, "registered_at": NOON, "registered_by": "me"}
    return PlannerRegistration.model_validate(record | steps | changes)


async def run_cycles(url: str, count: int, **changes: Any) -> list[PlanReply]:
    """Run `count` cycles of Weir's loop with the container at `url`; each gets the memory of the one before."""
    client, replies = PlannerClient(LOOPBACK), []
    memory: dict[str, Any] = {}
    try:
        for _ in range(count):
            plan_request = request("steady").model_copy(update={"memory": memory})
            replies.append(await ask(plan_request, registration(url, **changes), 20.0, client.post_json))
            memory = json.loads(replies[-1].model_dump_json())["memory"]
    finally:
        await client.close()
    return replies


async def test_weir_runs_a_class_in_ktas_shape() -> None:
    """Over a socket, both sides as they are in production: history, results passed on, plans by node, and Weir's
    analysis."""
    toggler = Toggler()
    with running(application(toggler)) as url:
        replies = await run_cycles(url, 4)
    enriched = [(reply.parallelism or {})["enrich"] for reply in replies]
    assert enriched == [3, 4, 4, 3]
    last = toggler.contexts[-1]
    assert [result.monitorResult["turn"] for result in last.resultHistory] == [3, 2, 1]
    assert set(last.resultHistory[0].planResult) == set(last.nodes)
    assert last.resultHistory[0].planResult[last.nodes[0]].parallelism == 4
    assert last.resultHistory[0].parallelism[last.nodes[0]] == 4
    assert last.weir is not None
    assert last.weir.operator("enrich") is not None


async def test_what_a_step_raises_is_in_the_plan() -> None:
    """500 with its message, passed on with the step's name."""

    class Broken(Toggler):
        def analyze(self, ctx: Context[Cycles, Side, Any]) -> Side:
            raise RuntimeError("no model")

    pattern = r"answered 500: RuntimeError: no model \(analyze\)"
    with running(application(Broken())) as url, pytest.raises(PlannerFailed, match=pattern):
        await run_cycles(url, 1)


class Analyzeless:
    """The shape without a base class: dicts only."""

    def monitor(self, ctx: Context[Any, Any, Any]) -> dict[str, Any]:
        return {"nodes": len(ctx.nodes)}

    def analyze(self, ctx: Context[Any, Any, Any]) -> None:
        return None

    def plan(self, ctx: Context[Any, Any, Any]) -> Any:
        return {node: {"parallelism": ctx.monitorResult["nodes"]} for node in ctx.nodes}


async def test_dicts_will_do_and_analyze_may_return_none() -> None:
    """No base class, no models."""
    with running(application(Analyzeless)) as url:
        assert (await run_cycles(url, 1))[0].parallelism == dict.fromkeys(request("steady").operators, 5)


def wire(*nodes: str, **fields: Any) -> dict[str, Any]:
    """A request as KTA's operator sends it."""
    topology = [{"type": "flinkStreamingGraphNode", "fields": f"id={node}"} for node in nodes]
    return {"id": "x", "udfStartTimestampMillis": 1, "topology": topology, **fields}


async def post(algorithm: Any, step: str, document: Any) -> httpx.Response:
    transport = httpx.ASGITransport(application(algorithm), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://kta") as client:
        return await client.post(f"/api/v1alpha1/{step}", json=document)


class Returns:
    def __init__(self, plan: Any = None, analyze: Any = None) -> None:
        self.answers = {"plan": plan, "analyze": analyze}

    def analyze(self, ctx: Context[Any, Any, Any]) -> Any:
        return self.answers["analyze"]

    def plan(self, ctx: Context[Any, Any, Any]) -> Any:
        return self.answers["plan"]


NODE = TopologyNode("flinkStreamingGraphNode", TopologyNodeFields(id="a"))


@pytest.mark.parametrize(
    "answer", [PlanUdfResult(parallelism=4), {"parallelism": 4}, 4, {NODE: 4}, {NODE.encoded(): 4}]
)
async def test_one_node_may_be_answered_in_several_ways(answer: Any) -> None:
    """The wire has the map form, as KTA's SDK sends it, with its blanks."""
    answered = await post(Returns(plan=answer), "plan", wire("a"))
    assert answered.json() == {'{"type": "flinkStreamingGraphNode", "fields": "id=a"}': {"parallelism": 4}}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (4, "one parallelism for 2 nodes"),
        ({NODE: 4}, "not exactly the 2"),
        ({NODE: 0}, "whole number from 1 on"),
        ({NODE: 1.5}, "whole number from 1 on"),
        ({"a": 1, "b": 2}, "which is no node"),
    ],
)
async def test_what_is_no_plan_is_500_with_a_message(answer: Any, reason: str) -> None:
    """In the shape that KTA's operator knows."""
    answered = await post(Returns(plan=answer), "plan", wire("a", "b"))
    assert answered.status_code == 500
    assert reason in answered.json()["message"]


@pytest.mark.parametrize("answer", [3, [1], {"x": float("inf")}])
async def test_what_is_no_result_is_500(answer: Any) -> None:
    """Results are JSON objects."""
    assert (await post(Returns(analyze=answer), "analyze", wire("a"))).status_code == 500


@pytest.mark.parametrize(
    "document", [{}, [], wire(), wire("a") | {"topology": [3]}, wire("a") | {"resultHistory": [{"id": 1}]}]
)
async def test_what_is_no_request_is_422(document: Any) -> None:
    """With a message."""
    refused = await post(Returns(plan=1), "plan", document)
    assert refused.status_code == 422
    assert refused.json()["message"]


async def test_steps_that_are_not_there_are_404() -> None:
    """Separate classes may run in separate containers; a class without any step in none."""
    assert (await post(Returns(), "monitor", wire("a"))).status_code == 404
    with pytest.raises(InvalidPlanner, match="monitor, analyze, plan"):
        application(object())


async def test_topology_is_one_node_or_several() -> None:
    """As KTA unpacks it."""
    observed: list[Any] = []

    class Looks(Returns):
        def plan(self, ctx: Context[Any, Any, Any]) -> Any:
            observed.append(ctx.topology)
            assert ctx.weir is None
            return dict.fromkeys(ctx.nodes, 1)

    await post(Looks(), "plan", wire("a"))
    deployments = [{"type": "scaleTargetRef", "fields": f"kind=Deployment|name={name}"} for name in ("x", "y")]
    await post(Looks(), "plan", wire() | {"topology": [json.dumps(json.dumps(node)) for node in deployments]})
    assert observed[0] == NODE
    assert [node.fields.name for node in observed[1]] == ["x", "y"]
