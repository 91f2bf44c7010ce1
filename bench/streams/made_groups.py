"""Many groups of Kafka Streams at a real broker, made by its protocol without an application: each has one member with
all partitions as tasks, and commits with partition times. A session of half an hour needs no heartbeat meanwhile."""

import base64
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from testbed.process import TestbedError
from tests.unit.engines import streams_bytes
from weir_runtime.kafka_python import close_admin, open_admin

SESSION_MS = 1_800_000
TIMEOUT_SECONDS = 20.0
RETRY_SECONDS = 60.0
"""A new cluster needs a while to make its coordinators."""


@dataclass(frozen=True)
class MadeGroup:
    """A group that reads one topic."""

    id: str
    topic: str
    partitions: int


def make_groups(servers: str, groups: Sequence[MadeGroup]) -> None:
    """Make the groups; `TestbedError` names one that the broker refuses."""
    client = open_admin([servers], "weir-bench", TIMEOUT_SECONDS)
    try:
        for number, group in enumerate(groups):
            client._manager.run(_make, client, group, number)
    finally:
        close_admin(client)


async def _make(client: Any, group: MadeGroup, number: int) -> None:
    until = time.monotonic() + RETRY_SECONDS
    while True:
        problem = await _joined(client, group, number)
        if not problem:
            return
        if time.monotonic() > until:
            raise TestbedError(f"group {group.id}: {problem}")
        await client._net.sleep(0.2)


async def _joined(client: Any, group: MadeGroup, number: int) -> str:
    from kafka.protocol.consumer import JoinGroupRequest, OffsetCommitRequest, SyncGroupRequest
    from kafka.protocol.metadata import FindCoordinatorRequest

    send = client._manager.send
    # a new cluster makes its coordinators when the first client looks for one
    (found,) = (await send(FindCoordinatorRequest(key_type=0, coordinator_keys=[group.id], min_version=4))).coordinators
    if found.error_code:
        return f"no coordinator: error {found.error_code}"
    node = next(broker.node_id for broker in client._manager.cluster.brokers())
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(
        name="stream", metadata=streams_bytes.subscription([group.topic], UUID(int=number + 1))
    )
    named = {"group_id": group.id, "group_instance_id": "only"}
    joined = await send(
        JoinGroupRequest(
            **named,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
            max_version=5,
        ),
        node_id=node,
    )
    if joined.error_code:
        return f"cannot join: error {joined.error_code}"
    tasks = streams_bytes.user_data([(0, n) for n in range(group.partitions)])
    places = [(group.topic, n) for n in range(group.partitions)]
    assigned = SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=streams_bytes.assignment(places, tasks)
    )
    member = {**named, "member_id": joined.member_id}
    synced = await send(
        SyncGroupRequest(**member, generation_id=joined.generation_id, assignments=[assigned], max_version=3),
        node_id=node,
    )
    if synced.error_code:
        return f"cannot sync: error {synced.error_code}"
    topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
    metadata = base64.b64encode(struct.pack(">bq", 2, int(time.time() * 1000))).decode()
    partitions = [
        topic_of.OffsetCommitRequestPartition(
            partition_index=n, committed_offset=0, committed_leader_epoch=-1, committed_metadata=metadata
        )
        for n in range(group.partitions)
    ]
    committed = await send(
        OffsetCommitRequest(
            **member,
            generation_id_or_member_epoch=joined.generation_id,
            retention_time_ms=-1,
            topics=[topic_of(name=group.topic, partitions=partitions)],
            max_version=7,
        ),
        node_id=node,
    )
    codes = {p.error_code for topic in committed.topics for p in topic.partitions} - {0}
    return f"cannot commit: errors {sorted(codes)}" if codes else ""
