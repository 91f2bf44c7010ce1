"""Whatever a remote planner answers, the cycle ends in a plan with a reason: no exception, no partial reply."""

import asyncio
import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import NOON, SOURCE, WORK, request
from tests.unit.planner.plugin import LOOPBACK, Plugin, Received
from weir_contracts import Plan
from weir_planner.adapters.http import Answer, PlannerClient
from weir_planner.core.decide import make_plan
from weir_planner.remote import Remote
from weir_runtime.clock import FakeClock

QUESTION = request(of={"arrivals": 2400})
REPLY: dict[str, Any] = {
    "kind": "scale",
    "parallelism": {SOURCE: 1, WORK: 4},
    "code": "more",
    "sentence": "more is needed",
    "evidence": {"rate": 2400.0},
    "infeasible": [{"operator": WORK, "wanted": 9, "limit": 8, "code": "limit", "because": "eight at most"}],
    "alternatives": [{"parallelism": {WORK: 2}, "cost_slots": 2, "violation_seconds": 3, "because": "too few"}],
    "prediction": {"horizon_seconds": 60, "max_lag_seconds": 9, "final_lag_seconds": 0, "violation_seconds": 0},
    "confidence": 0.5,
    "memory": {"turn": 1},
}
numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 1, 1.5, 10**30, -(10**30), math.nan, math.inf, -math.inf])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
vectors = st.dictionaries(
    st.one_of(st.sampled_from([SOURCE, WORK, "magic", ""]), st.text(max_size=10)), values, max_size=4
)
deep = st.integers(1, 3000).map(lambda n: json.loads("[" * min(n, 900) + "]" * min(n, 900)))


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A reply with a few fields missing, of another kind, or deeply nested."""
    reply = dict(REPLY)
    for field in draw(st.lists(st.sampled_from([*REPLY, "of_a_newer_version"]), min_size=1, max_size=3, unique=True)):
        if draw(st.booleans()) and field in reply:
            del reply[field]
        else:
            reply[field] = draw(st.one_of(vectors if field == "parallelism" else values, values, deep))
    text = json.dumps(reply)
    cut = draw(st.integers(0, 3 * len(text)))
    return text.encode()[:cut] if cut < len(text) else text.encode()


bodies = st.one_of(st.binary(max_size=200), values.map(lambda value: json.dumps(value).encode()), spoilt())


class Elsewhere(PlannerClient):
    """Answers with these bytes."""

    def __init__(self, body: bytes) -> None:
        self.request_bytes = 10**6
        self._body = body

    async def exchange(self, *_arguments: Any, **_more: Any) -> Answer:
        return Answer(200, "application/json", self._body)


def planned(body: bytes) -> Plan:
    """Return the plan of a cycle whose planner answers these bytes."""
    remote = Remote(Elsewhere(body), FakeClock(NOON))
    registration = Plugin().registered(url="http://planner.example.org")
    reply = asyncio.run(remote.ask(QUESTION, registration, 5.0))
    plan = make_plan(QUESTION, reply, planner="mine", created_at=NOON)
    # As the bus carries it: nothing in it may keep a reader from reading.
    return Plan.model_validate_json(plan.model_dump_json())


@examples(60)
@given(bodies)
def test_any_bytes_become_an_explained_plan(body: bytes) -> None:
    """Either the complete reply is used, or the plan holds and names the problem."""
    plan = planned(body)
    assert plan.sentence
    if plan.kind == "scale":
        assert plan.approved is not None
        assert set(plan.approved) == {SOURCE, WORK}
        assert all(p >= 1 for p in plan.approved.values())
    elif plan.code in ("planner-failed", "invalid-reply"):
        assert "planner mine" in plan.sentence


def test_a_complete_reply_is_used() -> None:
    """So that the test above covers replies and not only refusals."""
    assert planned(json.dumps(REPLY).encode()).proposed == REPLY["parallelism"]


async def test_fifty_megabytes_are_not_read() -> None:
    """The connection is closed behind the first one."""
    sent = 0

    async def pour(_request: Received) -> bytes:
        nonlocal sent
        plugin.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
        for _ in range(500):
            plugin.writer.write(b"11111111, " * 10_000)
            await plugin.writer.drain()
            sent += 100_000
        return b"1]"

    client = PlannerClient(LOOPBACK)
    async with Plugin(pour) as plugin:
        reply = await Remote(client, FakeClock(NOON)).ask(QUESTION, plugin.registered(), 20.0)
    assert (reply.kind, reply.code) == ("hold", "planner-failed")
    assert "more than 1000000 bytes" in reply.sentence
    assert sent < 25_000_000
    await client.close()
