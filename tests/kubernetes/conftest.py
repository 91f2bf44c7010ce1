"""One Kubernetes API server for all tests of the tier, each test in its own namespace."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from testbed.kubernetes import KubernetesCluster
from testbed.register import reap_leftovers


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """A cluster, shared: use a namespace of your own, and do not stop it or one of its parts."""
    for session in tmp_path_factory.getbasetemp().parent.glob("pytest-*"):
        reap_leftovers(session / "kubernetes0")
    with KubernetesCluster(tmp_path_factory.mktemp("kubernetes") / "cluster", metrics=True) as running:
        yield running


@pytest.fixture
def namespace(cluster: KubernetesCluster) -> Iterator[str]:
    """A namespace of the test's own, deleted afterwards."""
    name = f"test-{uuid4().hex[:8]}"
    cluster.create_namespace(name)
    yield name
    cluster.request("DELETE", f"/api/v1/namespaces/{name}")
