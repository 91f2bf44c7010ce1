"""The programs of a Kubernetes cluster: built with Go by `python -m testbed.kubernetes_programs [node]`, and their flags.

Building takes about ten minutes on two cores and happens once. `node`: with what runs pods on this machine instead of what
simulates them, five minutes more.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .bootstrap import CACHE, PROJECT, SetupError, Step, inspect_machine, missing_space, output_of, perform, report
from .node_host import missing as missing_for_node
from .process import free_port

VERSION = "1.34.2"
PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""Built from one Go module, testbed/kubernetes-tools; the API server first, since it compiles what they share."""
_GO_PACKAGES = {
    "kwok": "sigs.k8s.io/kwok/cmd/kwok@v0.7.0",
    "metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server@v0.8.0",
    "coredns": "github.com/coredns/coredns@v1.12.4",
}
SIMULATION = (*PARTS, "kwok", "metrics-server")
"""Programs of a cluster whose pods are simulated; etcd is installed."""
NODE = (*PARTS, "metrics-server", "kubelet", "kube-proxy", "coredns", "pause")
"""Programs of a cluster whose pods run on this machine."""
FOLDER = CACHE / "kubernetes" / VERSION
MIN_GO = (1, 24)
DISK_MEGABYTES = 6500
"""Disk space of building the Kubernetes API server: 6 GB of Go's modules and build cache, 0.5 GB of programs."""


def missing_etcd() -> str | None:
    """Return a sentence if the Kubernetes API server would have no etcd, else None."""
    if program("etcd") or shutil.which("etcd"):
        return None
    return "etcd is needed by the Kubernetes API server: install it (Debian: apt install etcd-server)"


def missing() -> str | None:
    """Return what building and running the Kubernetes API server lacks; None if nothing."""
    if missing_etcd():
        return missing_etcd()
    go = shutil.which("go")
    if go is None:
        return (
            "the Kubernetes API server is built with Go and no go is on the PATH: install Go 1.24 or later, "
            "or set KUBEBUILDER_ASSETS to a folder with its binaries"
        )
    found = re.search(r"go(\d+)\.(\d+)", output_of([go, "env", "GOVERSION"]) or "")
    if found and (int(found.group(1)), int(found.group(2))) < MIN_GO:
        return f"Go 1.24 or later is needed to build the Kubernetes API server, this is Go {found.group(0)[2:]}"
    return None


def program(name: str) -> Path | None:
    """Return a built program of Kubernetes, or the one in KUBEBUILDER_ASSETS (envtest's convention); None if neither
    exists."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = ([Path(assets)] if assets else []) + [FOLDER]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def absent(names: Sequence[str]) -> list[str]:
    """Return the programs that are neither built nor in KUBEBUILDER_ASSETS."""
    return [name for name in names if program(name) is None]


def steps(*, with_node: bool = False) -> Iterator[tuple[Step, Callable[[Step], None]]]:
    """Yield one step for each program that KUBEBUILDER_ASSETS does not hold, with the function that builds it.

    With a node: the programs of a machine where pods really run, instead of what simulates them.
    """
    module, pause = PROJECT / "testbed" / "kubernetes-tools", PROJECT / "testbed" / "pause"
    for name in NODE if with_node else SIMULATION:
        result = FOLDER / name
        if program(name) not in {None, result}:
            continue
        if name == "pause":
            yield Step("kubernetes-pause", [pause], result), partial(_build_pause, pause)
        else:
            step = Step(f"kubernetes-{name}", [module], result, version=_GO_PACKAGES.get(name, ""))
            yield step, partial(_build_program, module, name)


def _build_pause(folder: Path, step: Step) -> None:
    step.result.parent.mkdir(parents=True, exist_ok=True)
    build = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(step.result), str(folder / "main.go")]
    step.run(build, {"CGO_ENABLED": "0"})


def _build_program(module: Path, name: str, step: Step) -> None:
    step.result.parent.mkdir(parents=True, exist_ok=True)
    environment = {"CGO_ENABLED": "0", "GOBIN": str(step.result.parent), "GOFLAGS": "-mod=readonly"}
    if name in _GO_PACKAGES:
        # The checksum database has no entry for metrics-server.
        environment = {**environment, "GOFLAGS": "", "GONOSUMDB": "sigs.k8s.io/metrics-server"}
        step.run(["nice", "go", "install", "-trimpath", "-ldflags", "-s -w", _GO_PACKAGES[name]], environment)
        return
    version = "k8s.io/component-base/version"
    major, minor, _ = VERSION.split(".")
    flags = f"-s -w -X {version}.gitVersion=v{VERSION} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    package = f"k8s.io/kubernetes/cmd/{name}"
    build = ["go", "build", "-C", str(module), "-trimpath", "-ldflags", flags, "-o", str(step.result), package]
    step.run(["nice", *build], environment)


def set_up(*, with_node: bool = False) -> None:
    """Build the missing programs of a Kubernetes cluster, or also of a node; raises `SetupError` with one line for the
    user."""
    if all(step.done for step, _ in steps(with_node=with_node)):
        return
    found = inspect_machine(with_java=False)
    # Before the builds, which take long: what else the machine lacks.
    problem = (missing_for_node() if with_node else None) or missing() or missing_space(found, DISK_MEGABYTES)
    if problem:
        raise SetupError(problem)
    perform(partial(steps, with_node=with_node))


CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"
KWOK = "weir-kwok"
METRICS_SERVER = "weir-metrics-server"
SERVICE_RANGE = "10.96.0.0/16"


@dataclass(frozen=True)
class Layout:
    """Folder, address and ports of one cluster."""

    folder: Path
    address: str
    port: int = field(default_factory=free_port)
    etcd_port: int = field(default_factory=free_port)
    etcd_peer_port: int = field(default_factory=free_port)
    kwok_port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def users(self) -> Path:
        """The folder of tokens and kubeconfig files."""
        return self.folder / "users"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    @property
    def audit_policy(self) -> Path:
        return self.folder / "audit-policy.yaml"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    def kubeconfig(self, user: str) -> Path:
        return self.users / f"{user.replace(':', '-')}.kubeconfig"


def etcd_flags(layout: Layout) -> list[str]:
    """One member, plain HTTP on the loopback interface."""
    client, peer = (f"http://127.0.0.1:{port}" for port in (layout.etcd_port, layout.etcd_peer_port))
    return [
        f"--data-dir={layout.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
        "--logger=zap",
    ]


def api_server_flags(layout: Layout) -> list[str]:
    """RBAC, token file, audit log, aggregation; it listens on the layout's address."""
    pki = layout.pki
    return [
        f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
        f"--bind-address={layout.address}",
        f"--advertise-address={layout.address}",
        f"--secure-port={layout.port}",
        f"--tls-cert-file={pki / 'server.crt'}",
        f"--tls-private-key-file={pki / 'server.key'}",
        f"--client-ca-file={layout.pki / 'ca.crt'}",
        f"--token-auth-file={layout.tokens}",
        "--anonymous-auth=false",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={layout.pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={layout.pki / 'service-accounts.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--endpoint-reconciler-type=none",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={layout.pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        f"--audit-policy-file={layout.audit_policy}",
        f"--audit-log-path={layout.audit_log}",
        "--profiling=false",
        # Both need progress notifications, which etcd 3.4 does not have.
        "--feature-gates=WatchList=false,SizeBasedListCostEstimate=false",
    ]


def controller_flags(layout: Layout) -> list[str]:
    """All controllers, each with a dedicated service account."""
    return [
        f"--kubeconfig={layout.kubeconfig(CONTROLLER_MANAGER)}",
        "--leader-elect=false",
        "--secure-port=0",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={layout.pki / 'service-accounts.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
    ]


def scheduler_flags(layout: Layout) -> list[str]:
    return [f"--kubeconfig={layout.kubeconfig(SCHEDULER)}", "--leader-elect=false", "--secure-port=0"]


def kwok_flags(layout: Layout) -> list[str]:
    """All nodes and their pods; its kubelet API has metrics of resources."""
    server = layout.pki / "server"
    return [
        f"--kubeconfig={layout.kubeconfig(KWOK)}",
        f"--config={Path(__file__).with_name('kwok.yaml')}",
        "--manage-all-nodes=true",
        "--node-ip=127.0.0.1",
        f"--node-port={layout.kwok_port}",
        f"--server-address=127.0.0.1:{layout.kwok_port}",
        f"--tls-cert-file={server}.crt",
        f"--tls-private-key-file={server}.key",
        "--node-lease-duration-seconds=40",
    ]


def metrics_flags(layout: Layout) -> list[str]:
    """metrics-server, which asks the kubelets every 10 s."""
    server, access = layout.pki / "server", layout.kubeconfig(METRICS_SERVER)
    return [
        f"--kubeconfig={access}",
        f"--authentication-kubeconfig={access}",
        f"--authorization-kubeconfig={access}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.metrics_port}",
        f"--tls-cert-file={server}.crt",
        f"--tls-private-key-file={server}.key",
        f"--kubelet-certificate-authority={layout.pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-use-node-status-port",
        "--metric-resolution=10s",
        "--kubelet-request-timeout=5s",
    ]


def main(arguments: list[str]) -> int:
    """Build; returns 0 when all is in place, 1 and one line if something is missing or failed, 2 for wrong arguments."""
    if arguments not in ([], ["node"]):
        sys.stderr.write("usage: python -m testbed.kubernetes_programs [node]\n")
        return 2
    return report(partial(set_up, with_node=bool(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
