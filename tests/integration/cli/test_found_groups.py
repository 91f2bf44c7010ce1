"""`weir run --kafka` at a real broker: which groups it finds, and what it says about a group whose records wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from testbed.kafka import KafkaBroker
from tests.integration.monitor.test_groups import RealRig
from tests.loop.test_one_process import one_process, until
from weir_cli.client import Unreachable
from weir_cli.discovery import Discovery
from weir_cli.discovery_kafka import ConsumerGroups
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop


@pytest.fixture
async def rigs(kafka: KafkaBroker) -> AsyncIterator[list[RealRig]]:
    """A group of each protocol, without members."""
    made = [RealRig(kafka, protocol) for protocol in ("classic", "consumer")]
    yield made
    for each in made:
        await each.close()


async def test_the_groups_that_are_found_are_those_that_the_brokers_list_as_stable(
    kafka: KafkaBroker, rigs: list[RealRig]
) -> None:
    """Groups of both protocols while they have members, and not when these have left."""
    source = ConsumerGroups(kafka.bootstrap_servers, None, SystemClock())
    own = {each.group for each in rigs}
    try:
        for each in rigs:
            await each.join(1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        listed = await asyncio.to_thread(admin.list_consumer_groups().result, 20)
        assert own <= {each.group_id for each in listed.valid if each.state is ConsumerGroupState.STABLE}
        assert own <= {each.name for each in (await source.find()).candidates}
        await rigs[0].leave()
        found = {each.name for each in (await source.find()).candidates}
        assert own & found == {rigs[1].group}
    finally:
        await source.close()


async def test_advice_on_a_group_whose_records_wait(kafka: KafkaBroker, rigs: list[RealRig], tmp_path: Path) -> None:
    """Its members and waiting records are those of this test, and the plan only advises: nothing scales the group."""
    rig = rigs[0]
    await rig.join(2)
    await rig.append(0, 30)
    await rig.commit(0, 10)
    async with one_process(tmp_path) as one:
        discovery, stop = Discovery(ConsumerGroups(kafka.bootstrap_servers, rig.group, one.api.clock), one.api), Stop()
        looking = asyncio.create_task(discovery.run(stop))
        application = f"/v1/applications/default/{rig.group}"
        plan = await until(one, f"{application}/plan", lambda plan: plan["mode"] == "advise")
        analysis = await until(one, f"{application}/analysis", lambda found: found["lag_records"]["value"] is not None)
        stop.request("the test is over")
        await looking
        await discovery.source.close()
    assert plan["current"] == {rig.group: 2}
    assert analysis["lag_records"]["value"] == 20


async def test_an_address_that_is_no_kafka() -> None:
    """A web server takes the connection and answers what no client of Kafka understands."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    servers = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    source = ConsumerGroups(servers, None, SystemClock())
    with pytest.raises(Unreachable, match=f"--kafka: no brokers answer at {servers}"):
        await source.find()
    await source.close()
    server.close()
