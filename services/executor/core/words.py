"""Parallelism as people read it."""

from weir_contracts import Parallelism


def vector(parallelism: Parallelism) -> str:
    """`parse 2, enrich 4`; no more than eight operators are named."""
    parts = [f"{name} {p}" for name, p in parallelism.items()]
    return ", ".join(parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")


def changes(before: Parallelism, after: Parallelism) -> str:
    """`enrich 1 → 4`: only what differs."""
    parts = [f"{name} {before.get(name, '?')} → {p}" for name, p in after.items() if before.get(name) != p]
    if not parts:
        return "no change"
    return ", ".join(parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")
