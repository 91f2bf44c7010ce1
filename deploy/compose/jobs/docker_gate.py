"""A door to Docker that is only as wide as the `docker` driver: the containers of the allowed compose projects, and copies of them.

Whoever may use Docker's socket is root on the machine. So the executor is not given that one but this: it can list containers, look at,
start, stop and remove those of the projects, and make some that carry their labels and ask for nothing that only root may have: no
privileges, no capabilities, nothing of the host mounted or shared. Everything else is answered 403.
"""

import http.client
import json
import os
import re
import socket
import socketserver
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

DOCKER = "/var/run/docker.sock"
OWN = Path("/run/weir-docker/docker.sock")
PROJECTS = frozenset(filter(None, re.split(r"[\s,]+", os.environ.get("WEIR_DOCKER_PROJECTS", ""))))
OWNER = int(os.environ.get("WEIR_UID", "10001"))
LABEL = "com.docker.compose.project"
BACKEND_SECONDS = 120.0
MOST_BYTES = 1_000_000

_ID = r"([A-Za-z0-9][A-Za-z0-9_.-]*)"
FREE = re.compile(r"(GET|HEAD) /(_ping|version)|GET /containers/json|GET /images/[^?]+/json")
CREATE = "POST /containers/create"
OF_ONE = re.compile(rf"GET /containers/{_ID}/json|POST /containers/{_ID}/(?:start|stop)|DELETE /containers/{_ID}")
CONNECT = re.compile(r"POST /networks/[^/]+/connect")


class Refused(Exception):
    """Why not."""


class UnixConnection(http.client.HTTPConnection):
    """To Docker's own socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(BACKEND_SECONDS)
        self.sock.connect(DOCKER)


def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, str, bytes]:
    """Docker's answer: status, content type, body."""
    with closing(UnixConnection("docker", timeout=BACKEND_SECONDS)) as docker:
        headers = {"Content-Type": "application/json"} if body else {}
        docker.request(method, path, body, headers)
        answer = docker.getresponse()
        return answer.status, answer.getheader("Content-Type", "application/json"), answer.read()


def check_own(container: str) -> None:
    """`Refused` for a container of somebody else. One that is not there is for Docker to say."""
    status, _, body = ask("GET", f"/containers/{container}/json")
    if status == 404:
        return
    owner = (json.loads(body)["Config"]["Labels"] or {}).get(LABEL)
    if owner not in PROJECTS:
        raise Refused(f"container {container} belongs to {owner or 'nobody'}")


def check_new(body: Any) -> None:
    """`Refused` for a container that would be more than its siblings could be."""
    labels, host = body.get("Labels") or {}, body.get("HostConfig") or {}
    if labels.get(LABEL) not in PROJECTS:
        raise Refused(f"a container of {labels.get(LABEL)}")
    mounts = [each for each in host.get("Mounts") or [] if each.get("Type") != "volume" and each.get("Type") != "tmpfs"]
    binds = [each for each in host.get("Binds") or [] if str(each).startswith(("/", ".", "~"))]
    shared = [host.get(f"{kind}Mode") or "" for kind in ("Network", "Pid", "Ipc", "UTS", "Userns")]
    asked = {
        "privileges": host.get("Privileged"),
        "capabilities": host.get("CapAdd"),
        "devices": host.get("Devices") or host.get("DeviceRequests") or host.get("DeviceCgroupRules"),
        "files of the host": mounts or binds or host.get("VolumesFrom"),
        "a part of the host or of another container": any(m == "host" or m.startswith("container:") for m in shared),
        "loosened security": [o for o in host.get("SecurityOpt") or [] if not o.startswith("no-new-privileges")],
    }
    if wanted := [name for name, value in asked.items() if value]:
        raise Refused(f"a container with {' and '.join(wanted)}")


def check(method: str, path: str, body: bytes) -> None:
    """`Refused` for what the driver has no use for."""
    bare = path.partition("?")[0]
    if re.search(r"%|//|\.\.", bare):
        raise Refused(f"the address {bare}")
    request = f"{method} {re.sub(r'^/v[0-9.]+', '', bare)}"
    if FREE.fullmatch(request):
        return
    document = json.loads(body) if body else {}
    if request == CREATE:
        check_new(document)
    elif CONNECT.fullmatch(request):
        check_own(str(document["Container"]))
    elif one := OF_ONE.fullmatch(request):
        check_own(next(filter(None, one.groups())))
    else:
        raise Refused(request)


class Handler(BaseHTTPRequestHandler):
    """One connection of the executor's."""

    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        try:
            body = self._body()
            check(self.command, self.path, body)
            self._answer(*ask(self.command, self.path, body or None))
        except Refused as error:
            print(f"docker-gate: refused: {error}", file=sys.stderr, flush=True)
            self._answer(403, "application/json", json.dumps({"message": f"not let through: {error}"}).encode())
            self.close_connection = True
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._answer(400, "application/json", json.dumps({"message": f"not understood: {error}"}).encode())
            self.close_connection = True
        except (OSError, http.client.HTTPException) as error:
            self._answer(502, "application/json", json.dumps({"message": f"docker: {error}"}).encode())

    do_GET = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815 - the library's names

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= MOST_BYTES or self.headers.get("Transfer-Encoding"):
            raise Refused("a body without a length, or a large one")
        return self.rfile.read(length)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        if status not in (204, 304):
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """What was let through is Docker's to log."""


class Gate(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A connection does not wait for another."""

    daemon_threads = True


def main() -> int:
    if not PROJECTS:
        print("docker-gate: WEIR_DOCKER_PROJECTS names no project", file=sys.stderr)
        return 2
    OWN.unlink(missing_ok=True)
    with Gate(str(OWN), Handler) as gate:
        # For the executor, and for the health check of this container: root without capabilities may what its group may.
        OWN.chmod(0o660)
        os.chown(OWN, OWNER, 0)
        print(f"docker-gate: for {', '.join(sorted(PROJECTS))}", flush=True)
        gate.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
