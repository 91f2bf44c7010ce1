"""Metrics of the simulated services: Prometheus' queries for Weir, external.metrics.k8s.io for the HPA."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from testbed.kubernetes import KubernetesCluster

GROUP_VERSION = "external.metrics.k8s.io/v1beta1"
Values = Callable[[], Mapping[str, float]]
Respond = Callable[[str, Mapping[str, list[str]]], Any]
"""Returns the document for a path and its query; None if there is none."""


@contextmanager
def prometheus(values: Values) -> Iterator[str]:
    """Serve each value as an instant query of its name on a local port; yields the address."""

    def respond(_path: str, query: Mapping[str, list[str]]) -> Any:
        value = values().get(query.get("query", [""])[0])
        result = [] if value is None else [{"metric": {}, "value": [time.time(), f"{value:.3f}"]}]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}

    with _serving(respond) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def external_metrics(cluster: KubernetesCluster, namespace: str, values: Values) -> Iterator[None]:
    """Serve each value as an external metric of its name, through the API server's aggregation."""

    def respond(path: str, _query: Mapping[str, list[str]]) -> Any:
        if path.rstrip("/").endswith(GROUP_VERSION):
            resource = {"name": "*", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            return {"kind": "APIResourceList", "groupVersion": GROUP_VERSION, "resources": [resource]}
        name = path.rpartition("/")[2]
        value = values().get(name)
        if value is None:
            return None
        at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        item = {"metricName": name, "metricLabels": {}, "timestamp": at, "value": f"{value:.0f}"}
        return {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": [item]}

    issued = cluster.authority.issue("external-metrics", names=[f"DNS:external-metrics.{namespace}.svc"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    with _serving(respond, context) as port:
        cluster.register_api(GROUP_VERSION, {"name": "external-metrics", "namespace": namespace}, port)
        yield


@contextmanager
def _serving(respond: Respond, context: ssl.SSLContext | None = None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            document = respond(parts.path, parse_qs(parts.query))
            body = json.dumps(document or {"kind": "Status", "code": 404}).encode()
            self.send_response(200 if document is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        # Each connection's own thread does its handshake, so that a silent client stops no other.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
