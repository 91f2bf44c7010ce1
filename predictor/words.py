"""How decisions are told."""

from collections.abc import Mapping


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """`enrich 2 → 4, sink 1 → 2`."""
    moved = [f"{name} {before[name]} → {after[name]}" for name in after if after[name] != before.get(name)]
    return ", ".join(moved) or "no change"
