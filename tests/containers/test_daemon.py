"""The project's own daemon: independent of any other, and removed without a trace."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testbed.docker import DockerDaemon, missing
from testbed.process import TestbedError

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

# The daemon that runs these tests has the bridge and the firewall's rules.
NO_NETWORK = ("--bridge=none", "--iptables=false")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: it holds sockets."""
    with tempfile.TemporaryDirectory(prefix="weir-") as name:
        yield Path(name)


def test_it_starts_answers_and_ends(folder: Path) -> None:
    """After a first life that was killed, too: its process id stands in a file and may be anybody's by now."""
    daemon = DockerDaemon(folder / "data", folder / "run", NO_NETWORK)
    (folder / "run").mkdir()
    (folder / "run" / "docker.pid").write_text(str(os.getpid()))
    with daemon:
        assert daemon.answers()
        family = psutil.Process(daemon.process.pid).children(recursive=True)
        assert any("containerd" in process.name() for process in family)
    assert not daemon.answers()
    assert not [process for process in family if process.is_running()]


def test_why_it_does_not_start(folder: Path) -> None:
    """The error quotes the daemon and names its log; no process is left running."""
    daemon = DockerDaemon(folder / "data", folder / "run", ("--storage-driver=none-such",))
    with pytest.raises(TestbedError, match=r"dockerd ended with code 1: .*graphdriver.*\(log: .*dockerd\.log\)"):
        daemon.start()
    assert not daemon.process.running
