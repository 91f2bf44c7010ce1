"""`weir run --kubernetes` on a real API server, through kubectl as a user has it."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from testbed.kubernetes import KubernetesCluster, binary
from testbed.kubernetes_access import Access
from tests.kubernetes.workloads import deployment
from weir_cli.client import CommandError, InvalidInput, Unreachable
from weir_cli.discovery import policies_of
from weir_cli.discovery_kubernetes import Workloads
from weir_contracts import parse_policy
from weir_engines.kubernetes.api import Access as Server
from weir_engines.kubernetes.api import KubernetesApi
from weir_engines.registry import Engines, Resources
from weir_runtime.clock import SystemClock


@pytest.fixture
def kubectl(cluster: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """kubectl on the PATH, as administrator of the cluster."""
    monkeypatch.setenv("PATH", str(Path(binary("kubectl")).parent), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    as_user(cluster.admin, monkeypatch)
    return monkeypatch


def as_user(access: Access, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("KUBECONFIG", str(access.kubeconfig))


@pytest.mark.usefixtures("kubectl")
async def test_workloads_with_replicas_are_found_and_read(cluster: KubernetesCluster, namespace: str) -> None:
    """Both kinds, one of them scaled to nothing. The monitor reads through the proxy of kubectl, which shows no secrets and
    changes nothing."""
    cluster.apply(
        deployment("orders", 2), deployment("clicks", 1, kind="StatefulSet"), deployment("off", 0), namespace=namespace
    )
    found = await Workloads.open(namespace)
    try:
        there = await found.find()
        assert there.sentence == f"namespace {namespace}: 2 workloads with replicas"
        policies = policies_of(there.candidates, found.label)
        assert set(policies) == {f"{namespace}/orders", f"{namespace}/clicks"}
        policy = parse_policy(policies[f"{namespace}/orders"])
        assert policy.spec.mode == "advise"
        monitored = Resources(SystemClock(), namespaces={namespace}, kubernetes=KubernetesApi(Server(found.url)))
        engines = Engines(monitored)
        scrape = await engines.collector(policy.subject).scrape()
        await engines.close()
        await monitored.kubernetes.close()
        assert scrape.deployment is not None
        assert scrape.deployment.requested == {"orders": 2}
        proxied = httpx.AsyncHTTPTransport(uds=found.url.removeprefix("unix:"))
        async with httpx.AsyncClient(base_url="http://localhost", transport=proxied) as client:
            assert (await client.get(f"/api/v1/namespaces/{namespace}/secrets")).status_code == 403
            assert (await client.get("/api/v1/namespaces/kube-system/pods")).status_code == 403
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
            assert (await client.post(path, json=deployment("more"))).status_code == 403
    finally:
        await found.close()


async def test_what_cannot_be_looked_at_is_one_sentence_with_a_remedy(
    cluster: KubernetesCluster, namespace: str, kubectl: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty namespace, one that does not exist, a name that is none, no rights, no kubeconfig, and no kubectl."""
    found = await Workloads.open(namespace)
    assert "no Deployment or StatefulSet runs in namespace" in (await found.find()).sentence
    await found.close()
    with pytest.raises(InvalidInput, match="has no namespace nowhere: name another"):
        await Workloads.open("nowhere")
    with pytest.raises(InvalidInput, match="is no name of a namespace"):
        await Workloads.open("A b")
    as_user(cluster.identity("stranger", [], namespace=namespace), kubectl)
    found = await Workloads.open(namespace)
    with pytest.raises(CommandError, match="grant list and watch on deployments, statefulsets and pods"):
        await found.find()
    await found.close()
    kubectl.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="choose a context"):
        await Workloads.open(None)
    kubectl.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match="kubectl is not on the PATH"):
        await Workloads.open(None)


@pytest.mark.usefixtures("kubectl")
async def test_a_proxy_that_has_ended_is_a_sentence(namespace: str) -> None:
    """The user, or a lack of memory, ended it: nothing is removed because of that."""
    found = await Workloads.open(namespace)
    assert found.proxy is not None
    os.killpg(found.proxy.pid, signal.SIGKILL)
    await found.proxy.wait()
    with pytest.raises(Unreachable, match=r"--kubernetes: .*cannot be reached"):
        await found.find()
    await found.close()
