"""Images for tests without an image registry: a base from debootstrap, stand-ins for the official images on top of it,
and Weir's own from deploy/Dockerfile. An image is built again only if its inputs changed."""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import docker
from docker.errors import ImageNotFound

from testbed.bootstrap import CACHE, PROJECT, digest
from testbed.jars import class_path, jars
from testbed.node_host import unmount_below
from testbed.process import TestbedError

RELEASE = "bookworm"
PACKAGES = ("ca-certificates", "python3")
BASE = "weir-base:local"
RECIPES = PROJECT / "tests" / "containers" / "recipes"
RECIPE_LABEL = "dev.weir.recipe"
BUILD_SECONDS = 2400
SERVICES = ("monitor", "analyzer", "planner", "executor", "knowledge")
OWN = ("weir", "weir-analyzer", "weir-sample-job", "weir-sample-streams", "weir-streams-supervisor", "weir-load")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_JAVA_CERTIFICATES = Path("/etc/ssl/certs/java/cacerts")
_UNUSED = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt/archives",
    "var/lib/apt/lists",
)

LOCAL: Mapping[str, str] = {
    "builder": "weir-builder:local",
    "java": "weir-java:local",
    "maven": "weir-maven:local",
    "kafka": "weir-test/kafka:local",
    "redis": "weir-test/redis:local",
    "flink": "weir-test/flink:local",
    "prometheus": "weir-test/prometheus:local",
}
"""Images on top of the base, in order, by their folders in `tests/containers/recipes`."""

BUILD_ARGUMENTS: Mapping[str, str] = {
    "BASE_IMAGE": BASE,
    "BUILDER_IMAGE": LOCAL["builder"],
    "JAVA_IMAGE": LOCAL["java"],
    "MAVEN_IMAGE": LOCAL["maven"],
}
"""The Dockerfile's own arguments, for images without an image registry."""


SOURCES = PROJECT / "tests" / "containers" / "java"
COMPILE_SECONDS = 120


def missing() -> str | None:
    """Return why this machine cannot make a base and the remedy; None if it can."""
    if shutil.which("debootstrap") is None:
        return "no debootstrap on the PATH: install it (Debian: apt install debootstrap)"
    if os.geteuid() != 0:
        return "debootstrap makes a base for images as root only"
    return None


def run(command: Sequence[str], log: Path, *, timeout_seconds: float = BUILD_SECONDS) -> None:
    """Run a command, output to `log`; `TestbedError` with the end of what it said if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # A builder in a separate container would not see the images made here; the daemon's own does.
    environment = {**os.environ, "DOCKER_BUILDKIT": os.environ.get("DOCKER_BUILDKIT", "0")}
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                command,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise TestbedError(f"cannot run {command[0]}: {error.strerror}") from None
        try:
            code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{' '.join(command[:3])}: not done within {timeout_seconds:g} s, see {log}") from None
        finally:
            # What it started ends with it, whatever ends this wait.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        end = " | ".join(line for line in log.read_text(errors="replace").splitlines()[-8:] if line.strip())
        raise TestbedError(f"{' '.join(command[:3])} failed, see {log}; it ends with: {end[:1500]}")


def package_source() -> str:
    """Where this machine's apt has its packages of the release from; `TestbedError` if it does not report."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {RELEASE}", "Created-By: Packages"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
        if found:
            return found[0]
    raise TestbedError(f"apt-get knows no source of Debian {RELEASE}, which the base for images is made from")


def bootstrap_base(archive: Path) -> None:
    """Make the smallest Debian with Python, as a file to import; takes a minute or two."""
    if reason := missing():
        raise TestbedError(reason)
    root = archive.with_suffix(".root")
    unmount_below(root)  # an earlier one may have been killed
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, str(root)]
    try:
        run([*command, package_source()], CACHE / "logs" / "image-base.log")
    finally:
        # debootstrap mounts /proc and /sys there, and does not unmount them where it is interrupted.
        unmount_below(root)
    pack(root, archive)


def pack(root: Path, archive: Path) -> None:
    """Pack a folder from debootstrap into one file, without files that no container reads, and delete the folder."""
    for name in _UNUSED:
        for path in (root / name).glob("*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    # The authorities that this machine trusts: builds fetch packages as it does.
    if _CERTIFICATES.exists():
        shutil.copyfile(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"))
    part = archive.with_suffix(".part")
    run(["tar", "-C", str(root), "-cf", str(part), "."], CACHE / "logs" / "image-base-tar.log")
    part.rename(archive)
    shutil.rmtree(root)


class Images:
    """Images on a daemon; makes the missing ones."""

    def __init__(self, client: docker.DockerClient, report: Callable[[str], None] = lambda _: None) -> None:
        self._client = client
        self._report = report

    def local(self) -> None:
        """The base and all that stands in for official images."""
        before = self._base()
        for name, tag in LOCAL.items():
            before = self._local(name, tag, before)

    def own(self, tag: str = "dev", arguments: Mapping[str, str] = BUILD_ARGUMENTS) -> None:
        """Weir's own images, by the same target as any user's."""
        given = " ".join(f"--build-arg {name}={value}" for name, value in {**arguments, **pip_arguments()}.items())
        self._report(f"images: Weir's own, :{tag}")
        command = ["make", "--no-print-directory", "images", f"IMAGE_TAG={tag}", f"BUILD_ARGS=--network host {given}"]
        run(command, CACHE / "logs" / "image-own.log")

    def for_tests(self, tag: str = "test") -> dict[str, str]:
        """All that tests need, made where needed: the variables of deploy/compose/.env that name images.

        Where no base can be made here, the official images are taken, which a registry has to have.
        """
        local = missing() is None
        if local:
            self.local()
        self.own(tag, BUILD_ARGUMENTS if local else {})
        settings = {f"{name.upper().replace('-', '_')}_IMAGE": f"{name}:{tag}" for name in OWN}
        others = ("kafka", "redis", "flink", "prometheus") if local else ()
        return settings | {f"WEIR_{name.upper()}_IMAGE": LOCAL[name] for name in others}

    def recipe(self, tag: str) -> str | None:
        """Return the label with the inputs of an image; None if the image is missing."""
        try:
            return str(self._client.images.get(tag).labels.get(RECIPE_LABEL))
        except ImageNotFound:
            return None

    def labels(self, tag: str) -> dict[str, str]:
        """An image's labels."""
        return dict(self._client.images.get(tag).labels)

    def size(self, tag: str) -> int:
        """Return the size of all layers in bytes."""
        return int(self._client.images.get(tag).attrs["Size"])

    def _base(self) -> str:
        recipe = hashlib.sha256(f"{RELEASE} {PACKAGES} {_UNUSED}".encode()).hexdigest()[:16]
        if self.recipe(BASE) == recipe:
            return recipe
        archive = CACHE / "docker" / f"base-{recipe}.tar"
        if not archive.exists():
            self._report(f"images: {BASE} by debootstrap")
            bootstrap_base(archive)
        command = ["docker", "import", "--change", f"LABEL {RECIPE_LABEL}={recipe}", str(archive), BASE]
        run(command, CACHE / "logs" / "image-import.log")
        return recipe

    def _local(self, name: str, tag: str, before: str) -> str:
        needed = _jars_of(name)
        made_of = f"{before} {digest(RECIPES / name)} {[jar.name for jar in needed]}"
        recipe = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        if self.recipe(tag) == recipe:
            return recipe
        self._report(f"images: {tag}")
        context = CACHE / "docker" / "context" / name
        shutil.rmtree(context, ignore_errors=True)
        shutil.copytree(RECIPES / name, context)
        if needed:
            (context / "jars").mkdir()
            for jar in needed:
                shutil.copyfile(jar, context / "jars" / jar.name)
        if name == "maven":
            shutil.copyfile(_JAVA_CERTIFICATES, context / "cacerts")
        readable_by_all(context)
        command = ["docker", "build", "--network", "host", "--label", f"{RECIPE_LABEL}={recipe}", "-t", tag]
        run([*command, str(context)], CACHE / "logs" / f"image-{name}.log")
        return recipe


def standalone_jar() -> Path:
    """Return a jar with Flink's entry point of one job, which Maven's central repository does not have.

    Compiled once against Flink's jars; raises `TestbedError` without a JDK.
    """
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


def readable_by_all(folder: Path) -> None:
    """Make files readable for a container's user regardless of the umask."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


def _jars_of(name: str) -> list[Path]:
    """The jars that a stand-in has inside: Flink's own without the connectors, which its image has not either."""
    if name not in ("kafka", "flink"):
        return []
    if name == "kafka":
        return jars("kafka")
    connectors = ("flink-connector-kafka", "kafka-clients")
    return [*(jar for jar in jars("flink") if not jar.name.startswith(connectors)), standalone_jar()]


def pip_arguments() -> dict[str, str]:
    """Return this machine's settings of pip's package index for a build; unset ones are left out."""
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
    found = {name: os.environ[name] for name in names if os.environ.get(name)}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        for line in listed.splitlines():
            key, _, value = line.partition("=")
            name = f"PIP_{key.rpartition('.')[2].upper().replace('-', '_')}"
            if name in names and not key.startswith(":env:"):
                found.setdefault(name, value.strip("'\""))
    return found
