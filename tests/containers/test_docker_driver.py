"""The docker driver on a real daemon: compose sees the containers it makes as its own, and takes them away with the
others."""

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import ImageNotFound, NotFound
from docker.models.containers import Container as Real

from runtime.clock import SystemClock
from services.executor.adapters.docker import DockerDriver
from services.executor.adapters.docker_daemon import DockerDaemon
from services.executor.adapters.docker_scaling import Container, Daemon
from services.executor.core import Accepted, Refusal, Rejected, Unanswered
from services.executor.driver import Unfenced
from tests.containers.compose import compose_command
from tests.containers.images import BASE, Images
from tests.unit.executor.builders import JOB, TOPOLOGY, subject
from tests.unit.executor.daemon_suite import DaemonSuite
from tests.unit.executor.memory_docker import ReactiveCluster

PROJECT, SERVICE = "weir-driver-test", "tm"
COMPOSE = """
services:
  tm:
    image: ${BASE}
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    environment: {SLOTS: "2"}
    volumes: ["checkpoints:/checkpoints", "/scratch", "./conf:/conf:ro"]
    networks: {front: {aliases: [workers]}, back: {}}
    mem_limit: 32m
    read_only: true
    cap_drop: [ALL]
    stop_grace_period: 5s
    restart: unless-stopped
  jm:
    image: ${BASE}
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    networks: [front]
volumes: {checkpoints: {}}
networks: {front: {}, back: {}}
"""


@dataclass
class Project:
    """A compose project of two services; one TaskManager of it runs."""

    folder: Path
    client: docker.DockerClient
    others: list[Real] = field(default_factory=list)

    def compose(self, *arguments: str) -> list[str]:
        """The lines that compose writes."""
        command = compose_command()
        assert command is not None, "no Docker Compose"
        done = subprocess.run(
            [*command, "-f", str(self.folder / "compose.yaml"), "-p", PROJECT, *arguments],
            env={**os.environ, "BASE": BASE},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.split()

    def real(self, service: str = SERVICE) -> dict[int, Real]:
        """The containers as Docker has them, by number."""
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        found = self.client.containers.list(all=True, filters={"label": [*labels, "com.docker.compose.oneoff=False"]})
        return {int(each.labels["com.docker.compose.container-number"]): each for each in found}

    def stranger(self, number: int) -> Real:
        """Create a foreign container under the name of the service's next one."""
        name = str(next(iter(self.real().values())).name)
        other = self.client.containers.create(BASE, ["true"], name=f"{name.rstrip('0123456789')}{number}")
        self.others.append(other)
        return other

    def reset(self, containers: int) -> None:
        """Restore so many TaskManagers and remove foreign containers."""
        while self.others:
            self.others.pop().remove(force=True)
        self.compose("up", "-d", "--scale", f"{SERVICE}={containers}", "--remove-orphans")
        assert sorted(self.real()) == list(range(1, containers + 1))

    def left(self) -> list[str]:
        """Return names of the project's objects on the daemon."""
        mine = [f"com.docker.compose.project={PROJECT}"]
        found: Sequence[Any] = [
            *self.client.containers.list(all=True, filters={"label": mine}),
            *self.client.networks.list(filters={"label": mine}),
            *self.client.volumes.list(filters={"label": mine}),
        ]
        return [str(each.name) for each in found]


@pytest.fixture(scope="module")
def project(
    docker_client: docker.DockerClient, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    try:
        docker_client.images.get(BASE)
    except ImageNotFound:
        images.local()
    folder = tmp_path_factory.mktemp("driver")
    (folder / "compose.yaml").write_text(COMPOSE)
    (folder / "conf").mkdir()
    project = Project(folder, docker_client)
    try:
        project.compose("up", "-d")
        yield project
    finally:
        while project.others:
            project.others.pop().remove(force=True)
        project.compose("down", "--volumes", "--timeout", "5")


def real_daemon() -> DockerDaemon:
    return DockerDaemon(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", 120)


class RealRig:
    """Two TaskManagers by compose."""

    def __init__(self, project: Project) -> None:
        self.daemon: Daemon = real_daemon()
        self.project, self.service = PROJECT, SERVICE
        self._made = project

    def takes_name(self, number: int) -> None:
        self._made.stranger(number)

    def away(self) -> Daemon:
        return DockerDaemon("tcp://127.0.0.1:1", 1)


class TestRealDaemon(DaemonSuite):
    """The same that the one in memory is held to."""

    @pytest.fixture
    def rig(self, project: Project) -> Iterator[RealRig]:
        project.reset(2)
        rig = RealRig(project)
        yield rig
        rig.daemon.close()


class Driven:
    """A job that takes the slots of the project's TaskManagers, and the driver that scales them."""

    def __init__(self, project: Project, daemon: DockerDaemon) -> None:
        self.project, self.daemon = project, daemon
        clock = SystemClock()
        self.cluster = ReactiveCluster(clock, self._running)
        self.driver = DockerDriver(clock, self.cluster, daemon, [PROJECT], checkpoint_seconds=1)
        self.subject = subject(docker={"project": PROJECT, "service": SERVICE})
        self.cluster.add(self.subject, TOPOLOGY, TOPOLOGY.uniform(len(project.real())), JOB)

    def _running(self, project: str, service: str) -> int:
        return sum(1 for each in self.daemon.containers(project, service) if each.state == "running")

    def ask(self, level: int) -> Accepted | Rejected | Unanswered | Refusal:
        """One request."""
        expected = self.requested()
        assert expected is not None
        return asyncio.run(self.driver.request(self.subject, JOB, TOPOLOGY.uniform(level), expected, Unfenced()))

    def requested(self) -> dict[str, int] | None:
        state = asyncio.run(self.driver.observe(self.subject))
        assert state.deployment is not None, state.reason
        return state.deployment.requested


@pytest.fixture
def driven(project: Project) -> Iterator[Driven]:
    project.reset(1)
    driven = Driven(project, real_daemon())
    yield driven
    asyncio.run(driven.driver.close())


def same(container: Real) -> dict[str, Any]:
    """Return the attributes that a copied container shares with its sibling."""
    config, host = container.attrs["Config"], container.attrs["HostConfig"]
    labels = {key: value for key, value in config["Labels"].items() if not key.endswith("container-number")}
    mounts = sorted((m["Destination"], m["Type"], m["RW"]) for m in container.attrs["Mounts"])
    keys = ("Memory", "ReadonlyRootfs", "CapDrop", "RestartPolicy", "NetworkMode", "Binds")
    own = {container.id[:12], container.name}  # the first Compose gives the one as an alias, v2 the other
    networks = {
        name: sorted(alias for alias in end["Aliases"] if alias not in own)
        for name, end in container.attrs["NetworkSettings"]["Networks"].items()
    }
    return {
        "image": container.attrs["Image"],
        "labels": labels,
        "mounts": mounts,
        "networks": networks,
        **{key: config[key] for key in ("Env", "Cmd", "Image", "StopTimeout")},
        **{key: host[key] for key in keys},
    }


def volume(container: Real, place: str) -> str:
    return next(m["Name"] for m in container.attrs["Mounts"] if m["Destination"] == place)


def test_compose_sees_them_as_its_own(project: Project, driven: Driven) -> None:
    """From one to three and back to two: `ps` lists them, `up` leaves them as they are, the service's name resolves."""
    for _ in range(2):  # asking twice does no harm
        assert isinstance(driven.ask(3), Accepted)
    real = project.real()
    assert sorted(real) == [1, 2, 3] and {each.status for each in real.values()} == {"running"}
    assert driven.requested() == TOPOLOGY.uniform(3)
    assert set(project.compose("ps", "-q", SERVICE)) == {each.id for each in real.values()}
    assert same(real[2]) == same(real[1]) == same(real[3])
    assert volume(real[2], "/checkpoints") == volume(real[1], "/checkpoints")
    assert volume(real[2], "/scratch") != volume(real[1], "/scratch")
    for name in (SERVICE, "workers"):
        code, found = project.real("jm")[1].exec_run(["getent", "ahostsv4", name])
        assert code == 0 and len({line.split()[0] for line in found.decode().splitlines()}) == 3, (name, found)
    project.compose("up", "-d", "--scale", f"{SERVICE}=3")
    assert {n: each.id for n, each in project.real().items()} == {n: each.id for n, each in real.items()}
    scratch = volume(real[3], "/scratch")
    assert isinstance(driven.ask(2), Accepted)
    assert {n: each.id for n, each in project.real().items()} == {n: real[n].id for n in (1, 2)}
    with pytest.raises(NotFound):
        project.client.volumes.get(scratch)


def test_others_names_and_one_offs_are_left_alone(project: Project, driven: Driven) -> None:
    """A name that is taken is passed by; what `compose run` started is no TaskManager, and stays."""
    stranger = project.stranger(2)
    (one_off,) = project.compose("run", "-d", "--rm", SERVICE)[-1:]
    assert isinstance(driven.ask(2), Accepted)
    assert sorted(project.real()) == [1, 3]
    assert isinstance(driven.ask(1), Accepted)
    assert sorted(project.real()) == [1]
    stranger.reload()
    project.client.containers.get(one_off).remove(force=True)


class Interrupted(DockerDaemon):
    """Another client removes the new container, once."""

    def __init__(self, project: Project) -> None:
        super().__init__(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", 120)
        self.project, self.removes = project, 1

    def start(self, container: Container) -> None:
        if self.removes:
            self.removes -= 1
            self.project.client.containers.get(container.id).remove(force=True)
        super().start(container)


def test_another_client_removes_one_meanwhile(project: Project) -> None:
    """The request fails without a change; repeated, it succeeds. A later removal is not the driver's doing."""
    project.reset(1)
    driven = Driven(project, Interrupted(project))
    answer = driven.ask(3)
    assert isinstance(answer, Unanswered) and "is not there any more" in answer.reason
    assert sorted(project.real()) == [1]
    assert isinstance(driven.ask(3), Accepted)
    project.real()[2].remove(force=True)
    assert driven.requested() == TOPOLOGY.uniform(2)
    assert isinstance(driven.ask(3), Accepted)
    assert sorted(project.real()) == [1, 3, 4]
    asyncio.run(driven.driver.close())


def test_a_fixed_port_is_refused_before_anything_is_made(project: Project, driven: Driven) -> None:
    """Compose could not scale such a service either; the sentence names the port."""
    more = project.folder / "port.yaml"
    more.write_text(COMPOSE.replace('environment: {SLOTS: "2"}', 'ports: ["127.0.0.1:45671:8081"]'))
    project.compose("-f", str(more), "up", "-d", "--scale", f"{SERVICE}=1")
    try:
        answer = driven.ask(2)
        assert isinstance(answer, Rejected) and "published as 45671" in answer.reason
        assert sorted(project.real()) == [1]
    finally:
        project.reset(1)


def test_down_leaves_nothing(project: Project, driven: Driven) -> None:
    """`docker compose down` takes away what the driver made with all the rest."""
    assert isinstance(driven.ask(3), Accepted)
    project.compose("down", "--volumes", "--timeout", "5")
    assert project.left() == []
