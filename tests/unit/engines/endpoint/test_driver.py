"""The endpoint driver: its suite in memory and over HTTP, its document, and answers that must not be believed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.unit.engines.driver_suite import OPEN, SKEW, DriverSuite, Rig
from tests.unit.engines.endpoint.memory_endpoint import GROUP, PATH, MemoryGroups, Supervisor, endpoint_subject
from tests.unit.engines.restart_suite import RestartSuite, letting, ref
from tests.unit.executor.builders import NOON
from weir_contracts import Parallelism
from weir_contracts.export import endpoint_openapi
from weir_engines.driver import Accepted, Evicted, Rejected, Snapshot, TargetChanged, Unanswered
from weir_engines.endpoint.driver import EndpointDriver
from weir_engines.kafka.members import GroupMember, GroupReading, InstanceMemory, owner_of
from weir_executor.core.in_flight import rescale_limit
from weir_executor.core.parameters import Rules
from weir_runtime.clock import Clock, FakeClock, SystemClock
from weir_runtime.policy_credentials import read_credentials
from weir_runtime.reach import Allowed

TOKEN = "a-token-of-32-visible-characters"  # noqa: S105 - only tests know it


class EndpointRig:
    """Two instances behind an endpoint, in virtual time or over HTTP."""

    def __init__(self, clock: Clock, supervisor: Supervisor, url: str, away: str, **driver: Any) -> None:
        self.clock, self.supervisor = clock, supervisor
        self.driver = EndpointDriver(clock, MemoryGroups(supervisor), **driver)
        slots = supervisor.threads
        self.subject = self.by_id = endpoint_subject(url, slots=slots)
        self.nobody = endpoint_subject(url, "/scale/nobody", slots=slots)
        self.away = endpoint_subject(away, slots=slots)
        self.job_id = GROUP
        self.before: Parallelism = {GROUP: 2 * slots}
        self.wanted: Parallelism = {GROUP: 4 * slots}
        self.too_much: Parallelism = {GROUP: 40_000}

    def restarts(self) -> int:
        return len(self.supervisor.restarted)

    def present(self) -> set[str]:
        return set(self.supervisor.members)

    def lose_an_answer(self) -> None:
        self.supervisor.lost_answers = 1

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(400):
            found = await self.driver.observe(self.subject)
            if condition(found):
                return found
            if isinstance(self.clock, FakeClock):
                self.clock.advance(0.5)
            else:
                await asyncio.sleep(0.02)
        raise AssertionError(f"not in time: {found}")


def memory_rig(**supervisor: Any) -> EndpointRig:
    clock = FakeClock(NOON)
    made = Supervisor(clock, **supervisor)
    clock.advance(60)
    return EndpointRig(clock, made, "http://supervisor", "http://away", transport=made.transport)


class EndpointSuite(DriverSuite, RestartSuite):
    """The suite of all drivers, for instances without checkpoints and without a scheduler."""

    async def test_a_running_job_is_observed(self, rig: Rig) -> None:
        """Requested instances, members of the group, and settings that add nothing to a deadline."""
        found = await rig.until(lambda s: s.runs(rig.before))
        assert found.reachable and found.deployment is not None and found.topology is not None
        there = found.deployment
        assert (there.engine, there.health, there.state) == ("kafka-streams", "running", "Stable")
        assert there.job_id == rig.job_id and found.topology.names == [GROUP]
        assert there.requested == there.observed == rig.before
        assert there.replicas == 2
        assert found.steady_since is not None and found.steady_since <= found.at + SKEW
        assert (found.refusal, found.progress, found.departed) == (None, None, ())
        assert found.can_trigger_checkpoint is False
        rules = Rules(deadline_floor_seconds=5.0, container_start_seconds=60.0, restart_estimate_seconds=7.0)
        assert rescale_limit(there, None, rules) == timedelta(seconds=67)

    async def test_a_request_is_accepted(self, rig: Rig) -> None:
        """It is taken at once, and runs when all instances are ready and the group is stable."""
        await rig.until(lambda s: s.runs(rig.before))
        sent = await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
        assert isinstance(sent, Accepted)
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.requested == rig.wanted
        assert not found.all_running and found.progress is not None and found.progress.code == "instances-pending"
        found = await rig.until(lambda s: s.runs(rig.wanted))
        assert found.steady_since is not None and sent.at - SKEW <= found.steady_since <= found.at + SKEW

    async def test_members_of_stopped_instances_are_evicted(self, rig: EndpointRig) -> None:
        """The brokers would wait 45 s for them; the instances that run keep their members."""
        await rig.until(lambda s: s.runs(rig.before))
        one = {GROUP: rig.supervisor.threads}
        stays = {id for id, each in rig.supervisor.members.items() if each.instance == f"{GROUP}-1"}
        assert isinstance(await rig.driver.request(rig.subject, rig.job_id, one, rig.before, OPEN), Accepted)
        found = await rig.driver.observe(rig.subject)
        assert {member.instance for member in found.departed} == {f"{GROUP}-2"} and not found.all_running
        evicted = await rig.driver.evict(rig.subject, found.departed)
        assert evicted == Evicted(found.departed)
        assert set(rig.supervisor.members) == stays
        assert (await rig.until(lambda s: s.runs(one))).departed == ()

    async def test_an_earlier_version_changes_nothing(self, rig: EndpointRig) -> None:
        """Another client wrote since the observation, or between reading and writing."""
        ask = rig.driver.request
        answer = await ask(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN, version="v0")
        assert isinstance(answer, TargetChanged)
        rig.supervisor.overwrites = 1
        answer = await ask(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN, version="v1")
        assert isinstance(answer, TargetChanged)
        assert rig.supervisor.puts == []
        found = await rig.driver.observe(rig.subject)
        answer = await ask(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN, version=found.version)
        assert isinstance(answer, Accepted) and rig.supervisor.puts == [(4, "v2")]

    async def test_a_repeated_request_writes_once(self, rig: EndpointRig) -> None:
        """Nothing is sent for instances that are already requested."""
        for _ in range(3):
            assert isinstance(await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN), Accepted)
        assert len(rig.supervisor.puts) == 1

    async def test_a_number_that_the_endpoint_does_not_run_is_named(self, rig: EndpointRig) -> None:
        """The endpoint's own text is not repeated."""
        answer = await rig.driver.request(
            rig.subject, rig.job_id, {GROUP: 60 * rig.supervisor.threads}, rig.before, OPEN
        )
        assert answer == Rejected("60 instances: the endpoint answered PUT with 422 Unprocessable Entity")


class TestMemory(EndpointSuite):
    @pytest.fixture(params=[{}, {"threads": 2}, {"static": True}], ids=["plain", "two threads", "static"])
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[EndpointRig]:
        rig = memory_rig(**request.param)
        yield rig
        await rig.driver.close()


class TestHttp(EndpointSuite):
    @pytest.fixture
    async def rig(self) -> AsyncIterator[EndpointRig]:
        """The same server on the loopback interface."""
        clock = SystemClock()
        supervisor = Supervisor(clock, ready_seconds=0.05, rebalance_seconds=0.05)
        with supervisor.serving() as url:
            rig = EndpointRig(clock, supervisor, url, "http://127.0.0.1:1")
            yield rig
            await rig.driver.close()


# -- the document --------------------------------------------------------------------------------------------------


def _check(document: dict[str, Any], name: str, instance: object) -> None:
    schema = {**document["components"], "$ref": f"#/schemas/{name}"}
    text = json.dumps(schema).replace("#/components/schemas/", "#/schemas/")
    Draft202012Validator(json.loads(text)).validate(instance)


async def test_client_and_reference_server_keep_to_the_document() -> None:
    """Each request and each response of a scale-out has a described status and a valid body; token as described."""
    published = Path(__file__).parents[4] / "docs" / "reference" / "endpoint.openapi.json"
    document = json.loads(published.read_text())
    assert document == json.loads(json.dumps(endpoint_openapi()))
    rig = memory_rig(token=TOKEN)
    seen: list[tuple[str, int]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        schema = {"PUT": "EndpointRequest", "POST": "EndpointRestart"}.get(request.method)
        if schema is not None:
            _check(document, schema, json.loads(request.content))
        status, body = rig.supervisor.answer(request.method, request.url.path, request.headers, request.content)
        path = re.sub(r"(?<=^/instances/)[^/]+", "{id}", request.url.path.removeprefix(PATH)) or "/"
        described = document["paths"][path][request.method.lower()]["responses"]
        assert str(status) in described
        if status == 200:
            _check(document, "EndpointState", body)
        seen.append((request.method, status))
        return httpx.Response(status, json=body)

    entry = json.dumps({"own": {"namespaces": "*", "origin": "http://supervisor", "token": TOKEN}})
    driver = EndpointDriver(
        rig.clock, MemoryGroups(rig.supervisor), read_credentials(entry), transport=httpx.MockTransport(handle)
    )
    own = endpoint_subject(credentials="own")
    assert (await driver.observe(own)).reachable
    assert isinstance(await driver.request(own, GROUP, rig.wanted, rig.before, OPEN), Accepted)
    rig.supervisor.overwrites = 1
    assert isinstance(await driver.request(own, GROUP, rig.before, rig.wanted, OPEN), TargetChanged)
    assert isinstance(await driver.request(own, GROUP, {GROUP: 60}, rig.wanted, OPEN), Rejected)
    found = await driver.observe(endpoint_subject())
    assert found.refusal is not None and found.refusal.code == "forbidden"
    own = letting(own)
    found = await driver.observe(own)
    first = ref(found.instances[0])
    assert isinstance(await driver.restart(own, GROUP, first, uuid4(), OPEN), Accepted)
    rig.supervisor.lie = {"version": "v1"}
    assert isinstance(await driver.restart(own, GROUP, ref(found.instances[1]), uuid4(), OPEN), TargetChanged)
    assert {*seen} == {
        *[("GET", 200), ("PUT", 200), ("PUT", 409), ("PUT", 422), ("GET", 401)],
        *[("POST", 200), ("POST", 409)],
    }
    await driver.close()


# -- credentials ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "origin", "reason"),
    [
        ("other", "http://supervisor", "has no entry 'other'"),
        ("own", "http://elsewhere", "is for another origin"),
        ("own", "https://supervisor", "is for another origin"),
        ("own", "http://supervisor:8070", "is for another origin"),
    ],
)
async def test_a_token_goes_to_its_own_origin_only(named: str, origin: str, reason: str) -> None:
    """A policy's author could otherwise have it sent to a server of their own."""
    rig = memory_rig()
    entry = json.dumps({"own": {"namespaces": "*", "origin": origin, "token": TOKEN}})
    driver = EndpointDriver(
        rig.clock, MemoryGroups(rig.supervisor), read_credentials(entry), transport=rig.supervisor.transport
    )
    subject = endpoint_subject(credentials=named)
    found = await driver.observe(subject)
    assert found.refusal is not None and found.refusal.code == "forbidden" and reason in found.reason
    answer = await driver.request(subject, GROUP, rig.wanted, rig.before, OPEN)
    assert isinstance(answer, Rejected) and reason in answer.reason
    assert rig.supervisor.seen == [] and TOKEN not in f"{found} {answer}"
    await driver.close()


# -- answers that must not be believed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"ready": 3}, "ready: 3 is more than the 2 instances"),
        ({"replicas": "2"}, "replicas: must be an integer"),
        ({"replicas": -1}, "replicas: must be greater than or equal to 0"),
        ({"version": ""}, "version"),
        ({"instances": [{"id": "a"}, {"id": "a"}], "ready": 0}, "ids must be unique"),
        ({"instances": [{"id": "secret" * 60}], "ready": 0}, "instances.0.id"),
        ({"instances": [{"id": "a", "metricsUrl": "file:///etc/passwd"}], "ready": 0}, "metricsUrl"),
        ({"ended": [f"{GROUP}-1"]}, "ended: an id is listed in instances, too"),
    ],
)
async def test_an_answer_that_contradicts_itself_is_unread(lie: dict[str, Any], reason: str) -> None:
    """The field is named, the value is not: the endpoint chose it."""
    rig = memory_rig(lie=lie)
    found = await rig.driver.observe(rig.subject)
    assert (found.reachable, found.deployment) == (False, None)
    assert reason in found.reason and "secret" not in found.reason and len(found.reason) <= 160
    assert isinstance(await rig.driver.request(rig.subject, GROUP, rig.wanted, rig.before, OPEN), Unanswered)
    assert rig.supervisor.puts == []
    await rig.driver.close()


async def test_instances_that_are_ready_by_word_only_do_not_run() -> None:
    """The group decides, too: an instance without a member of the group processes nothing."""
    rig = memory_rig(crash_above=2)
    await rig.driver.request(rig.subject, GROUP, rig.wanted, rig.before, OPEN)
    rig.supervisor.lie = {"ready": 4}
    rig.clock.advance(60)  # type: ignore[attr-defined]
    found = await rig.driver.observe(rig.subject)
    assert not found.all_running and found.progress is not None
    assert found.progress.sentence == "2 instances have no member of the group"
    await rig.driver.close()


async def test_a_policy_that_counts_fewer_threads_than_an_instance_has_is_refused() -> None:
    """Its requests would never be reached."""
    rig = memory_rig(threads=3)
    found = await rig.driver.observe(endpoint_subject(slots=1))
    assert found.refusal is not None and found.refusal.code == "unsupported"
    assert "each instance has 3 members" in found.refusal.sentence
    await rig.driver.close()


async def test_brokers_that_are_away_are_an_outage() -> None:
    """Whether all tasks are somewhere is unknown, so nothing is requested, and nothing is rolled back."""
    rig = memory_rig(brokers_away="the brokers did not answer within 5 s")
    found = await rig.driver.observe(rig.subject)
    assert (found.reachable, found.reason) == (False, "the brokers did not answer within 5 s")
    await rig.driver.close()


class HostileServer:
    """A raw server: `head` is sent first, then `drip` again and again until the client hangs up."""

    def __init__(self, head: bytes, drip: bytes = b"", pause_seconds: float = 0.0) -> None:
        self.head, self.drip, self.pause_seconds, self.sent = head, drip, pause_seconds, 0

    async def serve(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            out.write(self.head)
            while self.drip and not out.is_closing():
                out.write(self.drip)
                await out.drain()
                self.sent += len(self.drip)
                await asyncio.sleep(self.pause_seconds)
            await out.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            out.close()


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (HostileServer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b" ", 0.05), "did not answer GET within 0.3 s"),
        (HostileServer(b"", b"H", 0.05), "did not answer GET within 0.3 s"),
        (HostileServer(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65_536, 0.001), "more than 1000000 bytes"),
        (HostileServer(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"), "compressed"),
        (HostileServer(b"SSH-2.0-OpenSSH\r\n"), "GET of the endpoint failed"),
        (HostileServer(b"HTTP/1.1 200 OK\r\n\r\n<html>"), "it is not JSON"),
        (HostileServer(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000), "it is not JSON"),
        (HostileServer(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 900_000), "more than 200000 elements"),
        (HostileServer(b"HTTP/1.1 500 Oops\r\n\r\nsecret"), "answered GET with 500 Internal Server Error"),
        (
            HostileServer(b"HTTP/1.1 307 To\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
            "redirects GET (307), which is not followed",
        ),
    ],
    ids=[
        "drips",
        "drips a head",
        "endless",
        "compressed",
        "no HTTP",
        "no JSON",
        "deep JSON",
        "elements",
        "500",
        "redirect",
    ],
)
async def test_a_hostile_answer_costs_bounded_time_and_bytes(server: HostileServer, reason: str) -> None:
    """Over a real connection; no text of it is repeated."""
    made = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = made.sockets[0].getsockname()[1]
    limit = 0.3 if "did not answer" in reason else 3.0
    driver = EndpointDriver(SystemClock(), MemoryGroups(memory_rig().supervisor), timeout_seconds=limit)
    subject = endpoint_subject(f"http://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(10):
            found = await driver.observe(subject)
            answer = await driver.request(subject, GROUP, {GROUP: 3}, {GROUP: 2}, OPEN)
    finally:
        await driver.close()
        made.close()
    assert not found.reachable and reason in found.reason, found.reason
    assert isinstance(answer, Unanswered) and "secret" not in f"{found.reason}{answer.reason}"
    assert server.sent < 20_000_000


async def test_an_address_outside_the_settings_is_not_connected_to() -> None:
    """The rules of all addresses in policies hold."""
    supervisor = Supervisor(SystemClock())
    with supervisor.serving() as url:
        allowed = Allowed.of("http,https", "*", "public", prefix="WEIR_TARGET")
        driver = EndpointDriver(SystemClock(), MemoryGroups(supervisor), allowed=allowed)
        found = await driver.observe(endpoint_subject(url))
        await driver.close()
    assert not found.reachable and "WEIR_TARGET_NETWORKS" in found.reason and supervisor.seen == []


# -- members -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "static", "owner"),
    [
        ("a-1-StreamThread-1-consumer", None, "a-1"),
        ("a-1", None, "a-1"),
        ("a-10-StreamThread-1-consumer", None, "a-10"),
        ("a-1x", None, None),
        ("consumer-3", "a-1-1", "a-1"),
        ("A-1", None, None),
        ("", None, None),
    ],
)
def test_a_member_is_named_after_its_instance(client: str, static: str | None, owner: str | None) -> None:
    """By client id or instance id, up to the end or a dash; the longest name counts."""
    member = GroupMember("id", client, static)
    assert owner_of(member, ["a", "a-1", "a-10"]) == (owner or ("a" if client.startswith("a-") else None))


def reading(*clients: str) -> GroupReading:
    return GroupReading("Stable", tuple(GroupMember(f"{each}#1", each) for each in clients))


def test_only_members_of_instances_that_were_listed_before_depart() -> None:
    """Members of unknown names are never evicted, whatever the endpoint lists."""
    memory = InstanceMemory()
    assert memory.departed(dict.fromkeys("ab"), [], reading("a", "b", "c", "mailer")) == ()
    gone = memory.departed(dict.fromkeys("a"), [], reading("a", "b", "c", "mailer"))
    assert [(each.id, each.instance) for each in gone] == [("b#1", "b")]


def test_an_ended_instance_may_be_named_by_the_endpoint() -> None:
    """An executor that took over did not see it run."""
    assert [each.id for each in InstanceMemory().departed(dict.fromkeys("a"), ["b"], reading("a", "b"))] == ["b#1"]


def test_an_instance_that_comes_back_keeps_its_members() -> None:
    """Also under the id of before."""
    memory = InstanceMemory()
    memory.departed(dict.fromkeys("ab"), [], reading("a", "b"))
    assert memory.departed(dict.fromkeys("a"), [], reading("a", "b")) != ()
    assert memory.departed(dict.fromkeys("ab"), [], reading("a", "b")) == ()


def test_a_member_that_joins_after_the_end_is_alive() -> None:
    """The endpoint says that the instance has ended, and its process joined again: it is left alone."""
    memory = InstanceMemory()
    memory.departed(dict.fromkeys("ab"), [], reading("a", "b"))
    assert len(memory.departed(dict.fromkeys("a"), [], reading("a", "b"))) == 1
    again = GroupReading("Stable", (GroupMember("a#1", "a"), GroupMember("b#2", "b")))
    assert memory.departed(dict.fromkeys("a"), [], again) == ()


def test_a_member_that_joins_while_its_instance_is_between_two_processes_is_alive() -> None:
    """Pods of a StatefulSet keep their name. Nothing is listed, and the new pod joins before the group is read."""
    memory = InstanceMemory()
    memory.departed({"a": "1", "b": "1"}, [], reading("a", "b"))
    memory.departed({"a": "1", "b": "1"}, [], reading("a", "b"))
    both = GroupReading("Stable", (GroupMember("a#1", "a"), GroupMember("b#1", "b"), GroupMember("b#2", "b")))
    assert [each.id for each in memory.departed({"a": "1"}, [], both)] == ["b#1"]
    assert [each.id for each in memory.departed({"a": "1", "b": "2"}, [], both)] == ["b#1"]


def test_a_member_that_was_first_seen_after_the_end_departs_with_the_next_reading() -> None:
    """It joined, and its instance ended, between two readings."""
    memory = InstanceMemory()
    memory.departed(dict.fromkeys("ab"), [], reading("a"))
    assert memory.departed(dict.fromkeys("a"), [], reading("a", "b")) == ()
    assert [each.id for each in memory.departed(dict.fromkeys("a"), [], reading("a", "b"))] == ["b#1"]


def test_instances_of_years_do_not_pile_up() -> None:
    """The ones that were listed first are forgotten."""
    memory = InstanceMemory()
    for number in range(2_500):
        memory.departed({f"i-{number}": None}, [], reading())
    assert len(memory._listed) == 2_000 and len(memory._ended) <= 2_000


async def test_an_eviction_looks_again() -> None:
    """Between snapshot and eviction the instance came back: nothing is removed."""
    rig = memory_rig()
    await rig.driver.observe(rig.subject)
    rig.supervisor.lie = {"instances": [{"id": f"{GROUP}-1"}], "ready": 1}
    found = await rig.driver.observe(rig.subject)
    assert len(found.departed) == 1
    rig.supervisor.lie = {}
    assert isinstance(await rig.driver.evict(rig.subject, found.departed), Unanswered)
    assert rig.supervisor.evicted == []
    await rig.driver.close()
