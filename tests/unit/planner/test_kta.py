"""KTA's wire protocol: requests to a container built with its SDK, permitted answers, and the resulting replies."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from weir_contracts import MEMORY_LIMIT_BYTES, NewPlanner, PlannerRegistration, PlanReply, PlanRequest
from weir_planner.kta_wire import InvalidAnswer, parse_node

from runtime.addresses import AddressRefused, Allowed
from services.planner.adapters.kta import ask
from services.planner.core.kta import (
    Answers,
    Cycle,
    cycle_of,
    read_plan,
    read_result,
    reply_of,
)
from services.planner.failures import PlannerFailed
from services.planner.settings import PLUGIN, PlannerSettings
from tests.effort import examples

from .build import NOON, after, policy, request, topology

URL = "http://127.0.0.1:8096/api/v1alpha1"


def key(node_id: str, *, spaced: bool = False) -> str:
    """Return a node as a map's key: the operator writes it without blanks, the SDK with them."""
    node = {"type": "flinkStreamingGraphNode", "fields": f"id={node_id}"}
    return json.dumps(node) if spaced else json.dumps(node, separators=(",", ":"))


def registration(**changes: Any) -> PlannerRegistration:
    """Return the registration of a container with all three steps."""
    return PlannerRegistration.model_validate(
        {
            "name": "toggler",
            "kind": "kta",
            "monitor_url": f"{URL}/monitor",
            "analyze_url": f"{URL}/analyze",
            "plan_url": f"{URL}/plan",
            "version": 1,
            "registered_at": NOON,
            "registered_by": "me",
            **changes,
        }
    )


class Container:
    """Container with configured answers; records its requests."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"monitor": {"load": 3}, "analyze": {"state": 1}, **answers}
        self.requests: list[tuple[str, Mapping[str, Any]]] = []
        self.credentials: set[str | None] = set()
        self.timeouts: list[float] = []

    async def post(self, url: str, body: Any, timeout_seconds: float, credential: str | None) -> Any:
        step = url.rpartition("/")[2]
        self.requests.append((step, json.loads(json.dumps(body))))
        self.credentials.add(credential)
        self.timeouts.append(timeout_seconds)
        answer = self.answers[step]
        if isinstance(answer, Exception):
            raise answer
        return answer


def plan(**parallelism: int) -> dict[str, Any]:
    """Return a plan answer as the SDK writes it."""
    return {key(node, spaced=True): {"parallelism": p} for node, p in parallelism.items()}


def _cycle(nodes: int, memory: dict[str, Any] | None = None) -> Cycle:
    graph = topology(["orders", "work"][:nodes])
    return cycle_of(request().model_copy(update={"topology": graph, "memory": memory or {}}))


ONE, TWO = _cycle(1), _cycle(2)


async def test_a_cycle_calls_the_three_steps_in_order() -> None:
    """Same id and start each time; earlier results are passed on unchanged, with the analysis alongside."""
    container, question = Container(plan=plan(v0=2, v1=4)), request()
    reply = await ask(question, registration(credential="cluster"), 2.0, container.post)
    assert [step for step, _ in container.requests] == ["monitor", "analyze", "plan"]
    monitor, analyze, planned = (body for _, body in container.requests)
    assert monitor == {
        "id": str(question.id),
        "udfStartTimestampMillis": 1767268800000,
        "topology": [
            {"type": "flinkStreamingGraphNode", "fields": "id=v0"},
            {"type": "flinkStreamingGraphNode", "fields": "id=v1"},
        ],
        "monitorResult": {},
        "analyzeResult": {},
        "resultHistory": [],
        "weir": {"contractVersion": "v1alpha1", "analysis": monitor["weir"]["analysis"]},
    }
    assert analyze == monitor | {"monitorResult": {"load": 3}}
    assert planned == analyze | {"analyzeResult": {"state": 1}}
    assert monitor["weir"]["analysis"]["arrival_rate"]["value"] == question.analysis.arrival_rate.value
    assert (reply.kind, reply.parallelism, reply.code) == ("scale", {"orders": 2, "work": 4}, "kta-plans")
    assert container.credentials == {"cluster"}
    assert all(0 < left <= 2.0 for left in container.timeouts)


async def test_without_analyze_its_result_is_empty() -> None:
    """The step is optional."""
    container = Container(plan=plan(v0=2, v1=4))
    await ask(request(), registration(analyze_url=None), 2.0, container.post)
    assert [step for step, _ in container.requests] == ["monitor", "plan"]
    assert container.requests[-1][1]["analyzeResult"] == {}


async def test_history_is_newest_first_and_bounded() -> None:
    """Each cycle's result is in the next request, with the plan and the parallelism within bounds."""
    container = Container(plan=plan(v0=3, v1=99))
    memory: dict[str, Any] = {}
    for number in range(4):
        question = request().model_copy(update={"memory": memory, "now": after(number * 30)})
        reply = await ask(question, registration(result_history_length=2), 2.0, container.post)
        memory = json.loads(reply.model_dump_json())["memory"]
    history = container.requests[-1][1]["resultHistory"]
    assert [result["udfStartTimestampMillis"] - 1767268800000 for result in history] == [60_000, 30_000]
    assert history[0] == {
        "id": history[0]["id"],
        "udfStartTimestampMillis": 1767268860000,
        "udfEndTimestampMillis": history[0]["udfEndTimestampMillis"],
        "monitorResult": {"load": 3},
        "analyzeResult": {"state": 1},
        "planResult": {key("v0"): {"parallelism": 3}, key("v1"): {"parallelism": 99}},
        "parallelism": {key("v0"): 3, key("v1"): 12},
    }
    assert history[0]["udfEndTimestampMillis"] >= history[0]["udfStartTimestampMillis"]
    assert reply.parallelism == {"orders": 3, "work": 12}
    assert "it wanted work 99" in reply.sentence


@pytest.mark.parametrize(
    ("answer", "nodes", "found"),
    [
        ({"parallelism": 4}, 1, {"orders": 4}),
        (plan(v0=4), 1, {"orders": 4}),
        ({key("v1"): {"parallelism": 2}, key("v0", spaced=True): {"parallelism": 1}}, 2, {"orders": 1, "work": 2}),
        ({key("v0"): 3, key("v1"): {"parallelism": 2, "why": "more"}}, 2, {"orders": 3, "work": 2}),
        ({json.dumps(key("v0")): {"parallelism": 5}}, 1, {"orders": 5}),
    ],
)
def test_accepted_forms_of_a_plan(answer: Any, nodes: int, found: dict[str, int]) -> None:
    """Map or bare object for a single node; keys with or without blanks, even encoded twice; bare numbers as values."""
    assert read_plan(answer, _cycle(nodes).nodes) == found


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (plan(v0=1), "misses work"),
        (plan(v0=1, v1=1, v7=2), "no node of the topology"),
        (plan(v0=0, v1=1), "wants '0' of orders"),
        ({"parallelism": 4}, "one parallelism for 2 operators"),
        ({key("v0"): {"parallelism": 1}, key("v0", spaced=True): {"parallelism": 2}}, "orders twice"),
        ({"orders": {"parallelism": 1}}, "'orders' is no node"),
        ({key("v0"): {"parallelism": True}, key("v1"): 1}, "wants 'True' of orders"),
        ({key("v0"): {"parallelism": 1.5}, key("v1"): 1}, "wants '1.5' of orders"),
        ({key("v0"): {}, key("v1"): 1}, "wants 'None' of orders"),
        ({'{"type":"flinkStreamingGraphNode","fields":"id"}': 1}, "key=value"),
        ([1, 2], "a JSON object"),
        (None, "a JSON object"),
    ],
)
def test_an_invalid_plan_is_refused_with_the_reason(answer: Any, reason: str) -> None:
    """Partial plans, unknown nodes, zeros and halves: the sentence names the operator."""
    with pytest.raises(InvalidAnswer, match=reason):
        read_plan(answer, _cycle(2).nodes)


@examples(30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just(key("v0")) | st.just("parallelism"), inner),
    )
)
def test_any_answer_is_a_plan_or_an_explained_error(answer: Any) -> None:
    """No answer raises another exception."""
    for nodes in (ONE.nodes, TWO.nodes):
        try:
            found = read_plan(answer, nodes)
        except InvalidAnswer as error:
            assert str(error)
        else:
            assert all(p >= 1 for p in found.values())


@pytest.mark.parametrize(
    "written", ['{"type": 1, "fields": "id=a"}', "[]", "3", None, '"x"', '{"type":"a"}', "[" * 9999]
)
def test_an_invalid_node_is_refused(written: Any) -> None:
    """This includes values nested too deep to parse."""
    with pytest.raises(InvalidAnswer, match="is no node"):
        parse_node(written)


def test_a_node_is_compared_by_its_fields() -> None:
    """Blanks and the order of fields do not matter."""
    one = parse_node('{"type":"scaleTargetRef","fields":"kind=Deployment|name=x"}')
    other = parse_node({"fields": "name=x|kind=Deployment", "type": "scaleTargetRef"})
    assert one == other
    assert one.key == '{"type":"scaleTargetRef","fields":"kind=Deployment|name=x"}'


@pytest.mark.parametrize("answer", [None, 3, [], "text", {"x": float("nan")}])
def test_results_are_objects(answer: Any) -> None:
    """A result that is no JSON object is refused."""
    with pytest.raises(InvalidAnswer):
        read_result(answer)


@pytest.mark.parametrize(
    ("step", "requests", "failure", "sentence"),
    [
        ("monitor", 1, PlannerFailed("answered 500: boom"), "answered 500: boom (monitor)"),
        ("analyze", 2, PlannerFailed("answered 422: what", counts=False), "answered 422: what (analyze)"),
        (
            "plan",
            3,
            PlannerFailed("did not reply within 2 s", code="planner-timeout"),
            "did not reply within 2 s (plan)",
        ),
    ],
)
async def test_a_failed_step_ends_the_cycle(step: str, requests: int, failure: PlannerFailed, sentence: str) -> None:
    """No retry, and later steps are not called; the reason names the step."""
    container = Container(**{"plan": plan(v0=1, v1=1), step: failure})
    with pytest.raises(PlannerFailed) as caught:
        await ask(request(), registration(), 2.0, container.post)
    assert (caught.value.sentence, caught.value.code, caught.value.counts) == (sentence, failure.code, failure.counts)
    assert len(container.requests) == requests


async def test_analyze_must_answer_an_object() -> None:
    """Null is no result; the error names the step and the expected type."""
    with pytest.raises(PlannerFailed, match=r"\(analyze\).*JSON object") as caught:
        await ask(request(), registration(), 2.0, Container(analyze=None).post)
    assert caught.value.code == "invalid-reply"


async def test_all_steps_share_one_deadline() -> None:
    """No step is called after the deadline."""
    container = Container(plan=plan(v0=1, v1=1))
    with pytest.raises(PlannerFailed, match="before monitor") as caught:
        await ask(request(), registration(), 0.0, container.post)
    assert caught.value.code == "planner-timeout"
    assert container.requests == []


def test_an_id_that_cannot_be_written_is_refused() -> None:
    """The encoding has no escapes."""
    graph = topology()
    odd = graph.operators[1].model_copy(update={"id": "a|b=c"})
    question = request().model_copy(
        update={"topology": graph.model_copy(update={"operators": [graph.operators[0], odd]})}
    )
    with pytest.raises(InvalidAnswer, match=r"work: its id 'a\|b=c'"):
        cycle_of(question)


def test_the_history_that_does_not_fit_loses_its_oldest() -> None:
    """The contract's limit holds for any answers; a result too large for it is dropped and reported."""
    memory: dict[str, Any] = {}
    for number in range(30):
        reply = _reply({"blob": "x" * 1500}, memory, number)
        memory = reply.memory
        assert len(json.dumps(memory, separators=(",", ":")).encode()) <= MEMORY_LIMIT_BYTES
    assert 8 <= len(memory["results"]) <= 10
    assert [r["started"] for r in memory["results"]] == sorted((r["started"] for r in memory["results"]), reverse=True)
    huge = _reply({"blob": "x" * 20_000}, memory, 31)
    assert huge.evidence["newest_result_too_large"] is True
    assert huge.memory["results"] == memory["results"]
    size = len(json.dumps(huge.memory["results"][0]).encode())
    assert size < 20_000 < huge.evidence["newest_result_bytes"] < 21_000
    assert f"its result of {huge.evidence['newest_result_bytes']:,} bytes exceeds the memory of 16,384" in huge.sentence
    again = _reply({"blob": "x" * 20_000}, {}, 32)
    assert again.memory["results"] == []
    assert "is not stored" in again.sentence


@pytest.mark.parametrize("planned", [plan(v0=2, v1=4), plan(v0=1, v1=2)], ids=["scales", "holds"])
async def test_a_result_too_large_for_the_memory_is_reported(planned: Any) -> None:
    """In each plan, and in the log once until a result fits again."""
    container, memory, logged = Container(plan=planned, monitor={"blob": "x" * 20_000}), {}, []
    for cycle in range(4):
        if cycle == 2:
            container.answers["monitor"] = {"blob": "x" * 10}
        if cycle == 3:
            container.answers["monitor"] = {"blob": "x" * 20_000}
        question = request().model_copy(update={"memory": memory, "now": after(cycle * 30)})
        with capture_logs() as lines:
            reply = await ask(question, registration(), 2.0, container.post)
        memory = json.loads(reply.model_dump_json())["memory"]
        assert ("is not stored" in reply.sentence) == (cycle != 2)
        logged.append([(line["log_level"], line["event"], line["application"]) for line in lines])
    warning = [("warning", "kta-result-too-large", "shop/orders")]
    assert logged == [warning, [], [], warning]


async def test_weirs_own_field_can_be_left_out() -> None:
    """A container that refuses unknown fields can be called."""
    container = Container(plan=plan(v0=2, v1=4))
    await ask(request(), registration(offer_analysis=False), 2.0, container.post)
    own = {"id", "udfStartTimestampMillis", "topology", "monitorResult", "analyzeResult", "resultHistory"}
    assert [set(body) for _, body in container.requests] == [own] * 3
    with pytest.raises(ValueError, match="is not for a planner of kind http"):
        NewPlanner(name="mine", url="http://127.0.0.1:8097", offer_analysis=False)


def test_the_settings_in_the_sdks_readme_permit_a_container() -> None:
    """KTA's containers use plain HTTP on private addresses: the defaults refuse it, the README's settings permit it."""
    text = (Path(__file__).parents[3] / "sdk" / "README.md").read_text()
    named = dict(re.findall(r"^(WEIR_PLANNER_PLUGIN_[A-Z]+)=(\S+)$", text, re.MULTILINE))
    lists = ("SCHEMES", "HOSTS", "NETWORKS")
    assert set(named) == {f"{PLUGIN}_{each}" for each in lists}
    as_named = Allowed.of(*(named[f"{PLUGIN}_{each}"] for each in lists), prefix=PLUGIN)
    as_named.check_url("http://toggler:8096/api/v1alpha1/plan")
    as_named.check_address("10.1.2.3", "toggler")
    usual = PlannerSettings.model_fields
    default = Allowed.of(*(usual[f"plugin_{each.lower()}"].default for each in lists), prefix=PLUGIN)
    with pytest.raises(AddressRefused, match=f"{PLUGIN}_SCHEMES"):
        default.check_url("http://toggler:8096/api/v1alpha1/plan")
    with pytest.raises(AddressRefused, match=f"{PLUGIN}_NETWORKS"):
        default.check_address("10.1.2.3", "toggler")


@pytest.mark.thorough
def test_a_long_history_of_a_large_topology_fits() -> None:
    """Ten operators, small results: about half an hour of cycles every 30 s fits."""
    memory: dict[str, Any] = {}
    for number in range(80):
        memory = _reply({"n": number}, memory, number, names=[f"o{i}" for i in range(10)]).memory
    assert len(memory["results"]) >= 60


def test_results_about_an_earlier_graph_keep_their_nodes() -> None:
    """The job was resubmitted with another graph: earlier results keep the earlier nodes."""
    memory = _reply({"n": 0}, {}, 0, names=["orders"]).memory
    memory = _reply({"n": 1}, memory, 1).memory
    history = Cycle(request().model_copy(update={"memory": memory}), _cycle(2).nodes).body()["resultHistory"]
    assert [set(result["parallelism"]) for result in history] == [{key("v0"), key("v1")}, {key("v0")}]


@pytest.mark.parametrize("memory", [{"results": 3}, {"other": "planner"}, {"results": [{"id": "x"}]}])
def test_another_planners_memory_is_no_history(memory: dict[str, Any]) -> None:
    """The history starts empty."""
    assert _cycle(2, memory).body()["resultHistory"] == []


def test_an_unchanged_parallelism_is_a_hold() -> None:
    """KTA has no hold: a plan of the current parallelism is one."""
    current = request().deployment.observed  # type: ignore[union-attr]
    number = _cycle(2)
    reply = reply_of(number, Answers({}, {}, dict(current), NOON), "toggler")
    assert (reply.kind, reply.code, reply.parallelism) == ("hold", "kta-holds", None)
    assert len(reply.memory["results"]) == 1


def test_the_same_request_gets_the_same_reply() -> None:
    """A replay repeats ids and times."""
    assert _cycle(2).body() == _cycle(2).body()


def _reply(monitor: dict[str, Any], memory: dict[str, Any], number: int, names: list[str] | None = None) -> PlanReply:
    graph = topology(names or ["orders", "work"])
    question: PlanRequest = request().model_copy(
        update={"topology": graph, "memory": memory, "now": after(30 * number), "policy": policy()}
    )
    planned = dict.fromkeys(graph.names, 2)
    return reply_of(cycle_of(question), Answers(monitor, {}, planned, after(30 * number + 1)), "toggler")
