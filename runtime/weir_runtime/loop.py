"""Shell of every process: loops that can be stopped, log lines without secrets, bounded labels of metrics, and rare runs of
the cycle collector.

Every wait of a loop ends at its stop, and each loop has one catch-all, around a cycle. Logs are JSON lines on standard
error (coloured text on a terminal), one detailed line per cycle.

Messages, most objects of a service, have no cycles. By default Python's collector runs after a few hundred new objects,
fewer than one observation has: a service with the last messages of hundreds of applications spends two fifths of its
time on it.
"""

import asyncio
import contextlib
import gc
import logging
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog
from prometheus_client import Counter
from pydantic import SecretBytes, SecretStr

from weir_contracts import printable

from .clock import Clock

Event = MutableMapping[str, Any]

# For secrets logged by mistake; settings are masked by their types (`ServiceSettings.describe`).
_SECRET = re.compile(r"(^|[_\-.])(token|password|passwd|authorization|secret|credential|api[_-]?key)s?$", re.IGNORECASE)
# Up to the last @ of a word: a password may contain an @ or a slash. Bounded, so that a long line takes linear time.
_CREDENTIALS = re.compile(r"(://)\S{1,500}@")
_HANDLER = "weir"
T = TypeVar("T")
_FAILED = Counter("weir_cycles_failed_total", "Cycles that ended with an unexpected error", ["loop"])
MIN_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
OTHER = "other"
NEW_OBJECTS = 100_000
"""Between two collections of the youngest generation: about 10 MB, if all were garbage."""
COLLECTIONS = 5
"""Of one generation, between two collections of the next older one."""


def without_credentials(text: str) -> str:
    """Return the text without user and password in its URLs."""
    return _CREDENTIALS.sub(r"\1***@", text)


def redact(_logger: Any, _method: str, event: Event) -> Event:
    """Mask values with secret names, and credentials in URLs, at any depth."""
    return {key: masked(key, value) for key, value in event.items()}


def masked(key: str, value: Any) -> Any:
    if value is not None and _SECRET.search(str(key)):
        return "***"
    if isinstance(value, SecretStr | SecretBytes):
        return "***"
    if isinstance(value, str):
        return without_credentials(value) if "://" in value else value
    if isinstance(value, Mapping):
        return {k: masked(str(k), v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [masked("", v) for v in value]
    return value


def configure_logs(service: str, level: str = "INFO") -> None:
    """Set up structlog and the standard library's logging for a process, with the same format."""

    def named(_logger: Any, _method: str, event: Event) -> Event:
        # Not a context variable: the clients' threads would not have it.
        event.setdefault("service", service)
        return event

    numeric = logging.getLevelNamesMapping()[level]
    shared: list[Callable[..., Any]] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        named,
        redact,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    _handle(shared, numeric)


def _handle(shared: list[Callable[..., Any]], level: int) -> None:
    last: list[Callable[..., Any]] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if sys.stderr.isatty():
        last.append(text_renderer())
    else:
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(_HANDLER)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    # Of libraries, whose records structlog has not created, warnings only.
    handler.addFilter(lambda record: hasattr(record, "_logger") or record.levelno >= logging.WARNING)
    root = logging.getLogger()
    root.handlers = [h for h in root.handlers if h.get_name() != _HANDLER]
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(capture=True)


def text_renderer() -> Callable[[Any, str, Event], str]:
    """Return the renderer for people. Its tracebacks are without local variables, which may be secrets.

    Control characters and marks of direction are escaped: names and messages come from outside, and a terminal would
    follow what they contain.
    """
    render = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)

    def render_visible(logger: Any, method: str, event: Event) -> str:
        formatted = structlog.processors.format_exc_info(logger, method, event)
        return render(logger, method, {key: _visible(key, value) for key, value in formatted.items()})

    return render_visible


def _visible(key: str, value: Any) -> Any:
    """Return a text on one line, a traceback on its lines; the renderer escapes what is no text itself."""
    if not isinstance(value, str) or value.isprintable():
        return value
    lines = value.split("\n") if key in ("exception", "stack") else [value]
    return "\n".join([printable(line, len(line)) for line in lines])


@contextmanager
def canonical_line(logger: Any, event: str, clock: Clock, **fields: Any) -> Generator[dict[str, Any], None, None]:
    """Log one detailed line for a unit of work: the caller fills the dict, and its duration is added.

    A failed unit is logged as a warning, and its error is raised; an empty dict is not logged.
    """
    line: dict[str, Any] = dict(fields)
    started = clock.monotonic()
    try:
        yield line
    except Exception as error:
        line |= {"ok": False, "error": str(error) or type(error).__name__, "seconds": _passed(clock, started)}
        logger.warning(event, **line)
        raise
    if line:
        logger.info(event, **{"ok": True, **line, "seconds": _passed(clock, started)})


def _passed(clock: Clock, started: float) -> float:
    return round(clock.monotonic() - started, 4)


class Stop:
    """Requested once, by a signal or by the program; every wait ends at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, reason: str) -> None:
        """Request the stop; the first reason is kept."""
        self.reason = self.reason or reason
        self._event.set()

    def on_signals(self) -> None:
        """Let SIGTERM and SIGINT request it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request, number.name)

    async def wait(self, seconds: float | None = None) -> bool:
        """Sleep until the stop, at most for `seconds` (None: no limit); return whether it was requested."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self.requested

    async def race(self, work: Awaitable[T]) -> T | None:
        """Return the result of `work`, or None after the stop, which cancels `work`."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


async def retry_until_ready(
    name: str, ping: Callable[[], Awaitable[object]], stop: Stop, timeout_seconds: float = 10.0
) -> bool:
    """Call `ping` until it succeeds; log the reason whenever it changes, and the success. Returns False when stopped
    first."""
    log = structlog.get_logger("start")
    logged: str | None = None
    pause_seconds = MIN_BACKOFF_SECONDS
    while not stop.requested:
        reason = await stop.race(_problem(ping, timeout_seconds))
        if reason == "":
            if logged is not None:
                log.info("ready", dependency=name)
            return True
        if reason is not None and reason != logged:
            log.warning("waiting", dependency=name, reason=reason)
            logged = reason
        await stop.wait(pause_seconds)
        pause_seconds = min(MAX_BACKOFF_SECONDS, pause_seconds * 2)
    return False


async def _problem(ping: Callable[[], Awaitable[object]], timeout_seconds: float) -> str:
    """Return the reason why `ping` failed; empty after success."""
    try:
        async with asyncio.timeout(timeout_seconds) as deadline:
            await ping()
    except Exception as error:  # noqa: BLE001 - every error leads to a wait
        if deadline.expired():
            return f"no answer within {timeout_seconds:g} s"
        return str(error) or type(error).__name__
    return ""


async def run_forever(
    name: str, cycle: Callable[[], Awaitable[object]], stop: Stop, *, pause_seconds: float = 0.0
) -> None:
    """Run `cycle` until stopped. A failed cycle is logged with its trace, counted, and followed by a pause that doubles
    up to 5 s; a successful one resets the pause. Cancellation escapes."""
    log = structlog.get_logger(name)
    backoff_seconds = MIN_BACKOFF_SECONDS
    while not stop.requested:
        try:
            await cycle()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _FAILED.labels(name).inc()
            log.exception("cycle-failed", error=str(error) or type(error).__name__, retry_in_seconds=backoff_seconds)
            await stop.wait(backoff_seconds)
            backoff_seconds = min(MAX_BACKOFF_SECONDS, backoff_seconds * 2)
        else:
            backoff_seconds = MIN_BACKOFF_SECONDS
            # Without a pause other tasks must run as well: a cycle that never waits would block the process.
            await (stop.wait(pause_seconds) if pause_seconds > 0 else asyncio.sleep(0))


class CardinalityLimiter:
    """Passes the first `limit` different label values; each further one becomes `other`.

    For labels from outside: a planner that invents codes must not fill the memory of this process or of Prometheus.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._values:
            if len(self._values) >= self._limit:
                return OTHER
            self._values.add(value)
        return value


def collect_seldom() -> None:
    """Collect rarely from now on, and never the objects that exist now (the imports)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, COLLECTIONS, COLLECTIONS)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect rarely for a while, in a process of another owner."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, COLLECTIONS, COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
