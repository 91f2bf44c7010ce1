"""The machine's side of the testbed's Kubernetes node: programs, bridges, kernel settings, and what a crash leaves
behind.

Pods have no route out of the machine: they reach one another, services and the API server, nothing else.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import psutil

from .process import NotInTime, TestbedError, wait_until

NODE_ADDRESS = "10.89.0.1"
POD_GATEWAY = "10.88.0.1"
POD_NETWORK = "10.88.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
NODE_BRIDGE = "weir-node"
POD_BRIDGE = "weir-pods"
CNI_FOLDER = Path("/usr/lib/cni")
COMMAND_SECONDS = 30
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
"""With the folders of iptables and ip, which a user's own may lack."""
_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "umount": "mount",
}
_FORWARD = ["FORWARD", "-i", POD_BRIDGE, "-o", POD_BRIDGE, "-m", "comment", "--comment", "weir node", "-j", "ACCEPT"]
_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/netfilter/nf_conntrack_max",
)
"""Kernel settings that kubelet, kube-proxy and the bridge plugin write."""
CPU_SHARES = 16 * 1024
"""Weight of a control group with some twenty processes: about as if each of them ran outside of it."""
_UMOUNT_LAZILY = 2
_LIBC = ctypes.CDLL(None, use_errno=True)
_TABLES = ("iptables", "ip6tables")
KUBERNETES = "KUBE-"
"""Beginning of the names of the chains that a kube-proxy or kubelet makes."""
CGROUP = "weir-node"
"""The control group below which all pods run."""


def missing() -> str | None:
    """Return why this machine cannot be a node and the remedy; None if it can."""
    if platform.system() != "Linux":
        return f"a Kubernetes node needs Linux, this is {platform.system()}"
    if os.geteuid() != 0:
        return "a Kubernetes node is started by root only"
    packages = {package for program, package in _PACKAGES.items() if shutil.which(program, path=PATH) is None}
    if not (CNI_FOLDER / "bridge").exists():
        packages.add("containernetworking-plugins")
    if packages:
        return f"programs of a Kubernetes node are missing: apt install {' '.join(sorted(packages))}"
    return None


def run(*command: str, timeout_seconds: float = COMMAND_SECONDS) -> str:
    """Return a command's output; raise `TestbedError` with its error output if it fails."""
    try:
        done = subprocess.run(
            command, env={**os.environ, "PATH": PATH}, capture_output=True, timeout=timeout_seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"{' '.join(command[:4])}: {error}") from None
    if done.returncode:
        raise TestbedError(f"{' '.join(command[:6])}: {done.stderr.decode(errors='replace').strip()[-600:]}")
    return done.stdout.decode(errors="replace")


@contextlib.contextmanager
def only_node(lock: Path, timeout_seconds: float = 0.0) -> Iterator[None]:
    """Hold the machine's lock: addresses and bridges exist once. Raise `TestbedError` if another node holds it for
    longer than the time."""
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock.open("w") as file:
        try:
            wait_until(lambda: _locked(file), timeout_seconds=timeout_seconds, what="lock")
        except NotInTime:
            raise TestbedError(f"another Kubernetes node of the testbed runs on this machine ({lock})") from None
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class HostNetwork:
    """Two bridges, the node's address, and routes that keep cluster addresses on this machine.

    Without these routes, a request to an address of a service that has ended would leave through the default route.
    """

    def up(self) -> None:
        """Make the bridges; raise `TestbedError` if an address is in use or does not become local."""
        if chains(KUBERNETES):
            raise TestbedError("a kubelet or kube-proxy of another Kubernetes has rules in this machine's iptables")
        for address in (NODE_ADDRESS, POD_GATEWAY):
            if is_local(address):
                raise TestbedError(f"{address} is in use on this machine by another interface")
        for bridge, address in ((NODE_BRIDGE, f"{NODE_ADDRESS}/32"), (POD_BRIDGE, f"{POD_GATEWAY}/16")):
            run("ip", "link", "add", bridge, "type", "bridge")
            run("ip", "address", "add", address, "dev", bridge)
            run("ip", "link", "set", bridge, "up")
        run("ip", "route", "add", SERVICE_NETWORK, "dev", NODE_BRIDGE)
        # Docker sets the policy of FORWARD to DROP and may send bridged packets through it.
        run("iptables", "-w", "-I", *_FORWARD)
        if not (is_local(NODE_ADDRESS) and is_local(POD_GATEWAY)):
            raise TestbedError(f"{NODE_ADDRESS} and {POD_GATEWAY} did not become addresses of this machine")

    def down(self) -> None:
        """Remove what `up` has made; without effect where there is nothing."""
        with contextlib.suppress(TestbedError):
            while True:
                run("iptables", "-w", "-D", *_FORWARD)
        for bridge in (NODE_BRIDGE, POD_BRIDGE):
            if has_interface(bridge):
                run("ip", "link", "delete", bridge)


def is_local(address: str) -> bool:
    """Return whether an interface of this machine has the address."""
    found = (each.address for addresses in psutil.net_if_addrs().values() for each in addresses)
    return address in found


def kernel_settings() -> dict[str, str]:
    """Return the kernel settings that a node changes, by their paths below /proc/sys."""
    found = {}
    for name in _SETTINGS:
        with contextlib.suppress(OSError):
            found[name] = Path("/proc/sys", name).read_text()
    return found


def restore(settings: dict[str, str]) -> None:
    """Write kernel settings back that differ."""
    for name, value in settings.items():
        path = Path("/proc/sys", name)
        with contextlib.suppress(OSError):
            if path.read_text() != value:
                path.write_text(value)


def mounts_below(*folders: Path) -> list[str]:
    """Return the mount points below the folders, deepest first."""
    roots = tuple(f"{folder.resolve()}/" for folder in folders)
    points = [line.split()[4].replace("\\040", " ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((each for each in points if each.startswith(roots)), key=len, reverse=True)


def unmount_below(*folders: Path) -> None:
    """Unmount everything below the folders, lazily where it is in use."""
    for point in mounts_below(*folders):
        if _LIBC.umount2(point.encode(), 0):
            _LIBC.umount2(point.encode(), _UMOUNT_LAZILY)


def processes_with(text: str) -> list[tuple[int, str]]:
    """Return id and name of the processes that have the text in an argument, this one excepted."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        arguments = process.info["cmdline"] or []
        if process.pid != os.getpid() and any(text in each for each in arguments):
            found.append((process.pid, str(process.info["name"])))
    return found


def chains(prefix: str) -> list[str]:
    """Return the chains of iptables whose names begin so, each with its program and table."""
    return [
        f"{program} {table} {line[1:].split()[0]}" for program, table, line in _rules() if line.startswith(f":{prefix}")
    ]


def remove_chains(prefix: str, bridges: Collection[str] = ()) -> None:
    """Remove the chains of iptables whose names begin so, and all rules that lead there or name one of the bridges."""
    for program, table, line in _rules():
        words = shlex.split(line)
        if (
            words[0] == "-A"
            and not words[1].startswith(prefix)
            and (words[-1].startswith(prefix) or {*words} & {*bridges})
        ):
            run(program, "-w", "-t", table, "-D", *words[1:])
    found = [each.split() for each in chains(prefix)]
    for option in ("-F", "-X"):  # a chain is removed only once no other leads to it
        for program, table, chain in found:
            run(program, "-w", "-t", table, option, chain)


def _rules() -> list[tuple[str, str, str]]:
    """Return the lines of chains (`:NAME POLICY`) and rules (`-A …`), each with its program and table."""
    found = []
    for program in _TABLES:
        table = ""
        with contextlib.suppress(TestbedError):
            for line in run(f"{program}-save").splitlines():
                if line.startswith("*"):
                    table = line[1:]
                elif line.startswith((":", "-A ")):
                    found.append((program, table, line))
    return found


def forward_policies() -> dict[str, str]:
    """Return what each program of iptables does with a forwarded packet that no rule is for: `ACCEPT` or `DROP`."""
    return {
        program: line.split()[1]
        for program, table, line in _rules()
        if table == "filter" and line.startswith(":FORWARD ")
    }


def has_interface(name: str) -> bool:
    return name in psutil.net_if_stats()


def cgroup_folders() -> list[Path]:
    """Return the folders of the node's control group, one per hierarchy."""
    top = Path("/sys/fs/cgroup")
    return [path for path in (top / CGROUP, *top.glob(f"*/{CGROUP}")) if path.is_dir() and not path.parent.is_symlink()]


def make_cgroup() -> None:
    """Make the node's control group in every hierarchy that the kubelet uses."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        (top / CGROUP).mkdir(exist_ok=True)
        return
    for hierarchy in top.iterdir():
        if hierarchy.is_dir() and not hierarchy.is_symlink() and hierarchy.name != "unified":
            (hierarchy / CGROUP).mkdir(exist_ok=True)
            if (hierarchy / CGROUP / "cpu.shares").exists():
                # A new group has the weight of a single process: on a busy machine pods would not start in time.
                (hierarchy / CGROUP / "cpu.shares").write_text(str(CPU_SHARES))
            if hierarchy.name == "cpuset":
                # A new group of this controller takes no process before it has processors and memory nodes.
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (hierarchy / CGROUP / name).write_text((hierarchy / name).read_text())


def remove_cgroup() -> bool:
    """Remove the node's control group; return whether that succeeded: not while a process of a pod runs."""
    for folder in cgroup_folders():
        for each in sorted((path for path in folder.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                each.rmdir()
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not cgroup_folders()


def network_namespaces(containers: str) -> list[Path]:
    """Return the network namespaces that the sandboxes in `ctr containers info` documents were given."""
    found = []
    for namespace in json.loads(containers).get("Spec", {}).get("linux", {}).get("namespaces", []):
        path = Path(namespace.get("path", ""))
        if namespace.get("type") == "network" and path.name.startswith("cni-"):
            found.append(path)
    return found


def remove_namespaces(paths: list[Path]) -> None:
    """Unmount and delete network namespaces; with each goes its pod's interface on the bridge."""
    for path in paths:
        if path.exists():
            _LIBC.umount2(str(path).encode(), _UMOUNT_LAZILY)
            with contextlib.suppress(OSError):
                path.unlink()
