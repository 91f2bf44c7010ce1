"""Parallelism as people read it, and sentences of a length that an outcome may carry."""

from weir_contracts import Parallelism

MAX_OPERATORS = 8
MAX_NAME_LENGTH = 60
MAX_SENTENCE_LENGTH = 2000


def short(text: str) -> str:
    """A sentence that fits the contract."""
    return text if len(text) <= MAX_SENTENCE_LENGTH else text[: MAX_SENTENCE_LENGTH - 1] + "…"


def _name(operator: str) -> str:
    return operator if len(operator) <= MAX_NAME_LENGTH else operator[: MAX_NAME_LENGTH - 1] + "…"


def _joined(parts: list[str]) -> str:
    more = len(parts) - MAX_OPERATORS
    return ", ".join(parts[:MAX_OPERATORS]) + (f" and {more} more" if more > 0 else "")


def vector(parallelism: Parallelism) -> str:
    """`parse 2, enrich 4`; no more than eight operators are named."""
    return _joined([f"{_name(name)} {p}" for name, p in parallelism.items()])


def changes(before: Parallelism, after: Parallelism) -> str:
    """`enrich 1 → 4`: only what differs."""
    parts = [f"{_name(name)} {before.get(name, '?')} → {p}" for name, p in after.items() if before.get(name) != p]
    return _joined(parts) or "no change"
