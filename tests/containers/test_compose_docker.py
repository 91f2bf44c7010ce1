"""The profiles `docker-driver` and `docker-demo`, as a user starts them: a job in reactive mode gets the containers
that its load needs, through a Docker socket proxy that permits nothing else."""

import os
from collections.abc import Iterator, Mapping

import pytest

from testbed.process import free_port
from tests.containers.compose import WEIR, ComposeStack, compose_command

from .loop import Loop, slowest

SERVICE = "reactive-taskmanager"
LOW, HIGH = 500, 1500
"""Records/s: the two slots of one container do the one, and not the other."""


@pytest.fixture(scope="module")
def loop(image_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """The loop and the job in reactive mode; the other Flink cluster is left out."""
    if compose_command() is None:
        pytest.skip("no Docker Compose: install it (Debian: apt install docker-compose)")
    port = free_port()
    name = f"weir-test-{port}"
    socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not socket.startswith("unix://"):
        pytest.skip("the daemon is not on this machine: its socket cannot be mounted")
    settings = {
        **image_settings,
        "WEIR_PORT": str(port),
        "WEIR_LOAD_TRACE": "step",
        "WEIR_DOCKER_PROJECTS": name,
        "WEIR_DOCKER_SOCKET": socket.removeprefix("unix://"),
    }
    stack = ComposeStack(name, tmp_path_factory.mktemp("compose"), settings, profiles=["docker-driver", "docker-demo"])
    try:
        stack.up(*WEIR, "load", "docker-gate", "reactive-policy")
        loop = Loop(stack, port, "demo/reactive")
        loop.set_load(rate=LOW)
        yield loop
        loop.client.close()
    finally:
        try:
            stack.down()
        finally:
            stack.close()


def test_more_load_is_more_containers(loop: Loop) -> None:
    """Compose shows them next to the first, and the job spreads over them."""
    loop.until("the job at two", lambda s: slowest(s) == 2, 600)
    assert len(loop.stack.containers(SERVICE)) == 1
    loop.set_load(rate=HIGH)
    loop.until("two containers or more", lambda s: slowest(s) >= 4 and s.get("action_phase") == "verified")
    running = loop.stack.containers(SERVICE)
    assert len(running) >= 2
    shown = loop.stack.ps()
    assert all(container.name in shown for container in running)


def test_less_load_is_fewer(loop: Loop) -> None:
    """Down to the one it began with, and that one is compose's own first."""
    loop.set_load(rate=LOW)
    loop.until("one container", lambda s: slowest(s) == 2 and len(loop.stack.containers(SERVICE)) == 1)
    assert loop.stack.containers(SERVICE)[0].labels["com.docker.compose.container-number"] == "1"


def test_the_executor_has_a_proxy_and_no_socket(loop: Loop) -> None:
    """Docker's own socket is mounted in the gate alone, which is in good health."""
    assert loop.stack.healthy("docker-gate")
    mounted = {
        container.labels["com.docker.compose.service"]
        for container in loop.stack.containers()
        for mount in container.attrs["Mounts"]
        if mount["Destination"] == "/var/run/docker.sock"
    }
    assert mounted == {"docker-gate"}


def test_down_takes_what_the_driver_made(loop: Loop) -> None:
    """As compose's own."""
    loop.set_load(rate=HIGH)
    loop.until("two containers or more", lambda _: len(loop.stack.containers(SERVICE)) >= 2)
    loop.stack.down()
    assert loop.stack.left() == []
