"""The suite of every store: the memory store and a real Redis."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.knowledge.builders import (
    APP,
    ATTEMPT,
    SPACE,
    action,
    analysis,
    at,
    document,
    documents,
    observation,
    outcome,
    plan,
    policy,
)
from weir_contracts import ScalingPolicy
from weir_knowledge.core import HistoryEntry, HistoryLimits, Newest, State, history_entries, remember
from weir_knowledge.store import OutboxEntry, Store, StoreFull, StoreUnavailable, TargetTaken, VersionConflict

OTHER = "shop/payments"
TWIN = {"flink": {"url": "http://JM:8081/", "job": "a"}}
"""The job a of http://jm:8081, written in another way."""
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


def outline(entries: list[OutboxEntry]) -> list[tuple[str, bool]]:
    """Return each entry's application and whether it is a deletion."""
    return [(entry.application, entry.value is None) for entry in entries]


class StoreSuite:
    """Subclass it with the fixtures `store`, empty; `small_store`, empty, whose feed keeps `SMALL_COUNT` events of
    `SMALL_BYTES` together, and histories `SMALL_HISTORY` cycles for `SMALL_AGE_SECONDS`; and `fill`, which takes the
    room for more from `store` or gives it back."""

    async def test_it_answers(self, store: Store) -> None:
        """An empty store answers, and knows nothing: not zero of something, nothing."""
        await store.ping()
        assert await store.policy(APP) is None
        assert await store.policies() == []
        assert await store.state(APP) is None
        assert await store.states([APP, OTHER]) == {APP: None, OTHER: None}
        assert await store.newest(APP) is None
        assert await store.action(APP) is None
        assert await store.applications() == []
        assert await store.outbox() == []
        assert await store.events("0") == []
        assert await store.newest_event() == "0-0"

    async def test_a_policy_comes_back_as_it_was_written(self, store: Store) -> None:
        """Fields that its user left out stay out."""
        await store.put_policy(policy(), None)
        found = await store.policy(APP)
        assert found is not None
        shown = found.to_document()
        assert shown["spec"] == document()["spec"]
        assert shown["metadata"].keys() == {"namespace", "name", "version", "updatedAt"}
        assert [p.application for p in await store.policies()] == [APP]

    async def test_a_policy_is_written_by_a_reader_of_its_version(self, store: Store) -> None:
        """Version 0 requires that none exists; the second writer gets the stored one, and publishes nothing."""
        await store.put_policy(policy(version=1), 0)
        with pytest.raises(VersionConflict) as again:
            await store.put_policy(policy(version=1), 0)
        assert again.value.current == await store.policy(APP)
        await store.put_policy(policy(version=2), 1)
        with pytest.raises(VersionConflict):
            await store.put_policy(policy(version=2), 1)
        with pytest.raises(VersionConflict) as none:
            await store.put_policy(policy(OTHER, version=4), 3)
        assert none.value.current is None
        assert outline(await store.outbox()) == [(APP, False), (APP, False)]

    async def test_versions_are_numbers_and_not_texts(self, store: Store) -> None:
        """9 is before 10, and 1,000,000 is itself, as is a number of sixteen digits."""
        await store.put_policy(policy(version=9), None)
        await store.published(await store.outbox())
        await store.restore_policy(policy(version=10))
        assert (await _version(store)) == 10
        await store.put_policy(policy(version=1_000_000), 10)
        await store.put_policy(policy(version=1_000_001), 1_000_000)
        assert (await _version(store)) == 1_000_001
        await store.put_policy(policy(version=2**52 + 3), 1_000_001)
        await store.put_policy(policy(version=2**52 + 4), 2**52 + 3)
        assert (await _version(store)) == 2**52 + 4

    async def test_one_of_several_writers_wins(self, store: Store) -> None:
        """20 that have read the same version: 1 is stored, 19 get the conflict."""
        await store.put_policy(policy(version=1), 0)
        results = await asyncio.gather(
            *(store.put_policy(policy(version=2), 1) for _ in range(20)), return_exceptions=True
        )
        assert [r for r in results if r is None] == [None]
        assert sum(isinstance(r, VersionConflict) for r in results) == 19
        assert len(await store.outbox()) == 2

    async def test_a_deletion_is_a_change_like_others(self, store: Store) -> None:
        """It is refused without the newest version, published once, and deleting nothing publishes nothing."""
        await store.put_policy(policy(version=1), 0)
        with pytest.raises(VersionConflict):
            await store.delete_policy(APP, 7)
        assert await store.delete_policy(APP, 1)
        assert await store.policy(APP) is None
        assert not await store.delete_policy(APP, None)
        assert outline(await store.outbox()) == [(APP, False), (APP, True)]

    async def test_a_target_has_one_policy(self, store: Store) -> None:
        """The second is refused with the first's name; the first may be changed. A moved or deleted one
        frees its target."""
        one, other = {"application": {"flink": {"url": "http://jm:8081", "job": "a"}}}, {"application": TWIN}
        await store.put_policy(policy(APP, **one), 0)
        with pytest.raises(TargetTaken) as refused:
            await store.put_policy(policy(OTHER, **other), 0)
        assert refused.value.application == APP
        assert await store.policy(OTHER) is None
        await store.put_policy(policy(APP, version=2, **other), 1)
        await store.put_policy(policy(APP, version=3, application={"flink": {"url": "http://jm:8081", "job": "b"}}), 2)
        await store.put_policy(policy(OTHER, **one), 0)
        with pytest.raises(TargetTaken):
            await store.put_policy(policy(APP, version=4, **one), 3)
        assert await store.delete_policy(OTHER, 1)
        await store.put_policy(policy(APP, version=4, **one), 3)
        texts = outline(await store.outbox())
        assert texts == [(APP, False)] * 3 + [(OTHER, False), (OTHER, True), (APP, False)]

    async def test_of_several_policies_for_one_target_one_is_stored(self, store: Store) -> None:
        """Written at the same moment: 1 is stored and published, 11 get its name."""
        names = [f"shop/orders-{i}" for i in range(12)]
        results = await asyncio.gather(
            *(store.put_policy(policy(name, application=TWIN), 0) for name in names), return_exceptions=True
        )
        (stored,) = [p.application for p in await store.policies()]
        assert [name for name, result in zip(names, results, strict=True) if result is None] == [stored]
        assert {r.application for r in results if isinstance(r, TargetTaken)} == {stored}
        assert sum(isinstance(r, TargetTaken) for r in results) == 11
        assert outline(await store.outbox()) == [(stored, False)]

    async def test_two_policies_for_one_target_that_are_there_can_be_changed(self, store: Store) -> None:
        """An earlier version took both: each can be paused and deleted, and none taken again."""
        await store.restore_policy(policy(APP, application=TWIN))
        await store.restore_policy(policy(OTHER, application=TWIN))
        await store.put_policy(policy(OTHER, version=2, application=TWIN, mode="paused"), 1)
        assert await store.delete_policy(OTHER, 2)
        with pytest.raises(TargetTaken):
            await store.put_policy(policy(OTHER, version=3, application=TWIN), 0)

    async def test_the_outbox_keeps_its_order_until_each_is_published(self, store: Store) -> None:
        """Oldest first; only what was acknowledged goes, and what came meanwhile stays behind it."""
        await store.put_policy(policy(APP), None)
        await store.put_policy(policy(OTHER), None)
        await store.delete_policy(APP, None)
        entries = await store.outbox()
        assert outline(entries) == [(APP, False), (OTHER, False), (APP, True)]
        assert outline(await store.outbox(count=1)) == [(APP, False)]
        assert await store.outbox_size() == 3
        await store.published(entries[:1])
        await store.put_policy(policy(APP, version=3), None)
        assert outline(await store.outbox()) == [(OTHER, False), (APP, True), (APP, False)]
        await store.published([])
        await store.published(await store.outbox())
        assert await store.outbox() == []

    async def test_restoring_keeps_what_is_newer_and_publishes_nothing(self, store: Store) -> None:
        """The topic may be behind the store, never the other way round without a loss of data."""
        await store.put_policy(policy(version=3), None)
        await store.published(await store.outbox())
        await store.restore_policy(policy(version=2))
        await store.restore_policy(policy(version=3))
        assert await _version(store) == 3
        await store.restore_policy(policy(version=5))
        assert await _version(store) == 5
        await store.restore_policy(policy(OTHER, version=1))
        assert await store.applications() == [APP, OTHER]
        assert await store.outbox() == []

    async def test_a_deletion_is_newer_than_its_policy(self, store: Store) -> None:
        """It has an own version, also where the clock is behind; restoring what it deleted, or writing no newer policy,
        is refused, and the next policy takes its place."""
        await store.put_policy(policy(version=5), None)
        await store.delete_policy(APP, 5, 4)
        assert (await store.deletion(APP), await store.deletions()) == (6, {APP: 6})
        await store.restore_policy(policy(version=5))
        with pytest.raises(VersionConflict):
            await store.put_policy(policy(version=6), 0)
        assert await store.policy(APP) is None
        await store.put_policy(policy(version=7), 0)
        assert await store.deletion(APP) is None
        await store.restore_policy(policy(version=5))
        assert await _version(store) == 7
        await store.delete_policy(APP, 7, 1_767_268_800_000)
        assert await store.deletion(APP) == 1_767_268_800_000
        entries = await store.outbox()
        assert [entry.version for entry in entries] == [None, 6, None, 1_767_268_800_000]
        assert entries[1].deleted is not None
        assert ScalingPolicy.model_validate_json(entries[1].deleted) == policy(version=5)

    async def test_a_deletion_is_restored_unless_the_policy_is_newer(self, store: Store) -> None:
        """As it was published; nothing is published for it, and it is forgotten by its version."""
        await store.put_policy(policy(version=5), None)
        await store.put_policy(policy(OTHER, version=9), None)
        await store.published(await store.outbox())
        await store.restore_deletion(APP, 6)
        await store.restore_deletion(OTHER, 8)
        assert [p.application for p in await store.policies()] == [OTHER]
        assert await store.deletions() == {APP: 6}
        await store.restore_deletion(APP, 4)
        assert await store.deletion(APP) == 6
        assert await store.outbox() == []
        await store.forget_deletions(6)
        assert await store.deletion(APP) == 6
        await store.forget_deletions(7)
        assert await store.deletion(APP) is None

    async def test_what_is_stored_is_published_again(self, store: Store) -> None:
        """The policy, or its deletion, whose end was published before; nothing for an unknown policy."""
        await store.put_policy(policy(version=5), None)
        await store.put_policy(policy(OTHER, version=9), None)
        await store.delete_policy(APP, None)
        await store.published(await store.outbox())
        for application in (APP, OTHER, "shop/unknown"):
            await store.publish_again(application)
        entries = await store.outbox()
        assert outline(entries) == [(APP, True), (OTHER, False)]
        assert (entries[0].version, entries[0].deleted) == (6, None)

    async def test_what_is_left_of_an_application_is_found(self, store: Store) -> None:
        """Without a policy, whatever it is: with the time of its newest message, or None."""
        await store.put_policy(policy(OTHER), None)
        for name in (APP, OTHER):
            state = remember(
                remember(State(application=name), observation(1, name), HistoryLimits()),
                plan(2, 4, name),
                HistoryLimits(),
            )
            await store.save([state], [])
        await store.put_action(action(plan(1, application="shop/acted")), 0)
        await store.save([], [], [("shop/past", plan(1, 4).in_short(None, None))])
        nameless = ("shop/acted", "shop/past")
        assert await store.leftovers() == {APP: at(2)} | dict.fromkeys(nameless)
        for name in (APP, *nameless):
            await store.forget(name)
        assert await store.leftovers() == {}

    async def test_states_are_saved_and_forgotten(self, store: Store) -> None:
        """With its state an application's action is forgotten; other applications keep theirs."""
        states = [remember(State(application=name), observation(1, name), HistoryLimits()) for name in (APP, OTHER)]
        await store.save(states, [], newest={APP: documents(observation(1))})
        await store.put_action(action(plan(1)), 0)
        assert await store.state(APP) == states[0]
        await store.forget(APP)
        assert await store.states([APP, OTHER]) == {APP: None, OTHER: states[1]}
        assert await store.newest(APP) is None
        assert await store.action(APP) is None
        assert await store.applications() == [OTHER]

    async def test_a_state_comes_back_as_it_grew(self, store: Store) -> None:
        """Forty cycles, of which few are kept, with outcomes and late readings: after each message the entire state is
        as computed."""
        limits, current_state = HistoryLimits(cycles_count=5), State(application=APP)
        for cycle in range(1, 41):
            decided = plan(cycle, wanted=None if cycle % 3 else 1 + cycle % 5)
            for event in (
                observation(cycle),
                analysis(cycle),
                decided,
                *([] if cycle % 3 else [outcome(decided, "verified")]),
            ):
                current_state = remember(current_state, event, limits)
                await store.save([current_state], [])
                found = await store.state(APP)
                assert found == current_state
                current_state = found
        assert len(current_state.cycles) == 5

    async def test_the_newest_of_each_kind_are_kept(self, store: Store) -> None:
        """Each is what was last given; an application without one knows its name, and after its end nothing of before
        comes back."""
        current_state = State(application=APP)
        await store.save([current_state], [])
        assert await store.newest(APP) == Newest(application=APP)
        assert await store.newest(OTHER) is None
        scale = plan(1, 4)
        given = [observation(1), analysis(1), scale, outcome(scale, "intended"), observation(2)]
        for message in given:
            await store.save([current_state], [], newest={APP: documents(message)})
        expected = Newest(application=APP, observation=given[4], analysis=given[1], plan=scale, outcome=given[3])
        assert await store.newest(APP) == expected
        await store.save([current_state], [("plan", APP, "{}")])
        assert await store.newest(APP) == expected
        await store.forget(APP)
        await store.save([current_state], [], newest={APP: documents(observation(3))})
        assert await store.newest(APP) == Newest(application=APP, observation=observation(3))

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
            await small_store.save([state], [], past_entries)
        found = await small_store.history(APP)
        newest = 3 * SMALL_HISTORY - 1
        assert [(line.plan_id, line.outcome) for line in found] == [
            (plan(cycle, 4).id, "verified" if cycle % 2 else "applying")
            for cycle in range(newest, newest - SMALL_HISTORY, -1)
        ]
        assert await small_store.history(OTHER) == []
        await small_store.save([], [], [(OTHER, found[0])])
        await small_store.forget(APP)
        assert await small_store.history(APP) == []
        assert await small_store.history(OTHER) == found[:1]

    async def test_an_action_is_replaced_by_a_reader_of_its_version(self, store: Store) -> None:
        """Compare-and-swap: the loser gets the stored action, so that it can recognise its own attempt."""
        await store.put_action(action(plan(1), version=1), 0)
        with pytest.raises(VersionConflict) as conflict:
            await store.put_action(action(plan(1), version=1, attempt_id=SPACE), 0)
        assert conflict.value.current == action(plan(1), version=1)
        assert action(plan(1)).attempt_id == ATTEMPT
        await store.put_action(action(plan(1), version=2, phase="verifying"), 1)
        with pytest.raises(VersionConflict) as missing:
            await store.put_action(action(plan(1, application=OTHER), version=2), 1)
        assert missing.value.current is None
        found = await store.action(APP)
        assert found is not None and (found.version, found.phase) == (2, "verifying")

    async def test_a_feed_is_resumed_where_it_was_left(self, store: Store) -> None:
        """Ids order all events; a reader that continues from the last gets each once."""
        await store.save([], [("observation", APP, '{"n": 1}'), ("plan", APP, '{"n": 2}')])
        await store.save([], [("outcome", OTHER, '{"n": 3}')])
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
        await store.save([], [("plan", APP, "{}")])
        async with asyncio.timeout(5):
            assert [event.kind for event in await waiting] == ["plan"]

    async def test_a_feed_keeps_within_its_bytes(self, small_store: Store) -> None:
        """Three times as much as there is room for, in events of 100 B, then of 20 kB: the newest stay, in order and
        without a gap; a reader of a deleted one continues with the oldest."""
        sizes = [100] * 600 + [20_000] * 60
        for i, size in enumerate(sizes):
            await small_store.save([], [("plan", APP, noise(size, i))])
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
            await small_store.save([], [("plan", APP, str(begin + i)) for i in range(100)])
        kept = await small_store.events("0", count=2000)
        assert SMALL_COUNT <= len(kept) <= SMALL_COUNT + 200
        assert kept[-1].data == "1199"

    async def test_what_is_long_comes_back_as_it_was(self, store: Store) -> None:
        """Whatever is in it, in the feed and in a state."""
        texts = [f'{{"é": "{text * 200}"}}' for text in ("a", "\u00fc\u4e2d\U0001f600", "\x7f", "x y ")]
        await store.save([], [("plan", APP, data) for data in texts])
        assert [event.data for event in await store.events("0")] == texts
        long = plan(1, 4, sentence="ü\U0001f600 " * 50)
        current_state = remember(State(application=APP), long, HistoryLimits())
        await store.save([current_state], [], newest={APP: documents(long)})
        assert await store.state(APP) == current_state
        assert (await store.newest(APP) or Newest(application=APP)).plan == long

    async def test_a_history_ends_with_its_age(self, small_store: Store) -> None:
        """Counted from its newest cycle; exactly at the limit one is still kept."""
        lines = [
            plan(0).in_short(None, None).model_copy(update={"at": at(cycle), "plan_id": plan(cycle).id})
            for cycle in range(5)
        ]
        late = lines[0].model_copy(
            update={"at": lines[1].at + timedelta(seconds=SMALL_AGE_SECONDS), "plan_id": plan(9).id}
        )
        await small_store.save([], [], [(APP, line) for line in lines])
        assert await small_store.history(APP) == lines[::-1]
        await small_store.save([], [], [(APP, late)])
        assert await small_store.history(APP) == [late, *lines[:0:-1]]

    async def test_a_full_one_is_still_read(self, store: Store, fill: Fill) -> None:
        """A write that needs room is refused completely; reads and deletions succeed, and with room again writes as
        well."""
        first = remember(State(application=APP), observation(1), HistoryLimits())
        then = remember(first, plan(1), HistoryLimits())
        await store.put_policy(policy(version=1), 0)
        await store.put_action(action(plan(1), version=1), 0)
        line = plan(1, 4).in_short(None, None)
        await store.save([first], [("plan", APP, "{}")], [(APP, line)])
        await store.check_room()
        await fill(True)
        with pytest.raises(StoreFull, match="full"):
            await store.check_room()
        await store.ping()
        for write in (
            store.save([then], [("plan", APP, "{}")], newest={APP: documents(plan(1))}),
            store.put_policy(policy(version=2), 1),
            store.restore_policy(policy(OTHER)),
            store.put_action(action(plan(1), version=2), 1),
            store.save([], [], [(APP, line.model_copy(update={"plan_id": SPACE}))]),
            store.mark_complete(),
        ):
            with pytest.raises(StoreFull):
                await write
        assert await _version(store) == 1
        assert await store.state(APP) == first
        assert await store.newest(APP) == Newest(application=APP)
        assert (await store.action(APP) or action(plan(1), version=0)).version == 1
        assert [event.data for event in await store.events("0")] == ["{}"]
        assert await store.history(APP) == [line]
        await store.published(await store.outbox())
        assert await store.delete_policy(APP, None)
        await store.forget(OTHER)
        await fill(False)
        await store.check_room()
        await store.save([then], [("plan", APP, "[]")])
        assert await store.state(APP) == then
        assert [event.data for event in await store.events("0")] == ["{}", "[]"]

    async def test_an_emptied_one_takes_no_policy(self, empty_store: Store) -> None:
        """Until it has the topics' data again and is marked: a policy still to be restored may have a higher version, by
        a clock that was ahead, or another owner, and an accepted write would be lost to it."""
        assert not await empty_store.is_complete()
        for write in (empty_store.put_policy(policy(version=1), 0), empty_store.delete_policy(APP, None)):
            with pytest.raises(StoreUnavailable, match=r"compared with the topics.* try again"):
                await write
        await empty_store.restore_policy(policy(version=5))
        await empty_store.mark_complete()
        assert await empty_store.is_complete()
        with pytest.raises(VersionConflict):
            await empty_store.put_policy(policy(version=1), 0)
        assert await empty_store.outbox() == []


async def _version(store: Store) -> int | None:
    found = await store.policy(APP)
    assert found is not None
    return found.metadata.version
