"""The profile `kafka-streams` as a user starts it: instances of a Kafka Streams application follow its load."""

from collections.abc import Iterator, Mapping

import pytest

from testbed.process import free_port
from tests.containers.compose import WEIR, ComposeStack, compose_command

from .loop import Loop

LOW, HIGH = 150, 550
"""Records/s: one instance does the one, and the other takes three."""


@pytest.fixture(scope="module")
def loop(image_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """The loop and the Kafka Streams application; the Flink cluster is left out."""
    if compose_command() is None:
        pytest.skip("no Docker Compose: install it (Debian: apt install docker-compose)")
    port = free_port()
    settings = {**image_settings, "WEIR_PORT": str(port), "WEIR_LOAD_TRACE": "step"}
    folder = tmp_path_factory.mktemp("compose")
    stack = ComposeStack(f"weir-test-{port}", folder, settings, profiles=["kafka-streams"])
    try:
        stack.up(*WEIR, "streams-load", "streams-policy")
        loop = Loop(stack, port, "demo/streams", load="streams-load")
        loop.set_load(rate=LOW)
        yield loop
        loop.client.close()
    finally:
        try:
            stack.down()
        finally:
            stack.close()


def test_more_load_is_more_instances(loop: Loop) -> None:
    """Each step is verified: a new instance is a member of the group, and has its share of the tasks."""
    loop.until("the group runs", lambda s: bool(s.get("observed")), 600)
    loop.set_load(rate=HIGH)
    loop.until(
        "three verified instances",
        lambda s: s.get("action_phase") == "verified" and (s.get("observed") or {}).get("streams", 0) >= 3,
        400,
    )


def test_less_load_is_fewer(loop: Loop) -> None:
    """By single steps; the members of the ended instances are evicted."""
    loop.set_load(rate=LOW)
    loop.until("fewer instances", lambda s: (s.get("observed") or {}).get("streams", 9) <= 2, 400)
