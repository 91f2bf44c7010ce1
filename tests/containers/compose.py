"""The stack of deploy/compose as a separate project: own name, own port, chosen images.

Built on testcontainers' `DockerCompose`, which knows Compose v2 only; where there is none, docker-compose 1.29 is
called.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container
from testcontainers.compose import DockerCompose

from testbed.bootstrap import PROJECT
from testbed.process import TestbedError

FOLDER = PROJECT / "deploy" / "compose"
PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
WEIR = ("monitor", "analyzer", "planner", "executor", "knowledge")
ANSWER_SECONDS = 120
UP_SECONDS = 1800
OPERATOR_TOKEN = "/run/weir/operator"  # noqa: S105 - where it is


def compose_command() -> list[str] | None:
    """Return the command of the installed Compose, v2 before v1; None if there is neither."""
    if shutil.which("docker"):
        version = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
        if version.returncode == 0:
            return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


@dataclass
class _Compose(DockerCompose):
    """Uses the installed Compose, v2 or v1."""

    @cached_property
    def compose_command_property(self) -> list[str]:
        command = compose_command()
        if command is None:
            raise TestbedError("no Docker Compose: install the plugin (Debian: apt install docker-compose)")
        return [*command, *super().compose_command_property[2:]]


@dataclass
class ComposeStack:
    """One `docker compose` project; its settings go over those in .env."""

    name: str
    folder: Path
    """For its environment file."""
    settings: Mapping[str, str] = field(default_factory=dict)
    further: Sequence[Path] = ()
    """Further Compose files."""
    profiles: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = self.folder / f"{self.name}.env"
        lines = [f"{k}={v}" for k, v in {**self.settings, "COMPOSE_PROJECT_NAME": self.name}.items()]
        environment.write_text((FOLDER / ".env").read_text() + "\n" + "\n".join(lines) + "\n")
        files = [str(FOLDER / "compose.yaml"), *(str(path) for path in self.further)]
        self._compose = _Compose(
            FOLDER, compose_file_name=files, wait=False, env_file=str(environment), profiles=list(self.profiles)
        )

    def up(self, *services: str) -> None:
        """Run `up -d`; unchanged containers stay. Blocks until dependencies are ready."""
        try:
            self._run("up", "--detach", *services)
        except TestbedError as error:
            raise TestbedError(f"{error}\n{self.ps()}\n{self.logs(lines=15)}") from None

    def down(self) -> None:
        """End and remove everything of the project, volumes included."""
        # Compose v2 ends the containers of the given profiles only; v1 does not know `*` and ends all.
        every = [] if compose_command() == ["docker-compose"] else ["--profile", "*"]
        self._run(*every, "down", "--volumes", "--remove-orphans", "--timeout", "15")

    def ps(self) -> str:
        """The table of containers."""
        return self._run("ps", "--all") if compose_command() != ["docker-compose"] else self._run("ps")

    def exec(self, service: str, *command: str) -> str:
        """Return the output of a command in a service's container; raises `TestbedError` with its error output."""
        return self._run("exec", "-T", service, *command)

    def logs(self, *services: str, lines: int = 40) -> str:
        """The last lines of services' logs."""
        return self._run("logs", "--no-color", "--tail", str(lines), *services)

    def operator_token(self) -> str:
        """The token of the first start, read as README.md says."""
        return self.exec("knowledge", "cat", OPERATOR_TOKEN).strip()

    def kill(self, service: str) -> None:
        """`docker kill` every container of a service. Compose does not restart them: call `start`."""
        for container in self.containers(service):
            container.kill()

    def start(self, service: str) -> None:
        """`docker start` every container of a service."""
        for container in self.containers(service, everyone=True):
            container.start()

    def containers(self, service: str | None = None, *, everyone: bool = False) -> list[Container]:
        """The project's containers: those that run, or `everyone`."""
        labels = [f"{PROJECT_LABEL}={self.name}", *([f"{SERVICE_LABEL}={service}"] if service else [])]
        return list(self._docker.containers.list(all=everyone, filters={"label": labels}))

    def healthy(self, service: str) -> bool:
        """Whether every container of a service runs and says that it is well."""
        found = self.containers(service)
        return bool(found) and all(each.attrs["State"].get("Health", {}).get("Status") == "healthy" for each in found)

    def left(self) -> list[str]:
        """Names of the containers, volumes and networks of this project that still exist."""
        mine = f"{PROJECT_LABEL}={self.name}"
        volumes = self._docker.volumes.list(filters={"label": mine})
        networks = self._docker.networks.list(filters={"label": mine})
        found: list[Any] = [*self.containers(everyone=True), *volumes, *networks]
        return [str(each.name) for each in found]

    def close(self) -> None:
        """Close the connection to the daemon."""
        if "_docker" in self.__dict__:
            self._docker.close()

    @cached_property
    def _docker(self) -> docker.DockerClient:
        return docker.from_env(timeout=ANSWER_SECONDS)

    def _run(self, *arguments: str) -> str:
        command = [*self._compose.compose_command_property, *arguments]
        # The first Compose gives the daemon a minute for an answer, which a busy one may take.
        environment = {**os.environ, "COMPOSE_HTTP_TIMEOUT": os.environ.get("COMPOSE_HTTP_TIMEOUT", "300")}
        done = subprocess.run(
            command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=UP_SECONDS, check=False
        )
        if done.returncode:
            raise TestbedError(f"compose {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
        return done.stdout
