"""A node whose owner is killed. Before the tests that share a node: a machine has one at a time."""

import signal
import subprocess
import sys
from pathlib import Path

from testbed.bootstrap import PROJECT
from testbed.node import REMOVAL_SECONDS, KubernetesNode
from testbed.node_host import kernel_settings
from testbed.process import wait_until

OWNER = """
import signal
from testbed.node import KubernetesNode
KubernetesNode().start()
print("ready", flush=True)
signal.pause()
"""


def network_namespaces() -> set[str]:
    """Return the names of the network namespaces of pods."""
    return {path.name for path in Path("/run/netns").glob("cni-*")}


def test_a_node_ends_with_its_owner() -> None:
    """Pods run on without containerd and kubelet: another process ends them and restores the machine."""
    node, settings, namespaces = KubernetesNode(), kernel_settings(), network_namespaces()
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=PROJECT, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            assert {each.split()[0] for each in node.left()} == {"bridge", "mount", "control", "process", "chain"}
            assert network_namespaces() > namespaces
        finally:
            owner.kill()
    assert owner.returncode == -signal.SIGKILL
    wait_until(lambda: not node.left(), timeout_seconds=REMOVAL_SECONDS, what="removal of the node", poll_seconds=0.5)
    wait_until(lambda: not node.folder.exists(), timeout_seconds=REMOVAL_SECONDS, what="removal of its files")
    assert network_namespaces() == namespaces
    assert {name: kernel_settings()[name] for name in settings} == settings
