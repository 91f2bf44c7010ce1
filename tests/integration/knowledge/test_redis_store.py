"""The store on a real Redis: the suite, many writers from several processes' connections, and a server that is away."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from pydantic import SecretStr

from services.knowledge.adapters.redis import RedisStore
from services.knowledge.core import Limits, State, remember
from services.knowledge.store import StoreUnavailable, VersionConflict
from testbed.process import free_port
from testbed.redis import RedisServer
from tests.unit.knowledge.builders import APP, action, analysis, observation, plan
from tests.unit.knowledge.store_suite import StoreSuite

DATABASE = 7
"""Of these tests alone."""


def redis_port(url: SecretStr) -> int:
    """Where the server listens."""
    return urlsplit(url.get_secret_value()).port or 0


@pytest.fixture
def url(redis_server: RedisServer) -> SecretStr:
    """An empty database."""
    with redis.Redis(port=redis_server.port, db=DATABASE) as client:
        client.flushdb()
    return SecretStr(f"redis://127.0.0.1:{redis_server.port}/{DATABASE}")


@pytest.fixture
async def store(url: SecretStr) -> AsyncIterator[RedisStore]:
    made = RedisStore(url)
    yield made
    await made.close()


class TestRedisStore(StoreSuite):
    """The suite."""


async def test_replicas_see_what_the_other_has_written(url: SecretStr) -> None:
    """What a replica remembers of an application is used only while nobody else wrote it; an emptied server empties it, too."""
    one, other, forgetful = RedisStore(url), RedisStore(url), RedisStore(url, known_characters=0)
    known = State(application=APP)
    for turn in range(1, 12):
        for store, event in ((one, observation(turn)), (other, analysis(turn)), (forgetful, plan(turn))):
            assert (await store.state(APP) or State(application=APP)) == known
            known = remember(known, event, Limits(turns_count=3))
            await store.save([known], [])
    with redis.Redis(port=redis_port(url), db=DATABASE) as client:
        client.flushdb()
    assert [await store.state(APP) for store in (one, other, forgetful)] == [None] * 3
    for store in (one, other, forgetful):
        await store.close()


async def test_a_write_into_an_emptied_server_is_whole(url: SecretStr) -> None:
    """Redis is emptied between reading and writing: the change is not written alone, also where there is none to what is remembered."""
    store, other = RedisStore(url), RedisStore(url)
    first = remember(remember(State(application=APP), observation(1), Limits()), plan(1), Limits())
    await store.save([first], [])
    for then in (remember(first, observation(2), Limits()), first):
        with redis.Redis(port=redis_port(url), db=DATABASE) as client:
            client.flushdb()
        await store.save([then], [])
        assert await other.state(APP) == await store.state(APP) == then
    for opened in (store, other):
        await opened.close()


async def test_each_version_has_one_writer(url: SecretStr) -> None:
    """20 executors, each with connections of its own, all replacing the action as fast as they can: no version is written twice."""
    stores = [RedisStore(url) for _ in range(20)]
    await stores[0].put_action(action(plan(1), version=1), 0)
    written: list[int] = []

    async def write(store: RedisStore) -> None:
        for _ in range(5):
            found = await store.action(APP)
            assert found is not None
            try:
                await store.put_action(found.model_copy(update={"version": found.version + 1}), found.version)
                written.append(found.version + 1)
            except VersionConflict as conflict:
                assert conflict.current is not None

    await asyncio.gather(*(write(store) for store in stores))
    last = await stores[0].action(APP)
    assert last is not None
    assert sorted(written) == list(range(2, last.version + 1))
    for store in stores:
        await store.close()


async def test_a_server_that_is_away_is_said_so() -> None:
    """Every call, pipelines and scripts too, says that the store is unavailable and never anything of its password."""
    store = RedisStore(SecretStr(f"redis://:geheim@127.0.0.1:{free_port()}/0"), timeout_seconds=1.0)
    for call in (
        store.ping(),
        store.policies(),
        store.action(APP),
        store.is_whole(),
        store.put_action(action(plan(1)), 0),
        store.save([], [("plan", APP, "{}")]),
        store.forget(APP),
        store.events("0"),
    ):
        with pytest.raises(StoreUnavailable) as error:
            await call
        assert "geheim" not in str(error.value)
    await store.close()


async def test_a_server_that_wants_a_password_is_said_so(tmp_path: Path) -> None:
    """None, a wrong one, and one whose user may too little: each names the setting, none tells the password."""
    with RedisServer(tmp_path) as server, redis.Redis(port=server.port, password="geheim") as admin:
        with redis.Redis(port=server.port) as open_still:
            open_still.config_set("requirepass", "geheim")
        admin.acl_setuser("reader", enabled=True, passwords=["+lesen"], categories=["+@read"], keys=["*"])
        for user, says in (
            ("", "uthentication"),
            (":falsch@", "invalid username-password"),
            ("reader:lesen@", "permissions"),
        ):
            store = RedisStore(SecretStr(f"redis://{user}127.0.0.1:{server.port}/0"))
            with pytest.raises(StoreUnavailable, match=f"{says}.*WEIR_KNOWLEDGE_REDIS_URL") as error:
                await store.mark_whole()
            assert not {"geheim", "falsch", "lesen"} & set(re.findall("[a-z]+", str(error.value)))
            await store.close()
        store = RedisStore(SecretStr(f"redis://:geheim@127.0.0.1:{server.port}/0"))
        await store.mark_whole()
        await store.close()
