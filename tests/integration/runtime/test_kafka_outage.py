"""Brokers that go away and come back, and a member that dies without a word."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from testbed.kafka import KafkaBroker
from tests.unit.runtime.bus_suite import PARTITIONS, collect, read_to_end, until
from weir_runtime.bus import BusError, TopicSpec
from weir_runtime.kafka_bus import KafkaBus


@pytest.fixture(scope="module")
def own_broker(run_folder: Path) -> Iterator[KafkaBroker]:
    """One that may be killed."""
    with KafkaBroker(run_folder / "kafka-outage") as broker:
        yield broker


@pytest.fixture
async def bus(own_broker: KafkaBroker) -> AsyncIterator[KafkaBus]:
    bus = KafkaBus(own_broker.bootstrap_servers, delivery_timeout_seconds=4.0)
    await bus.start()
    yield bus
    await bus.close()


@pytest.fixture
async def topic(bus: KafkaBus) -> str:
    name = f"story-{uuid4().hex[:10]}"
    await bus.ensure_topics([TopicSpec(name, PARTITIONS)])
    return name


async def test_an_outage_is_waited_out(bus: KafkaBus, topic: str, own_broker: KafkaBroker) -> None:
    """The brokers are killed in the middle of the work: publishing gives up after its time, receiving waits, the ping
    says why. When they are back, the same bus goes on where it was, without help."""
    consumer, reader = bus.consumer([topic], f"group-{topic}"), bus.reader(topic)
    await bus.publish(topic, "a", b"1")
    assert [r.value for r in await collect(consumer, 1)] == [b"1"]
    assert [r.value for r in await read_to_end(reader)] == [b"1"]

    await asyncio.to_thread(own_broker.kill)
    started = time.monotonic()
    with pytest.raises(BusError, match=f"kafka: {topic} a: "):
        await bus.publish(topic, "a", b"lost")
    assert 3.0 < time.monotonic() - started < 10.0
    with pytest.raises(BusError):
        await bus.ping()
    assert await consumer.receive(timeout_seconds=0.5) == []
    assert await reader.receive(timeout_seconds=0.5) == []
    late_reader = bus.reader(topic)
    assert await late_reader.receive(timeout_seconds=0.5) == []
    assert not await late_reader.caught_up()

    await asyncio.to_thread(own_broker.restart)
    async with asyncio.timeout(30):
        while True:
            try:
                await bus.publish(topic, "a", b"2")
                break
            except BusError:
                continue
    assert b"2" in [r.value for r in await collect(reader, 1)]
    assert (await read_to_end(late_reader))[0].value == b"1"
    async with asyncio.timeout(40):
        received: set[bytes | None] = set()
        while b"2" not in received:
            received |= {r.value for r in await consumer.receive(timeout_seconds=0.5)}
    await consumer.commit()
    await bus.ping()


async def test_the_end_comes_soon_without_brokers(topic: str, own_broker: KafkaBroker) -> None:
    """A service that is stopped during an outage does not hang: neither in its commit, nor in what it could not
    publish."""
    bus = KafkaBus(own_broker.bootstrap_servers, delivery_timeout_seconds=60.0)
    await bus.start()
    consumer, reader = bus.consumer([topic], f"group-{topic}"), bus.reader(topic)
    await bus.publish(topic, "a", b"1")
    await collect(consumer, 1)
    await collect(reader, 1)
    await asyncio.to_thread(own_broker.kill)
    try:
        publishing = asyncio.create_task(bus.publish(topic, "a", b"2"))
        committing = asyncio.create_task(consumer.commit())
        await asyncio.sleep(0.2)
        started = time.monotonic()
        await bus.close()
        assert (
            time.monotonic() - started < 10.0
        )  # its parts' own limits are 2 and 1.5 s; a hang would be the 60 s of delivery
        with pytest.raises(BusError):
            await asyncio.wait_for(publishing, 1.0)
        committing.cancel()
        with pytest.raises(BusError):
            await consumer.receive()
    finally:
        await asyncio.to_thread(own_broker.restart)


_MEMBER = """
import asyncio, sys
from weir_runtime.kafka_bus import KafkaBus

async def main(servers, topic, group):
    bus = KafkaBus(servers)
    await bus.start()
    consumer = bus.consumer([topic], group)
    while True:
        await consumer.receive(timeout_seconds=0.2)
        print(len(consumer.assignment), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_dead_members_partitions_are_taken_over(bus: KafkaBus, topic: str, own_broker: KafkaBroker) -> None:
    """A replica is killed: the other one has its partitions as soon as the session has run out."""
    group = f"group-{topic}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _MEMBER,
        own_broker.bootstrap_servers,
        topic,
        group,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        async with asyncio.timeout(30):
            while int(await process.stdout.readline()) != PARTITIONS:  # type: ignore[union-attr]
                pass
        survivor = bus.consumer([topic], group)
        await until(lambda: len(survivor.assignment) == PARTITIONS // 2, survivor)
        process.send_signal(signal.SIGKILL)
        started = time.monotonic()
        await until(lambda: len(survivor.assignment) == PARTITIONS, survivor)
        assert time.monotonic() - started < 15.0
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.communicate()


_SPEAKER = """
import asyncio, sys, time
from weir_runtime.kafka_bus import KafkaBus

async def main(servers, topic, group):
    bus = KafkaBus(servers)
    await bus.start()
    consumer = bus.consumer([topic], group)
    while True:
        await consumer.receive(timeout_seconds=0.02)
        until = await consumer.confirmed_until(0)
        now = time.monotonic()
        print(now, until if until is not None and now < until else 0, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Speaker:
    """A process that says until when it is certain to own partition 0, all the time."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, "-c", _SPEAKER, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def word(self) -> tuple[float, float]:
        """When it spoke, and until when it is certain (0: it is not), on the machine's monotonic clock."""
        assert self.process.stdout is not None
        at, until = self.process.stdout.readline().split()
        return float(at), float(until)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


async def test_a_paused_member_is_certain_of_nothing(bus: KafkaBus, topic: str, own_broker: KafkaBroker) -> None:
    """Stopped for longer than a session: its certainty ended before another member's began, and awake it has none."""
    group = f"group-{topic}"
    speaker = await asyncio.to_thread(Speaker, own_broker.bootstrap_servers, topic, group)
    try:
        confirmations = [(0.0, 0.0)]
        async with asyncio.timeout(30):
            while confirmations[-1][1] == 0:
                confirmations.append(await asyncio.to_thread(speaker.word))
        speaker.process.send_signal(signal.SIGSTOP)
        paused = time.monotonic()
        follower = bus.consumer([topic], group)
        await until(lambda: len(follower.assignment) == PARTITIONS, follower)
        assert await follower.confirmed_until(0) is not None
        taken = time.monotonic()
        speaker.process.send_signal(signal.SIGCONT)
        # Without `receive` the follower gives nothing back, so that no other member can own the partition.
        while confirmations[-1][0] < taken + 2:
            confirmations.append(await asyncio.to_thread(speaker.word))
        assert paused < max(certain for _, certain in confirmations) < taken
        assert not [word for word in confirmations if word[0] > taken and word[1] > 0]
        assert await follower.confirmed_until(0, 4.0) is not None
    finally:
        await asyncio.to_thread(speaker.end)


async def test_certainty_ends_with_the_brokers(bus: KafkaBus, topic: str, own_broker: KafkaBroker) -> None:
    """A session after the last answer at the latest, and no call waits long; when they are back it comes back, too."""
    consumer = bus.consumer([topic], f"group-{topic}")
    await until(lambda: len(consumer.assignment) == PARTITIONS, consumer)
    certain = await consumer.confirmed_until(0)
    assert certain is not None
    await asyncio.to_thread(own_broker.kill)
    try:
        # Until less is certain than is asked for below: the broker may have ended at once after its last answer.
        await asyncio.sleep(max(0.0, certain - 7.8 - time.monotonic()))
        while time.monotonic() < certain:
            assert await asyncio.wait_for(consumer.confirmed_until(0, 7.9), 5.0) is None
            await asyncio.sleep(0.5)
        assert await asyncio.wait_for(consumer.confirmed_until(0), 5.0) is None
    finally:
        await asyncio.to_thread(own_broker.restart)
    async with asyncio.timeout(90):
        while await consumer.confirmed_until(0) is None:
            await consumer.receive(timeout_seconds=0.2)
