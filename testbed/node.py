"""A Kubernetes cluster of one real node on this machine: containerd runs the pods, kubelet and kube-proxy look after
them.

All of it has its own data, addresses, control group and processes, which end with it. The control plane is
`testbed.kubernetes`'. Pods do not end with containerd: if the owner of a node is killed, a second process, `python -m
testbed.node PID`, removes the node.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import yaml

from . import kubernetes_programs as programs
from . import node_host as host
from .bootstrap import CACHE, PROJECT
from .kubernetes import KubernetesCluster, binary, is_ready
from .kubernetes_access import kubeconfig
from .node_runtime import PAUSE, Containerd, static_image
from .process import Launcher, ManagedProcess, TestbedError, free_port, stop_all, wait_until
from .register import reap_leftovers

NAME = "weir-node"
DNS_ADDRESS = "10.96.0.10"
READY_SECONDS = 180.0
REMOVAL_SECONDS = 90.0
"""Longest wait of a start for the removal of the node of a killed run."""
VOLUMES = 16
"""Volumes that claims find; nothing makes further ones, and none is used twice."""
_MANIFESTS = Path(__file__).with_name("node.yaml")
_IMAGES = {"pause": PAUSE, "coredns": "weir-node/coredns:1", "metrics-server": "weir-node/metrics-server:1"}
"""Images of one program each."""
_LOG_LINKS = Path("/var/log/containers")


def missing() -> str | None:
    """Return why this machine cannot run a node and the remedy; None if it can."""
    if reason := missing_packages():
        return reason
    absent = programs.absent(programs.NODE)
    return f"no {absent[0]} in {programs.FOLDER}: run `make kubernetes-node`" if absent else None


def missing_packages() -> str | None:
    """Return what this machine lacks to run a node, and to build its programs unless they are there; None if nothing."""
    of_programs = programs.missing() if programs.absent(programs.NODE) else programs.missing_etcd()
    return "; ".join(filter(None, (host.missing(), of_programs))) or None


class KubernetesNode(Launcher):
    """A cluster of one node. A machine has one at a time.

    `folder` holds what belongs to one run, and its path is short since sockets lie there. `data` holds images, kept
    from one start to the next, and the volumes of pods, which are not.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir()) / "weir-node"
        self.data = (CACHE / "node").resolve()
        self.network = host.HostNetwork()
        self.containerd = Containerd(self.data, self.folder)
        self._control_plane = self.folder / "cluster"
        client = self._control_plane / "pki" / "kubelet-client"
        self.cluster = KubernetesCluster(
            self._control_plane,
            address=host.NODE_ADDRESS,
            api_server_options=[
                f"--kubelet-client-certificate={client}.crt",
                f"--kubelet-client-key={client}.key",
                "--endpoint-reconciler-type=lease",
            ],
            kwok=False,
        )
        self.kubelet = self._process("kubelet", self._kubelet_flags())
        self.kube_proxy = self._process("kube-proxy", [f"--config={self.folder / 'kube-proxy.yaml'}"])
        self._lock = self.folder.with_suffix(".lock")
        self._settings = self.folder / "kernel.json"
        self._undo = contextlib.ExitStack()

    def start(self, timeout_seconds: float = READY_SECONDS) -> Self:
        """Start everything and wait until the node is ready and answers names; `TestbedError` says which part is not."""
        if reason := missing():
            raise TestbedError(f"node: {reason}")
        with contextlib.ExitStack() as undo:
            undo.enter_context(host.only_node(self._lock, REMOVAL_SECONDS))
            self._remove_leftovers()
            undo.enter_context(self._removed_after_a_kill())
            undo.callback(self._remove_files)
            undo.callback(self.network.down)
            self.network.up()
            host.make_cgroup()
            self.containerd.start()
            undo.callback(self._end_pods)
            self._load_images()
            self._write_files()
            undo.callback(self.cluster.stop)
            self.cluster.start()
            undo.callback(self._end_node)
            self.kube_proxy.start()
            self.kubelet.start_ready(self._is_ready, timeout_seconds=timeout_seconds)
            self._add_volumes()
            self.cluster.kubectl("apply", "--server-side", "-f", str(_MANIFESTS))
            self.wait_available("kube-system", timeout_seconds)
            self._undo = undo.pop_all()
        return self

    def stop(self) -> None:
        """End all pods, all parts, and remove bridges, mounts and rules; `TestbedError` names what could not be
        removed."""
        self._undo.close()
        if left := self.left():
            raise TestbedError(f"node: left on this machine: {'; '.join(left)}")
        self._settings.unlink(missing_ok=True)

    def remove_after(self, owner: int) -> None:
        """Wait for the end of the process that started this one, and remove the node that it did not stop.

        Raises `TestbedError` if another start has taken the machine's lock by then; that start removes the node.
        """
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(owner)
            if os.getppid() == owner:
                select.select([ended], [], [])
        with host.only_node(self._lock):
            self._remove_leftovers()

    def check(self) -> None:
        """Raise `TestbedError` if one of the node's processes has ended."""
        for process in (self.containerd.process, self.kubelet, self.kube_proxy, *self.cluster.processes):
            process.check()

    def left(self) -> list[str]:
        """Return what of a node exists on this machine: interfaces, mounts, control groups, rules, processes."""
        found = [f"bridge {name}" for name in (host.NODE_BRIDGE, host.POD_BRIDGE) if host.has_interface(name)]
        found += [f"mount {point}" for point in host.mounts_below(self.folder, self.data)]
        found += [f"control group {folder}" for folder in host.cgroup_folders()]
        found += [f"process {pid} ({name})" for pid, name in host.processes_with(str(self.folder))]
        return found + [f"chain {chain}" for chain in host.chains(host.KUBERNETES)]

    def wait_available(self, namespace: str, timeout_seconds: float) -> None:
        """Wait until all deployments of a namespace are available; `TestbedError` with the pods' states otherwise."""
        limit = f"--timeout={timeout_seconds:.0f}s"
        arguments = ("wait", "deployment", "--all", "--for=condition=Available", "-n", namespace, limit)
        try:
            self.cluster.kubectl(*arguments, timeout_seconds=timeout_seconds + 10)
        except TestbedError as error:
            pods = self.cluster.kubectl("get", "pods", "-o", "wide", "-n", namespace)
            events = self.cluster.kubectl("get", "events", "-n", namespace).splitlines()[-15:]
            logs = [self._log_end(pod) for pod in self.pods(namespace) if not is_ready(pod)]
            raise TestbedError("\n".join([str(error), pods, *events, *logs])) from None

    def pods(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        query = urlencode({"labelSelector": selector})
        return list(self.cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods?{query}")["items"])

    def service_address(self, namespace: str, name: str) -> str:
        """Return a service's address, which answers on this machine as in its pods."""
        service = self.cluster.request("GET", f"/api/v1/namespaces/{namespace}/services/{name}")
        return str(service["spec"]["clusterIP"])

    @contextlib.contextmanager
    def _removed_after_a_kill(self) -> Iterator[None]:
        """Record the kernel's settings, and have a process that outlives this one restore them and remove the node."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(json.dumps(host.kernel_settings()))
        command = [sys.executable, "-m", "testbed.node", str(os.getpid())]
        with (self.folder / "remover.log").open("ab") as log:
            remover = subprocess.Popen(
                command, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield
        finally:
            remover.kill()
            remover.wait(timeout=10)

    def _log_end(self, pod: Mapping[str, Any]) -> str:
        meta = pod["metadata"]
        try:
            return self.cluster.kubectl("logs", "-n", meta["namespace"], meta["name"], "--all-containers", "--tail=8")
        except TestbedError as error:
            return str(error)

    def _process(self, name: str, flags: Sequence[str]) -> ManagedProcess:
        return ManagedProcess(
            name, [binary(name), *flags], self.folder, environment={"PATH": host.PATH}, grace_seconds=15
        )

    def _kubelet_flags(self) -> list[str]:
        return [
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--kubeconfig={self.folder / 'kubelet.kubeconfig'}",
            f"--hostname-override={NAME}",
            f"--node-ip={host.NODE_ADDRESS}",
            f"--root-dir={self.data / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-pki'}",
        ]

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": host.NODE_ADDRESS,
            "port": free_port(),
            "readOnlyPort": 0,
            "healthzPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.containerd.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{host.CGROUP}",
            "enforceNodeAllocatable": ["pods"],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%"},
            # Nothing could pull an image again that was collected.
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self.data / "logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.cluster.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
        }

    def _kube_proxy_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": NAME,
            "clientConnection": {"kubeconfig": str(self.folder / "kube-proxy.kubeconfig")},
            "healthzBindAddress": f"127.0.0.1:{free_port()}",
            "metricsBindAddress": f"127.0.0.1:{free_port()}",
            # Otherwise replies between pods of one bridge bypass the translation and are lost.
            "iptables": {"masqueradeAll": True, "localhostNodePorts": False},
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }

    def _write_files(self) -> None:
        authority = self.cluster.authority
        authority.create()
        authority.issue("kubelet-client", groups=["system:masters"])
        for part, user, groups in (
            ("kubelet", f"system:node:{NAME}", ["system:nodes"]),
            ("kube-proxy", "system:kube-proxy", []),
        ):
            issued = authority.issue(user, groups=groups)
            credentials = {"client-certificate": str(issued.certificate), "client-key": str(issued.key)}
            document = kubeconfig(self.cluster.url, authority.certificate, credentials)
            (self.folder / f"{part}.kubeconfig").write_text(yaml.safe_dump(document))
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_configuration()))
        (self.folder / "kube-proxy.yaml").write_text(yaml.safe_dump(self._kube_proxy_configuration()))

    def _load_images(self) -> None:
        for name, image in _IMAGES.items():
            archive = static_image(self.folder / f"{name}.tar", image, Path(binary(name)))
            self.containerd.load(archive)
            archive.unlink()

    def _add_volumes(self) -> None:
        paths = [self.data / "volumes" / str(number) for number in range(VOLUMES)]
        for path in paths:
            path.mkdir(parents=True)
        self.cluster.apply(*(_volume(f"weir-node-{path.name}", path) for path in paths))

    def _is_ready(self) -> bool:
        self.kube_proxy.check()
        return any(is_ready(node) for node in self.cluster.request("GET", "/api/v1/nodes")["items"])

    def _end_node(self) -> None:
        stop_all([self.kubelet, self.kube_proxy], timeout_seconds=20)
        with contextlib.suppress(TestbedError):
            host.run(binary("kube-proxy"), "--cleanup", timeout_seconds=60)
        host.remove_chains(host.KUBERNETES)  # `kube-proxy --cleanup` leaves KUBE-FIREWALL

    def _end_pods(self) -> None:
        try:
            self.containerd.clear()
        finally:
            self.containerd.stop()

    def _remove_files(self) -> None:
        if self._settings.exists():
            host.restore(json.loads(self._settings.read_text()))
        host.unmount_below(self.folder / "state", self.data)
        with contextlib.suppress(TestbedError):
            wait_until(host.remove_cgroup, timeout_seconds=20, what="end of the pods' processes")
        if _LOG_LINKS.exists():
            for link in _LOG_LINKS.iterdir():
                if link.is_symlink() and str(self.data) in str(link.readlink()):
                    link.unlink()
        for folder in ("kubelet", "logs", "volumes"):
            shutil.rmtree(self.data / folder, ignore_errors=True)
        # A client with these files would send requests to an address that is no longer this machine's.
        shutil.rmtree(self._control_plane / "users", ignore_errors=True)
        for path in self.folder.glob("*.kubeconfig"):
            path.unlink()

    def _remove_leftovers(self) -> None:
        """End what a run has left that was killed: its pods run on without a kubelet."""
        if self._settings.exists():
            reap_leftovers(self.folder)
            with contextlib.suppress(TestbedError):
                self.containerd.start()
                self._end_pods()
            self._end_node()
            self.network.down()
            self._remove_files()
        shutil.rmtree(self.folder, ignore_errors=True)


def _volume(name: str, path: Path) -> dict[str, Any]:
    """Return a volume in a folder of this machine, which a pod may take with any user it runs as."""
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "weir-node",
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        },
    }


if __name__ == "__main__":
    KubernetesNode().remove_after(int(sys.argv[1]))
