"""A Docker daemon for the testbed, next to the machine's: own data, socket and process, all removed afterwards.

`python -m testbed.docker` runs one until SIGTERM or SIGINT, for continuous integration without a daemon.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import docker
import psutil
from docker.errors import DockerException

from . import node_host as host
from .bootstrap import CACHE
from .process import Launcher, ManagedProcess, TestbedError

READY_SECONDS = 60.0
GRACE_SECONDS = 30.0
"""Ending its containers takes the daemon longer than a process of ours."""
ANSWER_SECONDS = 120
OLDEST_API = "1.40"
USUAL = "unix:///var/run/docker.sock"
_CPU_GROUP = Path("/sys/fs/cgroup/cpu/docker")
"""Control group of all containers where the kernel has cgroups of the first version."""
_BRIDGE = re.compile(r"docker0|br-[0-9a-f]{12}")
_CHAINS = "DOCKER"
"""Beginning of the names of all chains that a daemon makes."""


def own_folder() -> Path:
    """Where the socket of the project's own daemon lies: short, since the path of a socket may have 107 characters."""
    return Path(tempfile.gettempdir()) / f"weir-docker-{os.geteuid()}"


def missing() -> str | None:
    """Return why this machine cannot start a daemon and the remedy; None if it can."""
    if shutil.which("dockerd") is None:
        return "there is no dockerd on the PATH: install it (Debian: apt install docker.io)"
    if os.geteuid() != 0:
        return "a Docker daemon is started by root only: start the machine's own, or set DOCKER_HOST"
    return None


def unanswered() -> str | None:
    """Return why no daemon answers at `DOCKER_HOST` (or its default) and the remedy; None if one does.

    `WEIR_DOCKER_PROBLEM` holds the reason why an earlier start failed.
    """
    if shutil.which("docker") is None:
        return "no docker on the PATH: install it (Debian: apt install docker.io)"
    where = os.environ.get("DOCKER_HOST") or USUAL
    try:
        _ask(where, 10)
    except (DockerException, OSError) as error:
        reason = os.environ.get("WEIR_DOCKER_PROBLEM") or str(error).splitlines()[0][:200]
        return f"no Docker daemon answers at {where}: start it, or set DOCKER_HOST ({reason})"
    return None


def _ask(url: str, timeout_seconds: int) -> None:
    """Returns if a daemon answers there; `DockerException` or `OSError` otherwise."""
    if url.startswith("unix://"):
        # The SDK leaves a socket open that it could not connect.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(timeout_seconds)
            probe.connect(url.removeprefix("unix://"))
    there = {**os.environ, "DOCKER_HOST": url}
    with contextlib.closing(docker.from_env(version=OLDEST_API, timeout=timeout_seconds, environment=there)) as client:
        client.ping()


class DockerDaemon(Launcher):
    """Runs `dockerd` with its own data, socket, process id file and bridge network.

    `data` is kept from one start to the next (images, build cache); `folder` holds what belongs to one run. Bridges,
    chains of iptables and kernel settings that a daemon leaves are as before once it has ended, unless another daemon
    had made them already.
    """

    def __init__(self, data: Path | None = None, folder: Path | None = None, options: Sequence[str] = ()) -> None:
        self.data = data or CACHE / "docker" / "data"
        self.folder = folder or own_folder()
        self.socket = self.folder / "docker.sock"
        self._pid_file = self.folder / "docker.pid"
        self._before = self.folder / "machine.json"
        self.process = ManagedProcess(
            "dockerd",
            [
                "dockerd",
                *("--config-file", str(self.folder / "daemon.json")),
                *("--data-root", str(self.data)),
                *("--exec-root", str(self.folder / "exec")),
                *("--pidfile", str(self._pid_file)),
                *("--host", f"unix://{self.socket}"),
                *options,
            ],
            self.folder,
            grace_seconds=GRACE_SECONDS,
        )

    @property
    def url(self) -> str:
        """For `DOCKER_HOST`."""
        return f"unix://{self.socket}"

    def start(self, timeout_seconds: float = READY_SECONDS) -> Self:
        """Start it and wait until it answers; `TestbedError` with the reason in its own words otherwise."""
        if reason := missing():
            raise TestbedError(f"dockerd: {reason}")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.data.mkdir(parents=True, exist_ok=True)
        # An empty configuration: that of the machine's own daemon is not meant for this one.
        (self.folder / "daemon.json").write_text(json.dumps({}))
        self._forget_dead()
        self._note_machine()
        try:
            self.process.start_ready(self.answers, timeout_seconds=timeout_seconds)
        except BaseException as error:
            self._release()
            if isinstance(error, TestbedError):
                raise TestbedError(f"{error}{self._hint()}") from None
            raise
        if (_CPU_GROUP.parent / "cpu.shares").exists():
            # A new group has the weight of a single process: on a busy machine containers would not start in time.
            _CPU_GROUP.mkdir(exist_ok=True)
            (_CPU_GROUP / "cpu.shares").write_text(str(host.CPU_SHARES))
        return self

    def answers(self) -> bool:
        """Whether it takes requests."""
        try:
            _ask(self.url, 5)
        except (DockerException, OSError):
            return False
        return True

    def stop(self) -> None:
        """End all its containers, then it. What it keeps in `data` stays."""
        if self.process.running:
            with contextlib.suppress(DockerException):
                self._remove_containers()
        self.process.stop()
        self._release()

    def _note_machine(self) -> None:
        """Record the machine's network, unless a killed daemon of ours has left it changed, whose record then counts."""
        if _another_runs():
            self._before.unlink(missing_ok=True)
        elif not (_bridges() or host.chains(_CHAINS)):
            before = {"forward": host.forward_policies(), "settings": host.kernel_settings()}
            self._before.write_text(json.dumps(before))

    def _release(self) -> None:
        """Undo what a daemon leaves: its data mounted onto itself, bridges, chains, and forwarding of packets."""
        host.unmount_below(self.folder, self.data)
        if any(mounted.mountpoint == str(self.data.resolve()) for mounted in psutil.disk_partitions(all=True)):
            subprocess.run(["umount", str(self.data)], timeout=ANSWER_SECONDS, check=False)
        if not self._before.exists() or _another_runs():
            return
        before, bridges = json.loads(self._before.read_text()), _bridges()
        host.remove_chains(_CHAINS, bridges)
        for bridge in bridges:
            host.run("ip", "link", "delete", bridge)
        for program, policy in host.forward_policies().items():
            if policy != before["forward"].get(program, "ACCEPT"):
                host.run(program, "-w", "-P", "FORWARD", before["forward"].get(program, "ACCEPT"))
        if not host.has_interface(host.POD_BRIDGE):  # a node that started meanwhile needs forwarding
            host.restore(before["settings"])
        for group in Path("/sys/fs/cgroup").glob("*/docker"):
            with contextlib.suppress(OSError):
                group.rmdir()
        self._before.unlink()

    def _remove_containers(self) -> None:
        with contextlib.closing(docker.DockerClient(base_url=self.url, timeout=ANSWER_SECONDS)) as client:
            for container in client.containers.list(all=True):
                with contextlib.suppress(DockerException):
                    container.remove(force=True, v=True)
            client.networks.prune()

    def _forget_dead(self) -> None:
        """A daemon that was killed leaves process ids, its own and its containerd's, by which others may go today."""
        for file in (self._pid_file, self.folder / "exec" / "containerd" / "containerd.pid"):
            try:
                command = Path(f"/proc/{int(file.read_text())}/cmdline").read_bytes()
            except (OSError, ValueError):
                command = b""
            if str(self.folder).encode() not in command:
                file.unlink(missing_ok=True)

    def _hint(self) -> str:
        log = self.process.log.read_text(errors="replace") if self.process.log.exists() else ""
        if "ermission denied" in log or "peration not permitted" in log:
            return " (this machine does not let root mount or make networks, as in a container without privileges)"
        return ""


def _bridges() -> list[str]:
    """Return the bridges of this machine that a Docker daemon has made."""
    return [name for name in psutil.net_if_stats() if _BRIDGE.fullmatch(name)]


def _another_runs() -> bool:
    """Whether this machine runs a daemon, asked while ours does not."""
    return any(process.info["name"] == "dockerd" for process in psutil.process_iter(["name"]))


def main() -> int:
    """Run a daemon until SIGTERM or SIGINT; 1 and the reason if it does not start."""
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    try:
        with DockerDaemon() as daemon:
            sys.stdout.write(f"DOCKER_HOST={daemon.url}\n")
            sys.stdout.flush()
            while not done.wait(1.0):
                daemon.process.check()
    except TestbedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
