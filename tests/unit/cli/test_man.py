"""The man pages say what the command's help says, in a form that every reader of man pages takes."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.unit.cli.test_command import PROJECT, weir
from weir_cli.__main__ import app
from weir_cli.man import main, pages

FOLDER = PROJECT / "docs" / "man" / "man1"
MACROS = {".TH", ".SH", ".TP", ".PP", ".B", ".BR", ".so"}


def commands(command: Any, name: str = "weir") -> list[tuple[str, Any]]:
    """Return a command and all below it, each with the name of its page."""
    below = getattr(command, "commands", {})
    return [(name, command), *(each for key, one in below.items() for each in commands(one, f"{name}-{key}"))]


COMMANDS = commands(typer.main.get_command(app))


def test_the_pages_are_those_of_the_command() -> None:
    """`make man` writes them again."""
    assert main(["--check", str(FOLDER)]) == 0


def test_a_page_that_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is missing, one of a command that is no more, and one that was edited; writing mends all."""
    assert main([str(tmp_path)]) == 0
    (tmp_path / "weir-get.1").write_text("edited")
    (tmp_path / "weir-gone.1").write_text("former")
    (tmp_path / "weir.1").unlink()
    assert main(["--check", str(tmp_path)]) == 1
    named = [Path(line.split(" ")[0]).name for line in capsys.readouterr().err.splitlines()]
    assert named == ["weir-get.1", "weir-gone.1", "weir.1"]
    assert main([str(tmp_path)]) == 0 == main(["--check", str(tmp_path)])


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_each_command_has_its_options(name: str, command: Any) -> None:
    """All of them, as they are typed."""
    page = pages()[f"{name}.1"].replace("\\-", "-")
    options = [option for each in command.params for option in each.opts if option.startswith("-")]
    assert [option for option in options if not re.search(rf"^\.B .*{re.escape(option)}\b", page, re.MULTILINE)] == []
    assert f"\n{name} - " in page and ".SH EXIT STATUS" in page


def test_roff_takes_no_text_for_a_request() -> None:
    """A line of text that began with a point, or a backslash in it, would be lost or misread."""
    for name, page in pages().items():
        for line in page.splitlines()[1:] if name != "kubectl-weir.1" else page.splitlines():
            assert not line.startswith("'"), (name, line)
            assert not line.startswith(".") or line.split(" ")[0] in MACROS, (name, line)
            assert re.sub(r"\\(-|e|&|f[BR])", "", line).count("\\") == 0, (name, line)


def test_a_page_and_the_help_agree() -> None:
    """The sentence of an option is the same in both."""
    sentence = "Keep the version in documents: applied again, they replace only what you have read."
    assert sentence in pages()["weir-get.1"]
    assert " ".join(sentence.split()[:6]) in " ".join(weir("get", "--help", COLUMNS="200").stdout.split())
