"""`weir planner new`: what it writes works as it stands."""

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
