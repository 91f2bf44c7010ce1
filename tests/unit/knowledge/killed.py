"""A process that writes log and store until it is killed: `python killed.py FILE`. It prints what was acknowledged."""

import asyncio
import sys
from itertools import count
from pathlib import Path

from weir_contracts.topics import OBSERVATIONS, PLANS
from weir_knowledge.adapters.sqlite import SqliteStore
from weir_knowledge.store import Batch, Position
from weir_runtime import sqlite_file
from weir_runtime.bus import Committed, Outgoing, TopicSpec
from weir_runtime.clock import SystemClock
from weir_runtime.sqlite_bus import SqliteBus

APP = "shop/orders"
PLACE = (OBSERVATIONS.name, 0)
DOCUMENT = ("policy", APP)
TEXT = '{"a": "' + "long " * 2_000 + '"}'


async def run(path: Path) -> None:
    """Go on where the file is: pairs of records, transactions with a position, and batches of the store."""
    # Many checkpoints, so that some kills are in one.
    sqlite_file.CHECKPOINT_SECONDS, sqlite_file.MAX_WAL_BYTES = 0.002, 200_000
    file = sqlite_file.SqliteFile.open(path, SystemClock())
    bus, store = SqliteBus(file), SqliteStore(file, events_kept=10**9)
    await bus.ensure_topics([TopicSpec(topic.name, 1) for topic in (OBSERVATIONS, PLANS)])
    consumer = bus.consumer([OBSERVATIONS.name], "writers", positioned=True)
    writing = bus.transactions("writer", consumer)
    await writing.fence()
    for number in count(bus.end(PLACE) // 2):
        text = f"{number} {TEXT}".encode()
        await bus.publish_many([Outgoing(OBSERVATIONS.name, APP, text)] * 2)
        print("published", number, flush=True)  # noqa: T201 - its parent reads it
        decided = (await consumer.committed(PLACE)).offset or 0
        await writing.commit([Outgoing(PLANS.name, APP, b"%d" % decided)], PLACE, Committed(decided + 1, TEXT))
        print("decided", decided, flush=True)  # noqa: T201
        before = (await store.applied([0]))[0]
        applied = 0 if before is None else before.offsets["t"]
        changed = {DOCUMENT: {"number": str(applied), "text": f"{applied} {TEXT}"}}
        after = Position({"t": applied + 1})
        await store.apply(Batch({0: before}, {0: after}, changed=changed, events=[("plan", APP, str(applied))]))
        print("applied", applied, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
