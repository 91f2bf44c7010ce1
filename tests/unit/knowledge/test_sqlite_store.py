"""The store in the file of the log: the suite, and a process that is killed while it writes both."""

import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.unit.knowledge.store_suite import SMALL, Fill, StoreSuite
from tests.unit.runtime.bus_suite import read_to_end
from weir_contracts.topics import OBSERVATIONS, PLANS
from weir_knowledge.adapters.sqlite import SqliteStore
from weir_runtime.bus import TopicSpec
from weir_runtime.clock import SystemClock
from weir_runtime.sqlite_bus import SqliteBus
from weir_runtime.sqlite_file import SqliteFile

KILLED = Path(__file__).with_name("killed.py")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteFile]:
    file = SqliteFile.open(tmp_path / "weir.db", SystemClock())
    yield file
    file.close()


@pytest.fixture
def store(file: SqliteFile) -> SqliteStore:
    return SqliteStore(file)


@pytest.fixture
def small_store(file: SqliteFile) -> SqliteStore:
    return SqliteStore(file, **SMALL)


@pytest.fixture
def empty(file: SqliteFile) -> Callable[[], Awaitable[None]]:
    async def emptied() -> None:
        with sqlite3.connect(file.path) as db:
            for (table,) in db.execute(
                "SELECT name FROM sqlite_master WHERE name LIKE 'view_%' AND type = 'table'"
            ).fetchall():
                db.execute(f"DELETE FROM {table}")  # noqa: S608 - the table's own name
        db.close()

    return emptied


@pytest.fixture
def fill(file: SqliteFile) -> Fill:
    async def filled(full: bool) -> None:
        file.min_free_bytes = 2**60 if full else 0

    return filled


class TestSqliteStore(StoreSuite):
    """The suite."""


def acknowledged(output: str) -> dict[str, int]:
    """How many of each kind a killed process acknowledged; a line that was cut off counts as not read."""
    whole = output[: output.rfind("\n") + 1]
    return {kind: int(number) + 1 for kind, number in (line.split() for line in whole.splitlines())}


@pytest.mark.thorough
async def test_what_was_acknowledged_is_there_once_after_a_kill(tmp_path: Path) -> None:
    """A real process is killed twenty times, at random moments, also before the file exists and within checkpoints; each
    time the next one goes on. Every record, position and batch that was acknowledged is there, each once; what was written
    together is there together or not at all."""
    path, random = tmp_path / "weir.db", Random(34)
    most: dict[str, int] = defaultdict(int)
    for attempt in range(20):
        command = [sys.executable, str(KILLED), str(path)]
        # Nothing else runs on this event loop.
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as child:  # noqa: ASYNC220
            assert child.stdout is not None
            first = "" if attempt % 5 == 0 else child.stdout.readline()
            with suppress(subprocess.TimeoutExpired):
                child.wait(random.uniform(0.0, 0.2))
            assert child.poll() is None, "it ended by itself"
            child.kill()
            for kind, number in acknowledged(first + child.stdout.read()).items():
                most[kind] = max(most[kind], number)
        file = SqliteFile.open(path, SystemClock())
        bus, store = SqliteBus(file), SqliteStore(file)
        await bus.ensure_topics([TopicSpec(topic.name, 1) for topic in (OBSERVATIONS, PLANS)])
        published = [int((r.value or b"").split()[0]) for r in await read_to_end(bus.reader(OBSERVATIONS.name))]
        assert published == [number for number in range(len(published) // 2) for _ in range(2)]
        decided = [int(r.value or b"") for r in await read_to_end(bus.reader(PLANS.name))]
        assert decided == list(range(len(decided)))
        assert (bus.committed_by("writers", (OBSERVATIONS.name, 0)).offset or 0) == len(decided)
        position = (await store.applied([0]))[0]
        applied = 0 if position is None else position.offsets["t"]
        documents = await store.all("policy")
        assert [fields["number"] for fields in documents.values()] == ([str(applied - 1)] if applied else [])
        assert [e.data for e in await store.events("0", count=10**6)] == [str(number) for number in range(applied)]
        assert most["published"] <= len(published) // 2
        assert most["decided"] <= len(decided)
        assert most["applied"] <= applied
        file.close()
    assert min(most.values()) > 20, "each process wrote something"
