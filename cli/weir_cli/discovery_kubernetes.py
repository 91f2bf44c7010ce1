"""The Deployments and StatefulSets of a namespace, for `weir run --kubernetes`.

kubectl connects as its context says, with whatever login that takes: a proxy of it, which reads only and only what Weir reads
of this namespace, serves this process's own monitor. It listens on a socket in a folder of this user alone, since a port is
open to every user of the machine, and ends with this process, however that ends.
"""

import asyncio
import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from tempfile import mkdtemp
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
END_SECONDS = 5.0
"""For the proxy to end before it is killed."""
MAX_SOCKET_BYTES = 100
"""Of the path of a socket: macOS takes 104, Linux 108. With a longer one the proxy has a port."""
WATCHED = """
folder=$1; shift
"$@" &
exec >&-
read -r _
trap '' TERM
kill -TERM 0
rm -rf "$folder"
wait
"""
"""Script that runs the proxy until its own input ends: when this process closes it, or is gone. It is in a process group with
the proxy, also where kubectl is a script that starts another program."""
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
    """Leader of the process group of the proxy."""
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
            remedy = "" if "check " in str(error) else ": check kubectl's context"
            raise Unreachable(f"--kubernetes: {error}{remedy}") from None
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

    def covers(self, policy: Mapping[str, Any]) -> bool:
        return bool(policy["metadata"]["namespace"] == self.namespace)

    async def close(self) -> None:
        await self._api.close()
        if self.proxy is not None:
            await _end(self.proxy)


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
    """Start a proxy on a socket, or on a free port of this machine; return its address and the leader of its processes."""
    folder = mkdtemp(prefix="weir-")  # of this user alone
    socket = f"{folder}/kubectl"
    place = f"--unix-socket={socket}" if len(os.fsencode(socket)) <= MAX_SOCKET_BYTES else "--port=0"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", WATCHED, "weir-kubectl", folder, *kubectl.command, "proxy", place),
        f"--accept-paths={','.join(paths(kubectl.namespace))}",
        "--reject-methods=^(POST|PUT|PATCH|DELETE)$",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    with suppress(TimeoutError):
        async with asyncio.timeout(PROXY_SECONDS):
            line = (await process.stdout.readline()).decode(errors="replace") if process.stdout is not None else ""
            if line.rstrip().endswith(socket):
                return f"unix:{socket}", process
            if listens := _LISTENS.search(line):
                return f"http://127.0.0.1:{listens[1]}", process
    await _end(process)
    raise Unreachable(f"--kubernetes: kubectl proxy did not start within {PROXY_SECONDS:g} s: try it in a terminal")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
