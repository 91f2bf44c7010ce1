"""Messages that Spark's workers refuse as newer show in the analyzer's readiness."""

import pytest
from weir_contracts.topics import DEAD_LETTERS, OBSERVATIONS

from runtime.clock import FakeClock
from runtime.dead_letters import DeadLetters
from runtime.loop import Stop
from runtime.memory_bus import MemoryBus
from runtime.records import Record
from runtime.schema_version import NEWER_VERSION, NewerMessages
from runtime.service import wait_for_topics
from services.analyzer.adapters.processing import process
from services.analyzer.core import AnalysisSettings
from services.analyzer.service import note_newer

NEWER = Record(OBSERVATIONS.name, 1, 7, "shop/orders", b"{}", {"ce_type": "dev.weir.observations.v1"})


async def test_its_own_dead_letter_is_noted() -> None:
    """The worker's reason names the version; another service's letter and an unreadable one are ignored."""
    bus, clock, stop = MemoryBus(), FakeClock(), Stop()
    assert await wait_for_topics(bus, 4, stop)
    reader = bus.reader(DEAD_LETTERS.name, from_beginning=False)
    check = NewerMessages(clock)
    await note_newer(reader, check, stop)
    _, out = process("shop/orders", None, [NEWER], AnalysisSettings())
    await DeadLetters(bus, "monitor", clock).send(NEWER, NEWER_VERSION, "from a newer Weir")
    await DeadLetters(bus, "analyzer", clock).send(NEWER, "invalid", "is not JSON")
    await bus.publish(DEAD_LETTERS.name, "shop/orders", b"\x00")
    await note_newer(reader, check, stop)
    await check.ping()
    await bus.publish(out[0].topic, out[0].key, out[0].value, out[0].headers)
    await note_newer(reader, check, stop)
    with pytest.raises(
        ValueError, match=r"weir.observations.v1alpha1/1@7 is dev.weir.observations.v1, from a newer Weir"
    ):
        await check.ping()
