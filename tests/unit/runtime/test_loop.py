"""Loops that stop, log lines without secrets, bounded labels, and rare runs of the cycle collector."""

import asyncio
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import REGISTRY
from pydantic import SecretStr
from structlog.testing import capture_logs

from weir_runtime import loop
from weir_runtime.clock import FakeClock
from weir_runtime.loop import OTHER, CardinalityLimiter, Stop, retry_until_ready, run_forever, seldom_collected


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between attempts, in milliseconds instead of seconds."""
    monkeypatch.setattr(loop, "MIN_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(loop, "MAX_BACKOFF_SECONDS", 0.004)


async def test_a_wait_ends_with_its_time_or_with_the_stop() -> None:
    """False: the time has passed; True: a stop was requested, at once, also for later waits."""
    stop = Stop()
    assert await stop.wait(0.001) is False
    waiting = asyncio.create_task(stop.wait(60))
    await asyncio.sleep(0)
    stop.request("first")
    stop.request("second")
    assert await asyncio.wait_for(waiting, 1.0) is True
    assert await asyncio.wait_for(stop.wait(60), 1.0) is True
    assert stop.reason == "first"


async def test_a_signal_asks_for_the_stop() -> None:
    """SIGTERM from an orchestrator, SIGINT from a person."""
    stop = Stop()
    stop.on_signals()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await stop.wait(5.0)
        assert stop.reason == "SIGTERM"
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


async def test_work_is_raced_against_the_stop() -> None:
    """Its result if it is first, its error too; cancelled and None if the stop is."""
    stop = Stop()

    async def quick() -> int:
        return 7

    async def broken() -> int:
        raise ValueError("no")

    ended = asyncio.Event()

    async def slow() -> int:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return 8

    assert await stop.race(quick()) == 7
    with pytest.raises(ValueError, match="no"):
        await stop.race(broken())
    racing = asyncio.create_task(stop.race(slow()))
    await asyncio.sleep(0.01)
    stop.request("enough")
    assert await asyncio.wait_for(racing, 1.0) is None
    assert ended.is_set()


async def test_a_race_can_be_cancelled() -> None:
    """The work is cancelled with it, and the cancellation escapes."""
    stop, ended = Stop(), asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    racing = asyncio.create_task(stop.race(slow()))
    await asyncio.sleep(0.01)
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert ended.is_set()


async def test_a_missing_dependency_is_waited_for_and_logged_once() -> None:
    """One line when it is missing, one when the reason changes, one when it is there."""
    answers = ["refused"] * 5 + ["unknown host"] * 2 + [""]

    async def ping() -> None:
        if reason := answers.pop(0):
            raise ConnectionError(reason)

    with capture_logs() as lines:
        assert await retry_until_ready("redis", ping, Stop())
    assert [(line["event"], line.get("reason")) for line in lines] == [
        ("waiting", "refused"),
        ("waiting", "unknown host"),
        ("ready", None),
    ]


async def test_a_dependency_that_is_there_needs_no_words() -> None:
    """A normal start is silent."""

    async def ping() -> None:
        return

    with capture_logs() as lines:
        assert await retry_until_ready("redis", ping, Stop())
    assert lines == []


async def test_a_ping_that_hangs_is_given_up() -> None:
    """And it can be stopped while it waits."""
    stop, again, calls = Stop(), asyncio.Event(), list[int]()

    async def hang() -> None:
        calls.append(1)
        if len(calls) == 2:
            again.set()
        await asyncio.sleep(60)

    with capture_logs() as lines:
        waiting = asyncio.create_task(retry_until_ready("redis", hang, stop, timeout_seconds=0.01))
        await asyncio.wait_for(again.wait(), 5.0)
        stop.request("enough")
        assert await asyncio.wait_for(waiting, 1.0) is False
    assert lines[0]["reason"] == "no answer within 0.01 s"


async def test_the_stop_does_not_wait_for_a_ping() -> None:
    """A ping may take its ten seconds; the end of the service does not."""
    stop = Stop()

    async def hang() -> None:
        await asyncio.sleep(60)

    waiting = asyncio.create_task(retry_until_ready("redis", hang, stop, timeout_seconds=60.0))
    await asyncio.sleep(0.01)
    stop.request("enough")
    assert await asyncio.wait_for(waiting, 1.0) is False


async def test_a_failed_cycle_is_logged_counted_and_survived() -> None:
    """The one catch-all: two failures, then it works again."""
    stop, runs = Stop(), list[int]()

    async def cycle() -> None:
        runs.append(len(runs))
        if len(runs) <= 2:
            raise RuntimeError(f"bug {len(runs)}")
        if len(runs) == 5:
            stop.request("enough")

    labels = {"loop": "story"}
    before = REGISTRY.get_sample_value("weir_cycles_failed_total", labels) or 0
    with capture_logs() as lines:
        await asyncio.wait_for(run_forever("story", cycle, stop), 5.0)
    assert len(runs) == 5
    assert [line["error"] for line in lines] == ["bug 1", "bug 2"]
    assert all(line["exc_info"] for line in lines)
    assert REGISTRY.get_sample_value("weir_cycles_failed_total", labels) == before + 2


async def test_cancellation_escapes_a_loop() -> None:
    """It is no error of a cycle."""

    async def cycle() -> None:
        await asyncio.sleep(60)

    running = asyncio.create_task(run_forever("story", cycle, Stop()))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cycle_that_never_waits_lets_others_run() -> None:
    """Otherwise a busy loop would answer neither health checks nor its stop."""
    stop = Stop()

    async def cycle() -> None:
        return

    running = asyncio.create_task(run_forever("story", cycle, stop))
    await asyncio.sleep(0.01)
    stop.request("enough")
    await asyncio.wait_for(running, 1.0)


async def test_the_pause_between_cycles_is_interruptible() -> None:
    """A stop does not wait for it."""
    stop, ran = Stop(), asyncio.Event()

    async def cycle() -> None:
        ran.set()

    running = asyncio.create_task(run_forever("story", cycle, stop, pause_seconds=60))
    await ran.wait()
    stop.request("enough")
    await asyncio.wait_for(running, 1.0)


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
    loop.configure_logs("planner", "INFO")
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
    loop.configure_logs("planner", "WARNING")
    structlog.get_logger("a").info("quiet")
    loop.configure_logs("planner", "DEBUG")
    structlog.get_logger("a").debug("loud")
    assert [line["event"] for line in lines(capsys)] == ["loud"]


def test_libraries_speak_json_too_but_only_when_it_matters(capsys: pytest.CaptureFixture[str]) -> None:
    """Their warnings and errors, and Python's own warnings."""
    loop.configure_logs("planner", "DEBUG")
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
    loop.configure_logs("planner", "INFO")
    try:
        int("no number")
    except ValueError:
        structlog.get_logger("a").exception("failed")
    (line,) = lines(capsys)
    assert "ValueError: invalid literal" in str(line["exception"])


def test_secrets_are_masked_wherever_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, at any depth, and in URLs; what only sounds alike is shown."""
    loop.configure_logs("planner", "INFO")
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
    assert loop.without_credentials(text) == shown


def test_a_secret_is_masked_by_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever it is called and wherever it lies."""
    loop.configure_logs("planner", "INFO")
    structlog.get_logger("a").info("called", oven=SecretStr("hunter2"), racks=[{"top": SecretStr("hunter2")}])
    text = capsys.readouterr().err
    assert "hunter2" not in text
    assert json.loads(text)["racks"] == [{"top": "***"}]


def test_a_person_gets_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At a terminal a line is for reading."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    loop.configure_logs("planner", "INFO")
    structlog.get_logger("a").info("planned", parallelism=3)
    text = capsys.readouterr().err
    assert "planned" in text
    assert not text.startswith("{")


def test_a_terminal_obeys_no_name_from_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator's name may set the window's title, clear the screen, turn the line's direction or feign another line:
    it is shown escaped, wherever it stands, also in a library's message. A traceback keeps its lines, and no more."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    loop.configure_logs("planner", "INFO")
    name = "a\x1b]0;owned\x07\x1b[2J\u202eb\nc\x9b31m"
    structlog.get_logger("a").info(name, operator=name, plan={"operator": name, "of": [name]})
    logging.getLogger("some.library").error("no operator %s", name)
    structlog.get_logger("a").error("failed", exc_info=ValueError(name))
    text = capsys.readouterr().err
    # The renderer's own colours may stay.
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert [c for c in shown if not c.isprintable() and c != "\n"] == []
    before, _, traceback = shown.partition("ValueError: ")
    assert len(before.splitlines()) == 3
    assert traceback == "a\\x1b]0;owned\\x07\\x1b[2J\\u202eb\nc\\x9b31m\n"
    assert text.count(r"\x1b]0;owned\x07\x1b[2J\u202eb\nc\x9b31m") >= 4


def test_a_traceback_shows_no_local_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may be secrets."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    loop.configure_logs("planner", "INFO")
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
        loop.canonical_line(structlog.get_logger("a"), "cycle", clock, application="shop/orders") as line,
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
        loop.canonical_line(structlog.get_logger("a"), "cycle", FakeClock()) as line,
    ):
        line["step"] = 2
        raise ValueError("no")
    assert [(entry["log_level"], entry["ok"], entry["error"], entry["step"]) for entry in lines] == [
        ("warning", False, "no", 2)
    ]


def test_a_cycle_without_work_is_silent() -> None:
    """Nothing came, nothing is logged."""
    with capture_logs() as lines, loop.canonical_line(structlog.get_logger("a"), "cycle", FakeClock()):
        pass
    assert lines == []


def test_the_first_few_stay_apart() -> None:
    """A counted one keeps its label, also at the limit."""
    few = CardinalityLimiter(2)
    assert [few(v) for v in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


SERVICE = """
import gc, json
from weir_runtime.loop import collect_seldom
class Cycle:
    def __init__(self): self.me = self
collect_seldom()
began = gc.get_stats()
kept = [{"message": [str(i)]} for i in range(40_000)]
quiet = gc.get_stats()[0]["collections"] - began[0]["collections"]
for _ in range(200_000): Cycle()
after = gc.get_stats()
alive = sum(isinstance(o, Cycle) for o in gc.get_objects())
collected = after[0]["collected"] - began[0]["collected"]
print(json.dumps({"frozen": gc.get_freeze_count(), "quiet": quiet, "collected": collected, "alive": alive}))
"""


def test_a_service_is_looked_through_seldom_and_not_never() -> None:
    """Messages that are kept cause no look; cycles are still found, so that they do not pile up."""
    done = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert found["frozen"] > 1000
    assert found["quiet"] == 0
    assert found["collected"] >= 100_000
    assert found["alive"] <= 100_000


def test_settings_of_the_host_process_are_restored() -> None:
    """Whatever happens within."""
    own = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        _left_as_it_was()
    finally:
        gc.set_threshold(*own)


def _left_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="odd"), seldom_collected():
        assert gc.get_threshold() > before
        raise ValueError("odd")
    assert gc.get_threshold() == before
