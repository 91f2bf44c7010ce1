"""The wheel, as a user installs it: into an environment that has its dependencies, and nothing of the checkout."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.tutorial import ROOT

PACKAGES = {"cli", "engines", "planners", "predictor", "replay", "runtime"}
SERVICES = {"monitor", "analyzer", "planner", "executor", "knowledge"}
PLANNER = """
from weir_sdk import Reply, Request


def plan(request: Request) -> Reply:
    return request.hold("my-hold", "one subtask is enough for everybody")
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The project's, and those of the packages that a planner's author installs alone."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "contracts", ROOT / "sdk"):
        build(source, folder)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `weir` of a new environment; of this one it has the libraries, not the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
    python = folder / "bin" / "python"
    (libraries,) = (folder / "lib").glob("python*/site-packages")
    (libraries / "libraries.pth").write_text(
        str(Path(httpx.__file__).parents[1])
    )  # a path in a path file brings none of its own
    mine = folder / "mine"
    mine.mkdir()
    (mine / "my_planner.py").write_text(PLANNER)
    (mine / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "my-planner"\nversion = "1"\n'
        '[project.entry-points."weir.planners"]\nmy-planner = "my_planner:plan"\n'
        '[tool.hatch.build.targets.wheel]\ninclude = ["my_planner.py"]\n'
    )
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--disable-pip-version-check"]
    run([*pip, *map(str, [*wheels, build(mine, mine)])], folder)
    return folder / "bin" / "weir"


def build(source: Path, folder: Path) -> Path:
    run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)], source)
    return max(folder.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_each_name_in_it_is_its_own(wheels: list[Path]) -> None:
    """What is installed collides with nobody; the testbed, the workloads and the tests are not installed."""
    names: set[str] = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names |= {name.split("/")[0] for name in archive.namelist() if not re.search(r"\.(dist-info|data)/", name)}
    assert names == {f"weir_{name}" for name in PACKAGES | SERVICES | {"contracts", "sdk"}}


def test_it_brings_man_pages_and_the_plugin_of_kubectl(installed: Path) -> None:
    """`man` looks beside the programs, and kubectl for programs of these names."""
    pages = {path.name for path in (installed.parents[1] / "share" / "man" / "man1").iterdir()}
    assert pages == {path.name for path in (ROOT / "docs" / "man" / "man1").iterdir()}
    assert run([str(installed.with_name("kubectl-weir")), "--version"], installed.parent).startswith("weir ")
    completed = run([str(installed.with_name("kubectl_complete-weir")), "replay", "--planner", "r"], installed.parent)
    assert completed.split() == ["rate", "responsive", ":4"]


def test_it_replays_with_a_planner_of_ones_own(installed: Path, tmp_path: Path) -> None:
    """Without a clone: the command, a bundled recording, a built-in planner, and one that another package brought."""
    assert "replay" in run([str(installed), "--help"], tmp_path)
    assert "planner rate" in run(
        [str(installed), "replay", "--trace", "worldcup98_minutes", "--duration", "600"], tmp_path
    )
    arguments = ["replay", "--trace", "step", "--duration", "120", "--planner", "my-planner"]
    assert "my-hold" in run([str(installed), *arguments], tmp_path)


def test_a_trial_says_what_it_lacks(installed: Path, tmp_path: Path) -> None:
    """It starts the parts of the testbed, which belong to the checkout."""
    done = subprocess.run(
        [str(installed), "trial"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "run it in a clone of the project" in done.stderr) == (2, True), done.stderr
