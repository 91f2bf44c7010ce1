"""Logs: one JSON line each, of services and libraries, without secrets."""

import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
import structlog
from pydantic import SecretStr
from structlog.testing import capture_logs

from weir_runtime import log
from weir_runtime.clock import FakeClock


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Logging belongs to the process: give it back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_has_service_time_and_event(capsys: pytest.CaptureFixture[str]) -> None:
    """As one JSON object, from whatever thread."""
    log.configure("planner", "INFO")
    logger = structlog.get_logger("shell")
    logger.info("planned", application="shop/orders", parallelism=3)
    thread = threading.Thread(target=lambda: logger.warning("from-a-thread"))
    thread.start()
    thread.join()
    first, second = lines(capsys)
    assert first["timestamp"]
    assert {k: v for k, v in first.items() if k != "timestamp"} == {
        "event": "planned",
        "level": "info",
        "logger": "shell",
        "service": "planner",
        "application": "shop/orders",
        "parallelism": 3,
    }
    assert (second["event"], second["service"]) == ("from-a-thread", "planner")


def test_the_level_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """And can be configured again."""
    log.configure("planner", "WARNING")
    structlog.get_logger("a").info("quiet")
    log.configure("planner", "DEBUG")
    structlog.get_logger("a").debug("loud")
    assert [line["event"] for line in lines(capsys)] == ["loud"]


def test_libraries_speak_json_too_but_only_when_it_matters(capsys: pytest.CaptureFixture[str]) -> None:
    """Their warnings and errors, and Python's own warnings."""
    log.configure("planner", "DEBUG")
    library = logging.getLogger("some.library")
    library.info("chatter")
    library.error("pool of %s is full", "x")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    first, second = lines(capsys)
    assert (first["event"], first["logger"], first["level"]) == ("pool of x is full", "some.library", "error")
    assert "DeprecationWarning: old" in str(second["event"])


def test_an_exception_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With its trace inside."""
    log.configure("planner", "INFO")
    try:
        int("no number")
    except ValueError:
        structlog.get_logger("a").exception("failed")
    (line,) = lines(capsys)
    assert "ValueError: invalid literal" in str(line["exception"])


def test_secrets_are_masked_wherever_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, at any depth, and in URLs; what only sounds alike is shown."""
    log.configure("planner", "INFO")
    structlog.get_logger("a").info(
        "called",
        token="hunter2",
        Authorization="Bearer hunter2",
        settings={"knowledge_token": "hunter2", "api-key": "hunter2", "tokens_file": "/etc/tokens"},
        peers=[{"password": "hunter2"}, "redis://ada:hunter2@redis/0"],
        nothing_password=None,
        key="shop/orders",
    )
    text = capsys.readouterr().err
    assert "hunter2" not in text
    line = json.loads(text)
    assert line["settings"]["tokens_file"] == "/etc/tokens"
    assert line["peers"][1] == "redis://***@redis/0"
    assert line["nothing_password"] is None
    assert line["key"] == "shop/orders"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://ada:p@ss@redis/0", "redis://***@redis/0"),
        ("redis://:p/w?x#y@redis/0", "redis://***@redis/0"),
        ("rediss://ada:a'b\"c@redis:6379/0 is away", "rediss://***@redis:6379/0 is away"),
        ("http://knowledge:8080/v1/policies", "http://knowledge:8080/v1/policies"),
        ("http://knowledge:8080 and ada@example.org", "http://knowledge:8080 and ada@example.org"),
    ],
)
def test_a_password_of_any_characters_is_taken_out(text: str, shown: str) -> None:
    """Users write characters in passwords that a URL forbids."""
    assert log.without_credentials(text) == shown


def test_a_secret_is_masked_by_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever it is called and wherever it lies."""
    log.configure("planner", "INFO")
    structlog.get_logger("a").info("called", oven=SecretStr("hunter2"), racks=[{"top": SecretStr("hunter2")}])
    text = capsys.readouterr().err
    assert "hunter2" not in text
    assert json.loads(text)["racks"] == [{"top": "***"}]


def test_a_person_gets_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At a terminal a line is for reading."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    log.configure("planner", "INFO")
    structlog.get_logger("a").info("planned", parallelism=3)
    text = capsys.readouterr().err
    assert "planned" in text
    assert not text.startswith("{")


def test_a_traceback_shows_no_local_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may be secrets."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    log.configure("planner", "INFO")
    password = "-".join(["swordfish", "9"])
    try:
        int(password[:0])
    except ValueError:
        structlog.get_logger("a").exception("failed")
    text = capsys.readouterr().err
    assert "ValueError: invalid literal" in text
    assert "swordfish-9" not in text


def test_a_cycle_is_one_rich_line() -> None:
    """Fields of the work, and its duration."""
    clock = FakeClock()
    with (
        capture_logs() as lines,
        log.canonical_line(structlog.get_logger("a"), "cycle", clock, application="shop/orders") as line,
    ):
        line["decision"] = "hold"
        clock.advance(1.5)
    assert lines == [
        {
            "event": "cycle",
            "log_level": "info",
            "application": "shop/orders",
            "decision": "hold",
            "ok": True,
            "seconds": 1.5,
        }
    ]


def test_a_failed_cycle_is_a_line_and_an_error() -> None:
    """The line gives the reason; the error is raised."""
    with (
        capture_logs() as lines,
        pytest.raises(ValueError, match="no"),
        log.canonical_line(structlog.get_logger("a"), "cycle", FakeClock()) as line,
    ):
        line["step"] = 2
        raise ValueError("no")
    assert [(entry["log_level"], entry["ok"], entry["error"], entry["step"]) for entry in lines] == [
        ("warning", False, "no", 2)
    ]


def test_a_cycle_without_work_is_silent() -> None:
    """Nothing came, nothing is logged."""
    with capture_logs() as lines, log.canonical_line(structlog.get_logger("a"), "cycle", FakeClock()):
        pass
    assert lines == []
