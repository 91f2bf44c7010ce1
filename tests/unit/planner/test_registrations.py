"""Registering planners over HTTP: tried first, shared with every replica, kept after a restart."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import httpx
import pytest

from tests.unit.planner.build import NOON, SOURCE, WORK, analysis, policy, request, scale
from tests.unit.planner.plugin import DESCRIPTION, LOOPBACK, Plugin, Received, Respond, answer, good, json_answer
from tests.unit.planner.test_service import InProcess
from weir_contracts import NewPlanner, Plan
from weir_contracts.topics import PLANNERS
from weir_planner.adapters.http import PlannerClient
from weir_planner.api import planner_router
from weir_planner.calls import Planners
from weir_planner.core.breaker import FAILURES_TO_OPEN
from weir_planner.remote import Registrations, Remote
from weir_runtime.access import Caller, Tokens
from weir_runtime.clock import FakeClock
from weir_runtime.http import application
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.reach import Allowed

JSON = {"Content-Type": "application/json"}


class Replica:
    """A planner service: its routes and the registrations it follows."""

    def __init__(self, bus: MemoryBus, clock: FakeClock) -> None:
        self.client = PlannerClient(LOOPBACK)
        remote = Remote(self.client, clock)
        self.registrations = Registrations(bus, clock, on_removed=remote.forget)
        self.planners = Planners(InProcess(), self.registrations, remote)
        self.app = application("Weir planner", "Planners.")
        self.app.include_router(planner_router(self.planners, clock))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://planner")
        self.stop = Stop()
        self.task = asyncio.create_task(self.registrations.follow(self.stop))

    async def register(self, plugin: Plugin, name: str = "mine", status: int = 201, **query: Any) -> Any:
        query = {"timeout_seconds": 20.0, **query}  # a trial's default is too short for a busy machine
        answer = await self.http.post("/v1/planners", json={"name": name, "url": plugin.url}, params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def names(self) -> set[str]:
        return {each["name"] for each in (await self.http.get("/v1/planners")).json()["planners"]}

    async def end(self) -> None:
        self.stop.request("the test is over")
        await self.task
        await self.client.close()


class Cluster:
    def __init__(self) -> None:
        self.clock = FakeClock(NOON)
        self.bus = MemoryBus(partitions=4, clock=self.clock)
        self.replicas: list[Replica] = []

    async def replica(self) -> Replica:
        made = Replica(self.bus, self.clock)
        self.replicas.append(made)
        await asyncio.wait_for(made.planners.start(), 5)
        return made


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await asyncio.gather(*(replica.end() for replica in made.replicas))


async def test_a_planner_is_registered_called_and_removed(cluster: Cluster) -> None:
    """From the trial to the plan; the API shows its address, registrant, version and circuit."""
    replica = await cluster.replica()
    question = request(analysis(the_policy=policy(planner={"name": "mine", "parameters": {"target": 0.5}})))
    async with Plugin() as plugin:
        result = await replica.register(plugin)
        assert result["trial"] == {"ok": True, "sentence": "scale (more): one more each"}
        assert [(each.method, each.path) for each in plugin.received] == [("GET", "/"), ("POST", "/plan")]
        shown = (await replica.http.get("/v1/planners/mine")).json()
        assert shown == result["planner"]
        assert (shown["kind"], shown["url"], shown["registered_by"]) == ("http", plugin.url, "local")
        assert (shown["version"], shown["breaker"]["state"]) == (int(NOON.timestamp() * 1000), "closed")
        answer = await replica.http.post("/v1/plan", content=question.model_dump_json(), headers=JSON)
        assert answer.json()["proposed"] == {SOURCE: 2, WORK: 3}, answer.text
        assert (await replica.http.delete("/v1/planners/mine")).status_code == 204
    assert "mine" not in await replica.names()
    assert (await replica.http.delete("/v1/planners/mine")).status_code == 404
    refused = await replica.http.post("/v1/plan", content=question.model_dump_json(), headers=JSON)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "policy.spec.planner.name"


def described(**changes: Any) -> Respond:
    return lambda received: json_answer({**DESCRIPTION, **changes}) if received.method == "GET" else good(received)


def replying(response: bytes) -> Respond:
    return lambda received: good(received) if received.method == "GET" else response


def half(received: Received) -> bytes | Awaitable[bytes]:
    if received.method == "GET":
        return good(received)
    vector = dict(list(received.json["deployment"]["observed"].items())[1:])
    return json_answer({"kind": "scale", "parallelism": vector, "code": "less", "sentence": "less"})


UNFIT: dict[str, tuple[Respond, str]] = {
    "an error": (replying(json_answer({"detail": "no model"}, 500)), "answered 500: no model"),
    "half a topology": (half, "gave a reply that"),
    "no reply": (replying(json_answer({"size": 3})), "gave a reply that is no PlanReply"),
    "a page": (replying(answer("<html>", 200, "text/html")), "answered with content type text/html"),
    "no description": (lambda a: answer("hello") if a.method == "GET" else good(a), "not JSON"),
    "half a description": (lambda _: json_answer({"name": "mine"}), "version: is required"),
    "another contract": (described(contract_versions=["v7"]), "speaks v7, and Weir speaks v1alpha1"),
    "no schema": (described(parameters={"type": "object", "properties": 3}), "no JSON Schema"),
    "a schema elsewhere": (described(parameters={"$ref": "http://127.0.0.1:1/schema"}), "leads out of it"),
    "required parameters without an example": (
        described(parameters={"type": "object", "required": ["model"], "properties": {"model": {}}}),
        "no `examples`",
    ),
}


@pytest.mark.parametrize("what", UNFIT)
async def test_a_planner_that_fails_its_trial_is_refused_with_the_reason(cluster: Cluster, what: str) -> None:
    """It is not registered afterwards."""
    respond, reason = UNFIT[what]
    replica = await cluster.replica()
    async with Plugin(respond) as plugin:
        result = await replica.register(plugin, status=422)
    assert result["detail"].startswith("mine failed its trial request: ")
    assert reason in result["detail"]
    assert "mine" not in await replica.names()
    assert cluster.bus.records(PLANNERS.name) == []


async def test_a_planner_that_does_not_reply_is_refused_within_the_time_limit(cluster: Cluster) -> None:
    """The limit is the request's own."""

    async def never(_received: Received) -> bytes:
        await asyncio.Event().wait()
        return b""

    replica = await cluster.replica()
    async with Plugin(lambda a: good(a) if a.method == "GET" else never(a)) as plugin:
        result = await replica.register(plugin, status=422, timeout_seconds=0.1)
    assert result["detail"] == "mine failed its trial request: did not reply within 0.1 s"


async def test_required_parameters_of_a_trial_are_the_schemas_example(cluster: Cluster) -> None:
    """Without them no request could be made."""
    schema = {"type": "object", "required": ["model"], "properties": {"model": {}}, "examples": [{"model": "small"}]}
    replica = await cluster.replica()
    async with Plugin(described(parameters=schema)) as plugin:
        await replica.register(plugin)
        assert plugin.received[-1].json["policy"]["spec"]["planner"] == {
            **plugin.received[-1].json["policy"]["spec"]["planner"],
            "name": "mine",
            "parameters": {"model": "small"},
        }


async def test_a_forbidden_address_is_not_connected_to(cluster: Cluster) -> None:
    """The refusal names the setting."""
    replica = await cluster.replica()
    client = PlannerClient(Allowed.of("http", "*", "public", prefix="WEIR_PLANNER_PLUGIN"))
    replica.planners.remote.client = client
    async with Plugin() as plugin:
        result = await replica.register(plugin, status=422)
        assert plugin.connections == 0
    assert "WEIR_PLANNER_PLUGIN_NETWORKS" in result["detail"]
    await client.close()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"name": "rate", "url": "https://planner.example.org"}, "built-in"),
        ({"name": "mine"}, "body.url: is required"),
        ({"name": "mine", "kind": "kta", "url": "https://a.example.org"}, "body.kind: is not a field"),
        ({"name": "Mine", "url": "https://a.example.org"}, "name"),
        ({"name": "mine", "url": "https://user:word@a.example.org"}, "must not carry credentials"),
        ({"name": "mine", "url": "ftp://a.example.org"}, "url"),
        ({"name": "mine", "url": "https://a.example.org/?x=1"}, "query"),
        ({"name": "mine", "url": "http://[::1"}, "url"),
        ({"name": "mine", "url": "http://10.0.0.1"}, "WEIR_PLANNER_PLUGIN_NETWORKS"),
        ({"name": "mine", "url": "http://169.254.169.254/latest"}, "WEIR_PLANNER_PLUGIN_NETWORKS"),
        ({"name": "mine", "url": "http://127.0.0.1:1", "credential": "none"}, "WEIR_PLANNER_CREDENTIALS_FOLDER"),
        ({"name": "mine", "url": "http://127.0.0.1:1", "token": "secret"}, "token"),
        ({"name": "mine", "url": "http://127.0.0.1:1", "token\x1b\n": 1}, r"body.token\\x1b\\n: is not a field"),
        ({"name": "mine", "url": "http://127.0.0.1:1", "credential": 12}, "body.credential"),
    ],
)
async def test_what_cannot_be_a_planner_is_refused(cluster: Cluster, body: dict[str, Any], reason: str) -> None:
    """The response has the field and the reason, or the setting that forbids it."""
    replica = await cluster.replica()
    answer = await replica.http.post("/v1/planners", json=body)
    assert answer.status_code == 422
    assert reason in answer.text
    assert "word" not in answer.text


async def test_a_registration_with_a_duplicate_key_is_refused(cluster: Cluster) -> None:
    """With two addresses the intended one is ambiguous."""
    replica = await cluster.replica()
    body = '{"name": "mine", "url": "http://127.0.0.1:1", "url": "http://127.0.0.1:2"}'
    answer = await replica.http.post("/v1/planners", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"]) == (422, "the body is not JSON: the key 'url' comes twice")


async def test_names_are_unique_and_versioned(cluster: Cluster) -> None:
    """A taken name is replaced only on request, with the next version."""
    replica = await cluster.replica()
    async with Plugin() as plugin:
        first = await replica.register(plugin)
        taken = await replica.register(plugin, status=409)
        assert taken["currentVersion"] == first["planner"]["version"]
        second = await replica.register(plugin, replace=True)
        assert second["planner"]["version"] == first["planner"]["version"] + 1
        await replica.http.delete("/v1/planners/mine")
        cluster.clock.advance(1)
        third = await replica.register(plugin)
        assert third["planner"]["version"] > second["planner"]["version"]


async def test_every_replica_reads_it_also_after_a_restart(cluster: Cluster) -> None:
    """Registered at one replica, called by another; a third, started later, reads it before it plans."""
    first, second = await cluster.replica(), await cluster.replica()
    async with Plugin() as plugin:
        await first.register(plugin)
        async with asyncio.timeout(5):
            while "mine" not in await second.names():  # noqa: ASYNC110 - no signal exists
                await asyncio.sleep(0.01)
        third = await cluster.replica()
        assert "mine" in await third.names()
        question = request(analysis(the_policy=policy(planner={"name": "mine"})))
        assert (await third.planners.ask(question, "mine", 5.0)).code == "more"
        await second.http.delete("/v1/planners/mine")
        async with asyncio.timeout(5):
            while "mine" in await first.names():  # noqa: ASYNC110 - no signal exists
                await asyncio.sleep(0.01)
        held = await first.planners.ask(question, "mine", 5.0)
        assert held.code == "planner-invalid"
        assert "there is no planner 'mine'" in held.sentence


async def test_a_planner_is_tried_again_despite_an_open_circuit(cluster: Cluster) -> None:
    """The result leaves the circuit unchanged; a built-in planner cannot be tried."""
    replica = await cluster.replica()
    async with Plugin() as plugin:
        await replica.register(plugin)
        plugin.respond = lambda _: json_answer({}, 503)
        for _ in range(FAILURES_TO_OPEN):
            await replica.planners.ask(request(), "mine", 5.0)
        assert (await replica.http.get("/v1/planners/mine")).json()["breaker"]["state"] == "open"
        ill = (await replica.http.post("/v1/planners/mine/check")).json()
        plugin.respond = good
        well = (await replica.http.post("/v1/planners/mine/check")).json()
    assert ill == {"ok": False, "sentence": "answered 503"}
    assert well == {"ok": True, "sentence": "scale (more): one more each"}
    assert (await replica.http.post("/v1/planners/rate/check")).status_code == 422
    assert (await replica.http.post("/v1/planners/magic/check")).status_code == 404


async def test_choices_of_a_policy_are_judged(cluster: Cluster) -> None:
    """For built-in and registered planners: the field and the permitted values."""
    replica = await cluster.replica()
    async with Plugin() as plugin:
        await replica.register(plugin)
    choices = [
        {"name": "rate", "parameters": {"drain_seconds": 90}},
        {"name": "mine", "parameters": {"target": 0.5}},
        {"name": "magic"},
        {"name": "rate", "parameters": {"drain_seconds": "soon"}},
        {"field": "spec.planner.fallback", "name": "mine", "parameters": {"target": 5}},
        {"field": "spec.shadows.0", "name": "mine", "parameters": {"speed": 1}},
    ]
    answer = await replica.http.post("/v1/planners/validate", json={"choices": choices})
    assert answer.status_code == 200
    result = {problem["field"]: problem["message"] for problem in answer.json()["problems"]}
    assert list(result) == [
        "spec.planner.name",
        "spec.planner.parameters.drain_seconds",
        "spec.planner.fallback.parameters.target",
        "spec.shadows.0.parameters.speed",
    ]
    assert "there is no planner 'magic'; there are:" in result["spec.planner.name"]
    assert "mine" in result["spec.planner.name"]
    assert "it has: target" in result["spec.shadows.0.parameters.speed"]


async def test_a_read_only_caller_cannot_register(cluster: Cluster) -> None:
    """Reading is permitted; a check makes requests, so it is not."""
    replica = await cluster.replica()
    replica.app.state.tokens = Tokens({"reading-is-allowed": Caller("ada", frozenset({"read"}))})
    headers = {"Authorization": "Bearer reading-is-allowed"}
    body = {"name": "mine", "url": "http://127.0.0.1:1"}
    for method, path, status in (
        ("GET", "/v1/planners", 200),
        ("POST", "/v1/planners", 403),
        ("POST", "/v1/planners/mine/check", 403),
        ("DELETE", "/v1/planners/mine", 403),
    ):
        assert (await replica.http.request(method, path, headers=headers, json=body)).status_code == status
        assert (await replica.http.request(method, path, json=body)).status_code == 401


async def test_a_record_under_another_key_registers_nothing(cluster: Cluster) -> None:
    """A record's key must be its name; a malformed record changes nothing."""
    replica = await cluster.replica()
    async with Plugin() as plugin:
        made = plugin.registered("mine")
    await cluster.bus.publish(PLANNERS.name, "theirs", made.model_dump_json().encode())
    await cluster.bus.publish(PLANNERS.name, "mine", b"nonsense")
    await cluster.bus.publish(PLANNERS.name, "late", plugin.registered("late").model_dump_json().encode())
    async with asyncio.timeout(5):
        while "late" not in await replica.names():  # noqa: ASYNC110 - no signal exists
            await asyncio.sleep(0.01)
    assert not {"mine", "theirs"} & await replica.names()


async def test_a_registration_that_the_brokers_refuse_is_not_to_be_tried_again(cluster: Cluster) -> None:
    """It is larger than its topic allows: 422; 503 asks the user to repeat it."""
    replica = await cluster.replica()
    cluster.bus.refuses = lambda record: record.topic == PLANNERS.name
    async with Plugin() as plugin:
        problem = await replica.register(plugin, status=422)
    assert problem["detail"] == "the registration cannot be stored: message size too large"


async def test_no_registration_or_validation_before_the_topic_is_read() -> None:
    """503 instead of a response that may be wrong."""
    clock = FakeClock(NOON)
    remote = Remote(PlannerClient(LOOPBACK), clock)
    planners = Planners(InProcess(), Registrations(MemoryBus(partitions=4, clock=clock), clock), remote)
    app = application("Weir planner", "Planners.")
    app.include_router(planner_router(planners, clock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as http:
        assert (await http.post("/v1/planners/validate", json={"choices": []})).status_code == 503
        body = {"name": "mine", "url": "http://127.0.0.1:1"}
        assert (await http.post("/v1/planners", json=body)).status_code == 503
    await remote.client.close()


@pytest.mark.parametrize(
    "has_tenth",
    [pytest.param(True, id="the tenth replies"), pytest.param(False, id="none replies", marks=pytest.mark.thorough)],
)
async def test_candidates_that_never_reply_cost_only_their_own_proposals(cluster: Cluster, *, has_tenth: bool) -> None:
    """Nine of ten take the request and keep silent: the plan is made at their deadline, and each is named. The tenth, which
    replies once all others were asked, proposes six subtasks, one less than the own planner; if it is silent, too, the own
    plan is made."""
    all_asked, names = asyncio.Event(), [f"silent-{i}" for i in range(9)]

    async def silent(_received: Received) -> bytes:
        if len(mute.received) == len(names):
            all_asked.set()
        await asyncio.Event().wait()
        return b""

    async def six(_received: Received) -> bytes:
        await all_asked.wait()
        return answer(scale({SOURCE: 1, WORK: 6}).model_dump_json())

    replica = await cluster.replica()
    async with Plugin(silent) as mute, Plugin(six if has_tenth else silent) as tenth:
        for name, plugin in [("tenth", tenth), *((name, mute) for name in names)]:
            await replica.registrations.register(
                NewPlanner(name=name, url=plugin.url), plugin.registered().description, "ada"
            )
        candidates = [{"name": name} for name in ["tenth", *names]]
        chosen = policy(planner={"name": "rate", "timeout": "3s"}, candidates=candidates)
        question = request(analysis(arrivals=2400, the_policy=chosen)).model_dump_json()
        reply = await asyncio.wait_for(replica.http.post("/v1/plan", content=question, headers=JSON), 60)
    plan = Plan.model_validate_json(reply.content)
    listed = {each.label: each for each in plan.contenders}
    assert plan.planner == ("tenth" if has_tenth else "rate")
    assert (plan.proposed or {})[WORK] == (6 if has_tenth else 7)
    for name in names if has_tenth else [*names, "tenth"]:
        assert listed[name].code == "planner-timeout"
        assert listed[name].lost_because == f"planner {name} did not reply within 3 s"
