"""The Deployments and StatefulSets of a namespace, for `weir run --kubernetes`.

kubectl connects as its context says, with whatever login that takes: a proxy of it, which reads only and only what Weir reads
of this namespace, serves this process's own monitor.
"""

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from weir_contracts import counted
from weir_engines.kubernetes.api import Access, ApiFailed, Call, KubernetesApi
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.values import mapping, sequence
from weir_engines.kubernetes.workloads import WorkloadReading, workload_of

from .client import CommandError, InvalidInput, Unreachable
from .discovery import CALL_SECONDS, MIN_BOUND, Candidate, Found
from .doctor_kubernetes import Kubectl

KINDS = (
    Kind("apps", "v1", "Deployment", "deployments"),
    Kind("apps", "v1", "StatefulSet", "statefulsets"),
)
UTILIZATION = 0.7
"""Busy share that the found policies keep."""
PROXY_SECONDS = 15.0
_PAGE = 500
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LISTENS = re.compile(r"127\.0\.0\.1:(\d+)")


def candidate(reading: WorkloadReading) -> Candidate:
    """Return a workload as candidate."""
    status = reading.status
    target = {"apiVersion": reading.kind.api_version, "kind": status.kind, "name": status.name}
    spec: dict[str, Any] = {
        "target": {"kubernetes": target},
        "objective": {"utilization": UTILIZATION},
        "bounds": {"max": max(MIN_BOUND, status.wanted)},
    }
    return Candidate(status.name, status.kind.lower(), spec, status.namespace)


def paths(namespace: str) -> list[str]:
    """Return expressions of the paths that the monitor reads: kinds, workloads, pods, their events and their usage."""
    within = f"/namespaces/{namespace}"
    return [
        "^/apis?/?$",
        "^/apis/apps/v1/?$",
        f"^/apis/apps/v1{within}/(deployments|statefulsets)$",
        f"^/api/v1{within}/(pods|events)$",
        f"^/apis/metrics.k8s.io/v1beta1{within}/pods$",
    ]


@dataclass(eq=False)
class Workloads:
    """Source of the workloads of a namespace that have replicas."""

    namespace: str
    url: str
    """Of the API server, or of a proxy to it."""
    proxy: asyncio.subprocess.Process | None = None
    label: ClassVar[str] = "kubernetes"
    option: ClassVar[str] = "--kubernetes"
    max_watched: ClassVar[int | None] = 100

    def __post_init__(self) -> None:
        self._api = KubernetesApi(Access(self.url), timeout_seconds=CALL_SECONDS)

    @classmethod
    async def open(cls, namespace: str | None) -> Self:
        """Return the workloads of a namespace, by default that of kubectl's context. `CommandError` with what to do if kubectl
        has no context, reaches no cluster, or the cluster has no such namespace."""
        if namespace is not None and not _NAMESPACE.fullmatch(namespace):
            raise InvalidInput(f"--namespace: {namespace!r} is no name of a namespace: lower case, digits and dashes")
        named = await asyncio.to_thread(_namespace, namespace)
        url, proxy = await _proxied(Kubectl(None, named))
        return cls(named, url, proxy)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a monitor that reads these workloads."""
        return {
            "kubernetes_url": self.url,
            "kubernetes_namespaces": self.namespace,
            "kubernetes_ca_file": None,
            "kubernetes_token_file": None,
        }

    @property
    def place(self) -> str:
        return f"namespace {self.namespace}"

    async def find(self) -> Found:
        """Return the workloads; `CommandError` with what to do if they cannot be read."""
        try:
            listed = await asyncio.gather(*(self._list(kind) for kind in KINDS))
        except ApiFailed as error:
            if error.is_denied:
                raise InvalidInput(
                    f"--kubernetes: {error}: grant list and watch on deployments, statefulsets and pods of {self.namespace}"
                ) from None
            raise Unreachable(f"--kubernetes: {error}: check kubectl's context") from None
        running = [each for found in listed for each in found if each.status.wanted > 0]
        if not running:
            return Found(
                (),
                f"no Deployment or StatefulSet runs in namespace {self.namespace} yet: deploy one, or name another (-n)",
            )
        sentence = f"namespace {self.namespace}: {counted(len(running), 'workload')} with replicas"
        return Found([candidate(each) for each in running], sentence)

    async def _list(self, kind: Kind) -> list[WorkloadReading]:
        found: list[WorkloadReading] = []
        query: dict[str, str | int] = {"limit": _PAGE}
        while True:
            page = mapping(
                await self._api.get(Call("list", kind.resource, self.namespace), kind.path(self.namespace), query)
            )
            items = sequence(page.get("items"))
            found += [reading for each in items if (reading := workload_of(each, kind)) is not None]
            more = mapping(page.get("metadata")).get("continue")
            if not isinstance(more, str) or not more:
                return found
            query = {"limit": _PAGE, "continue": more}

    async def close(self) -> None:
        await self._api.close()
        if self.proxy is not None and self.proxy.returncode is None:
            with suppress(ProcessLookupError):
                self.proxy.terminate()
            await self.proxy.wait()


def _namespace(named: str | None) -> str:
    """Return the namespace, which exists as far as this context may see."""
    try:
        of_context = Kubectl(None, "default").run("config", "view", "--minify", "--output", "jsonpath={..namespace}")
    except InvalidInput:
        raise
    except CommandError as error:
        raise InvalidInput(
            f"--kubernetes: {error}: choose a context (kubectl config use-context), or set KUBECONFIG"
        ) from None
    namespace = named or of_context.strip() or "default"
    try:
        Kubectl(None, namespace).run("get", "namespace", namespace, "--request-timeout", f"{CALL_SECONDS:g}s")
    except Unreachable:
        raise
    except CommandError as error:
        if "(NotFound)" in str(error):
            raise InvalidInput(
                f"--namespace: the cluster of kubectl's context has no namespace {namespace}: name another"
            ) from None
        if "(Forbidden)" not in str(error):  # a user of one namespace may not read the namespace itself
            raise Unreachable(f"--kubernetes: {error}: start the cluster, or choose another context") from None
    return namespace


async def _proxied(kubectl: Kubectl) -> tuple[str, asyncio.subprocess.Process]:
    """Start a proxy on a free port of this machine; return its address and the process."""
    command = [*kubectl.command, "proxy", "--port=0", f"--accept-paths={','.join(paths(kubectl.namespace))}"]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--reject-methods=^(POST|PUT|PATCH|DELETE)$",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    with suppress(TimeoutError):
        async with asyncio.timeout(PROXY_SECONDS):
            line = (await process.stdout.readline()).decode(errors="replace") if process.stdout is not None else ""
            if listens := _LISTENS.search(line):
                return f"http://127.0.0.1:{listens[1]}", process
    if process.returncode is None:
        process.kill()
        await process.wait()
    raise Unreachable(f"--kubernetes: kubectl proxy did not start within {PROXY_SECONDS:g} s: try it in a terminal")
