"""The Docker socket proxy permits the driver's requests; one that would give root access never reaches Docker."""

import http.client
import io
import json
import runpy
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from services.executor.adapters.docker_copy import Inspected, copy_of
from services.executor.adapters.docker_daemon import DockerDaemon
from services.executor.adapters.docker_scaling import Container, DockerRefused
from tests.effort import some

from .answers import Answers

GATE = Path(__file__).resolve().parents[3] / "deploy" / "compose" / "jobs" / "docker_gate.py"
LABEL = "com.docker.compose.project"
IDS = {name: f"{number:064x}" for number, name in enumerate(("shop-tm-1", "shop-tm-2", "theirs", "nobodys"), 0xA1)}
IMAGE, IMAGE_ID, ANONYMOUS = "flink:2.2", "sha256:" + "12" * 32, "cd" * 32
NOTHING = (
    "CapAdd",
    "Cgroup",
    "CgroupParent",
    "DeviceCgroupRules",
    "DeviceRequests",
    "Devices",
    "Links",
    "OomKillDisable",
)

Ask = Callable[..., tuple[int, Any]]


def sibling(name: str, project: str | None = "shop") -> dict[str, Any]:
    """A container as Docker 28 reports one made by Compose 2."""
    labels = {
        LABEL: project,
        "com.docker.compose.service": "tm",
        "com.docker.compose.container-number": name[-1],
        "com.docker.compose.oneoff": "False",
        "com.docker.compose.config-hash": "f00d",
        "com.docker.compose.replace": "shop-tm-0",
    }
    return {
        "Id": IDS[name],
        "Name": f"/{name}",
        "Image": IMAGE_ID,
        "Config": {
            **dict.fromkeys(("AttachStdin", "OpenStdin", "StdinOnce", "Tty"), False),
            **dict.fromkeys(("AttachStderr", "AttachStdout"), True),
            "Hostname": IDS[name][:12],
            "Domainname": "",
            "User": "9999:9999",
            "ExposedPorts": {"6123/tcp": {}, "8081/tcp": {}},
            "Env": ["JOB_MANAGER_RPC_ADDRESS=jm"],
            "Cmd": ["taskmanager"],
            "Healthcheck": {
                "Test": ["CMD", "true"],
                "Interval": 5000000000,
                "StartPeriod": 240000000000,
                "Retries": 12,
            },
            "Image": IMAGE,
            "Volumes": {"/scratch": {}},
            "WorkingDir": "/opt/flink",
            "Entrypoint": ["/docker-entrypoint.sh"],
            "OnBuild": None,
            "Labels": labels if project else {},
            "StopTimeout": 5,
        },
        "HostConfig": {
            **dict.fromkeys(NOTHING),
            **dict.fromkeys(("AutoRemove", "Privileged", "PublishAllPorts"), False),
            "Binds": ["shop_checkpoints:/checkpoints:rw", f"{ANONYMOUS}:/scratch:rw"],
            "CapDrop": ["ALL"],
            "CgroupnsMode": "private",
            "ConsoleSize": [0, 0],
            "ContainerIDFile": "",
            "IpcMode": "private",
            "Isolation": "",
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "5m"}},
            "MaskedPaths": ["/proc/kcore", "/sys/firmware"],
            "Memory": 1 << 30,
            "Mounts": [{"Type": "volume", "Source": "shop_usrlib", "Target": "/u", "VolumeOptions": {"NoCopy": True}}],
            "NanoCpus": 1000000000,
            "NetworkMode": "shop_loop",
            "PidMode": "",
            "PidsLimit": 512,
            "PortBindings": {"6121/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]},
            "ReadonlyPaths": ["/proc/sys"],
            "ReadonlyRootfs": True,
            "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0},
            "Runtime": "runc",
            "SecurityOpt": ["no-new-privileges:true"],
            "ShmSize": 67108864,
            "Tmpfs": {"/tmp": "size=64m,mode=1777"},  # noqa: S108 - in a container
            "UTSMode": "",
            "UsernsMode": "",
            "VolumesFrom": None,
        },
        "NetworkSettings": {
            "Networks": {
                "shop_loop": {"Aliases": [name, "tm"], "IPAMConfig": None, "Links": None, "DriverOpts": None},
                "shop_back": {"Aliases": [name, "tm", "workers"], "IPAMConfig": None},
            }
        },
    }


@dataclass
class World:
    """Objects of a fake Docker, and the changes requested of it: as documents and bytes."""

    containers: dict[str, Any] = field(default_factory=dict)
    owners: dict[str, Any] = field(default_factory=dict)
    requested: list[tuple[str, Any]] = field(default_factory=list)
    pause: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)

    def container(self, key: str) -> Any:
        return next((c for c in self.containers.values() if key in (c["Id"], c["Name"].removeprefix("/"))), None)

    def asks(self) -> list[str]:
        return [request for request, _ in self.requested]


class Docker(Answers):
    """Answers as Docker does; takes whatever it is requested for."""

    world: World

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        noun, *rest = [each for each in place.path.split("/") if each and each != "v1.50"]
        found: Any = {"ApiVersion": "1.50"} if noun == "version" else None
        if (noun, *rest) == ("containers", "json"):
            wanted = json.loads(parse_qs(place.query).get("filters", ['{"label": []}'])[0])["label"]
            found = [line for line in map(self._line, self.world.containers.values()) if self._fits(line, wanted)]
        elif noun == "containers" and rest[1:] == ["json"]:
            found = self.world.container(rest[0])
        elif noun in ("volumes", "networks") and f"{noun}/{rest[0]}" in self.world.owners:
            labels = {LABEL: self.world.owners[f"{noun}/{rest[0]}"]}
            found = {"Name": rest[0], "Id": f"id-of-{rest[0]}", "Labels": labels if all(labels.values()) else None}
        elif noun == "images":
            found = {"Id": IMAGE_ID}
        self._respond(404 if found is None else 200, {"message": "none"} if found is None else found)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        document = json.loads(body) if body else None
        self.world.requested.append((f"{self.command} {self.path}", document))
        self.world.arrived.set()
        self.world.pause.wait(5)
        if self.path.startswith("/v1.50/containers/create"):
            name, id = parse_qs(urlsplit(self.path).query)["name"][0], f"{len(self.world.requested):064x}"
            ends = (document.get("NetworkingConfig") or {}).get("EndpointsConfig") or {}
            made = {"Id": id, "Name": f"/{name}", "Image": IMAGE_ID, "NetworkSettings": {"Networks": ends}}
            self.world.containers[name] = {**made, "Config": document, "HostConfig": document["HostConfig"]}
            self._respond(201, {"Id": id})
        else:
            self._respond(200, {})

    do_DELETE = do_POST  # noqa: N815 - the library's names

    @staticmethod
    def _line(container: Any) -> Any:
        config = container["Config"]
        line = {"Id": container["Id"], "Names": [container["Name"]], "State": "running", "ImageID": container["Image"]}
        return {**line, "Labels": config["Labels"], "Image": config["Image"]}

    @staticmethod
    def _fits(line: Any, wanted: list[str]) -> bool:
        return all(line["Labels"].get(label.split("=")[0]) == label.split("=")[1] for label in wanted)

    def _respond(self, status: int, document: Any) -> None:
        self.respond(status, json.dumps(document).encode())


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def world() -> World:
    """Containers of two projects, of which `shop` is allowed, and one of none."""
    world = World()
    world.pause.set()
    owned = {"shop-tm-1": "shop", "shop-tm-2": "shop", "theirs": "bank", "nobodys": None}
    world.containers = {name: sibling(name, project) for name, project in owned.items()}
    world.containers["theirs"]["Config"]["Image"] = world.containers["theirs"]["Image"] = "secret:1"
    world.owners = {
        **dict.fromkeys(("networks/shop_loop", "networks/shop_back", "networks/shop_other"), "shop"),
        **dict.fromkeys(("volumes/shop_checkpoints", "volumes/shop_usrlib"), "shop"),
        **dict.fromkeys(("networks/bank_loop", "volumes/bank_secrets"), "bank"),
        **dict.fromkeys(("networks/bridge", "networks/host", "volumes/loose"), None),
    }
    return world


@pytest.fixture
def proxy(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the gate listens."""
    monkeypatch.setenv("WEIR_DOCKER_PROJECTS", "shop")
    monkeypatch.syspath_prepend(GATE.parent)
    # A socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="gate") as folder:
        gate = runpy.run_path(str(GATE))
        gate["UnixConnection"].connect.__globals__["DOCKER"] = f"{folder}/docker"
        handler = type("Asked", (Docker,), {"world": world})
        with Server(f"{folder}/docker", handler) as docker, gate["Gate"](f"{folder}/gate", gate["Handler"]) as own:
            threads = [threading.Thread(target=s.serve_forever, args=(0.01,)) for s in (docker, own)]
            for thread in threads:
                thread.start()
            yield f"{folder}/gate"
            for server in (docker, own):
                server.shutdown()
            for thread in threads:
                thread.join(5)


@pytest.fixture
def ask(proxy: str) -> Ask:
    """Send a request to the gate: a document, or text as it is."""

    def through(method: str, path: str, document: Any = None) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection("gate")) as client:
            client.sock = socket.socket(socket.AF_UNIX)
            client.sock.connect(proxy)
            text = document if document is None or isinstance(document, str) else json.dumps(document)
            client.request(method, path, text)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())

    return through


def driver_asks(original: dict[str, Any]) -> dict[str, Any]:
    """The driver's request for a third container."""
    body = copy_of(Inspected.model_validate(original), 3, IMAGE).body
    return {key: deepcopy(value) for key, value in body.items() if value is not None}


NEW = driver_asks(sibling("shop-tm-1"))
MAKE = "/v1.50/containers/create?name=shop-tm-3"


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """With `value` at `a.b`."""
    document = deepcopy(document)
    place, (*parents, last) = document, path.split("/")
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return document


def test_the_driver_scales_through_it(proxy: str, world: World) -> None:
    """A copy, its second network, start, stop and removal; Docker gets the driver's request, except for the paths that
    it sets itself."""
    daemon = DockerDaemon(f"unix://{proxy}", 5)
    one, two = sorted(daemon.containers("shop", "tm"), key=lambda container: container.number)
    assert (one.name, two.name) == ("shop-tm-1", "shop-tm-2")
    three = daemon.copy(one, 3)
    daemon.start(three)
    daemon.stop(three)
    daemon.remove(three)
    four = daemon.copy(three, 4)  # of a copy
    daemon.close()
    assert world.asks()[:5] == [
        f"POST {MAKE}",
        "POST /v1.50/networks/id-of-shop_back/connect",
        f"POST /v1.50/containers/{three.id}/start",
        f"POST /v1.50/containers/{three.id}/stop?t=5",
        f"DELETE /v1.50/containers/{three.id}?v=True&link=False&force=False",
    ]
    host = {key: value for key, value in NEW["HostConfig"].items() if key not in ("MaskedPaths", "ReadonlyPaths")}
    assert world.requested[0][1] == {**NEW, "HostConfig": host}
    ends = {"Aliases": ["tm", "workers", "shop-tm-3"]}
    assert world.requested[1][1] == {"Container": three.id, "EndpointConfig": ends}
    assert world.asks()[5].endswith(f"create?name={four.name}")


def test_copies_by_image_id_and_of_the_first_compose(ask: Ask, world: World) -> None:
    """The sibling's tag is another image's by now: the driver requests the id, and receives the name's image."""
    world.containers["shop-tm-2"]["Config"]["Image"] = "flink:old"
    assert ask("GET", "/v1.50/images/flink:old/json")[0] == 200
    first = json.dumps({**NEW, "Image": IMAGE_ID}).replace("shop-tm-3", "shop_tm_3")
    assert ask("POST", MAKE.replace("-", "_"), first)[0] == 201


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("GET", "/version", None),
        ("GET", "/v1.50/containers/json?all=1&limit=-1&size=0&trunc_cmd=0", None),
        ("GET", "/v1.50/containers/shop-tm-1/json", None),
        ("GET", f"/v1.50/images/{IMAGE}/json", None),
        ("POST", MAKE, NEW),
        (
            "POST",
            "/v1.50/networks/shop_back/connect",
            {"Container": "shop-tm-1", "EndpointConfig": {"Aliases": ["tm"]}},
        ),
        ("POST", "/v1.50/networks/shop_loop/connect", {"Container": "shop-tm-1"}),
        ("POST", "/v1.50/containers/shop-tm-2/start", None),
        ("POST", "/v1.50/containers/shop-tm-2/stop?t=10", None),
        ("DELETE", "/v1.50/containers/shop-tm-2?v=True", None),
    ],
)
def test_what_the_driver_does_goes_through(ask: Ask, method: str, path: str, document: Any) -> None:
    """By the name or the id."""
    assert ask(method, path, document)[0] in (200, 201)


def test_others_are_not_listed(ask: Ask) -> None:
    """Whatever is requested for."""
    for query in ("", "?all=1"):
        assert [line["Names"] for line in ask("GET", f"/v1.50/containers/json{query}")[1]] == [
            ["/shop-tm-1"],
            ["/shop-tm-2"],
        ]


def joined(**ends: Any) -> dict[str, Any]:
    return {"Container": "shop-tm-1", **ends}


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("GET", "/v1.50/containers/theirs/json", None),
        ("GET", "/v1.50/containers/shop-tm-1/json?size=1", None),
        ("GET", "/v1.50/containers/shop-tm-1/logs", None),
        ("GET", "/v1.50/containers/json?filters=%7B%22volume%22%3A%5B%22bank_secrets%22%5D%7D", None),
        ("GET", "/v1.50/containers/json?all=1&all=0", None),
        ("GET", "/v1.50/images/secret:1/json", None),
        ("GET", "/v1.50/secrets", None),
        ("GET", "/v1.50/networks/shop_loop", None),
        ("GET", "http://docker/version", None),
        ("POST", "/v1.50/containers/theirs/stop", None),
        ("POST", "/v1.50/containers/nobodys/start", None),
        ("POST", "/v1.50/containers/shop-tm-1/stop?t=10&signal=x", None),
        ("POST", "/v1.50/containers/shop-tm-1/start", {"Privileged": True}),
        ("POST", "/v1.18/containers/shop-tm-1/start", None),
        ("POST", "/v1.50/containers/shop-tm-1/exec", {}),
        ("POST", "/v1.50/containers/shop-tm-1/update", {}),
        ("POST", "/v1.50/containers/shop-tm-1%2F..%2Ftheirs/stop", None),
        ("POST", "/v1.50/containers/shop-tm-1/../theirs/stop", None),
        ("POST", "/v1.50//containers/shop-tm-1/stop", None),
        ("POST", "/v1.50/v1.50/containers/shop-tm-1/stop", None),
        ("POST", "/v1.50/containers/shop-tm-1/stop#x", None),
        ("DELETE", "/v1.50/containers/theirs", None),
        ("DELETE", "/v1.50/containers/shop-tm-1?link=1", None),
        ("DELETE", "/v1.50/containers/shop-tm-1?force=1", None),
        ("DELETE", "/v1.50/volumes/shop_checkpoints", None),
        ("POST", "/v1.50/images/create?fromImage=x", None),
        ("POST", "/v1.50/build", None),
        ("POST", "/v1.50/networks/shop_loop/connect", {"Container": "theirs"}),
        ("POST", "/v1.50/networks/shop_loop/disconnect", {"Container": "shop-tm-1"}),
        ("POST", "/v1.50/networks/bank_loop/connect", joined()),
        ("POST", "/v1.50/networks/host/connect", joined()),
        ("POST", "/v1.50/networks/shop_other/connect", joined()),
        ("POST", "/v1.50/networks/shop_loop/connect", joined(EndpointConfig={"Aliases": ["kafka"]})),
        ("POST", "/v1.50/networks/shop_loop/connect", joined(EndpointConfig={"DriverOpts": {"a": "b"}})),
        (
            "POST",
            "/v1.50/networks/shop_loop/connect",
            joined(EndpointConfig={"IPAMConfig": {"IPv4Address": "10.0.0.9"}}),
        ),
        ("POST", "/v1.50/networks/shop_loop/connect", joined(container="theirs")),
        ("POST", "/v1.50/networks/shop_loop/connect", '{"Container": "theirs", "Container": "shop-tm-1"}'),
    ],
)
def test_everything_else_does_not(ask: Ask, world: World, method: str, path: str, document: Any) -> None:
    """Other people's containers and networks, addresses that may mean two things, and whatever else Docker could do."""
    status, answer = ask(method, path, document)
    assert status == 403
    assert "refused" in answer["message"]
    assert world.requested == []


def test_a_network_of_others_is_not_joined_even_with_a_sibling(ask: Ask, world: World) -> None:
    """One that compose calls external."""
    for name in ("shop-tm-1", "shop-tm-2"):
        world.containers[name]["NetworkSettings"]["Networks"]["bank_loop"] = {"Aliases": ["tm"]}
    status, answer = ask("POST", "/v1.50/networks/bank_loop/connect", joined())
    assert (status, "networks of bank" in answer["message"]) == (403, True)
    new = changed(NEW, "NetworkingConfig/EndpointsConfig", {"bank_loop": {}})
    assert ask("POST", MAKE, new)[0] == 403
    assert world.requested == []


BIND = {
    "Type": "volume",
    "Target": "/d",
    "VolumeOptions": {"DriverConfig": {"Name": "local", "Options": {"o": "bind"}}},
}
HOST = [
    ("Privileged", True),
    ("CapAdd", ["SYS_ADMIN"]),
    ("Binds", ["/:/host"]),
    ("Binds", ["/var/run/docker.sock:/d"]),
    ("Binds", ["shop_checkpoints:/d:rshared"]),
    ("Binds", ["bank_secrets:/d"]),
    ("Binds", ["loose:/d"]),
    ("Binds", ["new:/d"]),
    ("Mounts", [{"Type": "bind", "Source": "/", "Target": "/host"}]),
    ("Mounts", [BIND]),
    ("Mounts", [{"Type": "volume", "Source": "bank_secrets", "Target": "/d"}]),
    ("Mounts", [{"Type": "image", "Source": "secret:1", "Target": "/d"}]),
    ("MaskedPaths", []),
    ("ReadonlyPaths", []),
    ("VolumesFrom", ["theirs"]),
    ("VolumeDriver", "local"),
    ("PidMode", "host"),
    ("IpcMode", "container:theirs"),
    ("UTSMode", "host"),
    ("UsernsMode", "host"),
    ("Cgroup", "container:theirs"),
    ("CgroupParent", "/"),
    ("NetworkMode", "host"),
    ("NetworkMode", "bridge"),
    ("NetworkMode", "bank_loop"),
    ("NetworkMode", "container:theirs"),
    ("Devices", [{"PathOnHost": "/dev/sda"}]),
    ("DeviceCgroupRules", ["a *:* rwm"]),
    ("DeviceRequests", [{"Count": -1}]),
    ("SecurityOpt", ["seccomp=unconfined"]),
    ("SecurityOpt", ["no-new-privileges:true", "systempaths=unconfined"]),
    ("Sysctls", {"kernel.msgmax": "1"}),
    ("Runtime", "kata"),
    ("Links", ["theirs"]),
    ("Annotations", {"a": "b"}),
    ("StorageOpt", {"size": "9G"}),
    ("OomKillDisable", True),
    ("Unheard", "of"),
]


@pytest.mark.parametrize(("key", "value"), some(HOST, 5))
@pytest.mark.parametrize("siblings_too", [False, True])
def test_what_gives_more_is_not_made(ask: Ask, world: World, key: str, value: Any, siblings_too: bool) -> None:
    """Even where the sibling was given it; the answer names the key, or whose volume or network it is."""
    new = changed(NEW, f"HostConfig/{key}", value)
    if siblings_too:
        world.containers["shop-tm-1"]["HostConfig"][key] = value
    status, answer = ask("POST", MAKE, new)
    assert status == 403
    assert key in answer["message"] or any(noun in answer["message"] for noun in ("volumes", "networks"))
    assert world.requested == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("HostConfig/Binds", ["shop_usrlib:/checkpoints:rw"]),
        ("HostConfig/Binds", [f"{ANONYMOUS}:/scratch:rw", "shop_checkpoints:/checkpoints:rw"]),
        ("HostConfig/CapDrop", None),
        ("HostConfig/ReadonlyRootfs", False),
        ("HostConfig/SecurityOpt", []),
        ("HostConfig/Memory", 0),
        ("HostConfig/IpcMode", "host"),
        ("HostConfig/CgroupnsMode", "host"),
        ("HostConfig/MaskedPaths", ["/nothing"]),
        ("HostConfig/PortBindings", {"1/tcp": [{"HostPort": "22"}]}),
        ("HostConfig", {"NetworkMode": "shop_loop"}),
        ("Cmd", ["sh", "-c", "cat /checkpoints/*"]),
        ("Env", ["LD_PRELOAD=/checkpoints/x.so"]),
        ("User", "0:0"),
        ("Image", "secret:1"),
        ("Hostname", "kafka"),
        ("MacAddress", "02:42:ac:11:00:02"),
        ("Memory", 0),
        ("Labels/com.docker.compose.service", "jm"),
        ("Labels/traefik.enable", "true"),
        ("Labels/com.docker.compose.project", "bank"),
        ("Labels", None),
        ("NetworkingConfig/EndpointsConfig", {"bank_loop": {}}),
        ("NetworkingConfig/EndpointsConfig", {"shop_other": {}}),
        ("NetworkingConfig/EndpointsConfig", {"shop_loop": {"Aliases": ["kafka"]}}),
        ("NetworkingConfig/EndpointsConfig", {"shop_loop": {"DriverOpts": {"a": "b"}}}),
        ("NetworkingConfig/EndpointsConfig", {"shop_loop": {"Links": ["theirs"]}}),
        ("NetworkingConfig/endpointsconfig", {"bank_loop": {}}),
    ],
)
def test_what_is_no_copy_is_not_made(ask: Ask, world: World, path: str, value: Any) -> None:
    """A copy has what a sibling has: no more, and none of its fetters less."""
    status, answer = ask("POST", MAKE, changed(NEW, path, value))
    assert status == 403 and "refused" in answer["message"]
    assert world.requested == []


@pytest.mark.parametrize("name", ["", "?name=theirs-2", "?name=shop-tm-4", "?name=shop-tm-3&platform=x"])
def test_a_copy_has_its_own_name(ask: Ask, world: World, name: str) -> None:
    """A container's name has its project, service and number."""
    assert ask("POST", f"/v1.50/containers/create{name}", NEW)[0] == 403
    assert world.requested == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('"hostconfig": {"Privileged": true, "Binds": ["/:/host"]}', "hostconfig"),
        ('"HostConfig": {"Privileged": true}', "HostConfig more than once"),
        ('"\\u0048ostConfig": {"Privileged": true}', "HostConfig more than once"),
        ('"HOSTCONFIG": {"Mounts": [{"Type": "bind", "Source": "/", "Target": "/host"}]}', "HOSTCONFIG"),
        ('"Labels": {}', "Labels more than once"),
    ],
)
def test_keys_mean_one_thing(ask: Ask, world: World, more: str, message: str) -> None:
    """Docker reads them in any case of letters, and merges those that come twice."""
    status, answer = ask("POST", MAKE, f"{json.dumps(NEW)[:-1]}, {more}}}")
    assert (status, message in answer["message"]) == (403, True), answer
    status, answer = ask("POST", MAKE, json.dumps(NEW).replace('"Memory":', '"privileged": true, "Memory":'))
    assert (status, "HostConfig.privileged" in answer["message"]) == (403, True), answer
    assert world.requested == []


def test_docker_gets_what_was_read(ask: Ask, world: World) -> None:
    """The proxy writes the request again, whatever its form was."""
    assert ask("POST", MAKE, json.dumps(NEW, indent=7).replace("Image", "\\u0049mage"))[0] == 201
    assert world.requested[0][1]["Image"] == IMAGE


@pytest.mark.parametrize(
    "heads",
    [
        "Transfer-Encoding: chunked",
        "Content-Length: 0\r\nContent-Length: 7",
        "Content-Length: +5",
        "Content-Length: 99999999",
        "Upgrade: tcp\r\nConnection: Upgrade",
    ],
)
def test_one_request_and_no_other_behind_it(proxy: str, world: World, heads: str) -> None:
    """Neither after it nor in its body."""
    stop, theirs = "POST /v1.50/containers/shop-tm-1/stop", "POST /v1.50/containers/shop-tm-2/stop HTTP/1.1\r\n\r\n"
    for sent, response in (
        (f"{stop} HTTP/1.1\r\n{heads}\r\n\r\n{theirs}", " 403 "),
        (f"{stop} HTTP/1.1\r\n\r\n{theirs}", " 200 "),
    ):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(proxy)
            client.sendall(sent.encode())
            answer = b""
            while part := client.recv(65536):
                answer += part
        assert response in answer.decode().splitlines()[0]
        assert answer.count(b"HTTP/1.1 ") == 1
    assert world.asks() == [f"POST /v1.50/containers/{IDS['shop-tm-1']}/stop"]


def test_missing_objects_and_unreadable_requests(ask: Ask, proxy: str) -> None:
    """Docker reports the one; the other does not end the gate."""
    status, answer = ask("GET", "/v1.50/containers/none/json")
    assert (status, answer["message"]) == (404, "none")
    for text in (["no", "container"], "{", "[" * 100_000, '{"Memory": NaN}', '"\\ud800"'):
        assert ask("POST", MAKE, text)[0] in (400, 403)
    daemon = DockerDaemon(f"unix://{proxy}", 5)
    with pytest.raises(DockerRefused, match="refused"):
        daemon.start(Container(IDS["theirs"], "theirs", 1, "exited"))
    daemon.close()


def test_a_client_that_does_not_wait_for_the_response(
    proxy: str, ask: Ask, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor's own patience has an end: that is a line in the log, and no more."""
    # Read as a whole: what is written while pytest empties its capture loses characters.
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    world.pause.clear()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(proxy)
        client.sendall(b"POST /v1.50/containers/shop-tm-1/stop HTTP/1.1\r\n\r\n")
        assert world.arrived.wait(5)
    world.pause.set()
    response = ""
    for _ in range(500):
        response = log.getvalue()
        if "\n" in response or threading.Event().wait(0.01):
            break
    assert response.startswith("docker-gate: the client closed the connection") and "Traceback" not in response
    assert ask("GET", "/version")[0] == 200


def test_without_a_project_it_is_closed() -> None:
    """It names the missing setting and stays, unhealthy: ending would restart it forever. It ends on SIGTERM."""
    gate = [sys.executable, str(GATE)]
    with subprocess.Popen(gate, env={"WEIR_DOCKER_PROJECTS": " ,"}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "WEIR_DOCKER_PROJECTS names no project" in process.stderr.readline()
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == 0
