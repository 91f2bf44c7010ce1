"""Deployments of small HTTP servers for a node's pods, and requests to them from this machine."""

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Self

import httpx

from tests.containers.images import BASE

RESTRICTED: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_SERVER = """
import http.server, os, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        end = time.thread_time() + {cpu_seconds}
        while time.thread_time() < end:
            pass
        self.send_response(200); self.end_headers(); self.wfile.write(os.uname().nodename.encode())
print('serving', flush=True)
http.server.ThreadingHTTPServer(('', 8080), Answer).serve_forever()
"""


def deployment(
    name: str, security: dict[str, Any], replicas: int = 2, *, cpu: str = "10m", cpu_seconds: float = 0.0
) -> dict[str, Any]:
    """Return a deployment of pods that answer with their name, each time after so many seconds of CPU time; `cpu` is
    a pod's request."""
    container = {
        "name": "server",
        "image": BASE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", _SERVER.format(cpu_seconds=cpu_seconds)],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": cpu, "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": security,
    }
    labels = {"app": name}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {**spec, "template": template},
    }


def service(name: str) -> dict[str, Any]:
    """Return the service of such a deployment, on port 80."""
    spec = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


class Callers:
    """Requests at a fixed rate, each on a new connection, so that every pod of a service gets some."""

    THREADS = 5

    def __init__(self, url: str, per_second: float) -> None:
        self._url, self._period = url, self.THREADS / per_second
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(i,)) for i in range(self.THREADS)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _call(self, number: int) -> None:
        at = time.monotonic() + self._period * number / self.THREADS
        while not self._over.wait(max(0.0, at - time.monotonic())):
            at = max(at + self._period, time.monotonic())
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(self._url, timeout=10.0, trust_env=False)
