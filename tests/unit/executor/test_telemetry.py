"""Durations of an action, by its own timestamps."""

from datetime import timedelta

from prometheus_client import REGISTRY

from tests.unit.knowledge.builders import NOON, action, at, plan
from weir_executor import telemetry


def timed(name: str) -> tuple[float, float]:
    parts = (REGISTRY.get_sample_value(f"weir_executor_{name}_seconds_{part}") for part in ("count", "sum"))
    count, total = (part or 0.0 for part in parts)
    return count, total


def test_each_part_of_an_action_is_timed() -> None:
    """Decided a second after the plan, accepted two later, running five after that, verified after ten."""
    made = plan(0, wanted=2)
    began = made.created_at + timedelta(seconds=1)
    accepted, running = began + timedelta(seconds=2), began + timedelta(seconds=7)
    moved = action(made, phase="verifying", started_at=began, requested_at=accepted, running_at=running)
    before = {name: timed(name) for name in ("plan_age", "accept", "restart", "verify")}
    telemetry.admitted(made, began)
    for event, now in (("accepted", accepted), ("running", running), ("healthy", accepted + timedelta(seconds=10))):
        telemetry.moved(moved, event, now)  # type: ignore[arg-type]
    took = {name: (timed(name)[0] - was[0], timed(name)[1] - was[1]) for name, was in before.items()}
    assert took == {"plan_age": (1, 1), "accept": (1, 2), "restart": (1, 5), "verify": (1, 10)}


def test_the_way_back_is_not_timed_as_a_request() -> None:
    """Its request was made long ago, and it is no second acceptance of it."""
    rollback = action(plan(0, wanted=2), phase="rolling-back", requested_at=at(1), started_at=NOON)
    before = timed("accept")
    telemetry.moved(rollback, "accepted", at(9))
    assert timed("accept") == before
