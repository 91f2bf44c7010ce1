"""`weir planner new`: the written project works unedited."""

import os
import re
import subprocess
import sys
from pathlib import Path

from cli.planner_new import new


def test_the_written_project_passes_its_own_test_and_style(tmp_path: Path) -> None:
    """With the SDK installed, as its README says, and nothing edited."""
    folder = new("my-planner", tmp_path)[0].parent
    assert sorted(path.name for path in folder.iterdir()) == [
        "Dockerfile",
        "README.md",
        "my_planner.py",
        "pyproject.toml",
        "test_my_planner.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout
    python = [folder / "my_planner.py", folder / "test_my_planner.py"]
    style = [sys.executable, "-m", "ruff", "format", "--check", "--no-cache", "--line-length", "120", *python]
    styled = subprocess.run(style, capture_output=True, text=True, timeout=60, check=False)
    assert styled.returncode == 0, styled.stdout


def test_its_dockerfile_installs_weir_from_a_checkout(tmp_path: Path) -> None:
    """Run the README's wheel command and the Dockerfile's pip command offline, then import the installed planner."""
    folder = new("my-planner", tmp_path)[0].parent
    checkout, installed = Path(__file__).parents[3], tmp_path / "installed"
    (wheels,) = re.findall(r"^python (-m pip wheel .*)$", (folder / "README.md").read_text(), re.MULTILINE)
    (install,) = re.findall(r"^RUN pip (install .*?) &&", (folder / "Dockerfile").read_text(), re.MULTILINE)
    offline = f"--no-index --no-deps --no-build-isolation --disable-pip-version-check --target {installed}"
    environment = {"PATH": os.environ["PATH"], "WEIR_CHECKOUT": str(checkout), "PYTHON": sys.executable}
    for command in (
        f'"$PYTHON" {wheels} --no-index --no-build-isolation',
        f'"$PYTHON" -m pip {install} {offline}',
        'PYTHONPATH="$PWD/../installed" "$PYTHON" -P -c \'import my_planner, weir_planner; print(weir_planner.__file__)\'',
    ):
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    assert ran.stdout.startswith(str(installed))
