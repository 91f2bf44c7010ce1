"""Memory of a service, and the limit of its container. The oracle is the kernel's: resident memory of the process and of
those that it started, the largest (VmHWM) or that of now without what they share (Pss)."""

from contextlib import suppress
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
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended in the meantime
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += processes(int(child))
    return found


def largest_bytes(service: WeirService) -> int:
    """Return the largest memory that the processes ever had in use, each at its own time; what they share counts twice."""
    return 1024 * sum(_kilobytes(f"/proc/{pid}/status", "VmHWM") for pid in processes(service.pid))


def used_bytes(service: WeirService) -> int:
    """Return the memory that the process and those that it started have in use now; what they share counts once."""
    return 1024 * sum(_kilobytes(f"/proc/{pid}/smaps_rollup", "Pss") for pid in processes(service.pid))


def _kilobytes(path: str, name: str) -> int:
    """Return an entry of a process, 0 after its end."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(path).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    return 0
