"""Results of benchmarks, with the machine they were measured on, and their progress lines."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

PROJECT = Path(__file__).resolve().parent.parent
RESULTS = PROJECT / "bench" / "results"


def log(text: str) -> None:
    """Print a progress line with the time in UTC."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, memory, versions, load of the machine."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
        "revision": _first_line(["git", "-C", str(PROJECT), "rev-parse", "--short", "HEAD"]),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), "unknown")


def _first_line(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[0] if done.returncode == 0 else None


def distribution(values: Sequence[float]) -> dict[str, float | int | None]:
    """Count, minimum, p50, p95 and maximum; None where there were no values."""
    if not values:
        return {"count": 0, "min": None, "p50": None, "p95": None, "max": None}
    p50, p95 = np.percentile(values, [50, 95])
    return {
        "count": len(values),
        "min": round(min(values), 3),
        "p50": round(float(p50), 3),
        "p95": round(float(p95), 3),
        "max": round(max(values), 3),
    }


def earlier(name: str) -> dict[str, Any]:
    """Return the results in `bench/results/NAME.json`; empty if there are none."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())["results"]) if path.exists() else {}


def write(name: str, command: str, results: dict[str, Any]) -> Path:
    """Write `bench/results/NAME.json`; returns its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "benchmark": name,
        "command": command,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "results": results,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path
