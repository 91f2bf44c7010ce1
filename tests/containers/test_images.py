"""The images: complete, small, without privileges, and quick to stop."""

import json
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from testbed.bootstrap import PROJECT
from testbed.process import wait_until
from tests.containers.images import BASE, BUILD_ARGUMENTS, SERVICES, Images, missing, pip_arguments
from tests.containers.images import run as run_logged

from .conftest import Run

STOP_SECONDS = 10.0
MAX_OVER_BASE_MEGABYTES = 200
MAINS = {
    "weir": ["weir_cli", *(f"weir_{service}" for service in sorted(SERVICES) if service != "analyzer")],
    "weir-analyzer": ["weir_analyzer"],
}
"""Packages of each image that can be started."""
START_SECONDS = 90.0
PRIVATE = "weir:private-test"

_IMPORT_ALL = """
import importlib, pkgutil, sys
count = 0
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + '.'):
        importlib.import_module(module.name)
        count += 1
print(count)
"""
_INSIDE = """
import importlib.util, json, os, pathlib, shutil, sys
def refuses(path):
    try:
        pathlib.Path(path).write_text('x')
    except OSError:
        return True
    return False
print(json.dumps({
    'user': [os.getuid(), os.getgid()],
    'tools': [n for n in ('pip', 'pip3', 'gcc', 'cc', 'make', 'mvn', 'javac', 'git', 'curl') if shutil.which(n)],
    'modules': [n for n in ('pip', 'ensurepip', 'setuptools', 'pytest', 'ruff', 'testbed') if importlib.util.find_spec(n)],
    'mains': sorted(p.name for p in pathlib.Path('/opt/weir/app').iterdir() if (p / '__main__.py').exists()),
    'refused': [p for p in ('/x', '/opt/weir/x', '/opt/weir/app/x', '/var/x') if refuses(p)],
    'writable_if_it_could': [p for p in ('/', '/opt/weir', '/opt/weir/app', '/etc') if os.access(p, os.W_OK)],
}))
"""


_KUBERNETES = """
import asyncio
from weir_engines.kubernetes.api import Access, ApiFailed, Call, KubernetesApi
async def main():
    api = KubernetesApi(Access("http://127.0.0.1:9"))
    try:
        await api.send("PUT", Call("list", "pods", "shop"), "/api/v1/namespaces/shop/pods", {"kind": "Pod"})
    except ApiFailed as error:
        print(error)
    await api.close()
asyncio.run(main())
"""


def image_of(name: str, settings: Mapping[str, str]) -> str:
    """Return a service's image, or that of a part of a demonstration."""
    if name in SERVICES and name != "analyzer":
        return settings["WEIR_IMAGE"]
    return settings[f"WEIR_{name.upper().replace('-', '_')}_IMAGE"]


def ended(container: Container, timeout_seconds: int = 60) -> tuple[int, str]:
    """The exit code and all that it wrote."""
    code = int(container.wait(timeout=timeout_seconds)["StatusCode"])
    return code, container.logs().decode(errors="replace")


def run_to_end(run: Run, image: str, *command: str, **environment: str) -> tuple[int, str]:
    return ended(run(image, command, environment))


def inside(run: Run, image: str, *script: str) -> str:
    code, output = ended(run(image, ["-c", *script], entrypoint="python"))
    assert code == 0, output
    return output


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def image(service: str, image_settings: Mapping[str, str]) -> str:
    return image_of(service, image_settings)


def test_every_module_of_its_service_can_be_imported(run: Run, service: str, image: str) -> None:
    """Packages missing from the lock file and files missing from the Dockerfile show here."""
    output = inside(run, image, _IMPORT_ALL, f"weir_{service}", "weir_runtime", "weir_contracts")
    assert int(output.split()[-1]) > 30


@pytest.mark.parametrize("name", MAINS)
def test_it_has_what_it_needs_and_no_more(run: Run, name: str, image_settings: Mapping[str, str]) -> None:
    """No root, no installer or compiler, nothing else to start, and no writable file."""
    image = image_settings[f"{name.upper().replace('-', '_')}_IMAGE"]
    found: dict[str, Any] = json.loads(inside(run, image, _INSIDE).splitlines()[-1])
    assert found["user"] == [10001, 10001]
    assert found["tools"] == []
    assert found["modules"] == []
    assert found["mains"] == MAINS[name]
    assert len(found["refused"]) == 4
    assert found["writable_if_it_could"] == []


def test_it_prints_its_settings(run: Run, service: str, image: str) -> None:
    """`docker run IMAGE SERVICE --help` and `--print-settings` work without any other service."""
    code, text = run_to_end(run, image, service, "--help")
    assert code == 0, text
    assert "WEIR_KAFKA_BOOTSTRAP_SERVERS" in text
    code, text = run_to_end(run, image, service, "--print-settings", WEIR_KNOWLEDGE_TOKEN="hunter2-hunter2-hunter2")
    assert code == 0, text
    settings = json.loads(text)
    assert settings["WEIR_KAFKA_BOOTSTRAP_SERVERS"]["value"] == "127.0.0.1:9092"
    assert settings["WEIR_KNOWLEDGE_TOKEN"]["value"] == "***"
    assert "hunter2" not in text


@pytest.mark.parametrize("name", ["monitor", "executor", "knowledge"])
def test_the_kubernetes_client_is_complete(run: Run, name: str, image_settings: Mapping[str, str]) -> None:
    """The image has none of the package's generated calls and models; Weir's own calls do without, but for an API server."""
    output = inside(run, image_of(name, image_settings), _KUBERNETES)
    assert "cannot list pods in namespace shop: the API server http://127.0.0.1:9 cannot be reached" in output
    assert "Connect call failed" in output


@pytest.mark.parametrize(
    ("name", "value"),
    [("WEIR_KAFKA_BOOTSTRAP_SERVERS", "kafka"), ("WEIR_HTTP_HOST", "0.0.0.0"), ("WEIR_TOKENS_FILE", "/nowhere.json")],
)
def test_a_wrong_setting_is_named(run: Run, service: str, image: str, name: str, value: str) -> None:
    """Exit code 2 and the variable's name, so that the container's log says what to change."""
    code, text = run_to_end(run, image, service, **{name: value})
    assert code == 2, text
    assert name in text


def test_it_stops_within_ten_seconds(run: Run, service: str, image: str) -> None:
    """Kafka is unreachable, as when everything stops at once: it reports this, and ends in order with code 0."""
    container = run(image, [service], {"WEIR_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"})
    check = container.image.attrs["Config"]["Healthcheck"]["Test"][1:]

    def lives() -> bool:
        container.reload()
        assert container.status == "running", container.logs().decode()
        return b"starting" in container.logs()

    wait_until(lives, timeout_seconds=START_SECONDS, what=f"{service} started")

    def complains() -> bool:
        code, output = container.exec_run(check)
        return code == 1 and b"kafka: 127.0.0.1:9 (WEIR_KAFKA_BOOTSTRAP_SERVERS)" in output

    wait_until(complains, timeout_seconds=START_SECONDS, what=f"{service} not ready, and why")
    began = time.monotonic()
    container.stop(timeout=30)
    seconds = time.monotonic() - began
    code, text = ended(container)
    assert code == 0, text
    assert seconds < STOP_SECONDS, text
    assert '"stopped"' in text


@pytest.fixture
def private_image(
    image_settings: Mapping[str, str], docker_client: docker.DockerClient, tmp_path: Path
) -> Iterator[str]:
    """Built from a copy of this tree that is its owner's alone, as one is that was made with a umask of 077."""
    del image_settings  # what this is built on
    tree = tmp_path / "tree"
    for name in re.findall(r"^!(\S+)$", (PROJECT / ".dockerignore").read_text(), re.MULTILINE):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "target"))
        else:
            shutil.copyfile(PROJECT / name, tree / name)
    for name in (".dockerignore", "deploy/Dockerfile"):
        shutil.copyfile(PROJECT / name, tree / name)
    # But for what the longest step begins with, which is then not done again.
    mine = [path for path in (tree, *tree.rglob("*")) if path.name != "requirements.lock"]
    for path in reversed(mine):
        path.chmod(0o700 if path.is_dir() else 0o600)
    given = {**(BUILD_ARGUMENTS if missing() is None else {}), **pip_arguments()}
    arguments = [f"--build-arg={name}={value}" for name, value in given.items()]
    command = ["docker", "build", "-q", "--network", "host", *arguments, "-t", PRIVATE, "--target", "weir"]
    run_logged([*command, "-f", str(tree / "deploy" / "Dockerfile"), str(tree)], tmp_path / "build.log")
    yield PRIVATE
    docker_client.images.remove(PRIVATE, force=True)


def test_an_image_from_a_private_checkout_starts(run: Run, private_image: str) -> None:
    """Its user may read files that were copied from another user's private ones."""
    code, text = run_to_end(run, private_image, "monitor", "--print-settings")
    assert code == 0, text
    assert "WEIR_KAFKA_BOOTSTRAP_SERVERS" in json.loads(text)


def test_the_command_line_is_inside(run: Run, image_settings: Mapping[str, str]) -> None:
    """It knows its version, and replays with the analyzer's core and the built-in planners."""
    code, text = run_to_end(run, image_settings["WEIR_IMAGE"], "weir", "--version")
    assert (code, tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"] in text) == (0, True), (
        text
    )
    code, text = run_to_end(run, image_settings["WEIR_IMAGE"], "weir", "replay", "--trace", "step", "--duration", "120")
    assert (code, "planner rate" in text) == (0, True), text


def test_a_wrong_service_name_is_answered_with_all_that_there_are(run: Run, image_settings: Mapping[str, str]) -> None:
    """Code 2 and one line, from both images."""
    code, text = run_to_end(run, image_settings["WEIR_IMAGE"], "montior")
    assert code == 2 and "no service 'montior': this image has knowledge, monitor, planner, executor" in text, text
    code, text = run_to_end(run, image_settings["WEIR_ANALYZER_IMAGE"], "planner")
    assert code == 2 and "no service 'planner': this image has analyzer" in text, text


@pytest.mark.parametrize("name", MAINS)
def test_labels_name_version_and_revision(name: str, image_settings: Mapping[str, str], images: Images) -> None:
    """An image can be traced to what it was built from."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=False)
    labels = images.labels(image_settings[f"{name.upper().replace('-', '_')}_IMAGE"])
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert labels["org.opencontainers.image.title"] == name
    revision = labels["org.opencontainers.image.revision"]
    assert revision.startswith(head.stdout.strip()) if head.returncode == 0 else revision == "unknown"


@pytest.mark.skipif(missing() is not None, reason="sizes are compared with the local base")
def test_all_but_spark_is_small(images: Images, image_settings: Mapping[str, str]) -> None:
    """Four services and the command line; the analyzer has Spark and Java inside."""
    over_base = (images.size(image_settings["WEIR_IMAGE"]) - images.size(BASE)) / 1e6
    assert over_base < MAX_OVER_BASE_MEGABYTES


@pytest.mark.parametrize("name", ["load", "sample-job"])
def test_workloads_print_their_options(run: Run, name: str, image_settings: Mapping[str, str]) -> None:
    """Images of demonstrations run with as few privileges as the rest."""
    code, text = run_to_end(run, image_of(name, image_settings), "--help")
    assert code == 0, text
    assert "usage: python -m workloads." in text


def test_the_streams_sample_names_its_arguments(run: Run, image_settings: Mapping[str, str]) -> None:
    """Java, classes and metrics agent are inside; an unknown argument ends it."""
    code, text = run_to_end(run, image_of("sample-streams", image_settings), "--help")
    assert code == 2 and "kafka-streams: --help: unknown; arguments are [application-id" in text, (code, text)


def test_the_streams_supervisor_prints_its_options(run: Run, image_settings: Mapping[str, str]) -> None:
    """Its modules and their libraries are inside; without brokers it names the missing argument."""
    image = image_of("streams-supervisor", image_settings)
    code, text = run_to_end(run, image, "--help")
    assert code == 0 and "usage: python -m testbed.supervisor" in text, (code, text)
    code, text = run_to_end(run, image, "--replicas", "1")
    assert code == 2 and "--bootstrap" in text, (code, text)


def test_the_analyzers_image_is_a_spark_cluster_too(run: Run, image_settings: Mapping[str, str]) -> None:
    """`master` and `worker` are commands of the same image, so that a cluster has the driver's Python, code and jars."""
    # Without a network a container's own name has no address.
    here = {"SPARK_LOCAL_IP": "127.0.0.1"}
    container = run(image_of("analyzer", image_settings), ["master", "--host", "127.0.0.1"], here)
    wait_until(
        lambda: b"I have been elected leader" in container.logs(), timeout_seconds=START_SECONDS, what="Spark master"
    )
    code, text = run_to_end(run, image_of("analyzer", image_settings), "worker", "--help", **here)
    assert "Usage: Worker [options] <master>" in text, (code, text)


def test_the_analyzers_jars_are_inside(run: Run, image_settings: Mapping[str, str]) -> None:
    """Four jars connect Spark to Kafka; a folder without them ends it with code 2 and a message."""
    listed = "import pathlib; print(sorted(p.name for p in pathlib.Path('/opt/weir/jars').iterdir()))"
    output = inside(run, image_of("analyzer", image_settings), listed)
    assert output.count(".jar") == 4
    code, text = run_to_end(run, image_of("analyzer", image_settings), WEIR_ANALYZER_JARS="/opt/weir")
    assert (code, "WEIR_ANALYZER_JARS" in text) == (2, True), text
