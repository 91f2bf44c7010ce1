"""Set-up of a fresh clone: virtual environment from the lock file by uv, jars, the sample job. Standard library only.

`python3 testbed/bootstrap.py` checks the machine first: what is missing is one line that says what to do, before
anything is written. Each step is stamped with the hash of its inputs, so a second start does nothing and takes a
fraction of a second. `bootstrap.py environment` makes the virtual environment alone, which is all that the fast tests
need.

It may be met by any python3 that a machine has, so it keeps to what Python 3.7 understands.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROJECT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("WEIR_CACHE") or PROJECT / ".cache").absolute()
VENV = Path(os.environ.get("WEIR_VENV") or PROJECT / ".venv").absolute()
SUPPORTED = ((3, 11), (3, 12))
JARS = ("kafka", "flink", "flink-operator", "spark", "jmx-exporter")
MIN_JAVA = 17
MIN_MEMORY_MEGABYTES = 4096
MIN_DISK_MEGABYTES = 3600
"""Disk space of a first set-up: 3.3 GB while Spark's package is built, of which 1.8 GB stay, and 0.2 GB of jars."""
RUN_DISK_MEGABYTES = 300
"""Disk space of a run after set-up."""
STEP_TIMEOUT_SECONDS = 1800
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""Settings of pip, and the variables by which uv knows the same."""
_INSTALL_JAVA = "install it (Debian: apt install openjdk-17-jdk-headless)"


class SetupError(Exception):
    """One line that names what is missing and the remedy."""


@dataclass(frozen=True)
class Machine:
    """Programs, memory and disk of this machine. None: not found, or unknown."""

    python: str | None
    python_version: tuple[int, int] | None
    has_venv: bool
    java_version: int | None
    has_compiler: bool
    has_maven: bool
    free_memory_megabytes: int | None
    free_disk_megabytes: int | None


def missing(machine: Machine, *, min_memory_megabytes: int | None, min_disk_megabytes: int) -> str | None:
    """Return the first requirement that set-up or a trial lacks; None if all are met. `min_memory_megabytes` None: no real
    part will run, so memory and Java are not checked."""
    if machine.python is None or machine.python_version not in SUPPORTED:
        return "Python 3.11 or 3.12 is needed and was not found on the PATH: install python3.11 or python3.12"
    if not machine.has_venv:
        version = ".".join(str(part) for part in machine.python_version)
        return f"{machine.python} has no venv module: install it (Debian: apt install python{version}-venv)"
    if min_memory_megabytes is None:
        return missing_space(machine, min_disk_megabytes)
    problem = _missing_java(machine) or missing_space(machine, min_disk_megabytes)
    return problem or _missing_memory(machine, min_memory_megabytes)


def _missing_java(machine: Machine) -> str | None:
    """Return what fetching jars, building the sample job and running the real parts lack; None if nothing."""
    if machine.java_version is None:
        return f"Java 17 is needed and no java is on the PATH: {_INSTALL_JAVA}"
    if machine.java_version < MIN_JAVA:
        return f"Java 17 or later is needed, this is Java {machine.java_version}: {_INSTALL_JAVA}"
    if not machine.has_compiler:
        return f"a JDK is needed and this Java has no compiler (javac): {_INSTALL_JAVA}"
    if not machine.has_maven:
        return "Maven is needed and no mvn is on the PATH: install it (Debian: apt install maven)"
    return None


def _missing_memory(machine: Machine, min_megabytes: int) -> str | None:
    """Return a sentence if the free memory is too small to run all parts at once, else None."""
    if machine.free_memory_megabytes is None or machine.free_memory_megabytes >= min_megabytes:
        return None
    return (
        f"{min_megabytes} MB of free memory are needed and {machine.free_memory_megabytes} MB are there: "
        "close something, or set WEIR_MIN_MEMORY_MB to try with less"
    )


def missing_space(machine: Machine, min_megabytes: int) -> str | None:
    """Return a sentence if the free disk space is too small, else None."""
    if machine.free_disk_megabytes is None or machine.free_disk_megabytes >= min_megabytes:
        return None
    return (
        f"{min_megabytes} MB of free disk are needed in {CACHE.parent} and {machine.free_disk_megabytes} MB are there: "
        "free some, or set WEIR_CACHE and WEIR_VENV to folders on a larger disk"
    )


def min_memory_megabytes() -> int:
    """Return the setting WEIR_MIN_MEMORY_MB in MB; raises `SetupError` if it is not a number."""
    text = os.environ.get("WEIR_MIN_MEMORY_MB") or str(MIN_MEMORY_MEGABYTES)
    if not text.isdigit():
        raise SetupError(f"WEIR_MIN_MEMORY_MB: {text!r} is not a whole number of megabytes")
    return int(text)


def java_major(text: str) -> int | None:
    """Return the major version from the output of `java -version`: 17 of `17.0.15`, 8 of `1.8.0_402`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not found:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def output_of(command: list[str]) -> str | None:
    """Return what a command prints; None if it cannot be run, fails or takes over a minute."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _version(python: str) -> tuple[int, int] | None:
    text = output_of([python, "-c", "import sys; print(*sys.version_info[:2])"]) or ""
    found = re.match(r"(\d+) (\d+)$", text.strip())
    return (int(found.group(1)), int(found.group(2))) if found else None


def _python() -> tuple[str | None, tuple[int, int] | None]:
    # A pyenv shim, for example, may name a version that is not installed, so it is run.
    for name in ("python3.12", "python3.11", "python3"):
        path = shutil.which(name)
        version = _version(path) if path else None
        if version in SUPPORTED:
            return path, version
    return None, None


def _free_memory_megabytes() -> int | None:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found.group(1)) // 1024 if found else None


def inspect_machine(*, with_java: bool = True) -> Machine:
    """Inspect this machine; without Java and Maven where they are not needed, as starting Java takes long."""
    python, version = _python()
    java = shutil.which("java") if with_java else None
    homes = [Path(java).resolve().parent] if java else []
    homes += [Path(os.environ.get("JAVA_HOME") or "/nonexistent") / "bin"]
    existing = next(folder for folder in (CACHE, *CACHE.parents) if folder.exists())
    return Machine(
        python=python,
        python_version=version,
        has_venv=python is not None and output_of([python, "-c", "import venv, ensurepip"]) is not None,
        java_version=java_major(output_of([java, "-version"]) or "") if java else None,
        has_compiler=shutil.which("javac") is not None or any((home / "javac").exists() for home in homes),
        has_maven=shutil.which("mvn") is not None,
        free_memory_megabytes=_free_memory_megabytes(),
        free_disk_megabytes=shutil.disk_usage(existing).free // 1_000_000,
    )


def digest(*paths: Path) -> str:
    """Return a hash of files and of all files below folders, by name and content; `SetupError` if one is missing."""
    hashed = hashlib.sha256()
    for path in paths:
        if not path.exists():
            raise SetupError(f"{path} is missing: this clone of the project is incomplete")
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            hashed.update(f"{file.relative_to(path)} {file.name}\0".encode())
            hashed.update(hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()


class Step:
    """One part of set-up, repeated only when its inputs or its version change or its result is missing."""

    def __init__(self, name: str, inputs: list[Path], result: Path, *, version: str = "", cache: Path = CACHE) -> None:
        self.name = name
        self._version = version
        self.result = result
        self._stamp = cache / "stamps" / name
        self._inputs = inputs
        self.log = cache / "logs" / f"setup-{name}.log"

    def _wanted(self) -> str:
        return f"{digest(*self._inputs)} {self.result} {self._version}".rstrip()

    @property
    def done(self) -> bool:
        return self.result.exists() and self._stamp.exists() and self._stamp.read_text() == self._wanted()

    def begin(self) -> None:
        """From here on it is not done, whatever happens, until `finish`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        if self._stamp.exists():
            self._stamp.unlink()

    def finish(self) -> None:
        self._stamp.parent.mkdir(parents=True, exist_ok=True)
        self._stamp.write_text(self._wanted())

    def run(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Run a command, output to the step's log; `SetupError` that names the log if it fails."""
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
            except OSError as error:
                raise SetupError(f"{self.name}: cannot run {command[0]}: {error.strerror}") from None
            except subprocess.TimeoutExpired:
                again = "run it again: it goes on from what is done"
                what = f"not done within {STEP_TIMEOUT_SECONDS} s, see {self.log}; {again}"
                raise SetupError(f"{self.name}: {what}") from None
        if done.returncode:
            raise SetupError(f"{self.name}: failed, see {self.log}; it says: {self._complaint()}")

    def _complaint(self) -> str:
        # Maven's last lines are advice; its first error line is the reason.
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.upper().startswith(("[ERROR]", "ERROR:"))]
        return (errors or lines[-1:] or ["nothing"])[0][:300]


def _make_environment(python: str, step: Step) -> None:
    interpreter = VENV / "bin" / "python"
    version = _version(str(interpreter))
    if version is not None and version not in SUPPORTED:
        of = ".".join(str(part) for part in version)
        raise SetupError(f"{VENV} is of Python {of}: remove it, or set WEIR_VENV to another folder")
    if version is None:
        # A folder that is not an environment belongs to the user and is not cleared.
        if VENV.exists() and any(VENV.iterdir()) and not (VENV / "pyvenv.cfg").exists():
            raise SetupError(
                f"{VENV} is there and is no virtual environment: remove it, or set WEIR_VENV to another folder"
            )
        step.run([python, "-m", "venv", "--clear", str(VENV)])
    if output_of([str(interpreter), "-m", "pip", "--version"]) is None:
        step.run([str(interpreter), "-m", "ensurepip"])
    lock, uv = PROJECT / "requirements.lock", VENV / "bin" / "uv"
    # pip installs only the locked uv: every Python with venv has pip.
    (locked,) = re.findall(r"^uv==(?:.*\\\n)*.*\n", lock.read_text(), re.MULTILINE)
    only_uv = step.log.with_name("setup-uv.txt")
    only_uv.write_text(locked)
    pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"]
    hashed = ["--require-hashes", "-r"]
    step.run([*pip, *hashed, str(only_uv)], {"PIP_NO_INPUT": "1", "PIP_USER": "0"})
    settings = uv_settings(str(interpreter))
    install = [str(uv), "pip", "install", "--quiet", "--python", str(interpreter)]
    step.run([*install, "--compile-bytecode", *hashed, str(lock)], settings)
    step.run([*install, "--no-deps", "--no-build-isolation", "-e", str(PROJECT)], settings)
    if "UV_CACHE_DIR" in settings:  # a cache of the user's own stays as it is
        # The environment has links to what was downloaded and unpacked; the sources of what was built take more than the rest.
        step.run([str(uv), "cache", "prune", "--ci", "--quiet"], settings)


def uv_settings(python: str) -> dict[str, str]:
    """Return what uv is to use of pip's settings, which it does not read; a variable of uv itself takes precedence."""
    settings = {
        "UV_CACHE_DIR": str(CACHE / "uv-packages"),
        # As pip does: authorities that the machine trusts, and the best version of all indexes.
        "UV_SYSTEM_CERTS": "1",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    listed = (output_of([python, "-m", "pip", "config", "list"]) or "").splitlines()
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):  # variables go before files
        key, _, value = line.partition("=")
        name = UV_NAMES.get(key.rpartition(".")[2])
        if name:
            # Lists are several words to pip; of folders uv wants commas between them.
            settings[name] = value.strip("'\"").replace(" ", "," if name == "UV_FIND_LINKS" else " ")
    return {name: value for name, value in settings.items() if name not in os.environ}


def _maven(step: Step, pom: Path, *goals: str) -> None:
    step.run(["mvn", "-q", "-B", "-f", str(pom), *goals])


def _fetch_jars(pom: Path, step: Step) -> None:
    shutil.rmtree(step.result, ignore_errors=True)
    _maven(step, pom, "dependency:copy-dependencies", f"-DoutputDirectory={step.result}")


def _build(sources: list[Path], made: str, step: Step) -> None:
    """Build the project in the first of the sources, next to the others, and keep `made`, a file or folder of its
    target."""
    # In a separate folder, so that a concurrent build from an editor does not interfere.
    build = CACHE / "build" / step.name
    shutil.rmtree(build, ignore_errors=True)
    for source in sources:
        shutil.copytree(source, build / source.name, ignore=shutil.ignore_patterns("target"))
    project = build / sources[0].name
    _maven(step, project / "pom.xml", "package")
    shutil.rmtree(step.result, ignore_errors=True)
    step.result.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(str(project / "target" / made), str(step.result))


def steps(python: str, *, with_java: bool = True) -> Iterator[tuple[Step, Callable[[Step], None]]]:
    """Yield the steps of set-up in order, each with the function that performs it."""
    lock = [PROJECT / "requirements.lock", PROJECT / "pyproject.toml"]
    yield Step("environment", lock, VENV / "bin" / "weir"), partial(_make_environment, python)
    if not with_java:
        return
    for part in JARS:
        pom = PROJECT / "testbed" / "poms" / part / "pom.xml"
        yield Step(f"jars-{part}", [pom], CACHE / "jars" / part), partial(_fetch_jars, pom)
    source = PROJECT / "workloads" / "flink-job"
    jar = CACHE / "jars" / "job" / "weir-sample-job.jar"
    yield Step("sample-job", [source / "pom.xml", source / "src"], jar), partial(_build, [source], jar.name)
    streams = PROJECT / "workloads" / "kafka-streams"
    inputs = [streams / "pom.xml", streams / "src", source / "src" / "main"]
    step = Step("sample-streams", inputs, CACHE / "jars" / "kafka-streams")
    yield step, partial(_build, [streams, source], "run")


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def perform(steps: Callable[[], Iterator[tuple[Step, Callable[[Step], None]]]]) -> None:
    """Run the steps that are pending once no other set-up runs; raises `SetupError`."""
    with _alone():
        for step, make in steps():
            if step.done:
                continue
            _print(f"setup: {step.name} ... ")
            began = time.monotonic()
            try:
                step.begin()
                make(step)
                step.finish()
            except SetupError:
                _print("failed\n")
                raise
            _print(f"{time.monotonic() - began:.0f} s\n")


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of set-up: two concurrent `make`s must not install into the same folders."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _print("setup: waiting for another set-up of this project\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_up(*, with_java: bool) -> None:
    """Check the machine, then run the pending steps; raises `SetupError` with one line for the user."""
    found, listed = inspect_machine(with_java=with_java), partial(steps, with_java=with_java)
    pending = any(not step.done for step, _ in listed(found.python or ""))
    problem = missing(
        found,
        min_memory_megabytes=min_memory_megabytes() if with_java else None,
        min_disk_megabytes=MIN_DISK_MEGABYTES if pending else RUN_DISK_MEGABYTES,
    )
    if problem:
        raise SetupError(problem)
    if pending:
        perform(partial(listed, found.python or ""))


def report(set_up: Callable[[], None]) -> int:
    """Set up; returns the exit code: 1 and one line if something is missing or failed, 130 when interrupted."""
    try:
        set_up()
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup: interrupted; the next start goes on from here\n")
        return 130
    return 0


def main(arguments: list[str]) -> int:
    """Set up; returns 0 when all is in place, 1 and one line if a step is missing or failed, 2 for wrong arguments."""
    if arguments not in ([], ["environment"]):
        sys.stderr.write("usage: bootstrap.py [environment]\n")
        return 2
    return report(partial(set_up, with_java=not arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
