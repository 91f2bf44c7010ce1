"""What a shell and kubectl complete: commands, options, and names that a server gives; never an error."""

import sys
from typing import Any
from unittest import mock

import pytest

from tests.unit.cli.test_command import Done, _Server, server, weir
from weir_cli import complete_for_kubectl, completion

__all__ = ["server"]
NAMES = ["a/b", "shop/orders", "shop/payments", "shop/$(reboot)"]
CASES = [
    (["explain", "shop/"], ["shop/orders", "shop/payments"]),
    (["get", ""], ["a/b", "shop/orders", "shop/payments"]),
    (["watch", "a"], ["a/b"]),
    (["planner", "remove", "m"], ["mine"]),
    (["replay", "--planner", "r"], ["rate", "responsive"]),
    (["get", "-o", "w"], ["wide"]),
    (["what"], ["what-if"]),
]


@pytest.fixture
def named(server: _Server) -> str:
    """A server with applications and planners; its address."""
    server.answers["GET", "/v1/applications"] = (200, {"items": [{"application": each} for each in NAMES]})
    server.answers["GET", "/v1/planners"] = (200, {"planners": [{"name": "mine"}, {"name": "rate"}]})
    return server.url


def completed(words: list[str], address: str) -> Done:
    """As the script that `--install-completion` writes for bash."""
    environment = {
        "_WEIR_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["weir", *words]),
        "COMP_CWORD": str(len(words)),
        "WEIR_SERVER": address,
        "WEIR_PLANNER_SERVER": address,
    }
    return weir(**environment)


def for_kubectl(words: list[str], address: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """As `kubectl weir … <TAB>` does; nothing else may be said."""
    environment = {"WEIR_SERVER": address, "WEIR_PLANNER_SERVER": address}
    with (
        mock.patch.object(sys, "argv", ["kubectl_complete-weir", *words]),
        mock.patch.dict("os.environ", environment),
    ):
        complete_for_kubectl()
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


@pytest.mark.parametrize(("words", "found"), CASES)
def test_a_shell_completes_names(named: str, words: list[str], found: list[str]) -> None:
    """Of applications and planners, from the server, or of the planners that are installed here; a name that a shell would
    run is left out."""
    assert completed(words, named).stdout.split() == found


@pytest.mark.parametrize(("words", "found"), CASES)
def test_kubectl_completes_the_same(
    named: str, words: list[str], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With descriptions behind a tab, and the instruction not to add files."""
    *lines, instruction = for_kubectl(words, named, capsys)
    assert [line.partition("\t")[0] for line in lines] == found
    assert instruction == ":4"


def test_kubectl_completes_files_where_no_word_is_known(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As after `apply -f`; and a description has one line, however long it is."""
    assert for_kubectl(["apply", "-f", "x"], named, capsys) == [":0"]
    *lines, _ = for_kubectl(["get", "--with"], named, capsys)
    assert len(lines) == 1 and lines[0].startswith("--with-version\tKeep the version")
    assert for_kubectl([], named, capsys)[0].startswith("apply\t")


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense", "http://[::1"])
def test_completion_is_silent_without_a_server(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on either output, so that the user's line stays as it is."""
    done = completed(["get", "shop"], address)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert for_kubectl(["get", "shop"], address, capsys) == [":0"]


@pytest.mark.parametrize("answer", [{"items": [{"application": 7}]}, [], {"items": "x"}, None])
def test_completion_is_silent_about_another_server(server: _Server, answer: Any) -> None:
    """One that answers with something else."""
    server.answers["GET", "/v1/applications"] = (200, answer)
    done = completed(["get", ""], server.url)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_server_has_a_second(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell waits meanwhile."""
    given: list[float] = []

    def connect(*_: object, seconds: float) -> None:
        given.append(seconds)
        raise TimeoutError

    monkeypatch.setattr(completion, "connect", connect)
    assert completed(["get", "shop"], named).stdout.strip() == ""
    assert given == [1.0]


@pytest.mark.parametrize("arguments", [["get", "--help"], ["--help"]])
def test_as_a_plugin_it_is_called_as_kubectl_calls_it(arguments: list[str]) -> None:
    """The same command under another name."""
    done = weir(*arguments, program="/usr/local/bin/kubectl-weir")
    assert f"Usage: kubectl weir {'get ' if 'get' in arguments else ''}" in done.stdout
    assert "Usage: weir" in weir(*arguments).stdout
