"""Groups of consumers: what members exchange is decoded or refused, and a group's state becomes a scrape."""

import base64
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.effort import some
from weir_contracts import PartitionReading
from weir_engines.kafka.assignment import MAX_BYTES, Task, Undecodable, assigned, process_of, subscribed, tasks_of
from weir_engines.kafka.group import DescribedGroup, DescribedMember, Membership, membership
from weir_engines.kafka.readings import STREAMS, GroupMeter, GroupReadings, scrape_of
from weir_replay import streams as written

RECORDED: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "recorded" / "streams_user_data.json").read_text()
)
"""User data made by the classes of Kafka Streams 4.1.0, for each version."""
PROCESS = UUID("5c1f4f2e-0f6a-4a43-9b2e-2f35d5d0f0aa")
NOON = datetime(2026, 6, 14, 12, tzinfo=UTC)


def recorded(version: str, which: str) -> bytes:
    return base64.b64decode(RECORDED[version][which])


@pytest.mark.parametrize("version", list(RECORDED))
def test_user_data_of_kafka_streams_is_decoded_to_its_last_byte(version: str) -> None:
    """Recorded bytes with three active tasks, one standby, two hosts and a probing rebalance."""
    found = tasks_of(recorded(version, "assignment"))
    assert found.active == (Task(0, 0), Task(0, 1), Task(1, 2))
    assert found.standby == (Task(0, 3),)
    assert found.probing_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert process_of(recorded(version, "subscription")) == PROCESS
    nothing = tasks_of(recorded(version, "empty"))
    assert (nothing.active, nothing.standby, nothing.probing_at) == ((), (), None)


@pytest.mark.parametrize("version", [6, 12, -1, 2**31 - 1])
def test_user_data_of_an_unknown_version_is_refused(version: int) -> None:
    """Another version may have another meaning in the same bytes."""
    data = version.to_bytes(4, "big", signed=True) + recorded("11", "assignment")[4:]
    with pytest.raises(Undecodable, match=f"version {version}; 7 to 11 are known"):
        tasks_of(data)


@pytest.mark.parametrize("version", ["7", "11"])
def test_flipped_bits_are_refused_or_decoded_but_never_crash(version: str) -> None:
    """Each bit of the recorded bytes is flipped in turn, and each prefix is read: memory and time stay bounded."""
    whole = recorded(version, "assignment")
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        _decode(bytes(flipped))
    for length in range(len(whole)):
        with pytest.raises(Undecodable):
            tasks_of(whole[:length])


@pytest.mark.parametrize("seed", some(range(200), one_in=20))
def test_random_members_are_decoded_or_unknown(seed: int) -> None:
    """Whatever bytes a member sends, the group's other members keep their tasks."""
    chance = random.Random(seed)
    good = DescribedMember("a", "a", assignment=written.assignment([("orders", 0)], written.user_data([(0, 0)])))
    noise = bytearray(written.assignment([("orders", 1)], written.user_data([(0, 1)], [(0, 2)])))
    for _ in range(chance.randint(1, 8)):
        noise[chance.randrange(len(noise))] = chance.randrange(256)
    bad = DescribedMember("b", "b", assignment=bytes(noise), subscription=chance.randbytes(chance.randrange(60)))
    found = membership(DescribedGroup("orders", "Stable", members=(good, bad)), is_streams=True)
    assert found.members[0].tasks is not None and found.members[0].tasks.active == (Task(0, 0),)
    assert len(found.members) == 2 and len(found.problems) <= 3


def _decode(data: bytes) -> None:
    for decode in (tasks_of, assigned, subscribed, process_of):
        try:
            decode(data)
        except Undecodable as error:
            assert len(str(error)) < 160


def test_user_data_beyond_the_limit_is_not_read() -> None:
    with pytest.raises(Undecodable, match="4,000,001 bytes are more than 4,000,000"):
        tasks_of(b"\0" * (MAX_BYTES + 1))
    with pytest.raises(Undecodable, match="a list of 2147483647 does not fit"):
        tasks_of(b"\0\0\0\x0b\0\0\0\x0b\x7f\xff\xff\xff" + b"\0" * 100)


def thread(name: str, process: UUID, *tasks: tuple[int, int], probing_ms: int = written.NEVER, **more: Any) -> Any:
    data = written.user_data(tasks, more.get("standby", ()), probing_ms=probing_ms)
    places = [("orders", partition) for _, partition in tasks]
    return DescribedMember(
        id=name,
        client_id=f"{process}-StreamThread-1-consumer",
        host="/10.0.0.7",
        assignment=written.assignment(places, data),
        subscription=written.subscription(["orders", "app-agg-repartition"], process),
    )


def streams_group(*members: DescribedMember, state: str = "Stable", **more: Any) -> DescribedGroup:
    return DescribedGroup("app", state, "classic", "consumer", more.get("assignor", "stream"), members)


OTHER = UUID(int=7)


def test_threads_of_one_process_are_one_instance() -> None:
    """Tasks are counted over its threads; the next probing rebalance is the earliest that a member carries."""
    probing = int(NOON.timestamp() * 1000)
    group = streams_group(
        thread("a1", PROCESS, (0, 0), (0, 1)),
        thread("a2", PROCESS, (0, 2), standby=[(0, 3)]),
        thread("b1", OTHER, (0, 3), probing_ms=probing),
    )
    found = membership(group, is_streams=True)
    assert found.tasks == 4 and found.probing_at == NOON and not found.problems
    assert found.topics == ("app-agg-repartition", "orders")
    by_id = {each.id: each for each in found.instances()}
    mine = by_id[str(PROCESS)]
    assert (mine.threads, mine.active_tasks, mine.standby_tasks, mine.warm_up_tasks) == (2, 3, 1, None)
    assert (by_id[str(OTHER)].warm_up_tasks, mine.host, mine.members) == (0, "10.0.0.7", ["a1", "a2"])
    assert found.owners()["orders", 3] == str(OTHER)


def test_a_task_of_several_partitions_is_one_task() -> None:
    """Kafka Streams writes it once for each: a join reads two topics."""
    group = streams_group(thread("a", PROCESS, (0, 0), (0, 0), (0, 1), (0, 1)))
    found = membership(group, is_streams=True)
    assert found.tasks == 2 and [each.active_tasks for each in found.instances()] == [2]


def test_the_key_of_a_run_is_its_assignment() -> None:
    """A warm-up begins no run; a task that moves does."""
    before = membership(streams_group(thread("a", PROCESS, (0, 0)), thread("b", OTHER, (0, 1))), is_streams=True)
    warming = thread("b", OTHER, (0, 1), standby=[(0, 0)], probing_ms=1_700_000_000_000)
    same = membership(streams_group(warming, thread("a", PROCESS, (0, 0))), is_streams=True)
    moved = membership(streams_group(thread("a", PROCESS, (0, 1)), thread("b", OTHER, (0, 0))), is_streams=True)
    assert before.key() == same.key() != moved.key()


def scraped(group: DescribedGroup | None, engine: str = STREAMS, **more: Any) -> Any:
    found = Membership() if group is None else membership(group, is_streams=engine == STREAMS)
    return scrape_of(GroupReadings("app", engine, group, membership=found, **more))


def test_a_stable_group_is_one_operator_whose_parallelism_is_its_threads() -> None:
    scrape = scraped(streams_group(thread("a", PROCESS, (0, 0), (0, 1)), thread("b", OTHER)), processed=7)
    assert (scrape.status, scrape.message) == ("running", "the group is Stable: 2 instances with 2 threads")
    assert scrape.deployment.observed == {"app": 2}
    assert scrape.topology.operators[0].source_partitions == 2
    (reading,) = scrape.operators
    assert (reading.records_in, reading.busy_ms, reading.backpressured_ms) == (7, None, 0.0)


@pytest.mark.parametrize(
    ("group", "status", "words"),
    [
        (None, "unreachable", "no answer"),
        (DescribedGroup("app", "Dead"), "not_found", "no group 'app'"),
        (DescribedGroup("app", "Empty", "classic"), "not_running", "0 instances"),
        (DescribedGroup("app", "Stable", "classic", "connect"), "not_found", "of type 'connect'"),
        (streams_group(state="Stable", assignor="range"), "not_found", "its assignor is 'range'"),
        (streams_group(state="PreparingRebalance", assignor=""), "not_running", "PreparingRebalance"),
        (streams_group(thread("a", PROCESS, (0, 0)), state="Reconciling"), "running", "Reconciling"),
    ],
)
def test_each_state_of_a_group_has_a_status_and_a_sentence(group: Any, status: str, words: str) -> None:
    scrape = scraped(group, message="no answer within 3 s")
    assert scrape.status == status
    assert words in scrape.message
    assert scrape.run is None


def test_a_group_whose_protocol_cannot_be_read_is_named() -> None:
    """Its commits show that it exists."""
    scrape = scraped(DescribedGroup("app", "Dead"), has_commits=True)
    assert (scrape.status, "group.protocol=streams" in scrape.message) == ("not_found", True)


def test_undecodable_tasks_are_unknown_and_a_problem_says_why() -> None:
    member = DescribedMember(
        "a", "a-StreamThread-1-consumer", assignment=written.assignment([("orders", 0)], b"\0" * 9)
    )
    scrape = scraped(streams_group(member))
    assert scrape.status == "running"
    assert scrape.topology.operators[0].source_partitions is None
    (instance,) = scrape.deployment.instances
    assert (instance.id, instance.active_tasks, instance.standby_tasks) == ("a", 1, None)
    assert "version 0; 7 to 11 are known" in scrape.problems[0].what


@pytest.mark.parametrize(("assignor", "shares"), [("range", 3), ("cooperative-sticky", 5), ("uniform", 5)])
def test_the_shares_of_plain_consumers_are_partitions(assignor: str, shares: int) -> None:
    """The range assignor gives partition n of every topic to one member."""
    member = DescribedMember("a", "a", places=(("x", 0),))
    group = DescribedGroup("app", "Stable", "classic", "consumer", assignor, (member,))
    read = [
        PartitionReading(operator="app", topic=t, partition=n)
        for t, count in (("x", 3), ("y", 2))
        for n in range(count)
    ]
    scrape = scraped(group, "consumer-group", partitions=tuple(read))
    assert scrape.topology.operators[0].source_partitions == shares


def test_commits_that_go_back_count_nothing() -> None:
    """A reset is no throughput, and what is processed again counts again."""
    meter, place = GroupMeter(), ("orders", 0)
    counted = [meter.processed({place: offset}, NOON) for offset in (1000, 1100, 100, 150)]
    assert counted == [0, 100, 100, 150]


def test_the_commit_interval_is_measured_from_changes() -> None:
    """Scraped every 5 s, commits every 30 s; a quiet partition commits more rarely."""
    meter, busy, quiet = GroupMeter(), ("orders", 0), ("orders", 1)
    for second in range(0, 400, 5):
        at = NOON + timedelta(seconds=second)
        meter.processed({busy: second // 30 * 100, quiet: second // 120}, at)
    assert meter.commit_interval_seconds == 30.0
    assert GroupMeter().commit_interval_seconds is None


def test_a_run_lasts_as_long_as_its_assignment() -> None:
    meter = GroupMeter()
    first = meter.run("group a", NOON)
    assert meter.run("group a", NOON + timedelta(minutes=1)) == first
    assert meter.run("group b", NOON + timedelta(minutes=2)).running_since == NOON + timedelta(minutes=2)
