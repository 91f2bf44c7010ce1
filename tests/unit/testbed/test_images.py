"""Errors on a machine that cannot build or run images, and the settings of a build."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from testbed import docker as daemons
from testbed.bootstrap import PROJECT
from testbed.process import TestbedError
from tests.containers import images
from tests.effort import some
from weir_executor.settings import Settings as ExecutorSettings
from weir_knowledge.settings import KnowledgeSettings
from weir_monitor.settings import MonitorSettings
from weir_planner.settings import PlannerSettings

DOCKERFILE = (PROJECT / "deploy" / "Dockerfile").read_text()
STAGES = {
    stage.partition("\n")[0].partition(" AS ")[2]: stage
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
}
"""The text of each stage by its name, without `FROM `."""


PORTS = {
    service: settings.model_fields["http_port"].default
    for service, settings in (
        ("monitor", MonitorSettings),
        ("planner", PlannerSettings),
        ("executor", ExecutorSettings),
        ("knowledge", KnowledgeSettings),
    )
}
IMPORT = """
import sys
from importlib import import_module, metadata
_, module, image, locked, *project = sys.argv
sys.path[:] = [image, *(each for each in sys.path if each not in project)]
names = metadata.packages_distributions()
class Locked:
    def find_spec(self, name, path=None, target=None):
        found = {each.lower().replace("_", "-").replace(".", "-") for each in names.get(name, [])}
        if found and not found & set(locked.split()):
            raise ModuleNotFoundError(f"{name} is of {found}, which requirements.lock does not have")
sys.meta_path.insert(0, Locked())
assert import_module(module).__file__.startswith(image)
"""
"""Imports a module from a folder alone, and of this environment's packages only those that are named."""


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a daemon program, or the right to start one, the sentence has the remedy."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert daemons.missing() == "there is no dockerd on the PATH: install it (Debian: apt install docker.io)"
    assert daemons.unanswered() == "no docker on the PATH: install it (Debian: apt install docker.io)"
    assert images.missing() == "no debootstrap on the PATH: install it (Debian: apt install debootstrap)"
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/anything")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root only" in (daemons.missing() or "")
    assert "root only" in (images.missing() or "")


def test_a_daemon_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where it was looked for and why it failed; what kept one from starting goes before."""
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.delenv("WEIR_DOCKER_PROBLEM", raising=False)
    message = daemons.unanswered() or ""
    assert message.startswith(
        f"no Docker daemon answers at unix://{tmp_path}/none.sock: start it, or set DOCKER_HOST ("
    )
    monkeypatch.setenv("WEIR_DOCKER_PROBLEM", "dockerd: no cgroups here")
    assert (daemons.unanswered() or "").endswith("(dockerd: no cgroups here)")


def test_a_step_that_fails_reports_how_it_ended(tmp_path: Path) -> None:
    """The log keeps all of it."""
    with pytest.raises(TestbedError, match=r"sh -c .* failed, see .*; it ends with: first \| second"):
        images.run(["sh", "-c", "echo first; echo second >&2; exit 3"], tmp_path / "log")
    assert (tmp_path / "log").read_text() == "first\nsecond\n"
    with pytest.raises(TestbedError, match=r"not done within 0.05 s"):
        images.run(["sh", "-c", "sleep 60 & wait"], tmp_path / "log", timeout_seconds=0.05)
    with pytest.raises(TestbedError, match="cannot run /nonexistent/docker"):
        images.run(["/nonexistent/docker"], tmp_path / "log")


def test_the_dockerfile_keeps_the_rules() -> None:
    """Official bases by default, hashes checked, a numeric user, labels, no features of BuildKit alone."""
    bases = {stage.partition(" AS ")[0] for stage in STAGES.values()}
    assert bases - STAGES.keys() == {f"${{{name}}}" for name in images.BUILD_ARGUMENTS}
    defaults = dict(re.findall(r"^ARG ([A-Z]+_IMAGE)=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert defaults.keys() == images.BUILD_ARGUMENTS.keys()
    assert all(":" in image and not image.endswith(":latest") for image in defaults.values())
    assert "USER 10001:10001" in STAGES["bare"] and "STOPSIGNAL SIGTERM" in STAGES["bare"]
    for name in images.OWN:
        stage = STAGES[name]
        assert re.findall(r"^USER (\S+)", stage, re.MULTILINE)[-1:] in ([], ["10001:10001"])
        assert "HEALTHCHECK" in stage and f'org.opencontainers.image.title="{name}"' in stage
        assert all(f"org.opencontainers.image.{label}=" in stage for label in ("description", "version", "revision"))
    for stage in (stage for name, stage in STAGES.items() if name.endswith("builder")):
        assert "--require-hashes" in stage
        # A checkout may be its owner's alone: what is copied from it is opened to the image's user, after all else.
        assert stage.rindex("chmod -R a+rX /opt/weir") > max(stage.rindex("\nCOPY "), stage.rindex("compileall"))
    assert not re.search(r"^# syntax|--mount|COPY --chmod|<<", DOCKERFILE, re.MULTILINE)


def test_what_the_dockerfile_copies_is_in_the_build_context() -> None:
    """The context has only what .dockerignore names."""
    named = re.findall(r"^!(\S+)$", (PROJECT / ".dockerignore").read_text(), re.MULTILINE)
    copies = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)
    sources = [Path(source) for each in copies for source in each.split()[:-1]]
    assert sources
    assert [str(source) for source in sources if not any(source.is_relative_to(name) for name in named)] == []
    assert all((PROJECT / source).exists() for source in sources)


def start(script: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run an image's script where `python` prints its arguments and the port."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$WEIR_HTTP_PORT" "$@"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(PROJECT / "deploy" / script), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("service", PORTS)
def test_a_service_is_started_by_its_name_on_its_port(service: str, tmp_path: Path) -> None:
    """In the image weir, on the service's default port; all further words are passed to the service."""
    done = start("weir-service.sh", tmp_path, service, "--help")
    assert done.stdout.split() == [str(PORTS[service]), "-m", f"weir_{service}", "--help"]


def test_the_command_line_and_the_analyzer_are_started_by_their_names(tmp_path: Path) -> None:
    """The analyzer also without its name, and with options alone."""
    assert start("weir-service.sh", tmp_path, "weir", "get", "shop/orders").stdout.split() == [
        *("-m", "weir_cli"),
        *("get", "shop/orders"),
    ]
    for words in ([], ["analyzer"]):
        assert start("weir-analyzer.sh", tmp_path, *words, "--help").stdout.split() == ["-m", "weir_analyzer", "--help"]


@pytest.mark.parametrize("words", [[], ["montior"], ["analyzer"], ["--help"]])
def test_a_wrong_service_name_is_answered_with_all_that_there_are(words: list[str], tmp_path: Path) -> None:
    """Also none at all, and the analyzer, which is another image."""
    done = start("weir-service.sh", tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"weir: no service '{''.join(words)}': ") and len(done.stderr) <= 160
    assert all(name in done.stderr for name in (*images.SERVICES, "weir-analyzer"))


def test_the_analyzers_image_names_its_roles(tmp_path: Path) -> None:
    """The answer to any other word lists them."""
    done = start("weir-analyzer.sh", tmp_path, "planner")
    assert (done.returncode, done.stdout) == (2, "")
    assert all(name in done.stderr for name in ("'planner'", "analyzer", "master", "worker", "executor", "image weir"))


IMAGES = [
    *(("weir-builder", "services", f"weir_{service}.__main__") for service in PORTS),
    ("weir-builder", "services", "weir_cli.__main__"),
    ("analyzer-builder", "services/analyzer", "weir_analyzer.__main__"),
    ("workloads-builder", "workloads", "workloads.loadgen.__main__"),
    ("supervisor-builder", "testbed/supervisor", "testbed.supervisor.__main__"),
]
"""Of each image: the stage that copies, the lock file's folder, and what it runs."""


@pytest.mark.parametrize(("stage", "locks", "module"), some(IMAGES, len(IMAGES)))
def test_an_image_has_what_it_imports(stage: str, locks: str, module: str, tmp_path: Path) -> None:
    """Modules and files that the Dockerfile copies, and packages of the image's requirements.lock."""
    text = STAGES[stage].replace("\\\n", "")
    for sources, target in re.findall(r"^COPY (.+) /opt/weir/app/(\S+)$", text, re.MULTILINE):
        for source in sources.split():
            place = tmp_path / target
            if (PROJECT / source).is_dir():
                shutil.copytree(PROJECT / source, place, dirs_exist_ok=True)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(PROJECT / source, place)
    lock = (PROJECT / locks / "requirements.lock").read_text()
    locked = " ".join(re.sub(r"[-_.]+", "-", name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))
    build = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    project = [str(PROJECT / folder) for folder in build["dev-mode-dirs"]]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, module, str(tmp_path), locked, *project],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_stands_in_for_official_images_is_everybodys(tmp_path: Path) -> None:
    """Made under a strict umask, it would be unreadable for the container's user."""
    (tmp_path / "jars").mkdir(mode=0o700)
    (tmp_path / "jars" / "one.jar").touch(mode=0o600)
    images.readable_by_all(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.jar")} == {0o644}
    assert (tmp_path / "jars").stat().st_mode & 0o777 == 0o755


def test_a_spark_worker_may_write_to_its_folder() -> None:
    """By default it lies under Spark's folder, which no user may write to."""
    assert "SPARK_WORKER_DIR=/tmp/" in STAGES["weir-analyzer"]


def test_each_lock_is_part_of_the_one_resolution() -> None:
    """A container has the tested packages: the same versions and hashes."""
    pinned = re.compile(r"^([a-z0-9-]+==\S+)", re.MULTILINE)
    whole = (PROJECT / "requirements.lock").read_text()
    for folder in sorted({locks for _, locks, _ in IMAGES}):
        lock = (PROJECT / folder / "requirements.lock").read_text()
        assert set(pinned.findall(lock)) <= set(pinned.findall(whole)), folder
        assert set(re.findall(r"sha256:\w+", lock)) <= set(re.findall(r"sha256:\w+", whole)), folder
