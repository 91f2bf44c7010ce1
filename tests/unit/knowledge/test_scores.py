"""Scores: kept by the hour, added up, and reported with a verdict or the reason for its absence."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from weir_contracts import CandidateScore, ScoredHour, Scores, Shadows, derive_id
from weir_contracts.shadows import parameters_id
from weir_contracts.topics import DEAD_LETTERS, SHADOWS

from runtime.clock import FakeClock
from runtime.envelope import encode
from runtime.loop import Stop
from runtime.memory_bus import MemoryBus
from runtime.records import Record
from services.knowledge.__main__ import api
from services.knowledge.applications_api import applications_router
from services.knowledge.consumers import ScoreKeeper
from services.knowledge.scores import summarise_scores
from tests.unit.knowledge.builders import APP, NOON, SPACE, letters, policy
from tests.unit.knowledge.memory_store import MemoryStore

PATH = f"/v1/applications/{APP}/scores"
WITH_SHADOWS = [{"name": "rate", "label": "careful", "parameters": {"target_utilization": 0.5}}, {"name": "threshold"}]
SPEC = policy(shadows=WITH_SHADOWS).spec
LATER = NOON + timedelta(hours=1, minutes=10)


def score(label: str, role: str = "shadow", **changes: Any) -> CandidateScore:
    """An hour of two slots, in time, judged completely."""
    own = {"careful": "rate", "rate": "rate", "observed": "rate"}.get(label, label)
    parameters = {"target_utilization": 0.5} if label == "careful" else {}
    return CandidateScore(
        **{
            "label": label,
            "planner": own,
            "parameters_id": parameters_id(parameters),
            "role": role,
            "simulated_seconds": 3600.0,
            "slot_seconds": 7200.0,
            "judged_seconds": 3600.0,
            "needed_slot_seconds": 5400.0,
            "cycles": 720,
            **changes,
        }
    )


def chosen(**changes: Any) -> CandidateScore:
    return score("rate", "chosen", **changes)


def hour(number: int, *scores: CandidateScore) -> ScoredHour:
    return ScoredHour(hour=NOON + timedelta(hours=number), scores=list(scores))


def scores_of(*hours: ScoredHour, since: datetime = NOON) -> Scores:
    found = summarise_scores(APP, hours, SPEC, since, LATER)
    assert found is not None
    return found


def test_hours_add_up() -> None:
    """Two hours: sums of what is counted, shares of the entire time, per cent as in the literature."""
    found = scores_of(
        hour(
            0, chosen(rescales=2, violation_seconds=36, short=36.0, short_seconds=72, compared_seconds=3600, error=360)
        ),
        hour(1, chosen(spare=720.0, spare_seconds=1440, unstable_seconds=72, compared_seconds=3600, error=0)),
    )
    [row] = found.planners
    assert (row.slot_hours, row.mean_slots, row.needed_slot_hours, row.rescales) == (4.0, 2.0, 3.0, 2)
    assert (row.violation_seconds, row.violation_share) == (36.0, 0.005)
    assert (row.under_provisioning, row.under_provisioned_time) == (0.5, 1.0)
    assert (row.over_provisioning, row.over_provisioned_time, row.instability) == (10.0, 20.0, 1.0)
    assert (found.confidence, found.compared_seconds) == (0.95, 7200.0)


def test_since_counts_full_hours() -> None:
    """The hour it lies in is the first; earlier ones are left out."""
    found = scores_of(hour(0, chosen()), hour(1, chosen(slot_seconds=3600)), since=NOON + timedelta(minutes=70))
    assert found.since == NOON + timedelta(hours=1)
    assert found.planners[0].slot_hours == 1.0


def test_the_cheapest_of_those_that_are_not_later_is_named() -> None:
    """One costs least and is late, one costs less and is not: the second."""
    found = scores_of(
        hour(
            0,
            chosen(),
            score("careful", slot_seconds=6480),
            score("threshold", slot_seconds=3600, violation_seconds=90),
        )
    )
    assert found.cheaper == "careful"
    assert found.sentence == (
        "careful would have been cheaper than rate without being late more often: 1.80 instead of 2.00 slots on average (−10%), "
        "late 0.00% instead of 0.00% of the time"
    )


@pytest.mark.parametrize(
    ("shadow", "reason"),
    [
        ({"slot_seconds": 7190}, "none of the shadows would have been cheaper"),
        ({"slot_seconds": 3600, "violation_seconds": 60}, "none of the shadows would have been cheaper"),
        ({"slot_seconds": 300, "simulated_seconds": 300}, "too little is known"),
        ({"slot_seconds": 3600, "unanswered": 100}, "too little is known"),
    ],
)
def test_without_a_clear_case_no_planner_is_named(shadow: dict[str, Any], reason: str) -> None:
    """Slightly cheaper, cheaper and late, too short, or mostly without an answer."""
    found = scores_of(hour(0, chosen(), score("careful", **shadow)))
    assert found.cheaper is None
    assert reason in found.sentence


def test_a_shadow_is_compared_over_the_hours_it_was_there() -> None:
    """The chosen planner was expensive in an hour that the shadow did not see: that is no merit of the shadow's."""
    found = scores_of(hour(0, chosen(slot_seconds=36_000)), hour(1, chosen(), score("careful")))
    assert found.cheaper is None


def test_other_parameters_are_another_planner() -> None:
    """An earlier planner is still listed, as no longer current."""
    before = chosen(parameters_id="00000000")
    found = scores_of(hour(0, before, chosen()))
    assert sorted((row.label, row.current) for row in found.planners) == [("rate", False), ("rate", True)]


def test_what_could_not_be_compared_has_no_confidence() -> None:
    """An application that only advises does not follow its planner: the model's error is unknown, not 0."""
    assert scores_of(hour(0, chosen())).confidence is None


# -- the endpoint and the keeper
# ----------------------------------------------------------------------------------------


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def http(store: MemoryStore) -> AsyncIterator[httpx.AsyncClient]:
    app = api()
    app.include_router(applications_router(store, FakeClock(LATER)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://knowledge") as client:
        yield client


async def test_the_endpoint(http: httpx.AsyncClient, store: MemoryStore) -> None:
    """All stored scores, with the policy's planners as the current ones."""
    await store.restore_policy(policy(shadows=WITH_SHADOWS))
    await store.keep_scores(APP, [hour(0, chosen(), score("careful", slot_seconds=3600))], NOON)
    answer = await http.get(f"{PATH}?since=2h")
    assert answer.status_code == 200, answer.text
    found = Scores.model_validate_json(answer.text)
    assert (found.cheaper, found.since, found.until) == ("careful", NOON, LATER)


@pytest.mark.parametrize("since", ["", "24", "1s", "8d", "x" * 100])
async def test_a_period_that_makes_no_sense(http: httpx.AsyncClient, since: str) -> None:
    """The field is named."""
    answer = await http.get(PATH, params={"since": since})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "query.since"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [(None, "neither a policy nor messages"), ({}, "lists no shadows"), ({"shadows": WITH_SHADOWS}, "simulated yet")],
)
async def test_no_scores_are_explained(
    http: httpx.AsyncClient, store: MemoryStore, spec: dict[str, Any] | None, reason: str
) -> None:
    """It is unknown; it lists no shadows; they have not begun."""
    if spec is not None:
        await store.restore_policy(policy(**spec))
    answer = await http.get(PATH)
    assert answer.status_code == 404
    assert reason in answer.json()["detail"]


def shadows(at: datetime, *hours: ScoredHour) -> Shadows:
    return Shadows(
        id=derive_id(SPACE, at.isoformat()),
        application=APP,
        observation_id=SPACE,
        at=at,
        job_id="a",
        graph_hash="b",
        candidates=[],
        hours=list(hours),
    )


def record(message: Shadows | None, offset: int = 0) -> Record:
    if message is None:
        return Record(SHADOWS.name, 0, offset, APP, None)
    body, headers = encode(message, type=SHADOWS.type, source="planner", id=message.id, time=NOON)
    return Record(SHADOWS.name, 0, offset, APP, body, headers)


async def test_the_keeper_keeps_the_newest_hours(store: MemoryStore) -> None:
    """The newest of several messages counts; a deletion and an unreadable message change nothing."""
    clock = FakeClock(LATER)
    bus = MemoryBus(partitions=1, clock=clock)
    keeper = ScoreKeeper(bus, store, clock, letters(bus, clock))
    await store.restore_policy(policy())
    newer = shadows(LATER, hour(0, chosen()), hour(1, chosen(slot_seconds=60)))
    broken = Record(SHADOWS.name, 0, 3, APP, b"{}")
    await keeper.take([record(newer), record(shadows(NOON, hour(0, chosen(slot_seconds=1)))), record(None), broken])
    assert await store.scores(APP) == newer.hours
    assert len(bus.records(DEAD_LETTERS.name)) == 1


async def test_what_comes_after_the_end_is_not_kept(store: MemoryStore) -> None:
    """The policy was deleted: its last message must not bring the application back."""
    clock = FakeClock(LATER)
    bus = MemoryBus(partitions=1, clock=clock)
    await ScoreKeeper(bus, store, clock, letters(bus, clock)).take([record(shadows(NOON, hour(0, chosen())))])
    assert await store.scores(APP) == []


class Full(MemoryStore):
    """Without room for scores during the first requests."""

    refusals = 5

    async def keep_scores(self, application: str, hours: Sequence[ScoredHour], oldest: datetime) -> None:
        self.refusals -= 1
        self.full = self.refusals >= 0
        await super().keep_scores(application, hours, oldest)


async def test_a_full_store_is_logged_once_and_waited_for() -> None:
    """Messages are kept until there is room for them; no cycle fails."""
    clock, store, stop = FakeClock(LATER), Full(), Stop()
    bus = MemoryBus(partitions=1, clock=clock)
    await store.restore_policy(policy())
    scores_of = record(shadows(LATER, hour(0, chosen())))
    await bus.publish(SHADOWS.name, APP, scores_of.value, scores_of.headers)
    with capture_logs() as lines:
        following = asyncio.create_task(
            ScoreKeeper(bus, store, clock, letters(bus, clock), retry_seconds=0.01).follow(stop)
        )
        async with asyncio.timeout(5):
            while not await store.scores(APP):  # noqa: ASYNC110 - it tries again by itself
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)
        stop.request("the test is over")
        await following
    assert [line["event"] for line in lines if line["log_level"] != "debug"] == ["store-full", "store-has-room"]
