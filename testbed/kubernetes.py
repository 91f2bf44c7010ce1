"""A real Kubernetes API on the loopback interface: etcd, API server, controller manager and scheduler.

kwok stands in for nodes: pods get the status that their annotations ask for (`kwok.yaml`), and no container runs.
"""

import base64
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from . import kubernetes_programs as programs
from .kubernetes_access import Access, AuditEvent, Authority, audit_policy, create_access, read_events
from .kubernetes_programs import (
    CONTROLLER_MANAGER,
    KWOK,
    METRICS_SERVER,
    SCHEDULER,
    Layout,
    api_server_flags,
    controller_flags,
    etcd_flags,
    kwok_flags,
    metrics_flags,
    scheduler_flags,
)
from .process import Launcher, ManagedProcess, TestbedError, claim_port, stop_all, wait_until

ADMIN = "weir-admin"
NODE = "kwok-node"
_PARTS = (CONTROLLER_MANAGER, SCHEDULER)
"""Users for which Kubernetes has roles of its own."""
_OWN_USERS = (KWOK, METRICS_SERVER, *_PARTS)


def binary(name: str) -> str:
    """Return a program's path: from KUBEBUILDER_ASSETS, else built by `make kubernetes`, and etcd also from the PATH."""
    if program := programs.program(name):
        return str(program)
    if name == "etcd" and (found := shutil.which("etcd")):
        return found
    raise TestbedError(missing() or f"no {name}")


def missing() -> str | None:
    """Return which program a cluster lacks and the remedy; None if it could start."""
    if absent := programs.absent(programs.SIMULATION):
        return programs.missing() or f"no {absent[0]} in {programs.FOLDER}: run `make kubernetes`"
    return programs.missing_etcd()


class KubernetesCluster(Launcher):
    """One control plane. etcd's data outlives `stop()` and a new `start()`, on the same ports.

    `address`: of this machine, where the API server listens. `api_server_options` are further flags of it. `kwok=False`
    leaves nodes to the caller. `metrics`: metrics-server serves metrics.k8s.io, of a new pod after about 20 s.
    """

    def __init__(
        self,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        api_server_options: Sequence[str] = (),
        kwok: bool = True,
        metrics: bool = False,
    ) -> None:
        self.folder = folder.resolve()
        self._layout = Layout(self.folder, address)
        self.authority = Authority(self._layout.pki)
        self._tokens = {user: secrets.token_urlsafe(24) for user in (ADMIN, *_OWN_USERS)}
        self.etcd = self._process("etcd", etcd_flags(self._layout))
        self.api_server = self._process("kube-apiserver", [*api_server_flags(self._layout), *api_server_options])
        self.controllers = self._process("kube-controller-manager", controller_flags(self._layout))
        self.scheduler = self._process("kube-scheduler", scheduler_flags(self._layout))
        self.kwok = self._process("kwok", kwok_flags(self._layout)) if kwok else None
        self.metrics_server = self._process("metrics-server", metrics_flags(self._layout)) if metrics else None

    @property
    def url(self) -> str:
        return f"https://{self._layout.address}:{self._layout.port}"

    @cached_property
    def admin(self) -> Access:
        """The cluster's administrator, who may do everything."""
        return self._access(ADMIN)

    @property
    def processes(self) -> list[ManagedProcess]:
        """The parts that run in this configuration, in the order in which they end."""
        optional = (self.metrics_server, self.kwok)
        return [*(part for part in optional if part), self.scheduler, self.controllers, self.api_server, self.etcd]

    def start(self, timeout_seconds: float = 120.0) -> Self:
        """Start all parts and wait until a pod could be scheduled; `TestbedError` says which part is not ready."""
        try:
            self._write_files()
            claim_port("etcd", self._layout.etcd_port)
            self.etcd.start_ready(self._etcd_answers, timeout_seconds=timeout_seconds)
            self.start_api_server(timeout_seconds)
            for part in (self.controllers, self.scheduler, self.kwok):
                if part:
                    part.start()
            self.controllers.wait_ready(self._has_default_account, timeout_seconds=timeout_seconds)
            if self.kwok:
                self._create_node()
                self.kwok.wait_ready(self._node_is_ready, timeout_seconds=timeout_seconds)
            if self.metrics_server:
                self._register_metrics()
                self.metrics_server.start()
                self.metrics_server.wait_ready(self._metrics_are_served, timeout_seconds=timeout_seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def start_api_server(self, timeout_seconds: float = 60.0) -> None:
        """Start the API server alone, for example after `api_server.kill()`, and wait until it is ready."""
        claim_port("kube-apiserver", self._layout.port)
        self.api_server.start_ready(self._api_server_answers, timeout_seconds=timeout_seconds)

    def stop(self) -> None:
        """End all parts; etcd last, so that the API server can finish its requests."""
        stop_all([part for part in self.processes if part is not self.etcd])
        self.etcd.stop()

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request as administrator; return the response's JSON, `TestbedError` with its message if it is
        refused."""
        with self.admin.client() as client:
            response = client.request(method, path, json=body)
        if response.is_error:
            raise TestbedError(f"kubernetes: {method} {path}: {response.status_code} {response.text[:300]}")
        return response.json()

    def kubectl(
        self, *arguments: str, stdin: str | None = None, access: Access | None = None, timeout_seconds: float = 60.0
    ) -> str:
        """Run kubectl as administrator or as another user; return its output, `TestbedError` with its words if it
        fails."""
        command = [binary("kubectl"), "--kubeconfig", str((access or self.admin).kubeconfig)]
        command += ["--cache-dir", str(self.folder / "kubectl-cache"), *arguments]
        try:
            done = subprocess.run(
                command, input=stdin or "", capture_output=True, text=True, timeout=timeout_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise TestbedError(f"kubectl {' '.join(arguments)}: not within {timeout_seconds:g} s") from None
        if done.returncode:
            raise TestbedError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-1000:]}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any], namespace: str | None = None, access: Access | None = None) -> None:
        """Apply objects by server-side apply, in their own namespaces or all in `namespace`."""
        text = yaml.safe_dump_all([dict(each) for each in objects])
        where = ("-n", namespace) if namespace else ()
        self.kubectl("apply", "--server-side", *where, "-f", "-", stdin=text, access=access)

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace and wait until pods can be created in it."""
        metadata = {"name": name, "labels": dict(labels or {})}
        self.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        wait_until(lambda: self._has_default_account(name), timeout_seconds=30.0, what=f"namespace {name}")

    def identity(self, name: str, rules: Sequence[Mapping[str, Any]], *, namespace: str = "default") -> Access:
        """Return a service account of `namespace` bound to a Role of the same name with these rules, and nothing else.

        Calling it again changes the rules. `kubectl delete serviceaccount` makes its token invalid within 10 s.
        """
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}}
        binding = {
            **role,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        self.apply(account, {**role, "rules": [dict(rule) for rule in rules]}, binding, namespace=namespace)
        return self.service_account(name, namespace=namespace)

    def service_account(self, name: str, *, namespace: str = "default") -> Access:
        """Return access as an existing service account, by a token that is valid for an hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        answer = self.request("POST", path, {"spec": {"expirationSeconds": 3600}})
        user = f"system:serviceaccount:{namespace}:{name}"
        return create_access(self._layout.users, user, answer["status"]["token"], self.url, self.authority.certificate)

    def audit(self, user: str | None = None) -> list[AuditEvent]:
        """Return the requests so far in order, of one user or of all but the cluster's own parts."""
        return [event for event in read_events(self._layout.audit_log) if user is None or event.user == user]

    def register_api(self, group_version: str, service: Mapping[str, str], port: int) -> None:
        """Let the API server forward a group and version to a TLS server on a port of this machine.

        Its certificate, issued by `authority`, names `NAME.NAMESPACE.svc` of `service`.
        """
        group, _, version = group_version.partition("/")
        metadata, spec = dict(service), {"type": "ExternalName", "externalName": "localhost"}
        self.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec},
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{version}.{group}"},
                "spec": {
                    "group": group,
                    "version": version,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "service": {**service, "port": port},
                    "caBundle": base64.b64encode(self.authority.certificate.read_bytes()).decode(),
                },
            },
        )

    def _process(self, name: str, flags: Sequence[str]) -> ManagedProcess:
        return ManagedProcess(name, [binary(name), *flags], self.folder)

    def _access(self, user: str) -> Access:
        return create_access(self._layout.users, user, self._tokens[user], self.url, self.authority.certificate)

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.authority.create()
        names = [f"IP:{address}" for address in dict.fromkeys((self._layout.address, "127.0.0.1", "10.96.0.1"))]
        names += ["DNS:localhost", "DNS:kubernetes.default.svc", "DNS:metrics-server.kube-system.svc"]
        self.authority.issue("server", names=names)
        self.authority.issue("front-proxy")
        lines = [
            f'{token},{user},{user},"{"" if user in _PARTS else "system:masters"}"'
            for user, token in self._tokens.items()
        ]
        tokens = self._layout.tokens
        tokens.touch(mode=0o600)
        tokens.write_text("\n".join(lines) + "\n")
        for user in self._tokens:
            self._access(user)
        self._layout.audit_policy.write_text(yaml.safe_dump(audit_policy(_OWN_USERS)))

    def _etcd_answers(self) -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self._layout.etcd_port}/health", timeout=2.0, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

    def _api_server_answers(self) -> bool:
        try:
            with self.admin.client(timeout_seconds=5.0) as client:
                return client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def _has_default_account(self, namespace: str = "default") -> bool:
        with self.admin.client() as client:
            return client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default").status_code == 200

    def _create_node(self) -> None:
        metadata = {
            "name": NODE,
            "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"},
            "annotations": {"metrics.k8s.io/resource-metrics-path": f"/metrics/nodes/{NODE}/metrics/resource"},
        }
        with self.admin.client() as client:
            made = client.post("/api/v1/nodes", json={"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        if made.status_code not in {201, 409}:
            raise TestbedError(f"kubernetes: node {NODE}: {made.status_code} {made.text[:300]}")

    def _register_metrics(self) -> None:
        """Let the API server forward metrics.k8s.io to metrics-server, which is no pod but a process of this machine."""
        service = {"name": "metrics-server", "namespace": "kube-system"}
        self.register_api("metrics.k8s.io/v1beta1", service, self._layout.metrics_port)

    def _metrics_are_served(self) -> bool:
        with self.admin.client() as client:
            return client.get("/apis/metrics.k8s.io/v1beta1").status_code == 200

    def _node_is_ready(self) -> bool:
        return is_ready(self.request("GET", f"/api/v1/nodes/{NODE}"))


def is_ready(found: Mapping[str, Any]) -> bool:
    """Return whether a node is ready, or a pod's readiness probes pass."""
    conditions = found.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
