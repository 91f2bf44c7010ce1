"""Events of workloads: why a StatefulSet lacks pods."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engines.kubernetes.test_parsing import DEPLOYMENT, STATEFUL_SET, deployment, parsed
from weir_engines.kubernetes import polled
from weir_engines.kubernetes.api import ApiFailed, Call
from weir_engines.kubernetes.polled import CreateFailures, create_failure
from weir_engines.kubernetes.workloads import WorkloadReading

QUOTA = 'create Pod orders-2 failed error: pods "orders-2" is forbidden: exceeded quota: few'


def event(reason: str, minute: int, message: str = "", **fields: Any) -> dict[str, Any]:
    at = f"2026-03-01T10:{minute:02}:00Z"
    return {"reason": reason, "message": message, "lastTimestamp": at, **fields}


def events(*items: Any) -> dict[str, Any]:
    return {"items": list(items)}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (events(event("FailedCreate", 1, QUOTA)), f"FailedCreate: {QUOTA}"),
        (events(event("SuccessfulCreate", 0), event("FailedCreate", 1, QUOTA)), f"FailedCreate: {QUOTA}"),
        (events(event("FailedCreate", 1, QUOTA), event("SuccessfulCreate", 2)), ""),
        (events(event("FailedCreate", 1), event("FailedCreate", 2, "later")), "FailedCreate: later"),
        (events(event("FailedCreate", 1, QUOTA), event("Killing", 2)), f"FailedCreate: {QUOTA}"),
        (
            events(
                event("SuccessfulCreate", 5),
                {"reason": "FailedCreate", "series": {"lastObservedTime": "2026-03-01T10:06:00.000001Z"}},
            ),
            "FailedCreate",
        ),
        (events(), ""),
        (None, ""),
    ],
)
def test_the_newest_attempt_counts(document: Any, reason: str) -> None:
    assert create_failure(document) == reason


@given(st.recursive(st.none() | st.text(max_size=10) | st.integers(), lambda x: st.lists(x, max_size=3)))
def test_events_of_any_form_are_no_error(value: Any) -> None:
    fields = ("lastTimestamp", "eventTime", "series", "metadata", "message")
    assert create_failure({"items": [{"reason": "FailedCreate", **dict.fromkeys(fields, value)}, value]})
    assert create_failure(value) == ""


class _Api:
    """API with the events of one StatefulSet."""

    def __init__(self) -> None:
        self.queries: list[Any] = []
        self.document: Any = events(event("FailedCreate", 1, QUOTA))
        self.status = 200

    async def get(self, call: Call, path: str, query: Any = None, **_: Any) -> Any:
        await asyncio.sleep(0)
        self.queries.append((path, query["fieldSelector"]))
        if self.status != 200:
            raise ApiFailed(call, f"may not {call} ({self.status})", self.status, "Forbidden")
        return self.document


def short(status: dict[str, Any] | None = None, kind: Any = STATEFUL_SET) -> WorkloadReading:
    """A workload with two of three pods."""
    return parsed(deployment({}, {"replicas": 2, **(status or {})}), kind)


async def test_the_reason_is_requested_once_for_a_while() -> None:
    api = _Api()
    failures = CreateFailures(api)  # type: ignore[arg-type]
    for _ in range(3):
        assert (await failures.explained(short())).status.reason == f"FailedCreate: {QUOTA}"
    assert api.queries == [("/api/v1/namespaces/shop/events", "involvedObject.uid=u1")]


async def test_a_missing_metrics_api_is_requested_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a present one every 15 s, however many applications read it."""
    now, requested_at = [0.0], []
    loop = SimpleNamespace(time=lambda: now[0])
    clocked = SimpleNamespace(Lock=asyncio.Lock, get_running_loop=lambda: loop)
    monkeypatch.setattr(polled, "asyncio", clocked)
    api = SimpleNamespace(status=404)

    async def get(call: Call, *_: Any, **_named: Any) -> Any:
        requested_at.append(now[0])
        if api.status != 200:
            raise ApiFailed(call, f"cannot {call} (404)", 404)
        return {"items": []}

    api.get = get
    usage = polled.UsageCache(api)  # type: ignore[arg-type]
    for now[0] in (0.0, 15.0, 59.0, 60.0):
        assert "install metrics-server" in (await usage.read("shop")).failure
    api.status = 200
    for now[0] in (119.0, 120.0, 134.0, 135.0):
        await usage.read("shop")
    assert requested_at == [0.0, 60.0, 120.0, 135.0]


async def test_a_right_that_lacks_is_named() -> None:
    api = _Api()
    api.status = 403
    found = await CreateFailures(api).explained(short())  # type: ignore[arg-type]
    assert found.status.reason == "why pods are missing is unknown: may not list events in namespace shop (403)"


@pytest.mark.parametrize(
    "workload",
    [
        short(kind=DEPLOYMENT),
        parsed(deployment(), STATEFUL_SET),
        short({"observedGeneration": 2}),
        short({"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "Own"}]}),
    ],
)
async def test_others_cost_no_request(workload: WorkloadReading) -> None:
    """A Deployment has a condition, and a complete StatefulSet lacks nothing."""
    api = _Api()
    assert await CreateFailures(api).explained(workload) is workload  # type: ignore[arg-type]
    assert api.queries == []
