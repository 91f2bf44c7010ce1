"""A daemon, its images, and containers that are removed after each test."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import docker
import pytest
from docker.errors import DockerException, NotFound
from docker.models.containers import Container

from testbed.docker import ANSWER_SECONDS
from tests.containers.images import Images

Run = Callable[..., Container]

MARK = "dev.weir.test"
"""The label of every container that a test starts."""


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    """The daemon that `DOCKER_HOST` names, or the machine's own. It takes a busy machine long to answer."""
    with contextlib.closing(docker.from_env(timeout=ANSWER_SECONDS)) as client:
        yield client


@pytest.fixture(scope="session")
def images(docker_client: docker.DockerClient) -> Images:
    """Images on the daemon."""
    return Images(docker_client)


@pytest.fixture(scope="session")
def image_settings(images: Images) -> Mapping[str, str]:
    """Every image built, once: the variables of deploy/compose/.env that name them (`WEIR_IMAGE`, `WEIR_KAFKA_IMAGE`,
    …)."""
    return images.for_tests()


@pytest.fixture
def run(docker_client: docker.DockerClient) -> Iterator[Run]:
    """Starts containers as a careful user does: read-only, without capabilities, nothing to write to but /tmp."""
    started: list[Container] = []

    def start(
        image: str, command: Sequence[str] = (), environment: Mapping[str, str] | None = None, **more: Any
    ) -> Container:
        options: dict[str, Any] = {
            "detach": True,
            "read_only": True,
            "tmpfs": {"/tmp": "exec,mode=1777,size=256m"},  # noqa: S108 - in the container
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "network_mode": "none",
            "labels": {MARK: "1"},
        }
        container = docker_client.containers.run(
            image, list(command), environment=dict(environment or {}), **{**options, **more}
        )
        started.append(container)
        return container

    yield start
    for container in reversed(started):
        with contextlib.suppress(NotFound, DockerException):
            container.remove(force=True, v=True)
