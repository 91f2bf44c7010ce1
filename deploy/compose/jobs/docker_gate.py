"""Docker socket proxy for the `docker` driver: serves the containers of the allowed compose projects, and copies of
them.

Access to Docker's socket is root access to the machine, so the executor uses this proxy instead. It may list
containers, inspect, start, stop and remove those of the projects, and create copies that equal another container of the
service except for its number. A copy may have only keys and values that are listed here and expose nothing of the host:
no privileges, capabilities, devices or folders, and volumes and networks of the projects only. Everything else gets
403; requests to Docker are written here, never passed on.
"""

import http.client
import json
import os
import re
import signal
import socket
import socketserver
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from docker_documents import (
    JOIN,
    LABEL,
    NAME,
    NEW,
    NUMBER,
    ONE_OFF,
    SERVICE,
    Refused,
    Unreadable,
    allowed,
    ends_of,
    names_in,
    sources,
    text,
    unlike,
)

DOCKER = "/var/run/docker.sock"
OWN = Path("/run/weir-docker/docker.sock")
PROJECTS = frozenset(filter(None, re.split(r"[\s,]+", os.environ.get("WEIR_DOCKER_PROJECTS", ""))))
OWNER = int(os.environ.get("WEIR_UID", "10001"))
BACKEND_SECONDS = 120.0
IDLE_SECONDS = 30.0
MAX_BYTES = 1_000_000

TARGET = re.compile(r"(/v1\.[4-9][0-9])?(/[A-Za-z0-9_.:/@-]+)(?:\?([!-~]+))?")

Response = tuple[int, str, bytes]


class DockerResponded(Exception):
    """Docker's response to an inspection, other than 200."""

    def __init__(self, response: Response) -> None:
        super().__init__(response[0])
        self.response = response


class UnixConnection(http.client.HTTPConnection):
    """Connection to Docker's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(BACKEND_SECONDS)
        self.sock.connect(DOCKER)


def send(method: str, path: str, body: Any = None) -> Response:
    """Send a request to Docker; returns status, content type, body."""
    with closing(UnixConnection("docker", timeout=BACKEND_SECONDS)) as docker:
        headers = {"Content-Type": "application/json"} if body else {}
        docker.request(method, path, json.dumps(body).encode() if body else None, headers)
        response = docker.getresponse()
        return response.status, response.getheader("Content-Type", "application/json"), response.read()


def get_document(path: str) -> Any:
    """Return the document at `path`; raises `DockerResponded` for another status than 200."""
    response = send("GET", path)
    if response[0] != 200:
        raise DockerResponded(response)
    return json.loads(response[2])


def get_owned(version: str, kind: str, name: str) -> Any:
    """Return a container, volume or network of the projects; raises `Refused` for others, `DockerResponded` if missing."""
    if not re.fullmatch(NAME, name):
        raise Refused(f"{kind}: the name {name}")
    found = get_document(f"{version}/{kind}/{name}{'/json' if kind == 'containers' else ''}")
    owner = ((found["Config"] if kind == "containers" else found).get("Labels") or {}).get(LABEL)
    if owner not in PROJECTS:
        raise Refused(f"{kind} of {owner or 'no project'}: {name}")
    return found


def check_usable(version: str, kind: str, name: str) -> None:
    """Raise `Refused` if a container may not use this volume or network: Docker would create a missing volume."""
    try:
        found = get_owned(version, kind, name)
    except DockerResponded as error:
        if error.response[0] != 404:
            raise
        raise Refused(f"{kind}: there is no {name}") from None
    if found["Name"] != name:
        raise Refused(f"{kind}: {name} by another name")


def list_owned(version: str, **query: str) -> list[Any]:
    """Return the containers of the projects."""
    found = get_document(f"{version}/containers/json?{urlencode(query)}")
    return [line for line in found if (line.get("Labels") or {}).get(LABEL) in PROJECTS]


def inspect_each(version: str, lines: list[Any]) -> Iterator[Any]:
    """Yield the inspected containers, without those deleted meanwhile."""
    for line in lines:
        try:
            yield get_owned(version, "containers", line["Id"])
        except DockerResponded as error:
            if error.response[0] != 404:
                raise


def siblings(version: str, labels: dict[str, str]) -> Iterator[Any]:
    """Return the containers of the same service."""
    of = [f"{LABEL}={labels.get(LABEL)}", f"{SERVICE}={labels.get(SERVICE)}", f"{ONE_OFF}=False"]
    return inspect_each(version, list_owned(version, all="1", filters=json.dumps({"label": of})))


class Request(NamedTuple):
    """Request that matched one of `ROUTES`; `name` is the object's."""

    method: str
    version: str
    path: str
    name: str
    query: dict[str, str]
    body: bytes


def forward(request: Request) -> Response:
    return send(request.method, request.version + request.path)


def list_containers(request: Request) -> Response:
    if (filters := request.query.get("filters")) is not None:
        allowed(filters.encode(), {"label": [text]})
    return json_response(list_owned(request.version, **request.query))


def inspect_container(request: Request) -> Response:
    return json_response(get_owned(request.version, "containers", request.name))


def inspect_image(request: Request) -> Response:
    """Return an image by its id or by a container's image name, which may belong to another image by now."""
    lines = list_owned(request.version, all="1")
    if not any(request.name in (line.get("Image"), line.get("ImageID")) for line in lines) and not any(
        request.name == each["Config"]["Image"] for each in inspect_each(request.version, lines)
    ):
        raise Refused(f"image {request.name}, which no container uses")
    return forward(request)


def create(request: Request) -> Response:
    new, version, name = allowed(request.body, NEW), request.version, request.query.get("name", "")
    labels, host = new.get("Labels") or {}, new.get("HostConfig") or {}
    stem = [labels.get(key) or "" for key in (LABEL, SERVICE, NUMBER)]
    if stem[0] not in PROJECTS:
        raise Refused(f"a container of {stem[0] or 'no project'}")
    if name not in ("-".join(stem), "_".join(stem)) or not re.fullmatch(r"[0-9]{1,8}", stem[2]):
        raise Refused(f"the name {name}")
    reasons = ["there is none"]
    for sibling in siblings(version, labels):
        reasons = unlike(new, sibling, name)
        if not reasons:
            break
    if reasons:
        raise Refused(f"no copy of a container of {stem[0]}/{stem[1]}: {', '.join(reasons)}")
    for volume in (*(bind.split(":")[0] for bind in host.get("Binds") or ()), *sources(host)):
        check_usable(version, "volumes", volume)
    for network in {host["NetworkMode"], *ends_of(new)} - {"none"}:
        check_usable(version, "networks", network)
    # Docker's defaults apply: no container may set others.
    new["HostConfig"] = {key: value for key, value in host.items() if key not in ("MaskedPaths", "ReadonlyPaths")}
    return send("POST", f"{version}/containers/create?{urlencode({'name': name})}", new)


def connect(request: Request) -> Response:
    """Connect a container to a network of another container of its service, by names that both have."""
    document, version = allowed(request.body, JOIN), request.version
    container = get_owned(version, "containers", document.get("Container") or "")
    network = get_owned(version, "networks", request.name)
    own, aliases = container["Name"].removeprefix("/"), (document.get("EndpointConfig") or {}).get("Aliases") or []
    for sibling in siblings(version, container["Config"]["Labels"]):
        joined = sibling["Id"] != container["Id"] and network["Name"] in sibling["NetworkSettings"]["Networks"]
        if joined and set(aliases) <= names_in(sibling, network["Name"], own):
            body = {"Container": container["Id"], "EndpointConfig": {"Aliases": aliases} if aliases else {}}
            return send("POST", f"{version}/networks/{network['Id']}/connect", body)
    raise Refused(
        f"network {network['Name']} as {', '.join(aliases) or own}: no other container of the service has that"
    )


def change(request: Request) -> Response:
    """Act on the inspected container by its id, even if another one has its name by now."""
    container = get_owned(request.version, "containers", request.name)
    path_parts = request.path.split("/")
    path_parts[2] = container["Id"]
    query = f"?{urlencode(request.query)}" if request.query else ""
    return send(request.method, f"{request.version}{'/'.join(path_parts)}{query}")


_YES_NO, _NO = "[01]|[Tt]rue|[Ff]alse", "0|[Ff]alse"
_LIST = {"all": _YES_NO, "limit": "-?[0-9]{1,6}", "size": _NO, "trunc_cmd": _YES_NO, "filters": r".{1,4000}"}
ROUTES: tuple[tuple[str, Callable[[Request], Response], dict[str, str]], ...] = (
    (r"(?:GET|HEAD) /(?:_ping|version)()", forward, {}),
    (r"GET /containers/json()", list_containers, _LIST),
    (rf"GET /containers/({NAME})/json", inspect_container, {}),
    (r"GET /images/([A-Za-z0-9][A-Za-z0-9_.:/@-]*)/json", inspect_image, {}),
    (r"POST /containers/create()", create, {"name": NAME}),
    (rf"POST /containers/({NAME})/start", change, {}),
    (rf"POST /containers/({NAME})/stop", change, {"t": "[0-9]{1,2}"}),
    (rf"DELETE /containers/({NAME})", change, {"v": _YES_NO, "link": _NO, "force": _NO}),
    (rf"POST /networks/({NAME})/connect", connect, {}),
)


def respond(method: str, target: str, body: bytes) -> Response:
    """Return Docker's response; raises `Refused` for a request that the driver does not need."""
    parts = TARGET.fullmatch(target)
    if parts is None or ".." in parts[2] or "//" in parts[2]:
        raise Refused(f"the address {target}")
    for route, handle, parameters in ROUTES:
        if found := re.fullmatch(route, f"{method} {parts[2]}"):
            pairs = parse_qsl(parts[3] or "", keep_blank_values=True)
            for key, value in pairs:
                if key not in parameters or not re.fullmatch(parameters[key], value) or len(dict(pairs)) < len(pairs):
                    raise Refused(f"{method} {parts[2]} with {key}={value}")
            if body and handle not in (create, connect):
                raise Refused(f"{method} {parts[2]} with a body")
            return handle(Request(method, parts[1] or "", parts[2], found[1], dict(pairs), body))
    raise Refused(f"{method} {parts[2]}")


def json_response(document: Any, status: int = 200) -> Response:
    return status, "application/json", json.dumps(document).encode()


def log(text: str) -> None:
    print(f"docker-gate: {text}", file=sys.stderr, flush=True)


class Handler(BaseHTTPRequestHandler):
    """One connection with one request, so that no second request can hide behind it."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def _pass(self) -> None:
        self.close_connection = True
        try:
            self._send(*self._response())
        except ConnectionError as error:
            log(f"the client closed the connection before the response: {error}")

    def _response(self) -> Response:
        try:
            return respond(self.command, self.path, self._body())
        except DockerResponded as other:
            return other.response
        except Refused as error:
            reason = re.sub(r"[^ -~]", "?", str(error))[:500]
            log(f"refused: {reason}")
            return json_response({"message": f"refused: {reason}"}, 403)
        except Unreadable as error:
            return json_response({"message": f"unreadable request: {error}"}, 400)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
            return json_response({"message": f"docker: {type(error).__name__}: {error}"}, 502)

    do_GET = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815 - the library's names

    def _body(self) -> bytes:
        for name in ("Transfer-Encoding", "Upgrade", "Expect"):
            if name in self.headers:
                raise Refused(f"the header {name}")
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if len(lengths) > 1 or not re.fullmatch("[0-9]{1,9}", lengths[0]) or int(lengths[0]) > MAX_BYTES:
            raise Refused("a body without a length, or a large one")
        body = self.rfile.read(int(lengths[0]))
        if len(body) < int(lengths[0]):
            raise Unreadable("it ends too early")
        return body

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")
        if status not in (204, 304):
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing: Docker logs permitted requests."""


class Gate(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves connections concurrently."""

    daemon_threads = True


def main() -> int:
    # The first process of a container ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    OWN.unlink(missing_ok=True)
    if not PROJECTS:
        # Ending would restart the container forever: without a socket it stays, and its health check fails.
        log("closed: WEIR_DOCKER_PROJECTS names no project whose containers may be scaled")
        while True:
            signal.pause()
    with Gate(str(OWN), Handler) as gate:
        # For the executor, and for this container's health check: root without capabilities has its group's rights.
        OWN.chmod(0o660)
        os.chown(OWN, OWNER, 0)
        print(f"docker-gate: for {', '.join(sorted(PROJECTS))}", flush=True)
        gate.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
