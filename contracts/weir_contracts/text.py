"""Formats of sentences for people. A sentence stands where it is decided; its formats and its length are shared.

A sentence of Weir's own has at most `MAX_SENTENCE` characters: what changes, the number with its unit, the reason.
"""

from collections.abc import Mapping, Sequence

MAX_SENTENCE = 160
"""Characters of a sentence by Weir. A foreign planner's may be longer, up to what its message carries."""
MAX_NAME = 40
"""Characters of a name in a sentence."""
MAX_LIST = 60
"""Characters of a list of names or changes in a sentence."""


def bounded(text: str, length: int = 2000) -> str:
    """Return `text`; a longer one is cut to `length` characters, the last of them an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def one_line(text: object, length: int = 300) -> str:
    """Return an external text or error on one line of at most `length` characters; an error without text by its
    class."""
    line = " ".join(str(text).split())
    return bounded(line or (type(text).__name__ if isinstance(text, BaseException) else ""), length)


def short_name(name: str) -> str:
    """Return a name, cut to `MAX_NAME` characters."""
    return bounded(name, MAX_NAME)


def fitted(text: str, *details: str) -> str:
    """Return `text` with as many of the details, most important first, as fit `MAX_SENTENCE` characters.

    A detail brings its own comma or semicolon. A `text` that is too long by itself is cut.
    """
    found = bounded(text, MAX_SENTENCE)
    for detail in details:
        if len(found) + len(detail) > MAX_SENTENCE:
            break
        found += detail
    return found


def listed(parts: Sequence[str], length: int = MAX_LIST, separator: str = ", ") -> str:
    """Join the first part and as many others as fit `length` characters; count the rest: `parse, enrich and 3 more`."""
    found, rest = (parts[0] if parts else ""), " and" if separator == ", " else separator.rstrip()
    for i, part in enumerate(parts[1:], start=1):
        more = f"{rest} {len(parts) - i - 1} more" if i < len(parts) - 1 else ""
        if len(found) + len(separator) + len(part) + len(more) > length:
            return f"{found}{rest} {len(parts) - i} more"
        found += separator + part
    return found


def changes(before: Mapping[str, int], after: Mapping[str, int], length: int = MAX_LIST) -> str:
    """Format the differences as `enrich 2 → 4, sink 1 → 2 and 3 more`; `no change` without one."""
    moved = [f"{short_name(name)} {before.get(name, '?')} → {p}" for name, p in after.items() if before.get(name) != p]
    return listed(moved, length) or "no change"


def sizes(parallelism: Mapping[str, int], length: int = MAX_LIST) -> str:
    """Format as `parse 2, enrich 4 and 3 more`."""
    return listed([f"{short_name(name)} {p}" for name, p in parallelism.items()], length)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Format as `1 slot`, `2 slots`, `1,200 records`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def formatted(value: float | None) -> str:
    """Format a number as `1,234`, `12.3`, `0.034`; `unknown` without one."""
    if value is None:
        return "unknown"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.3g}"


def after_colon(reason: str) -> str:
    """Format an external reason as the end of a clause, `: no route to host`; nothing without one."""
    return f": {reason}" if reason else ""
