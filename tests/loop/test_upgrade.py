"""An upgrade with messages in flight: the services on topics that a version before, or one behind, has written.

`tests/golden/messages` holds what this version publishes, up to an executor's announcement of a rescale that it has not
requested yet. `record.py` in the same folder makes it.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.golden.messages.record import COMMAND, MORE, RECORDING
from tests.loop.world import WORK, World, job
from tests.unit.knowledge.builders import plan
from tests.unit.knowledge.builders import policy as knowledge_policy
from tests.unit.knowledge.log_world import LogWorld
from tests.unit.monitor.builders import policy
from tests.unit.monitor.test_service import House as MonitorHouse
from tests.unit.monitor.test_service import until
from weir_analyzer.core import AnalysisSettings, advance, seed
from weir_contracts import Analysis, DeadLetter, Observation, Outcome, Plan, ScalingPolicy
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANS, POLICIES, TOPICS
from weir_knowledge.core import HistoryLimits, State, remember
from weir_replay.loop import START_UP_SECONDS
from weir_replay.simulator.world import START
from weir_runtime.bus import Outgoing, Record
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import NEWER_VERSION, Undecodable, decode

CONTRACTS = {topic.name: topic.contract for topic in TOPICS}
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
ANSWER = (
    "An upgrade over this change finds such messages in the topics. Say in CHANGELOG.md and docs/how-to/upgrade-and-remove.md what "
    f"becomes of them, then record again: {COMMAND}"
)


def recorded() -> list[Outgoing]:
    """Return the messages in their order, moved in time so that the last came just before the world begins."""
    text = RECORDING.read_text()
    end = _instant(json.loads(text.splitlines()[-1])["headers"]["ce_time"])
    move = START - timedelta(seconds=START_UP_SECONDS) - end
    lines = map(json.loads, _INSTANT.sub(lambda found: (_instant(found[0]) + move).isoformat(), text).splitlines())
    return [Outgoing(line["topic"], line["key"], json.dumps(line["value"]).encode(), line["headers"]) for line in lines]


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def read(message: Outgoing) -> Any:
    """Decode a message as every service does; `Undecodable` would be a dead letter."""
    record = Record(message.topic, 0, 0, message.key, message.value, message.headers)
    return decode(record, CONTRACTS[message.topic]).message


def test_a_changed_contract_says_what_becomes_of_messages_in_flight() -> None:
    """Recorded messages are read, and would be published again in the same form: a contract that changes, if only by an
    optional field, needs a new recording, and a sentence for users who upgrade."""
    kinds = set()
    for line in RECORDING.read_text().splitlines():
        given = json.loads(line)
        message = Outgoing(given["topic"], given["key"], json.dumps(given["value"]).encode(), given["headers"])
        try:
            found = read(message)
        except Undecodable as error:
            pytest.fail(f"What was published becomes a dead letter: {error}. {ANSWER}")
        kinds.add(type(found))
        now = json.loads(found.model_dump_json())
        changed = {name for name in now.keys() | given["value"].keys() if now.get(name) != given["value"].get(name)}
        assert not changed, f"{type(found).__name__} has another form in {', '.join(sorted(changed))}. {ANSWER}"
    assert kinds == {ScalingPolicy, Observation, Analysis, Plan, Outcome}


def test_an_action_in_flight_is_continued() -> None:
    """The new executor takes over between the announcement and the request: it requests once, what was announced, and
    verifies."""
    announced = read(recorded()[-1])
    assert isinstance(announced, Outcome) and announced.phase == "applying"
    world = World(job(1), MORE, interval="10s")
    for message in recorded():
        world.loop._complete(world.loop.bus.deliver(message))
    world.live(60)
    own = [outcome for outcome in world.outcomes if outcome.plan_id == announced.plan_id]
    assert [outcome.phase for outcome in own][-1:] == ["verified"]
    assert world.moves()[:1] == [(announced.before[WORK], announced.wanted[WORK])]
    assert len(world.loop.driver.accepted_at) == len(world.moves())
    assert world.loop.tally.dead_letters == []


def test_what_was_learned_is_kept() -> None:
    """The new analyzer is seeded by an analysis of before, and knowledge shows the cycles of before."""
    messages = [read(message) for message in recorded()]
    first, last = (message for message in messages if isinstance(message, Analysis))
    observation = next(message for message in messages[1:] if message.id == last.observation_id)
    _, analysis = advance(seed(first), observation, AnalysisSettings())
    assert analysis is not None
    before, after = (each.operators[1].capacities for each in (first, analysis))
    assert before
    assert {(p.parallelism, p.records_per_second) for p in before} <= {
        (p.parallelism, p.records_per_second) for p in after
    }
    state = State(application=first.application)
    for message in messages[1:]:
        state = remember(state, message, HistoryLimits(cycles_count=20))
    cycle = next(each for each in (*state.open_cycles, *state.cycles) if each.outcomes)
    assert cycle.reading and cycle.analysis and cycle.plan
    assert [outcome.phase for outcome in cycle.outcomes] == ["intended", "applying"]


# -- another form -----------------------------------------------------------------------------------------------------


def _newer(message: Outgoing) -> Outgoing:
    """As the next version would write it: another type, and fields that this one does not know."""
    return replace(message, headers={**message.headers, "ce_type": f"dev.{message.topic}".replace("alpha1", "beta1")})


def _older(message: Outgoing) -> Outgoing:
    """With its first required field under a former name, and no word about a version."""
    value = json.loads(message.value or b"{}")
    fields = CONTRACTS[message.topic].model_fields.items()
    name = next(each.alias or name for name, each in fields if each.is_required())
    value[f"former_{name}"] = value.pop(name)
    headers = {key: text for key, text in message.headers.items() if key != "ce_type"}
    return replace(message, value=json.dumps(value).encode(), headers=headers)


OTHER_FORMS = pytest.mark.parametrize(
    ("form", "code"), [(_newer, NEWER_VERSION), (_older, "invalid")], ids=["newer", "older"]
)
Form = Callable[[Outgoing], Outgoing]


@OTHER_FORMS
def test_a_message_of_another_form_asks_for_nothing(form: Form, code: str) -> None:
    """The announced rescale is not requested on a guess; analyzer, planner and executor send a dead letter for each record
    that they read, and answer the load by themselves. (The planner's history of readings leaves such records out.)"""
    world = World(job(1), MORE, interval="10s")
    messages = [form(message) for message in recorded() if message.topic != POLICIES.name]
    for message in messages:
        world.loop._complete(world.loop.bus.deliver(message))
    world.live(5)
    letters = world.loop.tally.dead_letters
    assert {(letter.topic, letter.service) for letter in letters} == {
        (OBSERVATIONS.name, "analyzer"),
        (ANALYSES.name, "planner"),
        (PLANS.name, "executor"),
        (OUTCOMES.name, "planner"),
        (OUTCOMES.name, "executor"),
    }
    assert {letter.code for letter in letters} == {code}
    assert (world.loop.driver.accepted_at, world.outcomes) == ([], [])
    world.live(55)
    assert len(world.moves()) == 1
    assert world.moves()[0][1] > 1
    assert {outcome.plan_id for outcome in world.outcomes} <= {made.id for made in world.plans}


def _letters(bus: MemoryBus) -> set[tuple[str, str, str]]:
    letters = (DeadLetter.model_validate_json(r.value or b"") for r in bus.records(DEAD_LETTERS.name))
    return {(letter.service, letter.topic, letter.code) for letter in letters}


@OTHER_FORMS
async def test_the_monitor_keeps_the_policy_that_it_can_read(form: Form, code: str) -> None:
    """A policy of another form ends no watch and changes none; the next one that can be read is followed."""
    house = MonitorHouse()
    (other,) = (form(message) for message in recorded() if message.topic == POLICIES.name)
    async with house.replica():
        await house.apply(policy("shop/orders", version=1))
        await until(lambda: house.observations("shop/orders"))
        await house.bus.publish(other.topic, other.key, other.value, other.headers)
        await until(lambda: _letters(house.bus))
        await house.apply(policy("shop/orders", version=7))
        await until(lambda: house.observations("shop/orders")[-1].policy.metadata.version == 7)
    assert _letters(house.bus) == {("monitor", POLICIES.name, code)}
    assert {o.policy.metadata.version for o in house.observations("shop/orders")} == {1, 7}
    assert set(house.statuses("shop/orders")) == {"running"}


@OTHER_FORMS
async def test_knowledge_remembers_what_it_can_read(form: Form, code: str) -> None:
    """A dead letter for each record of another form, and the cycle behind them is shown. The policy in force stays."""
    world = LogWorld()
    await world.decide(knowledge_policy())
    async with world.running():
        for message in map(form, recorded()):
            await world.bus.publish(message.topic, message.key, message.value, message.headers)
        await world.send(plan(1))

        async def shown() -> bool:
            return await world.kinds() == ["plan"]

        await world.until(shown)
    topics = (OBSERVATIONS, ANALYSES, PLANS, OUTCOMES)
    assert _letters(world.bus) == {("knowledge", topic.name, code) for topic in topics}
    assert [each.spec for each in await world.view.policies()] == [knowledge_policy().spec]
