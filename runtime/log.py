"""Logs: JSON, one rich line a cycle, no secrets."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

import structlog

_SECRET = ("token", "password", "authorization", "secret", "credential")


def redact(_logger: Any, _method: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Masks values whose name says that they are secret, at any depth."""
    return {key: _masked(key, value) for key, value in event.items()}


def _masked(key: str, value: Any) -> Any:
    if any(word in str(key).lower() for word in _SECRET) and value is not None:
        return "***"
    if isinstance(value, Mapping):
        return {k: _masked(k, v) for k, v in value.items()}
    return value


def configure(service: str, level: str = "INFO") -> None:
    """Set up structlog and the standard library's logging for a process. Lines go to standard error."""
    numeric = logging.getLevelNamesMapping()[level]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redact,
    ]
    renderer: list[Any] = (
        [structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)
    # Libraries log through the standard library; only what matters of it, as plain lines on the same stream.
    logging.basicConfig(
        level=max(numeric, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s"
    )
