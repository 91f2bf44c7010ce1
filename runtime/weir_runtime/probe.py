"""`python -m weir_runtime.probe`: a container's health check, with exit code 1 and the reason if its service is not ready.

Standard library only: it is started every few seconds.
"""

import http.client
import json
import os
import ssl
import sys
from collections.abc import Callable
from contextlib import closing

TIMEOUT_SECONDS = 5.0
_EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def complaint(status: int, body: bytes) -> str:
    """Return the failed dependencies with their reasons in one line; empty if all are ready."""
    if status == 200:
        return ""
    try:
        found = json.loads(body)["dependencies"]
        return "; ".join(f"{name}: {state['reason']}" for name, state in found.items() if not state["ok"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"answers {status}"


def warnings(status: int, body: bytes) -> str:
    """Return what a service says of dependencies that are there, such as topics with fewer replicas than its settings."""
    found = json.loads(body)["dependencies"] if status in (200, 503) else {}
    return "; ".join(
        f"{name}: {state['reason']}" for name, state in found.items() if state["ok"] and state["reason"] != "ok"
    )


def ask(host: str, port: int, *, tls: bool = False, read: Callable[[int, bytes], str] = complaint) -> str:
    """Return the complaint about the service at this address, or what `read` finds in its readiness."""
    host = _EVERYWHERE.get(host, host)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    if tls:
        # This container's own listener, whose certificate has the name that others use; nothing secret is sent.
        unchecked = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=unchecked)
    try:
        with closing(connection) as service:
            service.request("GET", "/health/ready")
            answer = service.getresponse()
            return read(answer.status, answer.read())
    except (OSError, http.client.HTTPException) as error:
        return f"no answer on port {port}: {error or type(error).__name__}"


def main() -> int:
    """The entry point."""
    port, tls = int(os.environ.get("WEIR_HTTP_PORT") or 8080), bool(os.environ.get("WEIR_HTTP_CERTIFICATE_FILE"))
    problem = ask(os.environ.get("WEIR_HTTP_HOST", ""), port, tls=tls)
    sys.stdout.write(f"{problem or 'ready'}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
