"""Jars of the real parts, fetched by `make setup`."""

import shutil
import zipfile
from pathlib import Path
from typing import Any

import yaml

from .bootstrap import CACHE
from .process import TestbedError


def java() -> list[str]:
    """Return the beginning of a command that runs Java; raises `TestbedError` if it is not installed.

    Processes here live for minutes on few cores: a start takes a third less CPU without the second compiler, and what runs
    then spends its time waiting. A parallel collector has nothing to do in a small heap.
    """
    found = shutil.which("java")
    if found is None:
        raise TestbedError("java is not on the PATH: install Java 17")
    return [found, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


def jars(part: str) -> list[Path]:
    """Return the jars of a part, a folder in the cache's `jars`; raises `TestbedError` if they are missing."""
    found = sorted((CACHE / "jars" / part).glob("*.jar"))
    if not found:
        raise TestbedError(f"no jars of {part} in {CACHE / 'jars' / part}: run `make setup`")
    return found


def class_path(part: str) -> str:
    """Return the jars of a part as Java's class path wildcard; raises as `jars`."""
    jars(part)
    return str(CACHE / "jars" / part / "*")


def flink_operator_definitions() -> list[dict[str, Any]]:
    """Return the definitions of FlinkDeployment and FlinkSessionJob as the operator's release has them; raises as `jars`."""
    (jar,) = jars("flink-operator")
    with zipfile.ZipFile(jar) as files:
        names = [
            f"META-INF/fabric8/{kind}.flink.apache.org-v1.yml" for kind in ("flinkdeployments", "flinksessionjobs")
        ]
        return [yaml.safe_load(files.read(name)) for name in names]


def sample_job_jar() -> Path:
    """Return the sample job, built by `make setup`."""
    return jars("job")[0]


def jmx_exporter_jar() -> Path:
    """Return the Java agent that serves a JVM's metrics as Prometheus text."""
    return jars("jmx-exporter")[0]
