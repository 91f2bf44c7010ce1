"""The door to Docker: what the driver does goes through, what would make root of it does not, and Docker is not even asked."""

import http.client
import json
import runpy
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

GATE = Path(__file__).resolve().parents[3] / "deploy" / "compose" / "jobs" / "docker_gate.py"
OWNERS = {"tm1": "shop", "tm2": "shop", "theirs": "bank", "nobodys": None}
LABEL = "com.docker.compose.project"

Ask = Callable[..., tuple[int, Any]]


class Docker(BaseHTTPRequestHandler):
    """Answers as Docker does, and remembers what it was asked to change."""

    asked: list[str]

    def do_GET(self) -> None:
        *_, noun, name, last = ["", "", *self.path.split("/")]
        if noun == "containers" and last == "json":
            found = name in OWNERS
            labels = {LABEL: OWNERS[name]} if OWNERS.get(name) else {}
            self._say(200 if found else 404, {"Config": {"Labels": labels}} if found else {"message": "none"})
        else:
            self._say(200, {"path": self.path})

    def do_POST(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._say(201, {"Id": "new"})

    do_DELETE = do_POST  # noqa: N815 - the library's names

    def _say(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def docker_asked() -> list[str]:
    return []


@pytest.fixture
def ask(docker_asked: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks the gate; behind it is a Docker with containers of two projects, of which `shop` is allowed."""
    monkeypatch.setenv("WEIR_DOCKER_PROJECTS", "shop")
    # A socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="gate") as folder:
        gate = runpy.run_path(str(GATE))
        gate["UnixConnection"].connect.__globals__["DOCKER"] = f"{folder}/docker"
        handler = type("Asked", (Docker,), {"asked": docker_asked})
        with Server(f"{folder}/docker", handler) as docker, gate["Gate"](f"{folder}/gate", gate["Handler"]) as door:
            threads = [threading.Thread(target=s.serve_forever, args=(0.01,)) for s in (docker, door)]
            for thread in threads:
                thread.start()

            def through(method: str, path: str, document: Any = None) -> tuple[int, Any]:
                with closing(http.client.HTTPConnection("gate")) as client:
                    client.sock = socket.socket(socket.AF_UNIX)
                    client.sock.connect(f"{folder}/gate")
                    client.request(method, path, None if document is None else json.dumps(document))
                    answer = client.getresponse()
                    return answer.status, json.loads(answer.read())

            yield through
            for server in (docker, door):
                server.shutdown()
            for thread in threads:
                thread.join(5)


NEW = {"Image": "flink", "Labels": {LABEL: "shop"}, "HostConfig": {"NetworkMode": "shop_loop", "Binds": ["data:/d:rw"]}}


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("GET", "/version", None),
        ("GET", "/v1.41/containers/json?all=1", None),
        ("GET", "/v1.41/containers/tm1/json", None),
        ("GET", "/v1.41/images/weir-test/flink:local/json", None),
        ("POST", "/v1.41/containers/create?name=shop-tm-3", NEW),
        ("POST", "/v1.41/networks/shop_loop/connect", {"Container": "tm1"}),
        ("POST", "/v1.41/containers/tm2/start", None),
        ("POST", "/v1.41/containers/tm2/stop?t=10", None),
        ("DELETE", "/v1.41/containers/tm2?v=True", None),
    ],
)
def test_what_the_driver_does_goes_through(ask: Ask, method: str, path: str, document: Any) -> None:
    """With the address as it was asked."""
    assert ask(method, path, document)[0] in (200, 201)


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("GET", "/v1.41/containers/theirs/json", None),
        ("GET", "/v1.41/containers/tm1/logs", None),
        ("GET", "/v1.41/secrets", None),
        ("POST", "/v1.41/containers/theirs/stop", None),
        ("POST", "/v1.41/containers/nobodys/start", None),
        ("POST", "/v1.41/containers/tm1/exec", {}),
        ("POST", "/v1.41/containers/tm1%2F..%2Ftheirs/stop", None),
        ("POST", "/v1.41/containers/tm1/../theirs/stop", None),
        ("DELETE", "/v1.41/containers/theirs", None),
        ("DELETE", "/v1.41/volumes/shop_data", None),
        ("POST", "/v1.41/images/create?fromImage=x", None),
        ("POST", "/v1.41/networks/shop_loop/connect", {"Container": "theirs"}),
        ("POST", "/v1.41/build", None),
    ],
)
def test_everything_else_does_not(ask: Ask, docker_asked: list[str], method: str, path: str, document: Any) -> None:
    """Other people's containers, and whatever else Docker could do."""
    status, answer = ask(method, path, document)
    assert status == 403
    assert "not let through" in answer["message"]
    assert docker_asked == []


@pytest.mark.parametrize(
    "more",
    [
        {"Privileged": True},
        {"CapAdd": ["SYS_ADMIN"]},
        {"Binds": ["/:/host"]},
        {"Binds": ["/var/run/docker.sock:/d"]},
        {"Mounts": [{"Type": "bind", "Source": "/", "Target": "/host"}]},
        {"VolumesFrom": ["theirs"]},
        {"PidMode": "host"},
        {"NetworkMode": "container:theirs"},
        {"Devices": [{"PathOnHost": "/dev/sda"}]},
        {"SecurityOpt": ["seccomp=unconfined"]},
    ],
)
def test_a_container_that_would_be_root_is_not_made(ask: Ask, docker_asked: list[str], more: dict[str, Any]) -> None:
    """However well it is labelled."""
    assert ask("POST", "/v1.41/containers/create", {**NEW, "HostConfig": {**NEW["HostConfig"], **more}})[0] == 403
    assert docker_asked == []


def test_a_container_of_another_project_is_not_made(ask: Ask, docker_asked: list[str]) -> None:
    """Nor one of none."""
    assert ask("POST", "/v1.41/containers/create", {**NEW, "Labels": {LABEL: "bank"}})[0] == 403
    assert ask("POST", "/v1.41/containers/create", {**NEW, "Labels": None})[0] == 403
    assert docker_asked == []


def test_what_is_not_there_or_makes_no_sense(ask: Ask) -> None:
    """The one is for Docker to say; the other does not end the gate."""
    status, answer = ask("GET", "/v1.41/containers/none/json")
    assert (status, answer["message"]) == (404, "none")
    assert ask("POST", "/v1.41/containers/create", ["no", "container"])[0] == 400
