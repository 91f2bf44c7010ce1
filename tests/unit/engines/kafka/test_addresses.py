"""Brokers that a policy names: addresses are checked before librdkafka connects. Oracle: the test's own listener."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.effort import thorough
from weir_engines.kafka.brokers import KafkaBrokers
from weir_engines.kafka.partitions import BrokersAway
from weir_runtime.clock import FakeClock
from weir_runtime.reach import Allowed

PRIVATE = Allowed.of("http,https", "*", "private", prefix="WEIR_TARGET")
USUAL = Allowed.of("http,https", "*", "private,loopback", prefix="WEIR_TARGET")


class Listener:
    """Counts connections and never responds."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.port = 0

    def serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came.set()
        writer.close()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = Listener()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
async def test_no_client_is_made_for_an_address_that_is_not_allowed(listener: Listener, host: str) -> None:
    """The refusal names the setting, and nothing connects."""
    brokers = KafkaBrokers(f"10.255.255.1:9,{host}:{listener.port}", 0.2, FakeClock(), PRIVATE)
    try:
        with pytest.raises(BrokersAway, match="is a loopback address, which WEIR_TARGET_NETWORKS does not allow"):
            await brokers.topics()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(listener.came.wait(), 0.3)
    finally:
        await brokers.close()


@pytest.mark.thorough
async def test_names_are_checked_again_with_each_list(listener: Listener) -> None:
    """First it stands for this machine, where nothing answers in Kafka's way; then for a metadata service."""
    stands_for = ["127.0.0.1"]

    async def resolve(_host: str, _port: int) -> list[str]:
        return list(stands_for)

    brokers = KafkaBrokers(f"localhost:{listener.port}", 0.5, FakeClock(), USUAL, resolve)
    try:
        with pytest.raises(BrokersAway):
            await brokers.topics()
        await asyncio.wait_for(listener.came.wait(), 10)
        stands_for[:] = ["127.0.0.1", "169.254.169.254"]
        refused = ""
        async with asyncio.timeout(20):
            while "169.254.169.254 (of localhost) is a link-local address" not in refused:
                with pytest.raises(BrokersAway) as away:  # one that joins a list of before gets the reason of that
                    await brokers.topics()
                refused = str(away.value)
        listener.came.clear()
        with pytest.raises(TimeoutError):
            # longer than librdkafka's own backoff of 2 s where all of it is tried
            await asyncio.wait_for(listener.came.wait(), 2.5 if thorough() else 0.5)
    finally:
        await brokers.close()
