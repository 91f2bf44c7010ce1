"""One node for all tests of the tier; its images are built and imported once."""

from collections.abc import Iterator

import pytest

from testbed.node import KubernetesNode
from tests.containers.images import BASE

from .images import provide


@pytest.fixture(scope="session")
def node() -> Iterator[KubernetesNode]:
    """A cluster of one node where pods really run."""
    with KubernetesNode() as running:
        provide(running, [BASE])
        yield running
