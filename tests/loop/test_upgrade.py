"""An upgrade with messages in flight: today's services read the topics of the former version.

tests/golden/messages holds what that version really published, up to an executor's announcement of a rescale that it had
not yet requested. `record.py` beside it says how.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from weir_contracts import Analysis, Observation, Outcome, Plan, ScalingPolicy
from weir_contracts.topics import TOPICS

from replay.loop import START_UP_SECONDS
from runtime.envelope import Decoded, decode
from runtime.records import Outgoing, Record
from services.analyzer.core import AnalysisSettings, advance, seed
from services.knowledge.core import HistoryLimits, State, remember
from simulator.observe import START
from tests.loop.world import WORK, World, job

RECORDED = sorted((Path(__file__).resolve().parents[1] / "golden" / "messages").glob("*.jsonl"))
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
LOAD = 1400.0
"""Records/s at the end of the recording."""


def recorded(path: Path) -> list[Outgoing]:
    """Return the messages in their order, moved in time so that the last came just before the world begins."""
    text = path.read_text()
    end = _instant(json.loads(text.splitlines()[-1])["headers"]["ce_time"])
    move = START - timedelta(seconds=START_UP_SECONDS) - end
    moved = _INSTANT.sub(lambda found: (_instant(found[0]) + move).isoformat(), text)
    lines = [json.loads(line) for line in moved.splitlines()]
    return [Outgoing(line["topic"], line["key"], json.dumps(line["value"]).encode(), line["headers"]) for line in lines]


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def former(request: pytest.FixtureRequest) -> list[Outgoing]:
    """The messages of a version before."""
    return recorded(request.param)


def read(messages: list[Outgoing]) -> list[Decoded]:
    """Decode them as every service does; `Undecodable` would be a dead letter."""
    contracts = {topic.name: topic.contract for topic in TOPICS}
    return [
        decode(Record(m.topic, 0, i, m.key, m.value, m.headers), contracts[m.topic]) for i, m in enumerate(messages)
    ]


def test_every_message_of_the_version_before_is_read(former: list[Outgoing]) -> None:
    """Each stage of the loop reads its messages; there are no dead letters."""
    kinds = {type(decoded.message) for decoded in read(former)}
    assert kinds == {ScalingPolicy, Observation, Analysis, Plan, Outcome}


def test_an_action_in_flight_is_continued(former: list[Outgoing]) -> None:
    """Today's executor takes over between `applying` and the request: it requests once, what was announced, and verifies.
    Today's planner goes on from the former plans."""
    announced = read(former)[-1].message
    assert isinstance(announced, Outcome) and announced.phase == "applying"
    world = World(job(1), LOAD, interval="10s")
    for message in former:
        world.loop._complete(world.loop.bus.deliver(message))
    world.live(60)
    own = [outcome for outcome in world.outcomes if outcome.plan_id == announced.plan_id]
    assert [outcome.phase for outcome in own][-1:] == ["verified"]
    assert world.moves()[:1] == [(announced.before[WORK], announced.wanted[WORK])]
    assert world.p() == announced.wanted[WORK]
    assert len(world.loop.driver.accepted_at) == len(world.moves())
    assert world.loop.tally.dead_letters == []


def test_what_was_learned_is_kept(former: list[Outgoing]) -> None:
    """Today's analyzer is seeded by the former analysis, and knowledge shows the former cycles."""
    messages = [decoded.message for decoded in read(former)]
    analyses = [message for message in messages if isinstance(message, Analysis)]
    observations = [message for message in messages if isinstance(message, Observation)]
    _, analysis = advance(seed(analyses[-2]), observations[-1], AnalysisSettings())
    assert analysis is not None
    (before,), (after,) = (
        [(point.parallelism, point.records_per_second) for o in each.operators for point in o.capacities][:1]
        for each in (analyses[-2], analysis)
    )
    assert after == before
    state = State(application=observations[0].application)
    for message in messages:
        if not isinstance(message, ScalingPolicy):
            state = remember(state, message, HistoryLimits(cycles_count=20))
    cycle = next(each for each in (*state.open_cycles, *state.cycles) if each.outcomes)
    assert cycle.reading and cycle.analysis and cycle.plan
    assert [outcome.phase for outcome in cycle.outcomes] == ["intended", "applying"]
