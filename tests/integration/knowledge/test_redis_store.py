"""The store on a real Redis: the suite, many writers from several processes' connections, and a server that is away or
full."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from testbed.process import free_port
from testbed.service import RedisServer
from tests.unit.knowledge.builders import APP, action, analysis, documents, observation, outcome, plan
from tests.unit.knowledge.store_suite import PARTITIONS, POLICY, SMALL, Fill, StoreSuite, batch, noise, save, write
from weir_knowledge.adapters.redis import DOCUMENT, EVENTS, RedisStore, history_keys
from weir_knowledge.core import End, HistoryEntry, HistoryLimits, State, history_entries, remember
from weir_knowledge.store import NotContinued, StoreFull, StoreUnavailable
from weir_knowledge.view import View, state_change

SIZES = Path(__file__).parents[3] / "docs" / "explanation" / "scale.md"


@pytest.fixture
def url(redis_server: RedisServer) -> SecretStr:
    """An empty database."""
    return SecretStr(redis_server.new_database())


@pytest.fixture
async def store(url: SecretStr) -> AsyncIterator[RedisStore]:
    made = RedisStore(url)
    yield made
    await made.close()


@pytest.fixture
async def small_store(url: SecretStr) -> AsyncIterator[RedisStore]:
    made = RedisStore(url, **SMALL)
    yield made
    await made.close()


@pytest.fixture
def empty(admin: Any) -> Callable[[], Awaitable[None]]:
    async def emptied() -> None:
        admin.flushdb()

    return emptied


@pytest.fixture
def fill(admin: Any) -> Fill:
    async def filled(full: bool) -> None:
        admin.config_set("maxmemory", 1 if full else 0)

    return filled


@pytest.fixture
def admin(url: SecretStr) -> Iterator[Any]:
    """A client of the store's server; the server is left without a limit."""
    with redis.Redis.from_url(url.get_secret_value()) as client:
        yield client
        client.config_set("maxmemory", 0)


class TestRedisStore(StoreSuite):
    """The suite."""


async def test_reading_many_leaves_room_for_others(url: SecretStr) -> None:
    """HTTP requests share the event loop: they are served between two states that are read."""
    store, cycles = RedisStore(url), 0
    states = {f"shop/app-{i}": State(application=f"shop/app-{i}") for i in range(120)}
    for state in states.values():
        await save(store, None, state)

    async def beat() -> None:
        nonlocal cycles
        while True:
            cycles += 1
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    found = await View(store, PARTITIONS).states(states)
    beating.cancel()
    assert {name: stored and stored.state for name, stored in found.items()} == states
    assert cycles > len(states)
    await store.close()


async def test_each_position_is_continued_once(url: SecretStr) -> None:
    """20 replicas, each with own connections, all going on as fast as they can: no position is applied twice, and each
    document is that of its position."""
    stores = [RedisStore(url) for _ in range(20)]
    await stores[0].apply(batch(None, 0, changed={POLICY: {"at": "0"}}))
    written: list[int] = []

    async def go_on(store: RedisStore) -> None:
        for _ in range(5):
            present = (await store.applied([0]))[0]
            assert present is not None
            (offset,) = present.offsets.values()
            with suppress(NotContinued):
                await store.apply(batch(offset, offset + 1, changed={POLICY: {"at": str(offset + 1)}}))
                written.append(offset + 1)

    await asyncio.gather(*(go_on(store) for store in stores))
    assert sorted(written) == list(range(1, len(written) + 1))
    assert await stores[0].get([POLICY]) == {POLICY: {"at": str(len(written))}}
    for store in stores:
        await store.close()


async def test_more_callers_than_connections_wait(url: SecretStr) -> None:
    """300 at once, with ten connections: each gets its answer."""
    store = RedisStore(url, connections=10)
    assert await asyncio.gather(*(store.applied([0]) for _ in range(300))) == [{0: None}] * 300
    await store.close()


async def test_a_server_that_is_away_is_unavailable() -> None:
    """Every call, pipelines and scripts too, says that the store is unavailable and never anything of its password."""
    store = RedisStore(SecretStr(f"redis://:geheim@127.0.0.1:{free_port()}/0"), timeout_seconds=1.0)
    for call in (
        store.ping(),
        store.applied([0]),
        store.get([POLICY]),
        store.all("policy"),
        store.apply(batch(None, 1)),
        store.history(APP),
        store.events("0"),
    ):
        with pytest.raises(StoreUnavailable) as error:
            await call
        assert "geheim" not in str(error.value)
    await store.close()


async def test_a_server_with_a_password_names_the_setting(tmp_path: Path) -> None:
    """None, a wrong one, and one whose user may too little: each error names the setting, none the password."""
    with RedisServer(tmp_path) as server, redis.Redis(port=server.port, password="geheim") as admin:
        with redis.Redis(port=server.port) as open_still:
            open_still.config_set("requirepass", "geheim")
        admin.acl_setuser("reader", enabled=True, passwords=["+lesen"], categories=["+@read"], keys=["*"])
        for user, reason in (
            ("", "uthentication"),
            (":falsch@", "invalid username-password"),
            ("reader:lesen@", "permissions"),
        ):
            store = RedisStore(SecretStr(f"redis://{user}127.0.0.1:{server.port}/0"))
            with pytest.raises(StoreUnavailable, match=f"{reason}.*WEIR_KNOWLEDGE_REDIS_URL") as error:
                await write(store, changed={POLICY: {"text": "{}"}})
            assert not {"geheim", "falsch", "lesen"} & set(re.findall("[a-z]+", str(error.value)))
            await store.close()
        store = RedisStore(SecretStr(f"redis://:geheim@127.0.0.1:{server.port}/0"))
        await write(store, changed={POLICY: {"text": "{}"}})
        await store.close()


async def test_the_feed_stays_within_its_memory(url: SecretStr, admin: Any) -> None:
    """Ten times as many events as there is room for, small and large, by two replicas, of which the second finds a feed
    that is too large already: by Redis' own count it is never above its bytes, and never far below them once it was
    full."""
    large = RedisStore(url, events_bytes=50_000_000)
    for begin in range(0, 3000, 500):
        await write(large, events=[("plan", APP, noise(2000, begin + i)) for i in range(500)])
    assert admin.memory_usage(EVENTS, samples=0) > 3_000_000
    stores = [RedisStore(url, events_bytes=1_000_000) for _ in range(2)]
    used = []
    for i in range(600):
        size = (300, 3000, 12_000)[i // 200]
        await write(stores[i % 2], events=[("plan", APP, noise(size, i + n)) for n in range(5)])
        used.append(admin.memory_usage(EVENTS, samples=0))
    assert max(used[1:]) < 1_000_000
    assert min(used) > 600_000
    newest = await stores[0].events((await stores[0].events("0"))[-1].id, count=10_000)
    assert newest[-1].data == noise(12_000, 599 + 4)
    for store in (large, *stores):
        await store.close()


async def test_a_server_that_was_filled_by_its_feed_has_room_again(url: SecretStr, admin: Any) -> None:
    """As one of an earlier version, or of another setting: the oldest events go, and what was refused is written."""
    old = RedisStore(url, events_bytes=50_000_000)
    for begin in range(0, 3000, 500):
        await write(old, events=[("plan", APP, noise(2000, begin + i)) for i in range(500)])
    admin.config_set("maxmemory", admin.info("memory")["used_memory"])
    with pytest.raises(StoreFull):  # not at once: Redis still frees what clients of other tests left
        for i in range(100):
            await write(old, events=[("plan", APP, noise(100_000, i))])
    store = RedisStore(url, events_bytes=1_000_000)
    await write(store, events=[("plan", APP, "{}")], changed={POLICY: {"text": "{}"}})
    await store.check_room()
    assert await store.get([POLICY]) == {POLICY: {"text": "{}"}}
    for opened in (old, store):
        await opened.close()


async def test_a_full_server_reports_its_memory(url: SecretStr, admin: Any) -> None:
    """In megabytes, and what to do about it; also just under its limit, once it has refused something, until something
    is written."""
    store = RedisStore(url)
    limit = admin.info("memory")["used_memory"] + 2_000_000
    admin.config_set("maxmemory", limit)
    await store.check_room()
    sentence = (
        r"redis is full: it uses \d+ MB of the \d+ MB that it may \(maxmemory\) .* raise maxmemory, or lower "
        "WEIR_KNOWLEDGE_EVENTS_MEGABYTES"
    )
    with pytest.raises(StoreFull, match=sentence):
        for i in range(100):
            await write(store, events=[("plan", APP, noise(100_000, i))])
    admin.config_set("maxmemory", round(1.02 * admin.info("memory")["used_memory"]))
    for _ in range(2):
        with pytest.raises(StoreFull, match=sentence):
            await store.check_room()
    await write(store, events=[("plan", APP, "{}")])
    await store.check_room()
    await store.close()


async def test_a_server_that_drops_other_keys_is_not_full(tmp_path: Path) -> None:
    """Under another policy than `noeviction` it takes everything in."""
    with RedisServer(tmp_path) as server, redis.Redis(port=server.port) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        admin.config_set("maxmemory", 1)
        store = RedisStore(SecretStr(server.url))
        await store.check_room()
        admin.config_set("maxmemory-policy", "noeviction")
        with pytest.raises(StoreFull):
            await store.check_room()
        await store.close()


async def test_a_user_that_may_not_ask_for_memory_is_enough(url: SecretStr, admin: Any) -> None:
    """The number of events still bounds the feed, and a refusal is known by itself."""
    admin.acl_setuser(
        "weir", enabled=True, passwords=["+weir"], categories=["+@all"], commands=["-info", "-memory"], keys=["*"]
    )
    store = RedisStore(SecretStr(url.get_secret_value().replace("//", "//weir:weir@")), events_kept=200, events_bytes=1)
    for begin in range(0, 2000, 100):
        await write(store, events=[("plan", APP, str(begin + i)) for i in range(100)])
    assert 200 <= len(await store.events("0", count=5000)) <= 400
    await store.check_room()
    admin.config_set("maxmemory", 1)
    with pytest.raises(StoreFull, match="all memory that it may"):
        await write(store, events=[("plan", APP, "{}")])
    with pytest.raises(StoreFull):
        await store.check_room()
    admin.config_set("maxmemory", 0)
    await store.check_room()
    await store.close()
    admin.acl_deluser("weir")


async def test_ends_go_with_their_lines(url: SecretStr, admin: Any) -> None:
    """Ends of plans without a line are not kept for ever."""
    store, state = RedisStore(url, history_kept=20), State(application=APP)
    for cycle in range(1, 200):
        decided = plan(cycle, 4)
        state = remember(state, decided, HistoryLimits())
        end = End(plan_id=decided.id, phase="verified")
        await write(store, entries=[*history_entries(decided, state), (APP, end)])
        assert admin.hlen(history_keys(APP)[1]) <= 41
    assert [line.outcome for line in await store.history(APP)] == ["verified"] * 20
    await store.close()


async def test_an_application_takes_the_memory_in_the_documentation(url: SecretStr, admin: Any) -> None:
    """One of ten operators with all the history and all the cycles that are kept, each of them a rescale: Redis' own
    count."""
    operators = {f"operator-{n}": 4 for n in range(10)}
    store, current_state, entries = RedisStore(url), State(application=APP), list[tuple[str, HistoryEntry]]()
    for cycle in range(1, 502):
        fourth = cycle % 8 + 1
        decided = plan(cycle, 4, current=operators, action={"parallelism": {**operators, "operator-3": fourth}})
        for event in (
            observation(cycle),
            analysis(cycle),
            decided,
            outcome(decided, "verified", action=action(decided)),
        ):
            current_state = remember(current_state, event, HistoryLimits())
            entries += history_entries(event, current_state)
    newest = documents(observation(501), analysis(501), decided, outcome(decided, "verified", action=action(decided)))
    await save(store, None, current_state, newest)
    await write(store, entries=entries)
    assert (len(await store.history(APP)), len(current_state.cycles)) == (500, 60)
    await store.close()
    (kilobytes,) = re.findall(r"about (\d+) kB of an application of ten operators", SIZES.read_text())
    used = sum(admin.memory_usage(key, samples=0) for key in (f"{DOCUMENT}state:{APP}", *history_keys(APP)))
    plain = [
        *state_change(None, current_state, newest).fields.values(),
        *(entry.model_dump_json() for _, entry in entries),
    ]
    assert used < int(kilobytes) * 1000
    assert used < 0.7 * sum(len(text) for text in plain)
