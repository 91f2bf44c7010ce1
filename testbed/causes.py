"""Why a part ended, by the end of its log. Pure."""

import re
import signal
from collections.abc import Sequence

from weir_contracts import bounded, one_line

MAX_CAUSE = 100
"""Characters of a cause in a sentence."""

_PATTERNS: Sequence[re.Pattern[str]] = (
    # What the machine lacks explains every exception that follows from it.
    re.compile(
        r"[^\n]*(?:OutOfMemoryError|Cannot allocate memory|No space left on device|Address already in use|"
        r"Too many open files)[^\n]*"
    ),
    re.compile(r"^Caused by: [^\n]+", re.MULTILINE),
    re.compile(r"^(?:Exception in thread \S+ )?[\w.$]*(?:Exception|Error|Exit|Interrupt)(?::[^\n]*)?$", re.MULTILINE),
    re.compile(r"^[^\n]*\b(?:FATAL|CRITICAL|ERROR|panic:)[^\n]*", re.MULTILINE),
    re.compile(r"^weir\S*: [^\n]+|^[^\n]*\berror\b[^\n]*", re.MULTILINE | re.IGNORECASE),
)
"""Lines that name a cause, the surest kind first; of one kind the last line counts."""
_PREFIX = re.compile(
    r"^(?:Caused by: |Exception in thread \S+ )|^.*?\b(?:FATAL|CRITICAL|ERROR)\b:?\s*(?:\[[^\]]*\]\s*)?"
)


def cause_of(log: str) -> str:
    """Return the line of a log that names the cause of an end; its last line where none does, empty without lines."""
    lines = log.strip().splitlines()
    for pattern in _PATTERNS:
        found = pattern.findall(log)
        if found:
            return bounded(one_line(_PREFIX.sub("", found[-1]) or found[-1]), MAX_CAUSE)
    return bounded(one_line(lines[-1]), MAX_CAUSE) if lines else ""


def ended(name: str, code: int | None, log: str, path: object) -> str:
    """Return why a part ended in one sentence: the part, its exit code or signal, the cause and the log's path."""
    if code is None:
        return f"{name} was not started"
    if code < 0:
        return f"{name} was ended by {signal.Signals(-code).name}, by hand or for want of memory (log: {path})"
    cause = cause_of(log)
    return f"{name} ended with code {code}: {cause or 'its log is empty'} (log: {path})"
