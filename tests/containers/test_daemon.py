"""The project's own daemon: independent of any other, and removed without a trace."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.bootstrap import PROJECT
from testbed.docker import DockerDaemon, missing
from testbed.node_host import mounts_below
from testbed.process import TestbedError
from tests.containers.images import bootstrap_base

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

LIFE = """
import json, os, pathlib, subprocess, sys
import psutil
from testbed import docker

docker._another_runs = lambda: False  # it has another network than this one
folder, forwarding = pathlib.Path(sys.argv[1]), pathlib.Path("/proc/sys/net/ipv4/ip_forward")

def state():
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {
        "rules": [line for line in rules if line[0] in "-:" and not line.endswith(" ACCEPT [0:0]")],
        "forwarding": forwarding.read_text(),
        "interfaces": sorted(psutil.net_if_stats()),
        "mounts": [each.mountpoint for each in psutil.disk_partitions(all=True) if each.mountpoint.startswith(str(folder))],
        "answers": daemon.answers(),
    }

forwarding.write_text("0")
daemon = docker.DockerDaemon(folder / "data", folder / "run")
(folder / "run").mkdir()
(folder / "run" / "docker.pid").write_text(str(os.getpid()))
found, family = [state()], []
for end in (daemon.process.kill, daemon.stop):
    daemon.start()
    # The first daemon's network is there when the second starts.
    subprocess.run(["docker", "--host", daemon.url, "network", "create", "front"], stdout=subprocess.DEVNULL, check=not family)
    found.append(state())
    family += psutil.Process(daemon.process.pid).children(recursive=True)
    names = [each.name() for each in family if each.is_running()]
    end()
found.append(state())
left = [each.pid for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
print(json.dumps([*found, names, left]))
"""
"""Two daemons, one after the other on the same data. The first is killed, the second stopped; what is there before,
while each runs and after, the names of the second's processes, and the processes of both that are left."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: it holds sockets."""
    with tempfile.TemporaryDirectory(prefix="weir-") as name:
        yield Path(name)


def test_a_daemon_leaves_the_machine_as_it_was(folder: Path) -> None:
    """The same after a daemon that was killed: its process id is in a file, and another process may have it now.

    Each runs in a network of its own: a daemon without a bridge would remove the bridge of the one that runs these tests.
    """
    command = ["unshare", "--net", sys.executable, "-c", LIFE, str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    before, *during, after, names, left = json.loads(done.stdout)
    for each in during:
        assert each["answers"] and each["mounts"] and each["forwarding"] == "1\n"
        assert any(name.startswith("br-") for name in each["interfaces"])
        assert "docker0" in each["interfaces"] and any(rule.startswith(":DOCKER ") for rule in each["rules"])
    assert "containerd" in names
    assert after == before
    assert left == []


def test_why_it_does_not_start(folder: Path) -> None:
    """The error quotes the daemon and names its log; no process is left running."""
    daemon = DockerDaemon(folder / "data", folder / "run", ("--storage-driver=none-such",))
    with pytest.raises(TestbedError, match=r"dockerd ended with code 1: .*graphdriver.*\(log: .*dockerd\.log\)"):
        daemon.start()
    assert not daemon.process.running


def test_an_interrupted_debootstrap_leaves_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It mounts file systems in the folder that it fills; a folder that is then removed must not contain this machine's."""
    program = tmp_path / "bin" / "debootstrap"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nroot="$4"\nmkdir -p "$root/proc"\nmount -t proc proc "$root/proc"\nkill -9 $$\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("tests.containers.images.package_source", lambda: "http://127.0.0.1:9")
    with pytest.raises(TestbedError, match="debootstrap"):
        bootstrap_base(tmp_path / "base.tar")
    assert (tmp_path / "base.root" / "proc").is_dir()
    assert mounts_below(tmp_path) == []
