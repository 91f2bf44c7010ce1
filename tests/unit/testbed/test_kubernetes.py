"""Programs, flags and audit log of a test cluster. No program is started."""

import json
from pathlib import Path

import pytest

from testbed import kubernetes, kubernetes_programs, node
from testbed.bootstrap import PROJECT, SetupError
from testbed.kubernetes_access import create_access, read_events
from testbed.kubernetes_programs import (
    Layout,
    api_server_flags,
    controller_flags,
    etcd_flags,
    kwok_flags,
    scheduler_flags,
)
from testbed.process import TestbedError


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Go, etcd and built programs; its cache's folder of programs."""
    folder = tmp_path / "built"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(kubernetes_programs, "FOLDER", folder)
    return folder


def _program(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_each_missing_program_is_one_line_with_the_remedy(empty_machine: Path, tmp_path: Path) -> None:
    """First etcd, then Go, then Go's version, then the programs themselves."""
    assert "apt install etcd-server" in str(kubernetes.missing())
    _program(tmp_path / "bin" / "etcd")
    assert "no go is on the PATH: install Go 1.24 or later" in str(kubernetes.missing())
    _program(tmp_path / "bin" / "go", "echo go1.19.8")
    assert "this is Go 1.19" in str(kubernetes.missing())
    _program(tmp_path / "bin" / "go", "echo go1.26.8")
    assert "no kube-apiserver in" in str(kubernetes.missing()) and "make kubernetes" in str(kubernetes.missing())
    for name in kubernetes_programs.SIMULATION:
        _program(empty_machine / name)
    assert kubernetes.missing() is None
    assert kubernetes.binary("etcd") == str(tmp_path / "bin" / "etcd")


def test_programs_need_no_go_once_they_are_built(empty_machine: Path, tmp_path: Path) -> None:
    """A machine without Go can use what another has built."""
    _program(tmp_path / "bin" / "etcd")
    for name in kubernetes_programs.SIMULATION:
        _program(empty_machine / name)
    assert kubernetes.missing() is None


def test_programs_that_the_user_has_are_not_built(
    empty_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KUBEBUILDER_ASSETS comes first, as envtest has it; only what it lacks is built."""
    assets = tmp_path / "assets"
    for name in ("etcd", "kube-apiserver", "kubectl"):
        _program(assets / name)
    _program(empty_machine / "kubectl")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert kubernetes.binary("kubectl") == str(assets / "kubectl")
    assert kubernetes.binary("etcd") == str(assets / "etcd")
    names = [step.name.removeprefix("kubernetes-") for step, _ in kubernetes_programs.steps()]
    assert names == ["kube-controller-manager", "kube-scheduler", "kwok", "metrics-server"]
    with pytest.raises(TestbedError, match="no go is on the PATH"):
        kubernetes.binary("kwok")


def test_only_what_is_used_is_built(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of simulated pods has kwok instead of a node; a node runs pods itself."""
    simulated, real = (
        {step.name.removeprefix("kubernetes-") for step, _ in kubernetes_programs.steps(with_node=with_node)}
        for with_node in (False, True)
    )
    assert simulated - real == {"kwok"}
    assert real - simulated == {"kubelet", "kube-proxy", "coredns", "pause"}
    for name in real:
        _program(empty_machine / name)
    monkeypatch.setattr("testbed.node.missing_packages", lambda: None)
    assert node.missing() is None
    (empty_machine / "pause").unlink()
    assert str(node.missing()).endswith("run `make kubernetes-node`")


def test_set_up_without_go_fails_before_it_writes(empty_machine: Path, tmp_path: Path) -> None:
    """One line, no folder."""
    _program(tmp_path / "bin" / "etcd")
    with pytest.raises(SetupError, match="no go is on the PATH"):
        kubernetes_programs.set_up()
    assert not empty_machine.exists()


def test_a_nodes_packages_are_checked_before_anything_is_built(
    empty_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builds take ten minutes; a cluster without a node needs none of these packages."""
    monkeypatch.setattr(
        kubernetes_programs, "missing_for_node", lambda: "programs of a node are missing: apt install x"
    )
    with pytest.raises(SetupError, match="programs of a node are missing"):
        kubernetes_programs.set_up(with_node=True)
    with pytest.raises(SetupError, match="etcd is needed"):
        kubernetes_programs.set_up()
    assert not empty_machine.exists()


def test_every_listener_is_on_the_given_address_or_the_loopback_interface(tmp_path: Path) -> None:
    """No part listens elsewhere, and pods' addresses are local ones."""
    layout = Layout(tmp_path, "127.0.0.1")
    flags = [*etcd_flags(layout), *api_server_flags(layout), *kwok_flags(layout)]
    listening = [
        flag for flag in flags if flag.split("=")[0].endswith(("-urls", "-address", "-ip")) and "type" not in flag
    ]
    assert len(listening) == 8
    assert 'podIP: {{ printf "127.' in (PROJECT / "testbed" / "kwok.yaml").read_text()
    assert all("=127." in flag or "=http://127.0.0.1:" in flag for flag in listening if "address-types" not in flag)
    assert "--secure-port=0" in controller_flags(layout) and "--secure-port=0" in scheduler_flags(layout)


def test_ports_differ(tmp_path: Path) -> None:
    """Two clusters can run side by side."""
    one, two = Layout(tmp_path, "127.0.0.1"), Layout(tmp_path, "127.0.0.1")
    ports = [
        port
        for layout in (one, two)
        for port in (layout.port, layout.etcd_port, layout.etcd_peer_port, layout.kwok_port, layout.metrics_port)
    ]
    assert len(set(ports)) == len(ports)


def test_a_kubeconfig_holds_no_secret(tmp_path: Path) -> None:
    """It names the file of the token; that file, and a later one in its place, is readable by its owner alone."""
    ca = tmp_path / "ca.crt"
    access = create_access(tmp_path / "users", "system:serviceaccount:a:b", "secret-1", "https://127.0.0.1:1", ca)
    assert "secret-1" not in access.kubeconfig.read_text() and "secret-1" not in repr(access)
    again = create_access(tmp_path / "users", "system:serviceaccount:a:b", "secret-2", "https://127.0.0.1:1", ca)
    assert (access.token, again.token) == ("secret-2", "secret-2")
    assert access.token_file.stat().st_mode & 0o077 == 0


def test_the_audit_log_counts_a_watch_once(tmp_path: Path) -> None:
    """Start and end of a request share an id; an unauthenticated one has no user; half a line is not read."""
    watch = {
        "auditID": "1",
        "verb": "watch",
        "user": {"username": "ana"},
        "objectRef": {"resource": "pods", "namespace": "flows"},
        "responseStatus": {"code": 200},
    }
    scale = {
        "auditID": "2",
        "verb": "patch",
        "user": {},
        "objectRef": {"apiGroup": "apps", "resource": "deployments", "subresource": "scale", "name": "orders"},
        "responseStatus": {"code": 401},
    }
    log = tmp_path / "audit.log"
    log.write_text("\n".join(json.dumps(each) for each in (watch, scale, watch)) + '\n{"auditID": "3", "ver')
    first, second = read_events(log)
    assert (first.user, first.verb, first.resource, first.namespace, first.code) == (
        "ana",
        "watch",
        "pods",
        "flows",
        200,
    )
    assert (second.user, second.group, second.resource, second.name) == ("", "apps", "deployments/scale", "orders")
