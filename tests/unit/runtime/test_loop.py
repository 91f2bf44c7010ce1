"""Loops that can be stopped at any moment, and that outlive their errors."""

import asyncio
import os
import signal

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from weir_runtime import loop
from weir_runtime.loop import Stop, retry_until_ready, run_forever


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
