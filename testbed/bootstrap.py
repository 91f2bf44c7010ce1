"""Set-up of a fresh clone: virtual environment from the lock file, jars, the sample job. Standard library only.

`python3 testbed/bootstrap.py` checks the machine first: what is missing is one line that says what to do, before anything is
written. Each step is stamped with the hash of its inputs, so a second start does nothing and takes a fraction of a second.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("WEIR_CACHE", PROJECT / ".cache"))
VENV = Path(os.environ.get("WEIR_VENV", PROJECT / ".venv"))
PYTHONS = ("python3.12", "python3.11", "python3")
SUPPORTED = ((3, 11), (3, 12))
LEAST_MEMORY_MEGABYTES = int(os.environ.get("WEIR_LEAST_MEMORY_MB", "4096"))
LEAST_DISK_MEGABYTES = 2500
LEAST_JAVA = 17
STEP_TIMEOUT_SECONDS = 1800


class SetupError(Exception):
    """One line that says what is missing and what to do."""


@dataclass(frozen=True)
class Facts:
    """What this machine has. None: not found, or unknown."""

    python: str | None
    python_version: tuple[int, int] | None
    has_venv: bool
    java_version: int | None
    has_maven: bool
    free_memory_megabytes: int | None
    free_disk_megabytes: int | None


def missing(facts: Facts, *, running: bool = True) -> str | None:
    """The first thing that has to be done before set-up (and, with `running`, a trial) can work; None if all is there."""
    if facts.python is None or facts.python_version not in SUPPORTED:
        return "Python 3.11 or 3.12 is needed and was not found on the PATH: install python3.11 or python3.12"
    if not facts.has_venv:
        return f"{facts.python} has no venv module: install it (Debian: apt install python3-venv)"
    if facts.java_version is None:
        return "Java 17 is needed and no java is on the PATH: install it (Debian: apt install openjdk-17-jdk-headless)"
    if facts.java_version < LEAST_JAVA:
        return f"Java 17 or later is needed, this is Java {facts.java_version}: install openjdk-17-jdk-headless"
    if not facts.has_maven:
        return "Maven is needed and no mvn is on the PATH: install it (Debian: apt install maven)"
    if running and facts.free_memory_megabytes is not None and facts.free_memory_megabytes < LEAST_MEMORY_MEGABYTES:
        return (
            f"{LEAST_MEMORY_MEGABYTES} MB of free memory are needed and {facts.free_memory_megabytes} MB are there: close "
            "something, or set WEIR_LEAST_MEMORY_MB to try with less"
        )
    if facts.free_disk_megabytes is not None and facts.free_disk_megabytes < LEAST_DISK_MEGABYTES:
        return f"{LEAST_DISK_MEGABYTES} MB of free disk are needed and {facts.free_disk_megabytes} MB are there"
    return None


def java_major(text: str) -> int | None:
    """The major version in what `java -version` prints: 17 of `17.0.15`, 8 of `1.8.0_402`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not found:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None


def _python() -> tuple[str | None, tuple[int, int] | None]:
    for name in PYTHONS:
        path = shutil.which(name)
        version = path and _output([path, "-c", "import sys; print(*sys.version_info[:2])"])
        if path and version:
            major, minor = (int(part) for part in version.split())
            if (major, minor) in SUPPORTED:
                return path, (major, minor)
    return None, None


def _free_memory_megabytes() -> int | None:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found.group(1)) // 1024 if found else None


def facts() -> Facts:
    """Look at this machine."""
    python, version = _python()
    java = shutil.which("java")
    return Facts(
        python=python,
        python_version=version,
        has_venv=bool(python) and _output([str(python), "-c", "import venv, ensurepip"]) is not None,
        java_version=java_major(_output([java, "-version"]) or "") if java else None,
        has_maven=shutil.which("mvn") is not None,
        free_memory_megabytes=_free_memory_megabytes(),
        free_disk_megabytes=shutil.disk_usage(PROJECT).free // 1_000_000,
    )


def digest(*paths: Path) -> str:
    """A hash of files, and of all files below folders, by name and content."""
    hashed = hashlib.sha256()
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            hashed.update(str(file.relative_to(PROJECT)).encode())
            hashed.update(file.read_bytes())
    return hashed.hexdigest()


class Step:
    """One part of set-up, done again only when its inputs change or its result is gone."""

    def __init__(self, name: str, inputs: list[Path], result: Path) -> None:
        self.name = name
        self.result = result
        self._stamp = CACHE / "stamps" / name
        self._digest = digest(*inputs) + f" {result}"
        self.log = CACHE / "logs" / f"setup-{name}.log"

    @property
    def done(self) -> bool:
        return self.result.exists() and self._stamp.exists() and self._stamp.read_text() == self._digest

    def finish(self) -> None:
        self._stamp.parent.mkdir(parents=True, exist_ok=True)
        self._stamp.write_text(self._digest)

    def run(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Run a command, output to the step's log; `SetupError` that names the log if it fails."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(environment or {})},
                    timeout=STEP_TIMEOUT_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise SetupError(f"{self.name}: not done within {STEP_TIMEOUT_SECONDS} s; see {self.log}") from None
        if done.returncode:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise SetupError(f"{self.name}: failed, see {self.log}; it ends with: {' '.join(tail)[:300]}")


def _environment(python: str) -> Step:
    step = Step("environment", [PROJECT / "requirements.lock", PROJECT / "pyproject.toml"], VENV / "bin" / "weir")
    if not step.done:
        if not (VENV / "bin" / "python").exists():
            step.run([python, "-m", "venv", str(VENV)])
        cache = {"PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(CACHE / "pip")), "PIP_NO_INPUT": "1"}
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        step.run([*pip, "--require-hashes", "-r", str(PROJECT / "requirements.lock")], cache)
        step.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(PROJECT)], cache)
        step.finish()
    return step


def _maven(step: Step, pom: Path, *goals: str) -> None:
    step.run(["mvn", "-q", "-B", "-f", str(pom), *goals])


def _jars(part: str) -> Step:
    pom = PROJECT / "testbed" / "poms" / part / "pom.xml"
    target = CACHE / "jars" / part
    step = Step(f"jars-{part}", [pom], target)
    if not step.done:
        shutil.rmtree(target, ignore_errors=True)
        _maven(step, pom, "dependency:copy-dependencies", f"-DoutputDirectory={target}")
        step.finish()
    return step


def _sample_job() -> Step:
    source = PROJECT / "workloads" / "flink-job"
    target = CACHE / "jars" / "job" / "weir-sample-job.jar"
    step = Step("sample-job", [source / "pom.xml", source / "src"], target)
    if not step.done:
        build = CACHE / "build" / "flink-job"
        shutil.rmtree(build, ignore_errors=True)
        shutil.copytree(source, build, ignore=shutil.ignore_patterns("target"))
        _maven(step, build / "pom.xml", "package")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / "target" / "weir-sample-job.jar", target)
        step.finish()
    return step


def main() -> int:
    """0: everything is in place; 1: something is missing or failed, said in one line."""
    found = facts()
    problem = missing(found)
    if problem or found.python is None:
        print(f"setup: {problem}", file=sys.stderr)  # noqa: T201 - this is a command line's answer
        return 1
    steps: list[Callable[[], Step]] = [
        partial(_environment, found.python),
        *(partial(_jars, part) for part in ("kafka", "flink", "spark")),
        _sample_job,
    ]
    for make in steps:
        began = time.monotonic()
        try:
            step = make()
        except SetupError as error:
            print(f"setup: {error}", file=sys.stderr)  # noqa: T201
            return 1
        took = time.monotonic() - began
        if took > 0.5:
            print(f"setup: {step.name} in {took:.0f} s", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
