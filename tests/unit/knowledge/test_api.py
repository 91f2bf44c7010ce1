"""The HTTP API on a store in memory: what users and the executor may rely on."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from structlog.testing import capture_logs

from tests.unit.knowledge.builders import APP, NOON, action, analysis, document, observation, outcome, plan
from tests.unit.knowledge.direct_log import DirectLog, add_routes, changes_of, complete, show_messages
from tests.unit.knowledge.memory_store import MemoryStore
from weir_contracts import Deployment, PolicySpec
from weir_knowledge.__main__ import api
from weir_knowledge.core import HistoryLimits
from weir_knowledge.decisions import BECAUSE
from weir_knowledge.policy_changes import PlannerAway, PlannerCatalogue, named
from weir_knowledge.store import FeedEvent, StoreUnavailable
from weir_runtime.access import Caller, Tokens
from weir_runtime.clock import FakeClock

NOON_MS = int(NOON.timestamp() * 1000)
POLICY = f"/v1/policies/{APP}"
ACTION = f"/v1/applications/{APP}/action"
READ_TOKEN, WRITE_TOKEN, EXECUTOR_TOKEN = "reading-is-allowed", "writing-is-allowed", "acting-is-allowed"
YAML = """
apiVersion: weir.dev/v1alpha1
kind: ScalingPolicy
metadata: {namespace: shop, name: orders}
spec:
  application: {flink: {url: http://127.0.0.1:8081, job: orders}}
  objective: {maxLag: 30s}
  mode: act
"""


class Catalogue(PlannerCatalogue):
    """A planner service that knows one planner, or is away, or is not set."""

    def __init__(self) -> None:
        super().__init__("http://planner")
        self.away = False
        self.disconnected = 0

    def leave_out(self) -> None:
        self._url = None

    async def problems(self, spec: PolicySpec) -> list[tuple[str, str]]:
        self.disconnected += 1
        if self.away:
            raise PlannerAway("it does not answer")
        return [
            (f"{each['field']}.name", f"there is no planner {each['name']!r}; there are: rate")
            for each in named(spec)
            if self.asks and each["name"] != "rate"
        ]


class House:
    """The API with everything behind it. Its routes are made once for all tests; `empty` gives each a new start."""

    def __init__(self) -> None:
        self.clock, self.store, self.catalogue = FakeClock(NOON), MemoryStore(), Catalogue()
        changes = changes_of(self.store, self.clock, self.catalogue)
        assert isinstance(changes.log, DirectLog)
        self.log = changes.log
        self.app: FastAPI = api()
        add_routes(self.app, changes)

    def empty(self) -> None:
        """As on the first day."""
        for part, fresh in (
            (self.clock, FakeClock(NOON)),
            (self.store, complete(MemoryStore())),
            (self.catalogue, Catalogue()),
        ):
            vars(part).update(vars(fresh))
        self.app.state.tokens = Tokens({})
        self.log.accepted.clear()
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://knowledge")

    @property
    def changes(self) -> int:
        """How many changes were accepted."""
        return len(self.log.accepted)

    async def apply(self, status: int = 201, **spec: Any) -> dict[str, Any]:
        answer = await self.http.put(POLICY, json=document(**spec))
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    async def store_events(self, *events: Any) -> None:
        """Store events as if the loop had published them."""
        await show_messages(self.store, *events)


@pytest.fixture(scope="module")
def built() -> House:
    return House()


@pytest.fixture
async def house(built: House) -> AsyncIterator[House]:
    built.empty()
    yield built
    await built.http.aclose()


def fields(answer: httpx.Response) -> list[str]:
    """The fields a problem document names."""
    assert answer.headers["content-type"] == "application/problem+json"
    return [error["field"] for error in answer.json()["errors"]]


async def test_a_document_that_is_stored_makes_no_new_version(house: House) -> None:
    """Unchanged: same version. What a dry run would store is shown, and not stored."""
    tried = await house.http.put(POLICY, json=document(), params={"dry_run": True})
    assert (tried.status_code, tried.headers["x-weir-result"], house.changes) == (200, "created", 0)
    assert (await house.http.get(POLICY)).status_code == 404
    created = await house.http.put(POLICY, json=document())
    assert (created.headers["x-weir-result"], house.changes) == ("created", 1)
    house.clock.advance(60)
    for body in (document(), created.json()):
        same = await house.http.put(POLICY, json=body)
        assert (same.headers["x-weir-result"], same.headers["etag"]) == ("unchanged", created.headers["etag"])
    tried = await house.http.put(POLICY, json=document(mode="act"), params={"dry_run": True})
    assert (tried.headers["x-weir-result"], tried.json()["spec"]["mode"]) == ("replaced", "act")
    assert (await house.http.get(POLICY)).json() == created.json()
    assert house.changes == 1
    stale = await house.http.put(POLICY, json=document(), headers={"If-Match": '"1"'})
    assert stale.status_code == 409


async def test_a_policy_is_created_then_replaced(house: House) -> None:
    """201 and 200, a version each, with who changed it and when; it comes back as it was written."""
    created = await house.http.put(POLICY, json=document())
    assert (created.status_code, created.headers["etag"]) == (201, f'"{NOON_MS}"')
    house.clock.advance(60)
    replaced = await house.http.put(POLICY, json=document(mode="act"))
    assert (replaced.status_code, replaced.headers["etag"]) == (200, f'"{NOON_MS + 60_000}"')
    shown = (await house.http.get(POLICY)).json()
    assert shown == replaced.json()
    assert shown["spec"] == document(mode="act")["spec"]
    assert shown["metadata"] == {
        "namespace": "shop",
        "name": "orders",
        "version": NOON_MS + 60_000,
        "updatedAt": "2026-01-01T12:01:00Z",
        "updatedBy": "local",
    }
    assert house.changes == 2


async def test_only_what_was_read_is_replaced(house: House) -> None:
    """By the version in the document, or `If-Match`; 409 names the stored version, and nothing changes."""
    shown = await house.apply()
    await house.apply(200, mode="act")
    stale = await house.http.put(POLICY, json=shown)
    assert stale.status_code == 409
    read, current = shown["metadata"]["version"], stale.json()["currentVersion"]
    assert current == read + 1
    assert (await house.http.put(POLICY, json=document(), headers={"If-Match": f'"{read}"'})).status_code == 409
    assert (await house.http.put(POLICY, json=document(), headers={"If-Match": f'"{current}"'})).status_code == 200
    assert house.changes == 3


async def test_a_list_may_be_shared_by_those_that_accept_its_age(house: House) -> None:
    """Open pages cost the store one reading; who names no age is answered with what is stored now, and each sees what it
    may."""

    async def modes(**headers: str) -> tuple[list[tuple[str, str]], str]:
        answer = await house.http.get("/v1/applications", headers=headers)
        return [(each["application"], each["mode"]) for each in answer.json()["items"]], answer.headers["age"]

    await house.apply()
    house.clock.advance(1_000)  # what another test has read is too old
    shared = {"Cache-Control": "max-age=2"}
    assert await modes(**shared) == ([(APP, "advise")], "0")
    await house.apply(200, mode="act")
    house.clock.advance(2)
    assert await modes(**shared) == ([(APP, "advise")], "2")
    assert await modes() == ([(APP, "act")], "0")
    house.clock.advance(1)
    assert await modes(**shared) == ([(APP, "act")], "0")
    house.app.state.tokens = Tokens({READ_TOKEN: Caller("eve", frozenset({"read"}), frozenset({"other"}))})
    assert await modes(**shared, Authorization=f"Bearer {READ_TOKEN}") == ([], "0")


async def test_pages_of_a_shared_list_follow_one_another(house: House) -> None:
    """In the order of the names, as without sharing."""
    house.clock.advance(2_000)  # what another test has read is too old
    for name in ("shop/c", "shop/a", "shop/b"):
        await house.http.put(f"/v1/policies/{name}", json=document(name))
    for headers in ({"Cache-Control": "max-age=5"}, {}):
        found, after = [], ""
        while after is not None:
            answer = (
                await house.http.get("/v1/applications", params={"limit": 2, "after": after}, headers=headers)
            ).json()
            found, after = [*found, [each["application"] for each in answer["items"]]], answer["next"]
        assert found == [["shop/a", "shop/b"], ["shop/c"]]
    listed = (await house.http.get("/v1/policies", params={"limit": 2})).json()
    assert ([each["metadata"]["name"] for each in listed["items"]], listed["next"]) == (["a", "b"], "shop/b")


def _job(url: str = "http://jobmanager:8081", job: str = "orders") -> dict[str, Any]:
    """A spec's parts for a job that Flink scales."""
    return {"application": {"flink": {"url": url, "job": job}}}


def _pods(job: str = "orders", workload: str = "taskmanager") -> dict[str, Any]:
    """A spec's parts for a job that a workload's pods scale."""
    return {**_job(job=job), "target": {"kubernetes": {"kind": "Deployment", "name": workload}}}


FIRST, PODS = _job(), _pods()
JOB_ID = "a" * 32
SAME = {
    "as it is": (FIRST, FIRST),
    "another form of the address": (FIRST, _job("http://JobManager.:8081/")),
    "another scheme": (FIRST, _job("https://jobmanager:8081")),
    "names of loopback": (
        _job("http://localhost:8081"),
        _job("http://127.0.0.1:8081"),
    ),
    "the scheme's own port": (
        _job("http://flink/proxy/"),
        _job("http://flink:80/proxy"),
    ),
    "the job of another driver": (PODS, FIRST),
    "the workload of another job": (PODS, _pods(job="other")),
}
OTHERS = {
    "another job": (FIRST, _job("http://jobmanager:8081", "Orders")),
    "another port": (FIRST, _job("http://jobmanager:8082")),
    "another path": (FIRST, _job("http://jobmanager:8081/b")),
    "another workload": (PODS, _pods(job="other", workload="other")),
}
SECOND = "shop/second"


async def put_second(house: House, spec: dict[str, Any]) -> httpx.Response:
    return await house.http.put(f"/v1/policies/{SECOND}", json=document(SECOND, **spec))


@pytest.mark.parametrize("name", SAME)
async def test_a_second_policy_for_a_target_is_refused(house: House, name: str) -> None:
    """409 that names the first, nothing stored or published; accepted once the first is deleted."""
    first, second = SAME[name]
    await house.apply(**first)
    refused = await put_second(house, second)
    assert refused.status_code == 409
    assert APP in refused.json()["detail"]
    assert refused.json()["application"] == APP
    assert fields(refused) == ["spec.target"]
    assert len(refused.json()["detail"]) <= 160
    assert (await house.http.get(f"/v1/policies/{SECOND}")).status_code == 404
    assert house.changes == 1
    await house.apply(200, **first, mode="act")
    assert (await house.http.delete(POLICY)).status_code == 204
    assert (await put_second(house, second)).status_code == 201


@pytest.mark.parametrize("name", OTHERS)
async def test_another_target_is_free(house: House, name: str) -> None:
    """Similar targets are not the same."""
    first, second = OTHERS[name]
    await house.apply(**first)
    assert (await put_second(house, second)).status_code == 201


@pytest.mark.parametrize("first_is_named", [True, False])
async def test_a_job_by_its_id_is_the_one_by_its_name(house: House, first_is_named: bool) -> None:
    """As the first was last seen to run; another job of that cluster may be named."""
    names = ("orders", JOB_ID) if first_is_named else (JOB_ID, "orders")
    jobs = [_job(job=name) for name in names]
    await house.apply(**jobs[0])
    running = Deployment(job_id=JOB_ID, job_name="orders", graph_hash="0", state="RUNNING", observed={"map": 1})
    await house.store_events(observation(1, deployment=running))
    refused = await put_second(house, jobs[1])
    assert refused.status_code == 409
    assert refused.json()["application"] == APP
    free = "b" * 32 if first_is_named else "payments"
    assert (await put_second(house, _job(job=free))).status_code == 201


async def test_only_what_is_new_is_created(house: House) -> None:
    """`If-None-Match: *`: the second of two writers that create the same gets a conflict."""
    headers = {"If-None-Match": "*"}
    assert (await house.http.put(POLICY, json=document(), headers=headers)).status_code == 201
    assert (await house.http.put(POLICY, json=document(), headers=headers)).status_code == 409


@pytest.mark.parametrize("given", [b"seven", b"-1", b"1.5", "²".encode("latin-1"), b"9" * 5000])
async def test_a_version_that_is_none_is_refused(house: House, given: bytes) -> None:
    """400 that names the header, whatever stands in it."""
    answer = await house.http.put(POLICY, json=document(), headers={b"If-Match": given})
    assert answer.status_code == 400
    assert fields(answer) == ["header.If-Match"]


async def test_every_wrong_field_is_named(house: House) -> None:
    """All of them at once, as their user wrote them; nothing is stored."""
    wrong = document(interval="quick", bounds={"min": 0}, moad="act")
    answer = await house.http.put(POLICY, json=wrong)
    assert answer.status_code == 422
    assert set(fields(answer)) == {"spec.interval", "spec.bounds.min", "spec.moad"}
    assert await house.log.view.policies() == []


async def test_a_policy_may_be_yaml(house: House) -> None:
    """The file for `weir apply -f` is the body as it is."""
    answer = await house.http.put(POLICY, content=YAML, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["mode"] == "act"


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.application.flink.url", {"application": {"flink": {"url": "http://169.254.169.254/", "job": "orders"}}}),
        (
            "spec.application.flink.url",
            {"application": {"flink": {"url": "http://[::ffff:a9fe:a9fe]:80", "job": "orders"}}},
        ),
        ("spec.application.flink.url", {"application": {"flink": {"url": "http://[fe80::1]", "job": "orders"}}}),
        (
            "spec.signals.kafka.bootstrapServers",
            {"signals": {"kafka": {"bootstrapServers": "kafka:9092,[fd00:ec2::254]:80"}}},
        ),
    ],
)
async def test_addresses_of_metadata_services_are_refused(house: House, field: str, spec: dict[str, Any]) -> None:
    """With the field and the setting, and nothing is stored; names are checked where they are connected to."""
    answer = await house.http.put(POLICY, json=document(**spec))
    assert answer.status_code == 422
    assert fields(answer) == [field]
    assert "WEIR_TARGET_NETWORKS does not allow" in answer.json()["detail"]
    assert (await house.http.get(POLICY)).status_code == 404


async def test_a_policy_claims_no_workload_of_another_namespace(house: House) -> None:
    """It is refused with the setting's name, so that the other namespace's own policy is no second one."""
    target = {"kubernetes": {"kind": "Deployment", "name": "orders", "namespace": "team-b"}}
    answer = await house.http.put(POLICY, json=document(target=target))
    assert (answer.status_code, fields(answer)) == (422, ["spec.target.kubernetes.namespace"])
    assert "WEIR_TARGET_NAMESPACES does not list shop:team-b" in answer.json()["detail"]
    own = {"kubernetes": {"kind": "Deployment", "name": "orders"}}
    assert (
        await house.http.put("/v1/policies/team-b/orders", json=document("team-b/orders", target=own))
    ).status_code == 201


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("{", "json"),
        ("a: [", "yaml"),
        ("a: &a [1]\nb: *a", "yaml"),
        ("!!python/object/apply:os.getcwd []", "yaml"),
        ("", "json"),
        ("[" * 100_000, "json"),
        (b"\xff\xfe", "yaml"),
    ],
    ids=["json", "yaml", "alias", "tag", "empty", "deep", "binary"],
)
async def test_an_unreadable_body_gives_the_reason(house: House, body: str | bytes, kind: str) -> None:
    """422, never a fault of the service; aliases, which could stand for terabytes, are not followed."""
    answer = await house.http.put(POLICY, content=body, headers={"Content-Type": f"application/{kind}"})
    assert answer.status_code == 422
    assert fields(answer) == ["body"]


@pytest.mark.parametrize("body", ["[]", "null", '"policy"', "{}"])
async def test_a_document_of_another_kind_is_refused(house: House, body: str) -> None:
    """It can be read, and is not a policy."""
    assert (await house.http.put(POLICY, content=body)).status_code == 422


async def test_document_and_address_name_the_same(house: House) -> None:
    """A copied file is not stored under a name that it does not carry."""
    answer = await house.http.put("/v1/policies/shop/payments", json=document())
    assert answer.status_code == 422
    assert fields(answer) == ["metadata"]


async def test_an_unknown_planner_is_refused_when_it_is_written(house: House) -> None:
    """The chosen one, a fallback or a shadow: with its field. Where no planner service is set, a warning says so."""
    for spec, field in (
        ({"planner": {"name": "oracle"}}, "spec.planner.name"),
        ({"planner": {"name": "rate", "fallback": {"name": "oracle"}}}, "spec.planner.fallback.name"),
        ({"shadows": [{"name": "oracle"}]}, "spec.shadows.0.name"),
    ):
        answer = await house.http.put(POLICY, json=document(**spec))
        assert answer.status_code == 422
        assert fields(answer) == [field]
    house.catalogue.leave_out()
    answer = await house.http.put(POLICY, json=document(planner={"name": "oracle"}))
    assert answer.status_code == 201
    assert "not checked" in answer.headers["x-weir-warning"]


async def test_while_the_planner_service_is_away_all_else_can_be_changed(house: House) -> None:
    """It checks only planners that changed; while it is unreachable the error names it and nothing is stored."""
    chosen = {"name": "rate", "parameters": {"drain_seconds": 60}}
    await house.apply(planner=chosen)
    assert house.catalogue.disconnected == 1
    house.catalogue.away = True
    await house.apply(200, planner=chosen, mode="act")
    assert (await house.http.post(f"{POLICY}/pause")).status_code == 200
    answer = await house.http.put("/v1/policies/shop/other", json=document("shop/other"))
    assert answer.status_code == 201  # it names no planner
    assert house.catalogue.disconnected == 1
    answer = await house.http.put(POLICY, json=document(planner={**chosen, "parameters": {"drain_seconds": 90}}))
    assert answer.status_code == 503
    assert "planner service cannot check them" in answer.json()["detail"]
    kept = (await house.http.get(POLICY)).json()
    assert kept["spec"]["planner"]["parameters"] == {"drain_seconds": 60}


async def test_history_grows_old_without_a_new_plan(house: House) -> None:
    """Plans stopped: what is older than the setting is not shown any more; all that are kept can be requested."""
    await house.store_events(plan(1), plan(2))
    history = f"/v1/applications/{APP}/history"
    day = HistoryLimits().history_age_seconds
    house.clock.advance(day - 10)
    assert len((await house.http.get(history, params={"limit": 10_000})).json()["items"]) == 2
    house.clock.advance(10 + 8)  # the first plan was made 6 s after noon, the second 11 s
    assert len((await house.http.get(history)).json()["items"]) == 1
    house.clock.advance(10)
    assert (await house.http.get(history)).json() == {"items": []}
    assert (await house.http.get(history, params={"limit": 10_001})).status_code == 422


async def test_policies_are_listed_in_pages(house: House) -> None:
    """Sorted; `next` is where to go on, null at the end."""
    for name in ("c", "a", "b"):
        await house.http.put(f"/v1/policies/shop/{name}", json=document(f"shop/{name}"))
    first = (await house.http.get("/v1/policies", params={"limit": 2})).json()
    assert [p["metadata"]["name"] for p in first["items"]] == ["a", "b"]
    rest = (await house.http.get("/v1/policies", params={"limit": 2, "after": first["next"]})).json()
    assert ([p["metadata"]["name"] for p in rest["items"]], rest["next"]) == (["c"], None)
    assert (await house.http.get("/v1/policies", params={"limit": 0})).status_code == 422


async def test_a_pause_is_ended_in_the_mode_before_it(house: House) -> None:
    """Paused twice is paused once; resumed, it acts again as it did."""
    first = (await house.apply(mode="act"))["metadata"]["version"]
    for _ in range(2):
        paused = await house.http.post(f"{POLICY}/pause")
        assert (paused.status_code, paused.json()["spec"]["mode"]) == (200, "paused")
    assert paused.json()["metadata"]["version"] == first + 1
    for _ in range(2):
        resumed = await house.http.post(f"{POLICY}/resume")
        assert (resumed.status_code, resumed.json()["spec"]["mode"]) == (200, "act")
    assert resumed.json()["metadata"]["version"] == first + 2


async def test_the_reason_of_a_pause_stays_until_the_next_change(house: House) -> None:
    """On one line, within its limit; resuming without one removes it, and the rest of the metadata is as before."""
    before = await house.apply(mode="act")
    paused = await house.http.post(f"{POLICY}/pause", params={"reason": "migration\nuntil 15:00"})
    assert paused.json()["metadata"]["annotations"] == {BECAUSE: "migration\\nuntil 15:00"}
    for reason, shown in (("incident", "incident"), (None, "incident")):
        paused = await house.http.post(f"{POLICY}/pause", params={"reason": reason} if reason else {})
        assert paused.json()["metadata"]["annotations"] == {BECAUSE: shown}
    resumed = (await house.http.post(f"{POLICY}/resume")).json()
    assert resumed["metadata"].keys() == before["metadata"].keys()
    for wrong in ("", "x" * 201):
        answer = await house.http.post(f"{POLICY}/pause", params={"reason": wrong})
        assert (answer.status_code, fields(answer)) == (422, ["query.reason"])
    longest = await house.http.post(f"{POLICY}/pause", params={"reason": "\n" * 200})
    assert len(longest.json()["metadata"]["annotations"][BECAUSE]) == 200


async def test_an_annotated_document_is_paused_here_as_well(house: House) -> None:
    """The same file as for kubectl: stored as paused, resumed as it was written, and paused again by the same file."""
    for text, reason in (("true", "annotation weir.dev/paused"), ("migration", "migration")):
        written = document("shop/orders", mode="act")
        written["metadata"]["annotations"] = {"weir.dev/paused": text}
        stored = (await house.http.put(POLICY, json=written)).json()
        assert (stored["spec"]["mode"], stored["metadata"]["annotations"][BECAUSE]) == ("paused", reason)
        again = await house.http.put(POLICY, json=written)
        assert (again.headers["X-Weir-Result"], again.json()) == ("unchanged", stored)
        resumed = (await house.http.post(f"{POLICY}/resume")).json()
        assert (resumed["spec"]["mode"], resumed["metadata"].get("annotations")) == ("act", None)
    written["metadata"]["annotations"] = {"weir.dev/paused": "false"}
    assert (await house.http.put(POLICY, json=written)).json()["spec"]["mode"] == "act"


@pytest.mark.parametrize("address", ["Shop/orders", "shop/%F2%91%B7%BA", "shop/-", f"shop/{'a' * 64}", "shop/missing"])
async def test_a_policy_that_cannot_be_is_not_found(house: House, address: str) -> None:
    """Pausing, resuming and deleting by an address that no policy has, or can have, is answered with 404."""
    for method, path in (("POST", f"{address}/pause"), ("POST", f"{address}/resume"), ("DELETE", address)):
        answer = await house.http.request(method, f"/v1/policies/{path}")
        assert (answer.status_code, answer.json()["detail"][:18]) == (404, "there is no policy"), method


async def test_an_exported_pause_is_the_same_pause(house: House) -> None:
    """Applied again, a paused policy is unchanged and resumes in the mode before the pause; changed to advise, it has no
    pause to end."""
    before = await house.apply(mode="act")
    await house.http.post(f"{POLICY}/pause")
    exported = (await house.http.get(POLICY)).json()
    assert exported["metadata"]["modeBeforePause"] == "act"
    applied = await house.http.put(POLICY, json=exported)
    assert (applied.status_code, applied.headers["x-weir-result"]) == (200, "unchanged")
    resumed = (await house.http.post(f"{POLICY}/resume")).json()
    assert resumed["spec"]["mode"] == "act"
    assert resumed["metadata"].keys() == before["metadata"].keys()
    exported["metadata"].pop("version")
    written = await house.http.put(POLICY, json={**exported, "spec": {**exported["spec"], "mode": "advise"}})
    assert "modeBeforePause" not in written.json()["metadata"]


async def test_what_was_written_paused_advises_when_resumed(house: House) -> None:
    """Also where an earlier pause, of this policy or of a deleted one with its name, began in `act`: acting is asked
    for."""
    await house.apply(mode="act")
    await house.http.post(f"{POLICY}/pause")
    await house.apply(200, mode="paused")
    assert (await house.http.post(f"{POLICY}/resume")).json()["spec"]["mode"] == "advise"


async def test_a_deleted_policy_is_not_found(house: House) -> None:
    """204, then 404 everywhere; a stale deletion is refused."""
    version = (await house.apply())["metadata"]["version"]
    assert (await house.http.delete(POLICY, headers={"If-Match": '"7"'})).status_code == 409
    assert (await house.http.delete(POLICY, headers={"If-Match": f'"{version}"'})).status_code == 204
    for call in (
        house.http.get(POLICY),
        house.http.delete(POLICY),
        house.http.post(f"{POLICY}/pause"),
        house.http.post(f"{POLICY}/resume"),
        house.http.get(f"/v1/applications/{APP}"),
    ):
        assert (await call).status_code == 404
    assert [each.kind for each in house.log.accepted] == ["put", "delete"]


async def test_a_version_never_comes_twice(house: House) -> None:
    """Deleted and created again within a millisecond: what was planned for the first, or read of it, does not fit the
    second."""
    first = await house.apply()
    assert (await house.http.delete(POLICY)).status_code == 204
    second = await house.apply()
    assert second["metadata"]["version"] > first["metadata"]["version"]
    assert (await house.http.put(POLICY, json=first)).status_code == 409


async def test_an_application_is_known_from_its_policy_on(house: House) -> None:
    """No message about it yet: all is unknown, and missing parts are a 404 with a sentence."""
    await house.apply(mode="act")
    (listed,) = (await house.http.get("/v1/applications")).json()["items"]
    assert listed == (await house.http.get(f"/v1/applications/{APP}")).json()
    assert (listed["application"], listed["mode"], listed["objective_seconds"]) == (APP, "act", 30.0)
    assert listed["lag_seconds"] is None
    for noun in ("observation", "analysis", "plan", "outcome", "action"):
        answer = await house.http.get(f"/v1/applications/{APP}/{noun}")
        assert answer.status_code == 404 and noun in answer.json()["detail"]


async def test_a_decision_is_explained(house: House) -> None:
    """Reading, analysis, plan and outcomes of one correlation id; the newest first, as many as requested."""
    await house.apply()
    scale = plan(2, 4)
    await house.store_events(observation(1), analysis(1), plan(1), observation(2), analysis(2), scale)
    await house.store_events(outcome(scale, "intended"))
    items = (await house.http.get(f"/v1/applications/{APP}/explain")).json()["items"]
    assert [item["plan"]["kind"] for item in items] == ["scale", "hold"]
    assert items[0]["correlation_id"] == str(observation(2).id)
    assert items[0]["reading"]["status"] == "running"
    assert items[0]["analysis"]["arrival_rate"]["value"] == 200.0
    assert [o["phase"] for o in items[0]["outcomes"]] == ["intended"]
    one = (await house.http.get(f"/v1/applications/{APP}/explain", params={"limit": 1})).json()["items"]
    assert one == items[:1]
    history = (await house.http.get(f"/v1/applications/{APP}/history")).json()["items"]
    assert [line["outcome"] for line in history] == ["intended", None]
    assert (await house.http.get(f"/v1/applications/{APP}/plan")).json()["id"] == str(scale.id)


async def test_an_action_is_replaced_by_a_reader_of_its_version(house: House) -> None:
    """Compare-and-swap by `If-Match`: without it 428; the loser gets the action that is there, to know its own attempt
    by."""
    first, second = (action(plan(1, 4), version=n).model_dump(mode="json") for n in (1, 2))
    assert (await house.http.put(ACTION, json=first)).status_code == 428
    assert (await house.http.put(ACTION, json=first, headers={"If-Match": "0"})).status_code == 404
    await house.apply()
    stored = await house.http.put(ACTION, json=first, headers={"If-Match": "0"})
    assert (stored.status_code, stored.headers["etag"]) == (200, '"1"')
    lost = await house.http.put(ACTION, json=first, headers={"If-Match": "0"})
    assert lost.status_code == 409
    assert lost.json()["current"] == first
    assert (await house.http.put(ACTION, json=second, headers={"If-Match": '"1"'})).status_code == 200
    read = await house.http.get(ACTION)
    assert (read.json(), read.headers["etag"]) == (second, '"2"')


async def test_an_action_of_another_application_is_refused(house: House) -> None:
    """It is stored under its own name or not at all; a field that is wrong is named."""
    given = action(plan(1, 4)).model_dump(mode="json")
    answer = await house.http.put("/v1/applications/shop/payments/action", json=given, headers={"If-Match": "0"})
    assert (answer.status_code, fields(answer)) == (422, ["body.application"])
    answer = await house.http.put(ACTION, json={**given, "phase": "done"}, headers={"If-Match": "0"})
    assert (answer.status_code, fields(answer)) == (422, ["body.phase"])


async def test_a_store_that_is_away_is_503(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 as a problem document: come again."""

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("redis: no connection")

    monkeypatch.setattr(house.store, "get", away)
    answer = await house.http.get(POLICY)
    assert (answer.status_code, answer.json()["detail"]) == (503, "redis: no connection")


async def test_an_emptied_store_denies_no_policy(house: House) -> None:
    """Answer 503 with the reason until policies were read from the log: a 404 would be wrong."""
    house.store.empty()
    for answer in (
        await house.http.get(POLICY),
        await house.http.get("/v1/policies"),
        await house.http.put(POLICY, json=document()),
    ):
        assert (answer.status_code, "try again in some seconds" in answer.json()["detail"]) == (503, True)
    complete(house.store)
    assert (await house.http.get(POLICY)).status_code == 404
    await house.apply()


async def test_a_policy_that_is_too_large_is_refused(house: House) -> None:
    """It goes with each message about its application: 6.6 MB of parameters were 249 MB a minute on the brokers."""
    large = document(planner={"name": "rate", "parameters": {"note": "x" * 70_000}})
    answer = await house.http.put(POLICY, json=large)
    assert answer.status_code == 422
    assert "more than 65,536" in answer.json()["detail"]
    assert (await house.http.get(POLICY)).status_code == 404


async def test_tokens_have_roles(house: House) -> None:
    """401 without a valid one, 403 for a change with a read-only one; the author of a change is recorded."""
    house.app.state.tokens = Tokens(
        {READ_TOKEN: Caller("grace", frozenset({"read"})), WRITE_TOKEN: Caller("ada", frozenset({"write"}))}
    )
    reads, writes = ({"Authorization": f"Bearer {token}"} for token in (READ_TOKEN, WRITE_TOKEN))
    for path in ("/v1/policies", POLICY, "/v1/applications", ACTION, "/v1/events"):
        assert (await house.http.get(path)).status_code == 401, path
    assert (await house.http.get(POLICY, headers={"Authorization": "Bearer another-caller-token"})).status_code == 401
    assert (await house.http.put(POLICY, json=document(), headers=reads)).status_code == 403
    created = await house.http.put(POLICY, json=document(), headers=writes)
    assert created.json()["metadata"]["updatedBy"] == "ada"
    assert (await house.http.get(POLICY, headers=reads)).status_code == 200
    given = action(plan(1, 4)).model_dump(mode="json")
    for refused in (
        house.http.delete(POLICY, headers=reads),
        house.http.post(f"{POLICY}/pause", headers=reads),
        house.http.put(ACTION, json=given, headers={**reads, "If-Match": "0"}),
    ):
        assert (await refused).status_code == 403


async def test_executors_record_actions_and_users_change_policies(house: House) -> None:
    """An executor's token changes no policy, so that a stolen one can only lie about actions; and a user's token writes no
    action, which would make an executor resume a rescale that no planner asked for."""
    house.app.state.tokens = Tokens(
        {EXECUTOR_TOKEN: Caller("executor", frozenset({"executor"})), WRITE_TOKEN: Caller("ada", frozenset({"write"}))}
    )
    acts, writes = ({"Authorization": f"Bearer {token}"} for token in (EXECUTOR_TOKEN, WRITE_TOKEN))
    given = action(plan(1, 4)).model_dump(mode="json")
    stored = (await house.http.put(POLICY, json=document(mode="act"), headers=writes)).json()
    for refused, role in (
        (house.http.put(POLICY, json=document(mode="paused"), headers=acts), "write"),
        (house.http.post(f"{POLICY}/pause", headers=acts), "write"),
        (house.http.post(f"{POLICY}/resume", headers=acts), "write"),
        (house.http.delete(POLICY, headers=acts), "write"),
        (house.http.put(ACTION, json=given, headers={**writes, "If-Match": "0"}), "executor"),
    ):
        answer = await refused
        assert answer.status_code == 403
        assert role in answer.json()["detail"]
    assert (await house.http.get(POLICY, headers=writes)).json() == stored
    assert (await house.http.get(ACTION, headers=writes)).status_code == 404
    assert (await house.http.put(ACTION, json=given, headers={**acts, "If-Match": "0"})).status_code == 200


async def test_a_token_of_some_namespaces_sees_no_others(house: House) -> None:
    """Lists and the event feed leave out what the token may not read; a path of another namespace is refused."""
    await house.http.put("/v1/policies/shop/orders", json=document("shop/orders"))
    await house.http.put("/v1/policies/bank/payments", json=document("bank/payments"))
    house.app.state.tokens = Tokens(
        {
            READ_TOKEN: Caller("grace", frozenset({"read"}), frozenset({"shop"})),
            WRITE_TOKEN: Caller("ada", frozenset({"write"}), frozenset({"bank"})),
        }
    )
    shop, bank = ({"Authorization": f"Bearer {token}"} for token in (READ_TOKEN, WRITE_TOKEN))
    for headers, namespace in ((shop, "shop"), (bank, "bank")):
        for path in ("/v1/policies", "/v1/applications"):
            items = (await house.http.get(path, headers=headers)).json()["items"]
            found = {item["metadata"]["namespace"] if path == "/v1/policies" else item["application"] for item in items}
            assert all(each.startswith(namespace) for each in found), found
        assert (await house.http.get("/v1/policies", headers=headers)).json()["items"]
    for refused in (
        house.http.get("/v1/policies/bank/payments", headers=shop),
        house.http.get("/v1/applications/bank/payments/history", headers=shop),
        house.http.get("/v1/applications/bank/payments/events", headers=shop),
        house.http.put("/v1/policies/shop/orders", json=document("shop/orders"), headers=bank),
        house.http.delete("/v1/policies/shop/orders", headers=bank),
        house.http.post("/v1/policies/shop/orders/pause", headers=bank),
    ):
        answer = await refused
        assert answer.status_code == 403
        assert "has no token for the namespace" in answer.json()["detail"]


async def test_every_change_names_its_author(house: House) -> None:
    """Written, paused, resumed and deleted, in the service's log."""
    house.app.state.tokens = Tokens({WRITE_TOKEN: Caller("ada", frozenset({"write"}))})
    headers = {"Authorization": f"Bearer {WRITE_TOKEN}"}
    with capture_logs() as lines:
        await house.http.put(POLICY, json=document(mode="act"), headers=headers)
        await house.http.post(f"{POLICY}/pause", headers=headers)
        await house.http.post(f"{POLICY}/resume", headers=headers)
        await house.http.delete(POLICY, headers=headers)
    changes = [line for line in lines if line["event"].startswith("policy-")]
    assert [(line["event"], line.get("mode"), line["author"]) for line in changes] == [
        ("policy-written", "act", "ada"),
        ("policy-written", "paused", "ada"),
        ("policy-written", "act", "ada"),
        ("policy-deleted", None, "ada"),
    ]
    assert all(line["application"] == APP for line in changes)


async def feed(house: House, path: str, count: int, last_event_id: str | None = None) -> list[dict[str, str]]:
    """The next `count` events of a stream, as a client that then goes away reads them."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": [] if last_event_id is None else [(b"last-event-id", last_event_id.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    text, disconnected, enough = "", False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal disconnected
        if not disconnected:
            disconnected = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"").decode()
        if text.count("\ndata: ") >= count:
            enough.set()

    async with asyncio.timeout(5):
        await house.app(scope, receive, send)
    blocks = [block for block in text.split("\n\n") if "data: " in block]
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


async def test_the_feed_goes_on_after_the_last_event(house: House) -> None:
    """From the oldest kept with `0`, then after any id: each event once, its kind as its name and the message as its
    data."""
    await house.store_events(observation(1), analysis(1), plan(1))
    everything = await feed(house, "/v1/events", 3, "0")
    assert [event["event"] for event in everything] == ["observation", "analysis", "plan"]
    assert json.loads(everything[2]["data"])["id"] == str(plan(1).id)
    assert await feed(house, "/v1/events", 2, everything[0]["id"]) == everything[1:]


async def test_the_feed_without_an_id_begins_now(house: House) -> None:
    """Earlier events are not sent; later ones at once."""
    await house.store_events(observation(1))
    listening = asyncio.create_task(feed(house, "/v1/events", 1))
    later = []
    while not listening.done():  # nothing says that it has begun
        later.append(observation(2 + len(later)))
        await house.store_events(later[-1])
        await asyncio.sleep(0.01)
    (event,) = await listening
    assert json.loads(event["data"])["id"] in [str(each.id) for each in later]


async def test_an_applications_feed_is_its_own(house: House) -> None:
    """Others' events are left out."""
    await house.store.write(events=[("plan", "shop/payments", "{}"), ("plan", APP, '{"mine": 1}')])
    (event,) = await feed(house, f"/v1/applications/{APP}/events", 1, "0")
    assert event["data"] == '{"mine": 1}'


async def test_a_feed_that_does_not_follow_ends_after_the_newest_event(house: House) -> None:
    """The stored events, then an event `end`; without a stored event that alone."""
    answer = await house.http.get("/v1/events?follow=false", headers={"Last-Event-ID": "0"})
    assert answer.text.count("event: ") == answer.text.count("event: end") == 1
    await house.store_events(observation(1), analysis(1), plan(1))
    await house.store.write(events=[("plan", "shop/payments", "{}")])
    for path, kinds in (
        (f"/v1/applications/{APP}/events", ["observation", "analysis", "plan", "end"]),
        ("/v1/events", ["observation", "analysis", "plan", "plan", "end"]),
    ):
        answer = await house.http.get(f"{path}?follow=false", headers={"Last-Event-ID": "0"})
        found = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
        assert (answer.status_code, found) == (200, kinds)


async def test_stored_events_are_read_without_a_header(house: House) -> None:
    """`follow=false` begins with the oldest; `since` and `until` are times or durations before now, both included."""
    for at in (0, 60, 120):
        # The real store gives an event the millisecond as its id.
        house.store._events.append(FeedEvent(f"{NOON_MS + at * 1000}-0", "plan", APP, f'{{"at": {at}}}'))
    house.clock.advance(180)

    async def found(path: str = "/v1/events", **query: str) -> list[int]:
        answer = await house.http.get(path, params={"follow": "false", **query})
        assert answer.status_code == 200, answer.text
        assert answer.text.count("event: end") == 1
        return [json.loads(line[6:])["at"] for line in answer.text.splitlines() if line.startswith('data: {"at"')]

    for path in ("/v1/events", f"/v1/applications/{APP}/events"):
        assert await found(path) == [0, 60, 120]
        assert await found(path, since="2m") == [60, 120]
        assert await found(path, since="2026-01-01T12:00:30Z", until="1m") == [60, 120]
        assert await found(path, until="2026-01-01T13:01:00+01:00") == [0, 60]
        assert await found(path, since="1m", until="30s") == [120]
        # A past end is the feed's, also of one that follows.
        assert await found(path, since="1h", until="2m", follow="true") == [0, 60]
    for query in ({"since": "yesterday"}, {"until": "2026-01-01T12:00:00"}, {"since": "1m", "until": "2m"}):
        answer = await house.http.get("/v1/events", params=query)
        assert (answer.status_code, fields(answer)) == (422, [f"query.{next(iter(query))}"])


async def test_history_has_a_time_range(house: House) -> None:
    """From and until when the cycles were decided; the newest first."""
    for i in range(1, 5):
        await house.store_events(observation(i), analysis(i), plan(i))
    address = f"/v1/applications/{APP}/history"
    times = [each["at"] for each in (await house.http.get(address)).json()["items"]]
    assert len(times) == 4
    inside = (await house.http.get(address, params={"since": times[2], "until": times[1]})).json()["items"]
    assert [each["at"] for each in inside] == times[1:3]
    assert fields(await house.http.get(address, params={"until": "soon"})) == ["query.until"]


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"])
async def test_a_report_of_a_time_that_no_message_has_is_refused(house: House, at: str) -> None:
    """Its six hours before and its hour after would not be in the calendar."""
    await house.store_events(observation(1), analysis(1), plan(1))
    answer = await house.http.get(f"/v1/applications/{APP}/report", params={"at": at})
    assert (answer.status_code, fields(answer)) == (422, ["query.at"])
    assert "must lie between the years 1970 and 3000" in answer.text


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v1/policies?limt=1", "limt: is not a parameter: did you mean limit?"),
        ("/v1/applications?limit=1&limit=2", "limit: is given twice"),
        (
            f"/v1/applications/{APP}/what-if?paralelism=enrich=1",
            "paralelism: is not a parameter: did you mean parallelism?",
        ),
        (f"/v1/applications/{APP}/plan?since=1h", "since: is not a parameter: this route has none"),
        ("/v1/events?folow=false", "folow: is not a parameter: did you mean follow?"),
        ("/v1/events?x=", "x: is not a parameter: this route has follow, since, until"),
    ],
)
async def test_an_unknown_parameter_is_named(house: House, path: str, sentence: str) -> None:
    """Ignored, its answer would be taken for one to what was asked; so would that to a parameter given twice."""
    answer = await house.http.get(path)
    assert (answer.status_code, answer.json()["detail"]) == (422, sentence)
    assert fields(answer)[0].startswith("query.")


@pytest.mark.parametrize("given", [b"yesterday", b"1-", b"1-2-3", "²".encode("latin-1"), b"9" * 40])
async def test_an_unknown_event_id_is_refused(house: House, given: bytes) -> None:
    """400 that names the header, before the stream begins."""
    answer = await house.http.get("/v1/events", headers={b"Last-Event-ID": given})
    assert (answer.status_code, fields(answer)) == (400, ["header.Last-Event-ID"])


@pytest.mark.parametrize(
    ("media_type", "body", "reason"),
    [
        ("application/json", '{"kind": "ScalingPolicy", "kind": "Other"}', "is not JSON: the key 'kind' comes twice"),
        ("application/yaml", "kind: ScalingPolicy\nkind: Other\n", "line 2 is not YAML: the key 'kind' comes twice"),
        ("application/yaml", "yes: 1\ntrue: 2\n", "line 2 is not YAML: the key 'true' comes twice"),
        ("application/yaml", "a: \x00", "is not YAML: unacceptable character #x0000"),
        ("application/yaml", "a: &b [1]\nc: *b", "aliases are not read"),
        ("application/yaml", "a: 1\n---\nb: 2", "the body holds 2 documents"),
    ],
)
async def test_a_body_with_a_repeated_key_is_refused(house: House, media_type: str, body: str, reason: str) -> None:
    """Which of two equal keys was meant is a guess."""
    answer = await house.http.put(POLICY, content=body.encode(), headers={"Content-Type": media_type})
    assert answer.status_code == 422
    assert reason in answer.json()["detail"]
    assert answer.json()["detail"].isprintable()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", "the body cannot be read: is not UTF-8 text"),
        (rb'{"\ud800": 1}', "policy: contains a lone surrogate (half of a character), which is not valid text"),
        (json.dumps(document(bounds={"max": 10**9})).encode(), "spec.bounds.max: must be less than or equal to 32768"),
        (json.dumps(document(planner={"name": 5})).encode(), "spec.planner.name: must be text"),
    ],
)
async def test_an_error_speaks_of_the_document(house: House, body: bytes, reason: str) -> None:
    """Neither of Python nor of the library that reads it."""
    answer = await house.http.put(POLICY, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"]) == (422, reason)


async def test_a_repeated_key_behind_many_others_is_found_at_once(house: House) -> None:
    """Comparing each key with all others would block the service for minutes."""
    body = "{" + ",".join(f'"k{i}": 0' for i in range(60_000)) + ', "k59999": 1}'
    began = time.monotonic()
    answer = await house.http.put(POLICY, content=body.encode(), headers={"Content-Type": "application/json"})
    assert answer.json()["detail"].endswith("the key 'k59999' comes twice")
    assert time.monotonic() - began < 10


async def test_many_wrong_fields_are_answered_shortly(house: House) -> None:
    """The first five by name and the others by their number, in detail and list."""
    answer = await house.http.put(POLICY, json=document(**{f"x{i}\x1b": 1 for i in range(10_000)}))
    assert answer.status_code == 422
    assert len(answer.content) < 1500
    assert fields(answer) == [rf"spec.x{i}\x1b" for i in range(5)]
    assert answer.json()["detail"].endswith("and 9,995 more")
