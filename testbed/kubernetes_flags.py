"""Files, ports and flags of the programs that make up a test cluster."""

from dataclasses import dataclass, field
from pathlib import Path

from .process import free_port

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
