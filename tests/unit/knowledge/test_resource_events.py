"""Which events of a resource are written, for every course of its decisions."""

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.knowledge.builders import APP, NOON, outcome, plan
from weir_knowledge.resource_events import EVENTS_OF, PAUSE_SECONDS, RecordedEvents
from weir_knowledge.resource_status import Resource

RESOURCE = Resource(APP, "uid-1", 1, {})
COURSE = st.lists(
    st.tuples(
        st.sampled_from(["objective-held", "cooldown", "metric-missing"]), st.sampled_from([1, 5, 59, 60, 61, 3600])
    )
)


@given(COURSE)
def test_a_reason_is_one_event_a_minute_at_most(course: list[tuple[str, int]]) -> None:
    """No two within a minute, none twice in a row, and what lasts a minute is there in the end. A series grows by one."""
    recorded, written, seconds = RecordedEvents(), list[tuple[float, str, int]](), 0.0
    for cycle, (code, passed) in enumerate(course):
        seconds += passed
        for event in recorded.pending(RESOURCE, None, [], plan(cycle, code=code), now=NOON, now_seconds=seconds):
            due = recorded.due(event, seconds)
            if due is not None:
                written.append((seconds, due.event.series, due.count))
            recorded.wrote(event, due, seconds)
    assert all(later - earlier >= PAUSE_SECONDS for (earlier, _, _), (later, _, _) in pairwise(written))
    assert all(first != second for (_, first, _), (_, second, _) in pairwise(written))
    for series in {each[1] for each in written}:
        counts = [count for _, each, count in written if each == series]
        assert all(later in (earlier + 1, 1) for earlier, later in pairwise(counts)) and counts[0] == 1
    if course and course[-1][1] >= PAUSE_SECONDS:
        assert recorded.reason == course[-1][0]


def test_an_outcome_is_recorded_once_in_order_and_while_it_is_new() -> None:
    """Also one that is read late; what is older than Kubernetes keeps events is no event."""
    made = plan(1, 4)
    steps = [outcome(made, phase, seconds=n) for n, phase in enumerate(("applying", "verifying", "verified"))]
    recorded = RecordedEvents()
    now = made.created_at + timedelta(seconds=9)
    found = recorded.pending(RESOURCE, None, reversed(steps), None, now=now, now_seconds=0.0)
    assert [each.reason for each in found] == ["Verifying", "Verified"]
    recorded.wrote(found[0], recorded.due(found[0], 0.0), 0.0)
    (left,) = recorded.pending(RESOURCE, None, steps, None, now=now, now_seconds=5.0)
    assert left.reason == "Verified"
    assert recorded.pending(RESOURCE, None, steps, None, now=now + EVENTS_OF, now_seconds=5.0) == []
