"""`weir planner kta-bridge`: requests to a container built with KTA's SDK, permitted answers, and the resulting replies.

The wire format is that of dynatrace-oss/kubernetes-topology-autoscaler v0.1.0-alpha.1; the container here speaks it without
any of Weir's code.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.cli.test_command import weir
from tests.unit.planner.build import NOON, after, request, topology
from tests.unit.planner.plugin import LOOPBACK, Plugin
from weir_cli.kta_bridge import KtaBridge, KtaFailed, read_plan, read_result, vertices
from weir_contracts import MEMORY_LIMIT_BYTES, PlanReply
from weir_planner.adapters.http import PlannerClient
from weir_planner.remote import Remote
from weir_planner.settings import PLUGIN, PlannerSettings
from weir_planner.telemetry import PlannerFailed
from weir_runtime.clock import FakeClock
from weir_runtime.reach import AddressRefused, Allowed
from weir_sdk import Request
from weir_sdk.server import application
from weir_sdk.testing import request as recorded
from weir_sdk.testing import running
from weir_sdk.testing.conformance import CHECKS, check_planner

URL = "http://127.0.0.1:8096/api/v1alpha1"


def key(node_id: str, *, spaced: bool = False) -> str:
    """Return a node as a map's key: the operator writes it without blanks, the SDK with them."""
    node = {"type": "flinkStreamingGraphNode", "fields": f"id={node_id}"}
    return json.dumps(node) if spaced else json.dumps(node, separators=(",", ":"))


def plan(**parallelism: int) -> dict[str, Any]:
    """Return a plan answer as the SDK writes it."""
    return {key(node, spaced=True): {"parallelism": p} for node, p in parallelism.items()}


class Container:
    """Container with configured answers; records its requests."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"monitor": {"load": 3}, "analyze": {"state": 1}, **answers}
        self.requests: list[tuple[str, Mapping[str, Any]]] = []
        self.timeouts: list[float] = []

    async def post(self, url: str, body: Any, timeout_seconds: float, _credential: str | None) -> Any:
        step = url.rpartition("/")[2]
        self.requests.append((step, json.loads(json.dumps(body))))
        self.timeouts.append(timeout_seconds)
        answer = self.answers[step]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def bridge(self, **options: Any) -> KtaBridge:
        return KtaBridge(self.post, f"{URL}/plan", f"{URL}/monitor", f"{URL}/analyze", **options)


def question(number: int = 0, memory: Mapping[str, Any] | None = None, names: list[str] | None = None) -> Request:
    """Return the request of a cycle, each 30 s after the one before."""
    asked = request().model_copy(update={"memory": dict(memory or {}), "now": after(number * 30)})
    if names is not None and asked.deployment is not None:
        graph, sizes = topology(names), dict.fromkeys(names, 1)
        deployment = asked.deployment.model_copy(update={"observed": sizes, "requested": sizes})
        asked = asked.model_copy(update={"topology": graph, "deployment": deployment})
    return Request.of(asked)


def kept(reply: PlanReply) -> dict[str, Any]:
    """Return the memory as the next request has it."""
    memory: dict[str, Any] = PlanReply.model_validate_json(reply.model_dump_json()).memory
    assert len(json.dumps(memory, separators=(",", ":")).encode()) <= MEMORY_LIMIT_BYTES
    return memory


async def test_a_cycle_calls_the_three_steps_in_order() -> None:
    """Same id and start each time; earlier results are passed on unchanged, with the analysis alongside."""
    container, asked = Container(plan=plan(v0=2, v1=4)), question()
    reply = await container.bridge().plan(asked)
    assert [step for step, _ in container.requests] == ["monitor", "analyze", "plan"]
    monitor, analyze, planned = (body for _, body in container.requests)
    assert monitor == {
        "id": str(asked.id),
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
    assert monitor["weir"]["analysis"]["arrival_rate"]["value"] == asked.analysis.arrival_rate.value
    assert (reply.kind, reply.parallelism, reply.code) == ("scale", {"orders": 2, "work": 4}, "kta-plans")
    limit = asked.policy.spec.planner.timeout.total_seconds()
    assert all(0 < left < limit for left in container.timeouts)


@pytest.mark.parametrize(
    ("steps", "called"), [({}, ["plan"]), ({"monitor_url": f"{URL}/monitor"}, ["monitor", "plan"])]
)
async def test_the_result_of_a_step_without_an_address_is_empty(steps: dict[str, str], called: list[str]) -> None:
    """Only the plan step is required."""
    container = Container(plan=plan(v0=2, v1=4))
    await KtaBridge(container.post, f"{URL}/plan", **steps).plan(question())
    assert [step for step, _ in container.requests] == called
    assert container.requests[-1][1]["analyzeResult"] == {}


async def test_history_is_newest_first_and_bounded() -> None:
    """Each cycle's result is in the next request, with the plan and the parallelism within bounds."""
    container = Container(plan=plan(v0=3, v1=99))
    memory: dict[str, Any] = {}
    for number in range(4):
        reply = await container.bridge(max_results=2).plan(question(number, memory))
        memory = kept(reply)
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


ONE, TWO = {"v0": "orders"}, {"v0": "orders", "v1": "work"}


@pytest.mark.parametrize(
    ("answer", "names", "found"),
    [
        ({"parallelism": 4}, ONE, {"orders": 4}),
        (plan(v0=4), ONE, {"orders": 4}),
        ({key("v1"): {"parallelism": 2}, key("v0", spaced=True): {"parallelism": 1}}, TWO, {"orders": 1, "work": 2}),
        ({key("v0"): 3, key("v1"): {"parallelism": 2, "why": "more"}}, TWO, {"orders": 3, "work": 2}),
        ({json.dumps(key("v0")): {"parallelism": 5}}, ONE, {"orders": 5}),
    ],
)
def test_accepted_forms_of_a_plan(answer: Any, names: dict[str, str], found: dict[str, int]) -> None:
    """Map or bare object for a single node; keys with or without blanks, even encoded twice; bare numbers as values."""
    assert read_plan(answer, names) == found


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (plan(v0=1), "misses work"),
        (plan(v0=1, v1=1, v7=2), "no node of the topology"),
        (plan(v0=0, v1=1), "wants '0' of orders"),
        ({"parallelism": 4}, "one parallelism for 2 operators"),
        ({key("v0"): {"parallelism": 1}, key("v0", spaced=True): {"parallelism": 2}}, "orders twice"),
        ({"orders": {"parallelism": 1}}, "'orders', which is no node"),
        ({key("v0"): {"parallelism": True}, key("v1"): 1}, "wants 'True' of orders"),
        ({key("v0"): {"parallelism": 1.5}, key("v1"): 1}, "wants '1.5' of orders"),
        ({key("v0"): {}, key("v1"): 1}, "wants 'None' of orders"),
        ({'{"type":"flinkStreamingGraphNode","fields":"id"}': 1}, "no node of the topology"),
        ({'{"type":"scaleTargetRef","fields":"id=v0"}': 1}, "no node of the topology"),
        *[({key: 1}, "which is no node") for key in ('{"type": 1, "fields": "id=a"}', "[]", "3", '"x"', "[" * 9999)],
        ([1, 2], "a JSON object"),
        (None, "a JSON object"),
    ],
)
def test_an_invalid_plan_is_refused_with_the_reason(answer: Any, reason: str) -> None:
    """Partial plans, unknown nodes, zeros and halves: the sentence names the operator."""
    with pytest.raises(KtaFailed, match=reason):
        read_plan(answer, TWO)


@examples(30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just(key("v0")) | st.just("parallelism"), inner),
    )
)
def test_any_answer_is_a_plan_or_an_explained_error(answer: Any) -> None:
    """No answer raises another exception."""
    for names in (ONE, TWO):
        try:
            found = read_plan(answer, names)
        except KtaFailed as error:
            assert str(error)
        else:
            assert all(p >= 1 for p in found.values())


@pytest.mark.parametrize("answer", [None, 3, [], "text"])
def test_results_are_objects(answer: Any) -> None:
    """A result that is no JSON object is refused."""
    with pytest.raises(KtaFailed):
        read_result(answer)


@pytest.mark.parametrize(
    ("step", "requests", "failure", "sentence"),
    [
        ("monitor", 1, PlannerFailed("answered 500: boom"), "monitor answered 500: boom"),
        ("analyze", 2, PlannerFailed("answered 422: what"), "analyze answered 422: what"),
        ("plan", 3, PlannerFailed("did not reply within 2 s"), "plan did not reply within 2 s"),
        ("analyze", 2, None, "analyze gave an answer that is not KTA's: it must answer a JSON object, not 'None'"),
        ("plan", 3, plan(v0=1), "plan gave an answer that is not KTA's: it misses work"),
    ],
)
async def test_a_failed_step_ends_the_cycle(step: str, requests: int, failure: Any, sentence: str) -> None:
    """No retry, and later steps are not called; the reason names the step."""
    container = Container(**{"plan": plan(v0=1, v1=1), step: failure})
    with pytest.raises(KtaFailed) as caught:
        await container.bridge().plan(question())
    assert str(caught.value) == sentence
    assert len(container.requests) == requests


async def test_all_steps_share_one_deadline() -> None:
    """A step gets the time that those before it left, and none is called without any."""

    class Slow(Container):
        async def post(self, url: str, body: Any, timeout_seconds: float, credential: str | None) -> Any:
            clock.advance(1.2)
            return await super().post(url, body, timeout_seconds, credential)

    clock, container = FakeClock(NOON), Slow(plan=plan(v0=1, v1=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir_cli.kta_bridge.monotonic", clock.monotonic)
        with pytest.raises(KtaFailed, match="plan was not called: no time was left within the policy's timeout"):
            await container.bridge().plan(question())
    assert container.timeouts == [1.8, 0.6]


def test_an_id_that_cannot_be_written_is_refused() -> None:
    """The encoding has no escapes."""
    asked = question()
    odd = asked.topology.operators[1].model_copy(update={"id": "a|b=c"})
    graph = asked.topology.model_copy(update={"operators": [asked.topology.operators[0], odd]})
    with pytest.raises(KtaFailed, match=r"work: its id 'a\|b=c'"):
        vertices(asked.model_copy(update={"topology": graph}))


async def test_the_history_that_does_not_fit_loses_its_oldest() -> None:
    """The contract's limit holds for any answers; a result too large for it is dropped and reported."""
    container, memory = Container(plan=plan(v0=2, v1=2), monitor={"blob": "x" * 1500}), {}
    for number in range(30):
        memory = kept(await container.bridge().plan(question(number, memory)))
    assert 8 <= len(memory["results"]) <= 10
    assert [r["started"] for r in memory["results"]] == sorted((r["started"] for r in memory["results"]), reverse=True)
    container.answers["monitor"] = {"blob": "x" * 20_000}
    huge = await container.bridge().plan(question(31, memory))
    assert kept(huge)["results"] == memory["results"]
    size = huge.evidence["newest_result_bytes"]
    assert isinstance(size, int)
    assert 20_000 < size < 21_000
    assert f"its result of {size:,} bytes exceeds the memory of 16,384" in huge.sentence
    assert kept(await container.bridge().plan(question(32)))["results"] == []


@pytest.mark.parametrize("planned", [plan(v0=2, v1=4), plan(v0=1, v1=2)], ids=["scales", "holds"])
async def test_a_result_too_large_for_the_memory_is_reported(planned: Any, caplog: pytest.LogCaptureFixture) -> None:
    """In each plan, and in the log once until a result fits again."""
    container, memory, logged = Container(plan=planned), {}, []
    for number, length in enumerate((20_000, 20_000, 10, 20_000)):
        container.answers["monitor"] = {"blob": "x" * length}
        caplog.clear()
        reply = await container.bridge().plan(question(number, memory))
        memory = kept(reply)
        assert ("is not stored" in reply.sentence) == (length > 10)
        logged.append([record.getMessage().partition(";")[0] for record in caplog.records])
    assert logged == [["shop/orders"], [], [], ["shop/orders"]]


async def test_weirs_own_field_can_be_left_out() -> None:
    """A container that refuses unknown fields can be called."""
    container = Container(plan=plan(v0=2, v1=4))
    await container.bridge(offer_analysis=False).plan(question())
    own = {"id", "udfStartTimestampMillis", "topology", "monitorResult", "analyzeResult", "resultHistory"}
    assert [set(body) for _, body in container.requests] == [own] * 3


@pytest.mark.thorough
async def test_a_long_history_of_a_large_topology_fits() -> None:
    """Ten operators, small results: about half an hour of cycles every 30 s fits."""
    ids = [f"{number:032x}" for number in range(10)]
    container, memory = Container(plan=dict.fromkeys(map(key, ids), 1)), {}
    for number in range(80):
        asked = question(number, memory, [f"o{i}" for i in range(10)])
        operators = [each.model_copy(update={"id": ids[i]}) for i, each in enumerate(asked.topology.operators)]
        graph = asked.topology.model_copy(update={"operators": operators})
        memory = kept(await container.bridge().plan(asked.model_copy(update={"topology": graph})))
    assert len(memory["results"]) >= 60


async def test_results_about_an_earlier_graph_keep_their_nodes() -> None:
    """The job was resubmitted with another graph: earlier results keep the earlier nodes."""
    container = Container(plan={"parallelism": 2})
    memory = kept(await container.bridge().plan(question(0, {}, ["orders"])))
    container.answers["plan"] = plan(v0=2, v1=2)
    memory = kept(await container.bridge().plan(question(1, memory)))
    await container.bridge().plan(question(2, memory))
    history = container.requests[-1][1]["resultHistory"]
    assert [set(result["parallelism"]) for result in history] == [{key("v0"), key("v1")}, {key("v0")}]


@pytest.mark.parametrize("memory", [{"results": 3}, {"other": "planner"}, {"results": [{"id": "x"}]}])
async def test_another_planners_memory_is_no_history(memory: dict[str, Any]) -> None:
    """The history starts empty."""
    container = Container(plan=plan(v0=2, v1=4))
    await container.bridge().plan(question(0, memory))
    assert container.requests[0][1]["resultHistory"] == []


async def test_an_unchanged_parallelism_is_a_hold() -> None:
    """KTA has no hold: a plan of the current parallelism is one, and its result is kept."""
    asked = question()
    now = dict(zip(("v0", "v1"), asked.current.values(), strict=True))
    reply = await Container(plan=plan(**now)).bridge().plan(asked)
    assert (reply.kind, reply.code, reply.parallelism) == ("hold", "kta-holds", None)
    assert len(reply.memory["results"]) == 1


def toggler(seen: list[dict[str, Any]]) -> FastAPI:
    """An algorithm that counts cycles through its history and toggles every second one, behind KTA's three routes."""
    app = FastAPI()

    @app.post("/api/v1alpha1/monitor")
    async def monitor(asked: HttpRequest) -> dict[str, Any]:
        seen.append(await asked.json())
        history = seen[-1]["resultHistory"]
        return {"turn": history[0]["monitorResult"]["turn"] + 1 if history else 1}

    @app.post("/api/v1alpha1/analyze")
    async def analyze(asked: HttpRequest) -> dict[str, Any]:
        return {"side": (await asked.json())["monitorResult"]["turn"] // 2 % 2}

    @app.post("/api/v1alpha1/plan")
    async def planned(asked: HttpRequest) -> dict[str, Any]:
        document = await asked.json()
        size = {"parallelism": 3 + document["analyzeResult"]["side"]}
        return {json.dumps(node): size for node in document["topology"]}

    return app


async def test_weir_asks_a_container_through_the_bridge() -> None:
    """Over sockets, as in production: the registration's trial, then four cycles with the memory of the one before."""
    seen: list[dict[str, Any]] = []
    client = PlannerClient(LOOPBACK)
    with running(toggler(seen)) as container:
        steps = [f"{container}/api/v1alpha1/{step}" for step in ("plan", "monitor", "analyze")]
        with running(application(KtaBridge(client.post_json, *steps))) as url:
            remote = Remote(client, FakeClock(NOON))
            async with Plugin() as plugin:
                registration = plugin.registered("toggler", url=url)
            description, _reply = await remote.try_out(registration, 20.0)
            memory: dict[str, Any] = {}
            enriched = []
            for _ in range(4):
                asked = recorded("steady", planner={"name": "toggler", "timeout": "10s"})
                reply = await remote.try_ask(asked.model_copy(update={"memory": memory}), registration, 20.0)
                enriched.append((reply.parallelism or {})["enrich"])
                memory = reply.memory
    await client.close()
    assert description.name == "kta"
    assert enriched == [3, 4, 4, 3]
    assert [result["monitorResult"]["turn"] for result in seen[-1]["resultHistory"]] == [3, 2, 1]
    assert set(seen[-1]["resultHistory"][0]["parallelism"].values()) == {4}
    assert {each["operator"] for each in seen[-1]["weir"]["analysis"]["operators"]} == set(asked.operators)


def test_the_bridge_keeps_the_planner_contract() -> None:
    """Every obligation of the conformance suite, with a container behind it."""
    client = PlannerClient(Allowed.of("http", "*", "127.0.0.0/8", prefix="WEIR_PLANNER_PLUGIN"))
    with running(toggler([])) as container:
        steps = [f"{container}/api/v1alpha1/{step}" for step in ("plan", "monitor", "analyze")]
        with running(application(KtaBridge(client.post_json, *steps))) as url:
            found = check_planner(url, timeout_seconds=20.0)
    assert [finding for finding in found if not finding.ok] == []
    assert [finding.check for finding in found] == list(CHECKS)


async def test_a_container_that_fails_or_is_away_is_named_in_the_reply() -> None:
    """500 with its message, and a refused connection, with the step's name."""
    client = PlannerClient(LOOPBACK)
    async with Plugin(
        lambda _: (
            b'HTTP/1.1 500 x\r\nContent-Type: application/json\r\nContent-Length: 23\r\n\r\n{"message": "no model"}'
        )
    ) as plugin:
        with pytest.raises(KtaFailed, match="plan answered 500: no model"):
            await KtaBridge(client.post_json, f"{plugin.url}/plan").plan(question())
    with pytest.raises(KtaFailed, match="plan could not be called"):
        await KtaBridge(client.post_json, "http://127.0.0.1:1/plan").plan(question())
    await client.close()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Missing option '--plan-url'"),
        (["--plan-url", "toggler:8096"], "--plan-url: 'toggler:8096' must"),
        (["--plan-url", f"{URL}/plan", "--monitor-url", "http://a:b@c"], "must not carry credentials"),
        (["--plan-url", f"{URL}/plan", "--host", "0.0.0.0"], "PLANNER_TOKEN"),
        (["--plan-url", f"{URL}/plan", "--history", "0"], "--history"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], reason: str) -> None:
    """The option and the reason, with code 2; nothing is served."""
    done = weir("planner", "kta-bridge", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr


def test_the_settings_in_the_sdks_readme_permit_the_bridge() -> None:
    """It serves plain HTTP on loopback: the planner service's defaults refuse it, the README's settings permit it."""
    text = (Path(__file__).parents[3] / "sdk" / "README.md").read_text()
    named = dict(re.findall(r"^(WEIR_PLANNER_PLUGIN_[A-Z]+)=(\S+)$", text, re.MULTILINE))
    lists = ("SCHEMES", "HOSTS", "NETWORKS")
    assert set(named) == {f"{PLUGIN}_{each}" for each in lists}
    as_named = Allowed.of(*(named[f"{PLUGIN}_{each}"] for each in lists), prefix=PLUGIN)
    (url,) = re.findall(r"^weir planner register toggler (\S+)$", text, re.MULTILINE)
    as_named.check_url(url)
    as_named.check_address("127.0.0.1", "127.0.0.1")
    usual = PlannerSettings.model_fields
    default = Allowed.of(*(usual[f"plugin_{each.lower()}"].default for each in lists), prefix=PLUGIN)
    with pytest.raises(AddressRefused, match=f"{PLUGIN}_SCHEMES"):
        default.check_url(url)
    with pytest.raises(AddressRefused, match=f"{PLUGIN}_NETWORKS"):
        default.check_address("127.0.0.1", "127.0.0.1")
