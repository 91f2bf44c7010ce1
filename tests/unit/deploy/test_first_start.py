"""The job of a first start: which service gets which token, and no incomplete set after an interruption."""

import json
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weir_runtime.access import read_tokens

PREPARE = Path(__file__).resolve().parents[3] / "deploy" / "compose" / "jobs" / "prepare.py"
READERS = ("knowledge", "planner", "executor", "others", "grafana", "prometheus")

Start = Callable[[], int]


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The owner of each file; only root can set it."""
    given: dict[str, int] = {}
    monkeypatch.setattr(os, "chown", lambda path, uid, _gid: given.__setitem__(Path(path).name, uid))
    monkeypatch.setenv("WEIR_UID", "10001")
    monkeypatch.setenv("FLINK_UID", "9999")
    return given


@pytest.fixture
def start(tmp_path: Path, owners: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> Start:
    for reader in READERS:
        (tmp_path / reader).mkdir()
    script = tmp_path / "prepare.py"
    script.write_text(PREPARE.read_text().replace('Path("/secrets")', f"Path({str(tmp_path)!r})"))

    def run() -> int:
        module: dict[str, Any] = runpy.run_path(str(script))
        result: int = module["main"]()
        return result

    return run


def test_everybody_is_given_what_they_need_and_no_more(start: Start, tmp_path: Path, owners: dict[str, int]) -> None:
    """The executor may record actions at knowledge, knowledge may read at the planner, a person may do both, and
    Prometheus reads metrics alone."""
    assert start() == 0
    api = read_tokens(tmp_path / "knowledge" / "WEIR_TOKENS")
    planner = read_tokens(tmp_path / "planner" / "WEIR_TOKENS")
    others = read_tokens(tmp_path / "others" / "WEIR_TOKENS")
    person = (tmp_path / "knowledge" / "operator").read_text()
    executor = (tmp_path / "executor" / "WEIR_KNOWLEDGE_TOKEN").read_text()
    knowledge = (tmp_path / "knowledge" / "WEIR_KNOWLEDGE_PLANNER_TOKEN").read_text()
    assert len({person, executor, knowledge}) == 3
    callers = {token: api.caller(token) for token in (person, executor, knowledge)}
    assert [caller and (caller.name, caller.roles) for caller in callers.values()] == [
        ("operator", {"write", "planner-admin"}),
        ("executor", {"executor"}),
        None,
    ]
    assert (caller := planner.caller(knowledge)) is not None
    assert caller.roles == {"read"}
    assert planner.caller(person) is not None
    assert planner.caller(executor) is None
    assert all(others.caller(token) is None for token in callers)
    prometheus = (tmp_path / "prometheus" / "token").read_text()
    for tokens in (api, planner, others, read_tokens(tmp_path / "executor" / "WEIR_TOKENS")):
        assert (caller := tokens.caller(prometheus)) is not None
        assert caller.may("metrics") and not caller.may("read")
    modes = {path.stat().st_mode & 0o777 for reader in READERS for path in (tmp_path / reader).iterdir()}
    assert modes == {0o400}
    assert (owners[".WEIR_TOKENS"], owners[".password"], owners["flink"], owners[".token"]) == (10001, 472, 9999, 65534)
    assert owners["policies"] == 10001


def test_a_second_start_changes_nothing(start: Start, tmp_path: Path) -> None:
    """Otherwise every `docker compose up` would invalidate the users' token."""
    start()
    first = (tmp_path / "knowledge" / "operator").read_text()
    start()
    assert (tmp_path / "knowledge" / "operator").read_text() == first


def test_an_interrupted_start_is_repeated(start: Start, tmp_path: Path) -> None:
    """Knowledge's tokens are written last: while they are missing, no token has been accepted."""
    start()
    (tmp_path / "knowledge" / "WEIR_TOKENS").unlink()
    start()
    tokens = json.loads((tmp_path / "knowledge" / "WEIR_TOKENS").read_text())
    assert (tmp_path / "executor" / "WEIR_KNOWLEDGE_TOKEN").read_text() in tokens
    assert (tmp_path / "knowledge" / "operator").read_text() in tokens
