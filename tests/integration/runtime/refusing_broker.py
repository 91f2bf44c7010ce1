"""A proxy before a real broker that refuses one batch, as a broker does that has not yet heard of its new partition.

The frames and fields are those of Kafka's protocol guide (Produce, versions 9 to 12); all others pass unread.
"""

import asyncio
import struct
from contextlib import suppress
from typing import Self

_PRODUCE = 0
_NOT_LEADER_OR_FOLLOWER = 6
_FLEXIBLE = range(9, 13)
"""Versions with compact fields, and topics by name."""
FOLLOWING_SECONDS = 1.0
"""How long the next request of the same client is waited for, so that it is under way while the first is refused."""


class _Fields:
    """The fields of a request, one after the other."""

    def __init__(self, frame: bytes) -> None:
        self._rest = frame

    def take(self, count: int) -> bytes:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def compact_text(self) -> bytes:
        """Shorter than 127 bytes, so that its length is one byte; what is null reads as empty."""
        return self.take(max(0, self.number(">B") - 1))


def _framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


async def _frame(source: asyncio.StreamReader) -> bytes:
    return await source.readexactly(struct.unpack(">i", await source.readexactly(4))[0])


def _is_produce(frame: bytes) -> bool:
    return _Fields(frame).number(">h") == _PRODUCE


def refusal(request: bytes) -> bytes:
    """The answer "not the leader" to a Produce request for one partition, which is what librdkafka sends."""
    fields = _Fields(request)
    fields.take(2)
    version = fields.number(">h")
    assert version in _FLEXIBLE, f"Produce of version {version}"
    correlation = fields.take(4)
    fields.take(max(0, fields.number(">h")))  # client id
    fields.take(1)  # no tags
    fields.compact_text()  # transactional id
    fields.take(2 + 4)  # acks, timeout
    assert fields.take(1) == b"\x02", "more than one topic"
    topic = fields.compact_text()
    assert fields.take(1) == b"\x02", "more than one partition"
    partition = fields.take(4)
    nowhere = struct.pack(">qqq", -1, -1, -1)  # offset, time of appending, start of the log
    refused = partition + struct.pack(">h", _NOT_LEADER_OR_FOLLOWER) + nowhere + b"\x01\x00\x00"
    topics = b"\x02" + bytes([len(topic) + 1]) + topic + b"\x02" + refused + b"\x00"
    return _framed(correlation + b"\x00" + topics + struct.pack(">i", 0) + b"\x00")


class RefusingBroker:
    """Listens on `port`; what comes there goes on to `broker_port`, but for the first batch while `armed`."""

    def __init__(self) -> None:
        self.broker_port = 0
        self.port = 0
        self.armed = False
        self.held = asyncio.Event()
        """A batch is being held, to be refused."""
        self.refused = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._ways: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        broker, to_broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
        ways = {
            asyncio.ensure_future(self._requests(client, to_client, to_broker)),
            asyncio.ensure_future(self._answers(broker, to_client)),
        }
        self._ways |= ways
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for writer in (to_broker, to_client):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _requests(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter, to_broker: asyncio.StreamWriter
    ) -> None:
        following = asyncio.ensure_future(_frame(client))
        try:
            while True:
                frame = await following
                following = asyncio.ensure_future(_frame(client))
                if self.armed and _is_produce(frame):
                    self.armed = False
                    self.held.set()
                    await asyncio.wait({following}, timeout=FOLLOWING_SECONDS)
                    to_client.write(refusal(frame))
                    self.refused += 1
                else:
                    to_broker.write(_framed(frame))
        finally:
            following.cancel()

    async def _answers(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while True:
            to_client.write(_framed(await _frame(broker)))
