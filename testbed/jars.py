"""Jars of the real parts, fetched by `make setup`, and the entry point that reactive mode needs, compiled here."""

import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from .bootstrap import CACHE, PROJECT, digest
from .process import TestbedError

SOURCES = PROJECT / "testbed" / "java"
COMPILE_SECONDS = 120
ENTRY_POINT = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
"""Runs one job by itself. Flink's images and archives have it, Maven's central repository does not."""


def java() -> str:
    """Return the path of java; raises `TestbedError` if it is not installed."""
    found = shutil.which("java")
    if found is None:
        raise TestbedError("java is not on the PATH: install Java 17")
    return found


def jars(part: str) -> list[Path]:
    """Return the jars of `kafka`, `flink`, `spark` or `job`; raises `TestbedError` if they are missing."""
    found = sorted((CACHE / "jars" / part).glob("*.jar"))
    if not found:
        raise TestbedError(f"no jars of {part} in {CACHE / 'jars' / part}: run `make setup`")
    return found


def class_path(part: str) -> str:
    """Return the jars of a part as Java's class path wildcard; raises as `jars`."""
    jars(part)
    return str(CACHE / "jars" / part / "*")


def sample_job_jar() -> Path:
    """Return the sample job, built by `make setup`."""
    return jars("job")[0]


def spark_jars() -> list[Path]:
    """Return the connector of PySpark to Kafka, for `spark.jars`."""
    return jars("spark")


def standalone_jar() -> Path:
    """Return a jar with `ENTRY_POINT`, compiled once against Flink's jars; raises `TestbedError` without a JDK."""
    inputs = digest(SOURCES)[:16] + digest(*jars("flink"))[:16]
    jar = CACHE / "jars" / "standalone" / f"flink-standalone-{inputs}.jar"
    if jar.exists():
        return jar
    if shutil.which("javac") is None:
        raise TestbedError("javac is not on the PATH: install a JDK 17")
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.parent) as folder:
        classes = Path(folder) / "classes"
        command = ["javac", "-nowarn", "--release", "11", "-cp", class_path("flink"), "-d", str(classes)]
        done = subprocess.run(
            [*command, *map(str, sorted(SOURCES.rglob("*.java")))],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=False,
        )
        if done.returncode:
            raise TestbedError(f"javac: {done.stderr.strip()[-1000:]}")
        half = Path(folder) / jar.name
        with zipfile.ZipFile(half, "w") as archive:
            for path in sorted(classes.rglob("*.class")):
                archive.write(path, path.relative_to(classes))
        half.rename(jar)
    return jar
