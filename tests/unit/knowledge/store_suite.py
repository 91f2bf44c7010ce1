"""The suite of every store: the memory store and a real Redis."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.knowledge.builders import (
    APP,
    SPACE,
    action,
    analysis,
    at,
    documents,
    observation,
    outcome,
    plan,
    policy,
)
from weir_contracts.topics import ACTIONS, PLANS, POLICIES
from weir_engines.registry import claims
from weir_knowledge.core import HistoryEntry, HistoryLimits, State, history_entries, remember
from weir_knowledge.newest import Digest, Kind, Newest
from weir_knowledge.store import Batch, Incomplete, NotContinued, Position, Store, StoreFull
from weir_knowledge.view import View, action_fields, policy_fields, state_change
from weir_runtime.bus import partition_of

OTHER = "shop/payments"
PARTITIONS = 4
POLICY, ACTION = ("policy", APP), ("action", APP)
LONG = '{"a": "' + "long " * 100 + '"}'
"""Longer than what is stored as it is."""
SMALL_BYTES = 400_000
SMALL_COUNT = 700
SMALL_HISTORY = 7
SMALL_AGE_SECONDS = 3_600.0
SMALL: dict[str, Any] = {
    "events_kept": SMALL_COUNT,
    "events_bytes": SMALL_BYTES,
    "history_kept": SMALL_HISTORY,
    "history_seconds": SMALL_AGE_SECONDS,
}
"""What `small_store` is made with."""
Fill = Callable[[bool], Awaitable[None]]


def noise(length: int, seed: int) -> str:
    """JSON that nothing makes shorter."""
    return f'"{random.Random(seed).randbytes(length // 2).hex()}"'


def position(offset: int, version: int = 0) -> Position:
    """A place in the log of policies."""
    return Position({POLICIES.name: offset}, {POLICIES.name: version})


def batch(before: int | None, after: int, partition: int = 0, **changes: Any) -> Batch:
    """Go on from one offset of a partition to another."""
    continues = {partition: None if before is None else position(before)}
    return Batch(continues, {partition: position(after)}, **changes)


async def write(store: Store, **changes: Any) -> None:
    """Change the store, wherever it stands."""
    await store.apply(Batch({}, {}, **changes))


async def save(store: Store, before: State | None, after: State, newest: Mapping[Kind, str] | None = None) -> None:
    """Write a state over the one that is stored."""
    change, key = state_change(before, after, newest or {}), ("state", after.application)
    await write(store, changed={key: change.fields}, removed={key: change.removed})


class StoreSuite:
    """Subclass it with the fixtures `store`, empty; `small_store`, empty, whose feed keeps `SMALL_COUNT` events of
    `SMALL_BYTES` together, and histories `SMALL_HISTORY` cycles for `SMALL_AGE_SECONDS`; `empty`, which empties `store`;
    and `fill`, which takes the room for more from `store` or gives it back."""

    async def test_an_empty_one_knows_nothing(self, store: Store) -> None:
        """It answers, and has no position: None, not offset 0, so that whoever reads begins at the log's beginning."""
        await store.ping()
        await store.check_room()
        assert await store.applied([0, 1]) == {0: None, 1: None}
        assert await store.applied([]) == {}
        assert await store.get([POLICY, ACTION]) == {}
        assert await store.get([POLICY], ["text"]) == {}
        assert await store.get([]) == {}
        assert (await store.all("policy"), await store.keys("policy")) == ({}, [])
        assert await store.history(APP) == []
        assert await store.events("0") == []
        assert await store.newest_event() == "0-0"

    async def test_documents_and_position_change_together(self, store: Store) -> None:
        """Fields that a batch does not name stay; each kind and each key has its own document."""
        await store.apply(batch(None, 3, changed={POLICY: {"text": LONG, "mode": "act"}, ACTION: {"text": "{}"}}))
        await store.apply(batch(3, 4, changed={POLICY: {"mode": "paused"}, ("policy", OTHER): {"text": "{}"}}))
        assert await store.get([POLICY]) == {POLICY: {"text": LONG, "mode": "paused"}}
        wanted = [ACTION, POLICY, ("action", OTHER)]
        assert await store.get(wanted, ["mode", "none"]) == {ACTION: {}, POLICY: {"mode": "paused"}}
        assert await store.all("policy") == {APP: {"text": LONG, "mode": "paused"}, OTHER: {"text": "{}"}}
        assert (await store.keys("policy"), await store.keys("action")) == ([APP, OTHER], [APP])
        assert await store.applied([0, 1]) == {0: position(4), 1: None}

    async def test_a_position_comes_back_as_it_was_written(self, store: Store) -> None:
        """Several topics, and versions of sixteen digits."""
        given = Position(
            {POLICIES.name: 7, PLANS.name: 2**40}, {POLICIES.name: 1_781_461_815_300_123, ACTIONS.name: 0}, 7
        )
        await store.apply(Batch({3: None}, {3: given}))
        assert await store.applied([3]) == {3: given}
        await store.apply(Batch({3: given}, {3: position(8)}))

    async def test_what_does_not_continue_changes_nothing(self, store: Store) -> None:
        """The former owner of a partition woke up: its batch is refused as one, also where only one of its partitions
        went on without it, and one with an older version of the same place."""
        await store.apply(batch(None, 3, changed={POLICY: {"mode": "paused"}}))
        late = batch(2, 5, changed={POLICY: {"mode": "act"}}, deleted=[ACTION], events=[("plan", APP, "{}")])
        both = Batch({0: position(3), 1: position(1)}, {0: position(9), 1: position(9)}, deleted=[POLICY])
        of_version = Batch({0: position(3, version=1)}, {0: position(9)}, deleted=[POLICY])
        for refused, partition in ((late, 0), (both, 1), (of_version, 0)):
            with pytest.raises(NotContinued, match=f"applied partition {partition} meanwhile") as error:
                await store.apply(refused)
            assert error.value.partition == partition
        assert await store.get([POLICY]) == {POLICY: {"mode": "paused"}}
        assert await store.applied([0, 1]) == {0: position(3), 1: None}
        assert await store.events("0") == []

    async def test_of_several_owners_one_continues(self, store: Store) -> None:
        """Twenty that have read the same position: one batch is applied."""
        await store.apply(batch(None, 1))
        results = await asyncio.gather(
            *(store.apply(batch(1, 2, changed={POLICY: {"by": str(n)}})) for n in range(20)), return_exceptions=True
        )
        assert [each for each in results if each is None] == [None]
        assert sum(isinstance(each, NotContinued) for each in results) == 19
        found = await store.get([POLICY])
        assert results[int(found[POLICY]["by"])] is None

    async def test_a_batch_replaces_a_document(self, store: Store) -> None:
        """Deleted first, then written: a partition that is read again leaves nothing of before."""
        other = ("policy", OTHER)
        await store.apply(batch(None, 2, changed={POLICY: {"old": "1"}, other: {"old": "1", "text": "2"}}))
        again = batch(2, 2, deleted=[POLICY, ACTION], changed={POLICY: {"new": "1"}}, removed={other: ["old", "none"]})
        await store.apply(again)
        assert await store.get([POLICY, other]) == {POLICY: {"new": "1"}, other: {"text": "2"}}
        await store.apply(batch(2, 3, deleted=[POLICY]))
        assert await store.all("policy") == {OTHER: {"text": "2"}}

    async def test_an_emptied_one_is_read_from_the_beginning(
        self, store: Store, empty: Callable[[], Awaitable[None]]
    ) -> None:
        """Under a running reader: its next batch is refused, and the one that begins at the beginning is applied."""
        await store.apply(batch(None, 3, changed={POLICY: {"mode": "act"}}))
        await empty()
        with pytest.raises(NotContinued):
            await store.apply(batch(3, 4))
        assert await store.applied([0]) == {0: None}
        await store.apply(batch(None, 4, changed={POLICY: {"mode": "act"}}))
        assert await store.applied([0]) == {0: position(4)}

    async def test_what_is_not_complete_is_not_read(self, store: Store) -> None:
        """A policy of a partition that was not read to its end: neither what is there nor that nothing is there."""
        await store.apply(batch(None, 1, changed={POLICY: {"text": "{}"}}))
        assert await store.get([POLICY], complete=[0]) == {POLICY: {"text": "{}"}}
        for read in (
            store.get([POLICY], complete=[1]),
            store.get([("policy", OTHER)], ["text"], complete=[0, 1]),
            store.all("policy", complete=[1, 0]),
        ):
            with pytest.raises(Incomplete, match="try again in some seconds"):
                await read
        await store.apply(batch(None, 0, partition=1))
        assert await store.all("policy", complete=[1, 0]) == {APP: {"text": "{}"}}

    async def test_fields_of_many_documents_are_read_together(self, store: Store) -> None:
        """Of each document those that it has; one without any of them exists, and one that is not there does not."""
        keys = [("policy", f"shop/app-{i:02}") for i in range(45)]
        changed = {key: {"text": f"{{}}{i}", "version": str(i)} for i, key in enumerate(keys)}
        await store.apply(batch(None, 1, changed={**changed, keys[7]: {"version": "7"}, ACTION: {"text": "{}"}}))
        found = await store.get([*keys, ("policy", OTHER)], ["text", "other"])
        expected = {key: {"text": f"{{}}{i}"} for i, key in enumerate(keys)} | {keys[7]: {}}
        assert found == expected
        assert await store.all("policy", ["text"]) == {key: fields for (_, key), fields in expected.items()}
        assert list(await store.all("policy", ["version"])) == [key for _, key in keys]
        assert await store.all("policy", ["other"]) == {key: {} for _, key in keys}

    async def test_what_summaries_are_made_of_is_read_together(self, store: Store) -> None:
        """Of applications with messages, with a policy alone, and with nothing, in the order of the question."""
        view, decided = View(store, PARTITIONS), plan(1, 4)
        state = State(application=APP)
        for event in (observation(1), analysis(1), decided, outcome(decided, "verified")):
            state = remember(state, event, HistoryLimits())
        await save(store, None, state)
        with pytest.raises(Incomplete):
            await view.known([APP])
        written = policy(OTHER, version=7)
        every = range(PARTITIONS)
        position_of_each = {each: position(1, version=7) for each in every}
        present = await store.applied(every)
        await store.apply(Batch(present, position_of_each, changed={("policy", OTHER): policy_fields(written)}))
        none, other, own = await view.known(["shop/none", OTHER, APP])
        assert none == (Digest(application="shop/none"), None, None)
        assert other == (Digest(application=OTHER), written, None)
        assert {name: getattr(own.digest, name) for name in Digest.model_fields} == {
            name: getattr(state, name) for name in Digest.model_fields
        }
        assert state.glance.decision == decided.sentence
        assert await view.claims() == {OTHER: claims(written.subject)}

    async def test_policies_and_actions_come_back_as_they_were_written(self, store: Store) -> None:
        """Fields that the policy's user left out stay out; both are known once their partition was read to its end."""
        view, written, acted = View(store, PARTITIONS), policy(version=7), action(plan(1), version=3)
        assert view.partition(APP) == partition_of(APP, PARTITIONS)
        for read in (view.policy(APP), view.policies(), view.action(APP)):
            with pytest.raises(Incomplete):
                await read
        assert not await view.shows(POLICIES.name, APP, 0)
        positions = {each: position(1, version=7) for each in range(PARTITIONS)}
        await store.apply(
            Batch(
                dict.fromkeys(range(PARTITIONS)),
                positions,
                changed={POLICY: policy_fields(written), ACTION: action_fields(acted, 8)},
            )
        )
        found = await view.policy(APP)
        assert found is not None and found.to_document() == written.to_document()
        assert [each.application for each in await view.policies()] == [APP]
        assert (await view.action(APP), await view.action(OTHER), await view.policy(OTHER)) == (acted, None, None)
        assert await view.shows(POLICIES.name, APP, 7)
        assert not await view.shows(POLICIES.name, APP, 8)
        assert not await view.shows(ACTIONS.name, APP, 1)

    async def test_a_state_comes_back_as_it_grew(self, store: Store) -> None:
        """Forty cycles, of which few are kept, with outcomes and late readings: after each message the entire state is
        as computed, whether the next is computed from it or from what was read."""
        view, limits, state = View(store, PARTITIONS), HistoryLimits(cycles_count=5), State(application=APP)
        for cycle in range(1, 41):
            decided = plan(cycle, wanted=None if cycle % 3 else 1 + cycle % 5)
            ended = [] if cycle % 3 else [outcome(decided, "verified")]
            for event in (observation(cycle), analysis(cycle), decided, *ended):
                after = remember(state, event, limits)
                await save(store, state if state.times.newest else None, after)
                found = await view.state(APP)
                assert found == after
                state = found if cycle % 2 else after
        assert len(state.cycles) == 5
        assert (await store.keys("state"), await view.applications()) == ([APP], [APP])
        entries = [name for name in (await store.get([("state", APP)]))["state", APP] if name.startswith("cycles/")]
        assert len(entries) == 5

    async def test_the_newest_of_each_kind_are_kept(self, store: Store) -> None:
        """Each is what was last given; an application without one knows its name, and after its end nothing of before
        comes back."""
        view, state = View(store, PARTITIONS), State(application=APP)
        await save(store, None, state)
        assert await view.newest(APP) == Newest(application=APP)
        assert await view.newest(OTHER) is None
        assert await view.states([APP, OTHER]) == {APP: (await view.states([APP]))[APP], OTHER: None}
        scale = plan(1, 4)
        given = [observation(1), analysis(1), scale, outcome(scale, "intended"), observation(2)]
        for message in given:
            await save(store, state, state, documents(message))
        expected = Newest(application=APP, observation=given[4], analysis=given[1], plan=scale, outcome=given[3])
        assert await view.newest(APP) == expected
        assert await view.newest(APP, ["plan"]) == Newest(application=APP, plan=scale)
        await write(store, deleted=[("state", APP)], forgotten=[APP])
        assert await view.applications() == []
        await save(store, None, state, documents(observation(3)))
        assert await view.newest(APP) == Newest(application=APP, observation=observation(3))

    async def test_a_history_is_added_to(self, small_store: Store) -> None:
        """Newest first, up to its number, each cycle with what became of its plan; of other applications it knows
        nothing, and with its application it is forgotten."""
        assert await small_store.history(APP) == []
        state = State(application=APP)
        for cycle in range(1, 3 * SMALL_HISTORY):
            decided = plan(cycle, 4)
            past_entries: list[tuple[str, HistoryEntry]] = []
            for event in (
                decided,
                outcome(decided, "intended"),
                outcome(decided, "verified" if cycle % 2 else "applying", 9),
            ):
                state = remember(state, event, HistoryLimits())
                past_entries += history_entries(event, state)
            assert len(past_entries) == 3
            await write(small_store, entries=past_entries)
        found = await small_store.history(APP)
        newest = 3 * SMALL_HISTORY - 1
        assert [(line.plan_id, line.outcome) for line in found] == [
            (plan(cycle, 4).id, "verified" if cycle % 2 else "applying")
            for cycle in range(newest, newest - SMALL_HISTORY, -1)
        ]
        assert await small_store.history(OTHER) == []
        await write(small_store, entries=[(OTHER, found[0])])
        await write(small_store, forgotten=[APP])
        assert await small_store.history(APP) == []
        assert await small_store.history(OTHER) == found[:1]

    async def test_an_imported_history_is_added_behind_the_own_once(self, store: Store) -> None:
        """Lines that are older than what is stored take their places by time, and the same line again changes nothing."""
        state, lines = State(application=APP), list[HistoryEntry]()
        for cycle in (1, 2, 3):
            state = remember(state, plan(cycle, 4), HistoryLimits())
            lines += [line for _, line in history_entries(plan(cycle, 4), state)]
        await write(store, entries=[(APP, lines[2])])
        for _ in range(2):
            await write(store, entries=[(APP, line) for line in lines[:2]])
            assert await store.history(APP) == lines[::-1]

    async def test_a_feed_is_resumed_where_it_was_left(self, store: Store) -> None:
        """Ids order all events; a reader that continues from the last gets each once."""
        await write(store, events=[("observation", APP, '{"n": 1}'), ("plan", APP, '{"n": 2}')])
        await write(store, events=[("outcome", OTHER, '{"n": 3}')])
        everything = await store.events("0")
        assert [(e.kind, e.application, e.data) for e in everything] == [
            ("observation", APP, '{"n": 1}'),
            ("plan", APP, '{"n": 2}'),
            ("outcome", OTHER, '{"n": 3}'),
        ]
        assert await store.newest_event() == everything[-1].id
        first = await store.events("0", count=1)
        assert first == everything[:1]
        assert await store.events(first[0].id) == everything[1:]
        assert await store.events(everything[-1].id) == []

    async def test_a_feed_waits_for_what_comes_next(self, store: Store) -> None:
        """It wakes when something is saved, long before its time is up; without anything it returns empty."""
        assert await store.events("0", wait_seconds=0.05) == []
        waiting = asyncio.create_task(store.events(await store.newest_event(), wait_seconds=30))
        await asyncio.sleep(0.01)
        await write(store, events=[("plan", APP, "{}")])
        async with asyncio.timeout(5):
            assert [event.kind for event in await waiting] == ["plan"]

    async def test_a_feed_keeps_within_its_bytes(self, small_store: Store) -> None:
        """Three times as much as there is room for, in events of 100 B, then of 20 kB: the newest stay, in order and
        without a gap; a reader of a deleted one continues with the oldest."""
        sizes = [100] * 600 + [20_000] * 60
        for i, size in enumerate(sizes):
            await write(small_store, events=[("plan", APP, noise(size, i))])
        kept = await small_store.events("0-1", count=1000)
        assert [event.data for event in kept] == [
            noise(size, i) for i, size in list(enumerate(sizes))[len(sizes) - len(kept) :]
        ]
        assert 0.5 * SMALL_BYTES < sum(len(event.data) for event in kept) < 2 * SMALL_BYTES
        assert await small_store.newest_event() == kept[-1].id
        assert await small_store.events(kept[-2].id) == kept[-1:]

    async def test_a_feed_keeps_within_its_number(self, small_store: Store) -> None:
        """The number bounds small events, to about a hundred."""
        for begin in range(0, 1200, 100):
            await write(small_store, events=[("plan", APP, str(begin + i)) for i in range(100)])
        kept = await small_store.events("0", count=2000)
        assert SMALL_COUNT <= len(kept) <= SMALL_COUNT + 200
        assert kept[-1].data == "1199"

    async def test_what_is_long_comes_back_as_it_was(self, store: Store) -> None:
        """Whatever is in it, in the feed and in a state."""
        texts = [f'{{"é": "{text * 200}"}}' for text in ("a", "\u00fc\u4e2d\U0001f600", "\x7f", "x y ")]
        await write(store, events=[("plan", APP, data) for data in texts])
        assert [event.data for event in await store.events("0")] == texts
        view, long = View(store, PARTITIONS), plan(1, 4, sentence="ü\U0001f600 " * 50)
        state = remember(State(application=APP), long, HistoryLimits())
        await save(store, None, state, documents(long))
        assert await view.state(APP) == state
        assert (await view.newest(APP) or Newest(application=APP)).plan == long

    async def test_a_history_ends_with_its_age(self, small_store: Store) -> None:
        """Counted from its newest cycle; exactly at the limit one is still kept."""
        lines = [
            plan(0).in_short(None, None).model_copy(update={"at": at(cycle), "plan_id": plan(cycle).id})
            for cycle in range(5)
        ]
        late = lines[0].model_copy(
            update={"at": lines[1].at + timedelta(seconds=SMALL_AGE_SECONDS), "plan_id": plan(9).id}
        )
        await write(small_store, entries=[(APP, line) for line in lines])
        assert await small_store.history(APP) == lines[::-1]
        await write(small_store, entries=[(APP, late)])
        assert await small_store.history(APP) == [late, *lines[:0:-1]]

    async def test_a_full_one_is_still_read(self, store: Store, fill: Fill) -> None:
        """A batch that needs room is refused completely, with its position; reads succeed, and with room again the same
        batch is applied."""
        line = plan(1, 4).in_short(None, None)
        await store.apply(
            batch(None, 1, changed={POLICY: {"text": "{}"}}, events=[("plan", APP, "{}")], entries=[(APP, line)])
        )
        await fill(True)
        with pytest.raises(StoreFull, match="full"):
            await store.check_room()
        await store.ping()
        another = line.model_copy(update={"plan_id": SPACE})
        changes: list[dict[str, Any]] = [
            {"changed": {POLICY: {"text": LONG}}},
            {"events": [("plan", APP, "[]")]},
            {"entries": [(APP, another)]},
            {},
        ]
        for each in changes:
            with pytest.raises(StoreFull):
                await store.apply(batch(1, 2, **each))
        assert await store.applied([0]) == {0: position(1)}
        assert await store.get([POLICY], complete=[0]) == {POLICY: {"text": "{}"}}
        assert [event.data for event in await store.events("0")] == ["{}"]
        assert await store.history(APP) == [line]
        await fill(False)
        await store.check_room()
        await store.apply(batch(1, 2, changed={POLICY: {"text": LONG}}, events=[("plan", APP, "[]")]))
        assert await store.get([POLICY]) == {POLICY: {"text": LONG}}
        assert [event.data for event in await store.events("0")] == ["{}", "[]"]
