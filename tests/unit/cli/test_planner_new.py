"""`weir planner new`: what it writes works."""

import tomllib
from pathlib import Path

import pytest

from cli.errors import InvalidInput
from cli.planner_new import new


def test_its_project_file_is_complete(tmp_path: Path) -> None:
    """The command is the planner's name, the module its own."""
    folder = new("my-planner", tmp_path)[0].parent
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"my-planner": "my_planner:run"}
    assert project["project"]["entry-points"] == {"weir.planners": {"my-planner": "my_planner:plan"}}
    assert not [path for path in folder.iterdir() if "${" in path.read_text() or "$name" in path.read_text()]


@pytest.mark.parametrize(
    "name", ["My", "a b", "../up", "", "a.b", "7up", "-x", "class", "json", "weir-planner", "rate", "numpy", "services"]
)
def test_a_name_that_policies_could_not_use_is_refused(name: str, tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(InvalidInput):
        new(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A folder that exists may hold a user's work."""
    new("mine", tmp_path)
    with pytest.raises(InvalidInput, match="exists already"):
        new("mine", tmp_path)


def test_the_command_names_what_it_wrote(tmp_path: Path) -> None:
    """And what to do next; a wrong name is one line and exit code 2."""
    from typer.testing import CliRunner

    from cli.__main__ import planner_app

    done = CliRunner().invoke(planner_app, ["new", "mine", "-C", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "mine" / "mine.py") in done.output
    assert "now: cd " in done.output
