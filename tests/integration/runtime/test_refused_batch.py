"""A batch that is refused and then tried again: no acknowledged record is missing."""

import asyncio
from pathlib import Path
from uuid import uuid4

from testbed.kafka import KafkaBroker
from tests.unit.runtime.bus_suite import read_to_end
from weir_runtime.bus import TopicSpec
from weir_runtime.kafka_bus import KafkaBus

from .refusing_broker import RefusingBroker


async def test_the_first_batch_of_a_new_partition_is_refused(tmp_path: Path) -> None:
    """A broker that has not yet heard of its new partition refuses the first batch and takes the second, with whatever
    sequence number it begins (KAFKA-15591). Were the second sent before the first was answered, librdkafka would take
    the first for written."""
    name = f"story-{uuid4().hex[:10]}"
    async with RefusingBroker() as refusing:
        broker = KafkaBroker(tmp_path / "kafka", advertised_port=refusing.port)
        refusing.broker_port = broker.port
        await asyncio.to_thread(broker.start)
        bus = KafkaBus(f"127.0.0.1:{refusing.port}")
        try:
            await bus.start()
            await bus.ensure_topics([TopicSpec(name, 1)])
            refusing.armed = True
            first = asyncio.ensure_future(bus.publish(name, "app", b"first"))
            await asyncio.wait_for(refusing.held.wait(), 20)
            await asyncio.gather(first, bus.publish(name, "app", b"second"))
            assert refusing.refused == 1
            assert [r.value for r in await read_to_end(bus.reader(name))] == [b"first", b"second"]
        finally:
            await bus.close()
            broker.stop()
