"""The entry point of a Flink cluster that runs one job by itself, which reactive mode needs.

Flink's images and archives have it, Maven's central repository has not: so the testbed compiles its own, of the same name.
"""

import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from .bootstrap import CACHE, PROJECT, digest
from .jars import class_path, jars
from .process import TestbedError

SOURCES = PROJECT / "testbed" / "java"
ENTRY_POINT = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
COMPILE_SECONDS = 120


def standalone_jar() -> Path:
    """A jar with it, compiled once against Flink's own; `TestbedError` that says what is missing."""
    made_of = digest(SOURCES)[:16] + digest(*jars("flink"))[:16]
    jar = CACHE / "jars" / "standalone" / f"flink-standalone-{made_of}.jar"
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
