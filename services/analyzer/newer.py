"""Observations of a newer version are refused in Spark's workers; readiness is this process's, so it listens to what they put aside."""

from weir_contracts import DeadLetter
from weir_contracts.topics import DEAD_LETTERS, OBSERVATIONS

from runtime import newer
from runtime.bus import Bus, Reader
from runtime.envelope import Undecodable, decode
from runtime.loop import Stop, run_forever

from .adapters.processing import SERVICE


async def follow(bus: Bus, stop: Stop) -> None:
    """Listen until stopped, from now on."""
    reader = bus.reader(DEAD_LETTERS.name, from_beginning=False)
    try:
        await run_forever("newer-messages", lambda: listen(reader, stop), stop)
    finally:
        await reader.close()


async def listen(reader: Reader, stop: Stop) -> None:
    """Note those of this service that are of a newer version."""
    for record in await stop.race(reader.receive(timeout_seconds=1.0)) or []:
        try:
            letter = decode(record, DeadLetter).message
        except Undecodable:
            continue
        if letter.service == SERVICE and letter.topic == OBSERVATIONS.name and (type := newer.told(letter.reason)):
            newer.note(type, f"{letter.topic}/{letter.partition}@{letter.offset} {letter.reason}")
