"""Logs: JSON lines on standard error (coloured text on a terminal), one detailed line per cycle, no secrets."""

import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog
from pydantic import SecretBytes, SecretStr

from .clock import Clock

Event = MutableMapping[str, Any]

# For secrets logged by mistake; settings are masked by their types (`ServiceSettings.describe`).
_SECRET = re.compile(r"(^|[_\-.])(token|password|passwd|authorization|secret|credential|api[_-]?key)s?$", re.IGNORECASE)
# Up to the last @ of a word: a password may contain an @ or a slash. Bounded, so that a long line takes linear time.
_CREDENTIALS = re.compile(r"(://)\S{1,500}@")
_HANDLER = "weir"


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


def configure(service: str, level: str = "INFO") -> None:
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


def text_renderer() -> structlog.dev.ConsoleRenderer:
    """Return the renderer for people. Its tracebacks are without local variables, which may be secrets."""
    return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


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
