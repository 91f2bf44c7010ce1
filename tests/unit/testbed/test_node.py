"""Parts of the Kubernetes node that need no root: names, archives, its lock and leftovers."""

import json
import tarfile
from pathlib import Path

import pytest

from testbed.node_host import HostNetwork, mounts_below, network_namespaces, only_node, processes_with
from testbed.node_runtime import full_name, static_image
from testbed.process import TestbedError
from tests.node.images import local_name, missing_packages


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("redis", "docker.io/library/redis:latest"),
        ("weir:dev", "docker.io/library/weir:dev"),
        ("apache/kafka:4.1.0", "docker.io/apache/kafka:4.1.0"),
        ("registry.example.org/team/app:1", "registry.example.org/team/app:1"),
        ("localhost/app", "localhost/app:latest"),
        ("registry.example.org:5000/app", "registry.example.org:5000/app:latest"),
    ],
)
def test_the_full_name_of_an_image(image: str, full: str) -> None:
    """As containerd lists it."""
    assert full_name(image) == full


def test_an_image_of_one_binary(tmp_path: Path) -> None:
    """An archive of one layer with the binary alone, also where its path is a link; it does not run as root."""
    binary = tmp_path / "built"
    binary.write_bytes(b"ELF")
    (tmp_path / "server").symlink_to(binary)
    archive = static_image(tmp_path / "image.tar", "weir-node/server:1", tmp_path / "server")
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or pytest.fail("no manifest"))
        config = json.load(tar.extractfile("config.json") or pytest.fail("no configuration"))
        with tarfile.open(fileobj=tar.extractfile("layer.tar")) as layer:
            members = {each.name: (each.isreg(), each.mode, each.size) for each in layer.getmembers()}
    assert manifest[0]["RepoTags"] == ["docker.io/weir-node/server:1"]
    assert members == {"server": (True, 0o755, 3)}
    assert config["config"] == {"Entrypoint": ["/server"], "User": "65532:65532"}


def test_what_is_built_here_for_an_image() -> None:
    """Weir's own by their tag here, official ones by what stands in for them; others are named in the error."""
    assert local_name("weir:1.2") == "weir:dev"
    assert local_name("weir-analyzer:1.2") == "weir-analyzer:dev"
    assert local_name("apache/kafka:4.1.0") == "weir-test/kafka:local"
    with pytest.raises(TestbedError, match=r"busybox:1\.36"):
        local_name("busybox:1.36")


def test_a_machine_has_one_node(tmp_path: Path) -> None:
    """A second one is refused while the first holds the lock."""
    lock = tmp_path / "node.lock"
    with only_node(lock), pytest.raises(TestbedError, match="another Kubernetes node"), only_node(lock):
        pytest.fail("two nodes")
    with only_node(lock):
        pass


def test_network_namespaces_of_sandboxes_alone() -> None:
    """A container shares its sandbox's, which the host's own is not."""
    given = [
        {"type": "network", "path": "/var/run/netns/cni-1"},
        {"type": "ipc"},
        {"type": "network", "path": "/proc/1/ns/net"},
    ]
    assert network_namespaces(json.dumps({"Spec": {"linux": {"namespaces": given}}})) == [Path("/var/run/netns/cni-1")]
    assert network_namespaces("{}") == []


def test_nothing_is_left_where_nothing_was(tmp_path: Path) -> None:
    """A folder without mounts and processes."""
    assert mounts_below(tmp_path) == []
    assert processes_with(str(tmp_path / "containerd.sock")) == []


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Packages of node, cluster, Docker and images, before anything is built, which takes a quarter of an hour."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("testbed.node_host.PATH", str(tmp_path))
    monkeypatch.setattr("testbed.kubernetes_programs.FOLDER", tmp_path)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    found = str(missing_packages())
    for each in ("conntrack containerd", "etcd-server", "docker.io", "debootstrap"):
        assert each in found
    assert "make kubernetes-node" not in found


def test_an_address_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of the machine is changed."""
    monkeypatch.setattr("testbed.node_host.chains", lambda _: [])
    monkeypatch.setattr("testbed.node_host.NODE_ADDRESS", "127.0.0.1")
    with pytest.raises(TestbedError, match=r"127\.0\.0\.1 is in use"):
        HostNetwork().up()
