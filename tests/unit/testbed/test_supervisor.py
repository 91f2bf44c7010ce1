"""The supervisor of the Kafka Streams sample: its steps, its fleet with instances in memory, and its API."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import httpx
import pytest

from testbed.process import TestbedError
from testbed.supervisor.__main__ import main
from testbed.supervisor.api import create_app
from testbed.supervisor.fleet import (
    End,
    Fleet,
    Forget,
    Phase,
    Scale,
    Slot,
    StaleVersion,
    Start,
    Step,
    backoff_seconds,
    steps,
)
from weir_engines.endpoint.rest import Endpoint, EndpointFailed
from weir_runtime.access import Caller, Tokens

RUNNING, ENDING = Slot(Phase.RUNNING), Slot(Phase.ENDING)
TOKEN = "0123456789abcdef"  # noqa: S105 - of this test alone
FAILED = Slot(Phase.FAILED, retry_at_seconds=10.0)


@pytest.mark.parametrize(
    ("replicas", "slots", "expected"),
    [
        pytest.param(2, {}, [Start(1), Start(2)], id="the oldest starts first"),
        pytest.param(2, {1: RUNNING, 2: RUNNING}, [], id="nothing to do"),
        pytest.param(1, {1: RUNNING, 2: RUNNING, 3: RUNNING}, [End(3), End(2)], id="the youngest ends first"),
        pytest.param(1, {1: RUNNING, 2: ENDING}, [], id="an ending one is not ended again"),
        pytest.param(2, {1: RUNNING, 2: ENDING}, [], id="an ending one is awaited, not doubled"),
        pytest.param(1, {1: FAILED}, [], id="a failed one waits"),
        pytest.param(1, {1: RUNNING, 2: FAILED}, [Forget(2)], id="a failed one that is not needed"),
    ],
)
def test_steps_lead_to_the_requested_instances(replicas: int, slots: dict[int, Slot], expected: list[Step]) -> None:
    assert steps(replicas, slots, now_seconds=9.0) == expected


def test_a_failed_instance_starts_again_when_its_time_has_come() -> None:
    assert steps(1, {1: FAILED}, now_seconds=10.0) == [Start(1)]
    assert [backoff_seconds(n) for n in (1, 2, 3, 100)] == [0.5, 1.0, 2.0, 30.0]


def test_the_version_changes_with_the_number_alone() -> None:
    scale = Scale(2, "start")
    assert scale.changed(2, scale.version) == scale
    grown = scale.changed(3, scale.version)
    assert (grown.replicas, grown.version == scale.version) == (3, False)
    with pytest.raises(StaleVersion):
        grown.changed(4, scale.version)


@dataclass
class MemoryInstance:
    """Instance without a process."""

    id: str
    metrics_url: str | None = None
    running: bool = False
    is_ready: bool = True
    can_start: bool = True

    def start(self) -> None:
        if not self.can_start:
            raise TestbedError("no such program")
        self.running = True

    def stop(self) -> None:
        self.running = False

    def ready(self) -> bool:
        return self.is_ready


class Park:
    """A fleet on a clock of the test's own, and the instances that it made."""

    def __init__(self, replicas: int) -> None:
        self.made: list[MemoryInstance] = []
        self.now_seconds = 0.0
        self.can_start = True
        self.sentences: list[str] = []
        self.fleet = Fleet(self._make, replicas, report=self.sentences.append, monotonic=lambda: self.now_seconds)

    def _make(self, ordinal: int) -> MemoryInstance:
        self.made.append(MemoryInstance(f"orders-{ordinal}-{len(self.made)}", can_start=self.can_start))
        return self.made[-1]

    def ids(self) -> list[str]:
        return [each.id for each in self.fleet.state().instances]

    def tick_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            self.fleet.tick()
            if condition():
                return
        raise AssertionError(self.sentences)


def test_a_fleet_grows_and_shrinks_from_its_young_end() -> None:
    """An instance is listed as long as its process runs, counted once it is ready, and reported after its end."""
    park = Park(2)
    park.fleet.tick()
    assert (park.ids(), park.fleet.state().ready) == (["orders-1-0", "orders-2-1"], 0)
    park.fleet.tick()
    state = park.fleet.scale(3, park.fleet.state().scale.version)
    assert (state.ready, len(state.instances), state.scale.replicas) == (2, 2, 3)
    park.tick_until(lambda: park.fleet.state().ready == 3)
    park.fleet.scale(1, park.fleet.state().scale.version)
    park.tick_until(lambda: park.ids() == ["orders-1-0"])
    assert sorted(park.fleet.state().ended) == ["orders-2-1", "orders-3-2"]


def test_a_failed_instance_comes_back_under_another_id() -> None:
    """After a while that grows while it fails again without ever being ready."""
    park = Park(1)
    park.fleet.tick()
    park.made[0].running = False
    park.fleet.tick()
    assert (park.ids(), park.fleet.state().ended) == ([], ("orders-1-0",))
    park.fleet.tick()
    assert len(park.made) == 1
    park.now_seconds = 0.5
    park.fleet.tick()
    park.made[1].running = False
    park.fleet.tick()
    park.now_seconds = 1.4
    park.fleet.tick()
    assert len(park.made) == 2
    park.now_seconds = 1.5
    park.fleet.tick()
    park.fleet.tick()
    assert (park.ids(), park.fleet.state().ready) == (["orders-1-2"], 1)


def test_an_instance_that_cannot_start_is_reported_and_retried() -> None:
    park = Park(1)
    park.can_start = False
    park.fleet.tick()
    assert (park.ids(), park.sentences) == (
        [],
        ["orders-1-0 cannot start (no such program): next start in 0.5 s"],
    )
    park.can_start, park.now_seconds = True, 1.0
    park.fleet.tick()
    assert park.ids() == ["orders-1-1"]


def test_closing_ends_all() -> None:
    park = Park(3)
    park.fleet.tick()
    park.fleet.close()
    assert [each.running for each in park.made] == [False, False, False]


def _api(park: Park, tokens: Tokens | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(park.fleet, "orders", 5, tokens))
    return httpx.AsyncClient(transport=transport, base_url="http://supervisor")


async def test_the_api_reads_and_sets_the_number() -> None:
    park = Park(1)
    park.fleet.tick()
    api = _api(park)
    state = (await api.get("/scale/orders")).json()
    assert state == {
        "replicas": 1,
        "ready": 0,
        "instances": [{"id": "orders-1-0", "metricsUrl": None}],
        "ended": [],
        "restarts": True,
        "version": state["version"],
    }
    request = {"replicas": 2, "version": state["version"]}
    assert (await api.put("/scale/orders", json=request)).json()["replicas"] == 2
    again = await api.put("/scale/orders", json=request)
    assert (again.status_code, "read the state again" in again.json()["detail"]) == (409, True)


async def test_the_executors_client_understands_the_supervisor() -> None:
    """It reads, scales, and is refused with an old version."""
    park = Park(1)
    park.fleet.tick()
    endpoint = Endpoint(_api(park), "/scale/orders", answer_seconds=5.0)
    state = await endpoint.read()
    await endpoint.scale(3, state.version, httpx.Timeout(5.0))
    assert [each.id for each in state.instances] == ["orders-1-0"]
    assert (await endpoint.read()).replicas == 3
    with pytest.raises(EndpointFailed) as refused:
        await endpoint.scale(2, state.version, httpx.Timeout(5.0))
    assert refused.value.is_conflict


async def test_one_instance_is_restarted_once_for_an_action() -> None:
    """It stays listed until its process has ended; another one under another id takes its place, with the same number and
    version. A repeated request, also for an instance that has ended, restarts nothing again."""
    park, action = Park(2), uuid4()
    park.fleet.tick()
    endpoint = Endpoint(_api(park), "/scale/orders", answer_seconds=5.0)
    before = await endpoint.read()
    await endpoint.restart("orders-2-1", action, before.version, httpx.Timeout(5.0))
    park.tick_until(lambda: "orders-2-2" in park.ids())
    assert park.ids() == ["orders-1-0", "orders-2-2"]
    for _ in range(2):
        await endpoint.restart("orders-2-1", action, before.version, httpx.Timeout(5.0))
        park.fleet.tick()
    after = await endpoint.read()
    assert (after.replicas, after.version, after.ended) == (2, before.version, ["orders-2-1"])
    assert len(park.made) == 3


@pytest.mark.parametrize(("instance", "version", "status"), [("orders-9", "", 404), ("orders-1-0", "old", 409)])
async def test_a_restart_of_another_state_is_refused(instance: str, version: str, status: int) -> None:
    """An instance that does not run, and another version than the present one."""
    park = Park(1)
    park.fleet.tick()
    endpoint = Endpoint(_api(park), "/scale/orders", answer_seconds=5.0)
    present = (await endpoint.read()).version
    with pytest.raises(EndpointFailed) as refused:
        await endpoint.restart(instance, uuid4(), version or present, httpx.Timeout(5.0))
    assert refused.value.status == status
    assert park.ids() == ["orders-1-0"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"replicas": 6, "version": "x"}, 422, "replicas"),
        ({"replicas": 0, "version": "x"}, 422, "replicas"),
        ({"replicas": "2", "version": "x"}, 422, "replicas"),
        ({"replicas": 2}, 422, "version"),
        ({"replicas": 2, "version": "x" * 20_000}, 413, "body"),
    ],
)
async def test_a_wrong_request_is_named(body: dict[str, object], status: int, field: str) -> None:
    answer = await _api(Park(1)).put("/scale/orders", json=body)
    assert (answer.status_code, field in answer.text) == (status, True)


async def test_a_token_is_needed_where_there_are_some() -> None:
    api = _api(Park(1), Tokens({TOKEN: Caller("weir", frozenset({"write"}))}))
    assert (await api.get("/scale/orders")).status_code == 401
    allowed = await api.get("/scale/orders", headers={"Authorization": f"Bearer {TOKEN}"})
    assert allowed.status_code == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "13"], "argument --replicas"),
        (["--max-replicas", "0"], "argument --max-replicas"),
        (["--application-id", "a/b"], "argument --application-id"),
        (["--port", "0"], "argument --port"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--bootstrap", "127.0.0.1:1", *arguments])
    assert (ended.value.code, message in capsys.readouterr().err) == (2, True)
