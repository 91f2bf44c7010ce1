"""The memory store is a store like the real one."""

from collections.abc import Awaitable, Callable

import pytest

from tests.unit.knowledge.builders import APP
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.knowledge.store_suite import SMALL, Fill, StoreSuite


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def small_store() -> MemoryStore:
    return MemoryStore(**SMALL)


@pytest.fixture
def empty(store: MemoryStore) -> Callable[[], Awaitable[None]]:
    async def emptied() -> None:
        store.empty()

    return emptied


@pytest.fixture
def fill(store: MemoryStore) -> Fill:
    async def filled(full: bool) -> None:
        store.full = full

    return filled


class TestMemoryStore(StoreSuite):
    """The suite."""


async def test_old_events_make_room() -> None:
    """The feed is bounded; the newest events stay."""
    store = MemoryStore(events_kept=2)
    await store.write(events=[("plan", APP, str(i)) for i in range(5)])
    assert [event.data for event in await store.events("0")] == ["3", "4"]
