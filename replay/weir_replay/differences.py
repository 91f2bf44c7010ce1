"""In what a document or a decision differs from an earlier one, apart from sentences and states."""

import json
from itertools import zip_longest
from typing import Any

from weir_contracts import Amendment, Parallelism, Plan, changes

SENTENCES = frozenset(
    {"sentence", "because", "evidence", "message", "basis", "planning_seconds", "learnt", "learned", "memory", "policy"}
)
"""Fields that may differ: sentences, states whose format belongs to one version, and the policy that is passed on.
`evidence` of a plan repeats its numbers."""


def comparable(document: Any) -> Any:
    """Return the document without sentences and states, numbers to nine digits."""
    if isinstance(document, dict):
        return {key: comparable(value) for key, value in document.items() if key not in SENTENCES}
    if isinstance(document, list):
        return [comparable(each) for each in document]
    if isinstance(document, float):
        return float(f"{document:.9g}")
    return document


def differences(place: str, before: Any, now: Any) -> list[str]:
    """Return one line for each value that is not what it was, by its path. A field that did not exist before is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [line for key in before for line in differences(f"{place}.{key}", before[key], now.get(key))]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            line
            for i, (one, other) in enumerate(zip(before, now, strict=True))
            for line in differences(f"{place}.{i}", one, other)
        ]
    return [] if before == now else [f"{place}: {json.dumps(before)[:120]} is now {json.dumps(now)[:120]}"]


def decision(plan: Plan) -> str:
    """Return `hold (steady)`, or `work 2 → 4 (saturated)`."""
    return f"{_moved(plan, plan.approved)} ({plan.code})"


def _moved(plan: Plan, vector: Parallelism | None) -> str:
    return "hold" if vector is None else changes(plan.current, vector)


def first_difference(recorded: Plan, present: Plan) -> str | None:
    """Return the first guard or number that differs; None if the decision is the same."""
    before, now = (each.model_dump(mode="json") for each in (recorded, present))
    same_planner = recorded.planner == present.planner
    if comparable(before) == comparable(now) and (not same_planner or not _numbers(recorded, present)):
        return None
    for one, other in zip_longest(recorded.amendments, present.amendments):
        if first := _guard_difference(one, other):
            return first
    if same_planner and (lines := _numbers(recorded, present)):
        return lines[0]
    if recorded.proposed != present.proposed:
        return f"proposed: {_moved(recorded, recorded.proposed)} is now {_moved(present, present.proposed)}"
    for name in (name for name in before if name not in SENTENCES):
        lines = differences(name, comparable(before[name]), comparable(now[name]))
        if lines:
            return lines[0]
    return None


def _guard_difference(recorded: Amendment | None, present: Amendment | None) -> str | None:
    alone = recorded or present
    if recorded is None or present is None:
        which = "recorded" if recorded else "present"
        return f"guard {alone.guard}, {alone.code}: {which} only" if alone else None
    if recorded.guard != present.guard:
        return f"guard: {recorded.guard}, {recorded.code} is now {present.guard}, {present.code}"
    pair = (comparable(each.model_dump(mode="json")) for each in (recorded, present))
    return next(iter(differences(f"guard {recorded.guard}", *pair)), None)


def _numbers(recorded: Plan, present: Plan) -> list[str]:
    """Return the differences of the numbers that the decision rests on."""
    return differences("evidence", comparable(recorded.evidence), comparable(present.evidence))
