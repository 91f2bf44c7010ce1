"""Memory of a service, and the limit of its container. The oracle is the kernel's: the largest resident memory of the
process and of those that it started (VmHWM)."""

from pathlib import Path

import yaml

from testbed.service import WeirService

ROOT = Path(__file__).parents[1]
UNITS = {"Mi": 2**20, "Gi": 2**30}


def limit_bytes(service: str) -> int:
    """Return the memory limit of a service's container."""
    for each in yaml.safe_load_all((ROOT / "deploy" / "k8s" / "base" / f"{service}.yaml").read_text()):
        if each["kind"] == "Deployment":
            limit = each["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
            return int(limit[:-2]) * UNITS[limit[-2:]]
    raise AssertionError(f"{service} has no Deployment")


def processes(pid: int) -> list[int]:
    """Return a process and all that it started, which share its container."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += processes(int(child))
    return found


def largest_bytes(service: WeirService) -> int:
    """Return the largest memory that the processes ever had in use, each at its own time; what they share counts twice."""
    found = 0
    for pid in processes(service.pid):
        status = Path(f"/proc/{pid}/status").read_text()
        found += int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    return found * 1024
