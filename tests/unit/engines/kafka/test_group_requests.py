"""Requests that callers share, and the translation of kafka-python's responses."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from kafka.protocol.admin import DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.consumer import OffsetFetchResponse

from weir_engines.kafka.brokers import Batches
from weir_engines.kafka.group import DescribedGroup
from weir_engines.kafka.group_requests import (
    Refused,
    _offset_fetch,
    _offset_fetch_of_one,
    _offsets,
    classic_group,
    describe_messages,
    listed_groups,
    newer_group,
)
from weir_engines.kafka.partitions import Offsets


class Served:
    """Records what each request was for; the first ones wait until they are let go."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.came, self.free = asyncio.Event(), asyncio.Event()

    async def __call__(self, items: Sequence[str]) -> str:
        self.batches.append(list(items))
        self.came.set()
        await self.free.wait()
        if "broken" in items:
            raise ValueError("broken")
        return "+".join(items)


async def test_callers_that_come_while_a_request_is_under_way_share_the_next() -> None:
    """Their answer is never older than their request."""
    served = Served()
    batches = Batches(served)
    first = [asyncio.ensure_future(batches.request(each)) for each in ("a", "b")]
    await served.came.wait()
    later = [asyncio.ensure_future(batches.request(each)) for each in ("c", "a", "d")]
    await asyncio.sleep(0)
    served.free.set()
    assert await asyncio.gather(*first, *later) == ["a+b"] * 2 + ["c+a+d"] * 3
    assert served.batches == [["a", "b"], ["c", "a", "d"]]


async def test_a_caller_that_stops_waiting_leaves_the_request_to_the_others() -> None:
    served = Served()
    batches = Batches(served)
    impatient, patient = (asyncio.ensure_future(batches.request(each)) for each in ("a", "b"))
    await served.came.wait()
    impatient.cancel()
    served.free.set()
    assert await patient == "a+b"


async def test_a_failure_is_of_its_own_batch() -> None:
    """The next request is sent all the same."""
    served = Served()
    served.free.set()
    batches = Batches(served)
    with pytest.raises(ValueError, match="broken"):
        await batches.request("broken")
    assert await batches.request("a") == "a"


def group_response(**fields: Any) -> Any:
    """Return one group of a DescribeGroups response, as it comes from the wire."""
    named = {"error_code": 0, "group_id": "app", "group_state": "Stable", "protocol_type": "consumer"}
    members = fields.pop("members", [])
    group = DescribeGroupsResponse.DescribedGroup(
        **{**named, "protocol_data": "stream", **fields},
        members=[DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(**each) for each in members],
    )
    written = DescribeGroupsResponse(groups=[group]).encode(version=6)
    return DescribeGroupsResponse.decode(written, version=6).groups[0]


def test_a_group_keeps_the_bytes_of_its_members() -> None:
    """Kafka Streams' tasks are in them."""
    member = {"member_id": "m-1", "group_instance_id": "app-0", "client_id": "c", "client_host": "/127.0.0.1"}
    found = classic_group(group_response(members=[member | {"member_metadata": b"\x01", "member_assignment": b"\x00"}]))
    assert not isinstance(found, Refused) and found is not None
    assert (found.id, found.state, found.protocol, found.assignor) == ("app", "Stable", "classic", "stream")
    (only,) = found.members
    assert (only.id, only.static_id, only.subscription, only.assignment) == ("m-1", "app-0", b"\x01", b"\x00")


@pytest.mark.parametrize("fields", [{"error_code": 69, "group_state": "Dead"}, {"group_state": "Dead"}])
def test_a_group_that_the_classic_protocol_has_not_may_be_of_another(fields: dict[str, Any]) -> None:
    assert classic_group(group_response(**fields)) is None


@pytest.mark.parametrize(("version", "state"), [(3, ""), (5, "Empty")])
def test_listed_groups_have_their_kind_and_state(version: int, state: str) -> None:
    """Brokers before Kafka 2.6 list no states: these are unknown."""
    each = ListGroupsResponse.ListedGroup
    groups = [each(group_id="app", protocol_type="consumer", group_state="Empty", group_type="classic")]
    written = ListGroupsResponse(error_code=0, throttle_time_ms=0, groups=groups).encode(version=version)
    (found,) = listed_groups(ListGroupsResponse.decode(written, version=version))
    assert (found.id, found.type, found.state, found.members) == ("app", "consumer", state, ())


@pytest.mark.parametrize("version", [0, 1])
def test_a_group_of_the_consumer_protocol(version: int) -> None:
    """Its coordinator decodes the assignments (KIP-848); a member of a classic client may have none yet."""
    response_of = describe_messages()[1]
    group_of = response_of.DescribedGroup
    member_of = group_of.Member
    has = member_of.Assignment(
        topic_partitions=[member_of.Assignment.TopicPartitions(topic_name="orders", partitions=[0, 2])]
    )
    none_yet = member_of.Assignment(topic_partitions=[])
    named = {"member_id": "m", "client_id": "c", "client_host": "/127.0.0.1", "target_assignment": has}
    members = [
        member_of(**named, instance_id="s", assignment=has),
        member_of(**named, instance_id=None, assignment=none_yet),
    ]
    groups = [
        group_of(group_id="app", group_state="Reconciling", assignor_name="uniform", members=members),
        group_of(group_id="none", error_code=69),
        group_of(group_id="loads", error_code=14),
    ]
    written = response_of(groups=groups).encode(version=version)
    found, missing, loading = [newer_group(each) for each in response_of.decode(written, version=version).groups]
    assert isinstance(found, DescribedGroup)
    assert (found.id, found.state, found.protocol, found.assignor) == ("app", "Reconciling", "consumer", "uniform")
    assert [(each.places, each.static_id) for each in found.members] == [
        ((("orders", 0), ("orders", 2)), "s"),
        ((), ""),
    ]
    assert missing is None
    assert loading == Refused(14, "the coordinator of the group loads its state")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (14, "the coordinator of the group loads its state"),
        (30, "the group may not be read with these credentials"),
        (42, "the coordinator answers InvalidRequest"),
    ],
)
def test_a_refusal_of_the_coordinator_is_a_sentence(code: int, reason: str) -> None:
    assert classic_group(group_response(error_code=code)) == Refused(code, reason)


def fetched(error_code: int = 0, *partitions: tuple[int, int, str | None, int]) -> Any:
    """Return one group of an OffsetFetch response, as it comes from the wire."""
    group_of = OffsetFetchResponse.OffsetFetchResponseGroup
    topic_of = group_of.OffsetFetchResponseTopics
    listed = [
        topic_of.OffsetFetchResponsePartitions(
            partition_index=n, committed_offset=offset, committed_leader_epoch=-1, metadata=text, error_code=code
        )
        for n, offset, text, code in partitions
    ]
    group = group_of(group_id="app", topics=[topic_of(name="orders", partitions=listed)], error_code=error_code)
    written = OffsetFetchResponse(groups=[group]).encode(version=8)
    return OffsetFetchResponse.decode(written, version=8).groups[0]


def test_commits_are_offsets_of_partitions() -> None:
    """A partition without a commit is left out; one that failed is a problem that names it."""
    found = _offsets("app", fetched(0, (0, 7, "AgAAAYvP5Wvn", 0), (1, -1, "", 0), (2, 3, None, 0), (3, -1, "", 29)))
    assert isinstance(found, Offsets)
    assert dict(found.found) == {("orders", 0): 7, ("orders", 2): 3}
    (problem,) = found.problems
    assert (problem.where, "may not be read" in problem.what) == ("commit of app at orders/3", True)
    assert _offsets("app", fetched(16)) == Refused(16, "the coordinator of the group has moved")


def test_one_request_asks_for_all_groups_of_a_coordinator() -> None:
    """Brokers before Kafka 3.0 take one group a request."""
    request = _offset_fetch({"a": [("orders", 0), ("orders", 1), ("prices", 0)], "b": [("orders", 1)]})
    asked = {each.group_id: {t.name: t.partition_indexes for t in each.topics} for each in request.groups}
    assert asked == {"a": {"orders": [0, 1], "prices": [0]}, "b": {"orders": [1]}}
    old = _offset_fetch_of_one("a", [("orders", 0)])
    assert old.group_id == "a" and [t.name for t in old.topics] == ["orders"]
