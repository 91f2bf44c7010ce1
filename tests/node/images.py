"""Images for a node's pods, built by a Docker daemon, which may be one of our own that ends when they are built.

`python -m tests.node.images` names what this machine lacks to run a node with such images, before anything is built.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import docker

from testbed.docker import ANSWER_SECONDS, DockerDaemon, unanswered
from testbed.docker import missing as missing_daemon
from testbed.node import KubernetesNode
from testbed.node import missing as missing_for_node
from testbed.node import missing_packages as missing_packages_of_node
from testbed.process import TestbedError
from tests.containers.images import BASE, LOCAL, Images
from tests.containers.images import missing as missing_base

TAG = "dev"


def missing() -> str | None:
    """Return all reasons why this machine cannot run a node with images built here, with remedies; None if it can."""
    return missing_packages() or missing_for_node()


def missing_packages() -> str | None:
    """Return all that this machine lacks besides what is built, with remedies; None if nothing."""
    found = (missing_packages_of_node(), unanswered() and missing_daemon(), missing_base())
    return "; ".join(filter(None, found)) or None


@contextlib.contextmanager
def daemon() -> Iterator[None]:
    """Let `DOCKER_HOST` name a daemon: the given one or the machine's if it answers, else our own."""
    if unanswered() is None:
        yield
        return
    before = os.environ.get("DOCKER_HOST")
    with DockerDaemon() as own:
        os.environ["DOCKER_HOST"] = own.url
        try:
            yield
        finally:
            del os.environ["DOCKER_HOST"]
            if before is not None:
                os.environ["DOCKER_HOST"] = before


def local_name(image: str) -> str:
    """Return the image built here for one that a manifest names: Weir's own, or what stands in for an official one."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    if name == "weir" or name.startswith("weir-"):
        return BASE if image == BASE else f"{name}:{TAG}"
    if name not in LOCAL:
        raise TestbedError(f"no image is built here for {image}")
    return LOCAL[name]


def provide(node: KubernetesNode, images: Sequence[str], report: Callable[[str], None] = lambda _: None) -> None:
    """Build the images that manifests name and give them to the node, so that none is pulled."""
    with daemon(), contextlib.closing(docker.from_env(timeout=ANSWER_SECONDS)) as client:
        Images(client, report).for_tests(TAG)
        report("images: into the node")
        node.containerd.load_from_docker({image: local_name(image) for image in images})


if __name__ == "__main__":
    if reason := missing_packages():
        sys.exit(f"node: {reason}")
