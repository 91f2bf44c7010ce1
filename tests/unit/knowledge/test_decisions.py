"""Decisions in the order of the log: versions, owners and targets are decided by it alone, whatever the order of requests."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.knowledge.builders import APP, NOON, action, plan, policy
from tests.unit.knowledge.log_model import Fault, Rule, World
from weir_contracts import Answer, Change, ScalingPolicy, policy_of
from weir_contracts.document import MAX_ANNOTATIONS
from weir_contracts.resource import RELEASE
from weir_engines.registry import claims
from weir_knowledge.decisions import BECAUSE, Log, decide, is_expired, with_metadata
from weir_runtime import loop

OTHER, THIRD = "shop/payments", "shop/returns"


def change(kind: str, application: str = APP, **given: Any) -> Change:
    """A request of a user of the REST API."""
    return Change(id=uuid4(), kind=kind, application=application, caller="ann", at=NOON, **given)  # type: ignore[arg-type]


def put(application: str = APP, job: str = "orders", **given: Any) -> Change:
    target = {"flink": {"url": "http://jm:8081", "job": job}}
    return change("put", application, policy=policy(application, application=target), **given)


def decided(*changes: Change, log: Log | None = None, at: int = 1000) -> tuple[Log, list[Answer]]:
    """Decide several changes that the log got in one millisecond."""
    log, answers = log or Log(), []
    for each in changes:
        log, answer = decide(log, each, at)
        assert answer.change_id == each.id
        answers.append(answer)
    return log, answers


def refusal(answer: Answer) -> tuple[object, ...]:
    return answer.refused, answer.policy, answer.rival


def test_of_two_writers_the_first_in_the_log_wins() -> None:
    """Both have read that there is none; the second learns the policy of the first."""
    log, (first, second) = decided(put(expected=0), put(job="b", expected=0))
    assert (first.refused, first.version, first.was_created) == (None, 1000, True)
    assert refusal(second) == ("conflict", log.policies[APP], None)


def test_a_group_that_lost_its_target_resumes_to_advise() -> None:
    """It acted before it was paused; then its policy was written without a target, and nothing can scale it."""
    spec = {"application": {"consumerGroup": {"groupId": "orders"}}, "objective": {"maxLag": "30s"}, "mode": "paused"}
    signals = {"kafka": {"bootstrapServers": "kafka:9092"}}
    paused = with_metadata(policy_of(APP, signals=signals, **spec), mode_before_pause="act")
    log, _ = decided(change("put", policy=paused), change("resume"))
    assert log.policies[APP].spec.mode == "advise"


def test_versions_are_unique_and_grow_though_the_clock_stands_or_goes_back() -> None:
    """Changes of one millisecond, then of an earlier one, over all applications; a deletion is a version as well."""
    log, found = decided(put(), put(OTHER, job="b"), change("delete"))
    assert [each.version for each in found] == [1000, 1001, 1002]
    log, (again,) = decided(put(), log=log, at=10)
    assert again.version == 1003


def test_a_target_has_one_policy_until_it_is_given_up() -> None:
    """The second is refused with the name of the first, and accepted once that is deleted."""
    log, (_, second) = decided(put(), put(OTHER))
    assert refusal(second) == ("taken", None, APP)
    _, (_, third) = decided(change("delete"), put(OTHER), log=log)
    assert third.refused is None


def test_the_same_document_again_is_no_new_version() -> None:
    """A caller that got no answer sends its change again."""
    log, (_, again) = decided(put(), put())
    assert (*refusal(again), again.version) == (None, log.policies[APP], None, None)


def test_a_pause_holds_for_whatever_policy_is_in_force() -> None:
    """It names no version, so no change of another writer is in its way; resuming gives the mode of before."""
    acts = change("put", policy=policy(mode="act"))
    log, _ = decided(acts, change("put", policy=policy(mode="act", interval="20s")), change("pause"), change("pause"))
    paused = log.policies[APP]
    assert (paused.spec.mode, paused.metadata.mode_before_pause) == ("paused", "act")
    assert paused.spec.interval.total_seconds() == 20
    log, _ = decided(change("resume"), log=log)
    assert log.policies[APP].spec.mode == "act"
    assert refusal(decided(change("pause", OTHER))[1][0]) == ("missing", None, None)


def test_a_pause_with_a_reason_leaves_a_policy_that_can_be_read() -> None:
    """The reason is an annotation beside the user's own, and is left out where these are as many as there may be."""
    for count in (1, MAX_ANNOTATIONS):
        own = {f"team.dev/{n}": "x" for n in range(count)}
        written = with_metadata(policy(), annotations=own)
        log, _ = decided(change("put", policy=written), change("pause", reason="migration"))
        paused = log.policies[APP]
        assert type(paused).model_validate_json(paused.model_dump_json()) == paused
        expected = {} if count == MAX_ANNOTATIONS else {BECAUSE: "migration"}
        assert paused.metadata.annotations == own | expected
        log, _ = decided(change("resume", reason="done"), log=log)
        assert log.policies[APP].metadata.annotations == own | ({BECAUSE: "done"} if expected else {})


def test_the_newest_reason_of_a_pause_counts() -> None:
    """Pausing again replaces it, with the caller and the time; without one, or with the same, nothing changes. Resuming a policy that
    is not paused has nothing to give a reason for."""
    log, _ = decided(put(), change("pause", reason="migration"))
    log, (said, kept, again) = decided(
        change("pause", reason="incident"), change("pause"), change("pause", reason="incident"), log=log
    )
    paused = log.policies[APP]
    assert said.version == paused.metadata.version and (kept.version, again.version) == (None, None)
    assert paused.metadata.annotations == {BECAUSE: "incident"}
    log, _ = decided(change("resume"), log=log)
    assert (log.policies[APP].spec.mode, log.policies[APP].metadata.annotations) == ("advise", {})
    assert decided(change("resume", reason="late"), log=log)[0].policies[APP].metadata.annotations == {}


def test_a_policy_has_one_owner_who_alone_gives_it_away() -> None:
    """A resource takes a policy of the REST API only with its annotation; the REST API one of a resource that is gone."""
    log, (_, refused) = decided(put(), put(job="b", owner="resource"))
    assert refusal(refused) == ("owned", log.policies[APP], None)
    released = with_metadata(policy(), annotations={RELEASE: "true"})
    from_resource = with_metadata(policy(), owner="resource")
    log, (_, taken) = decided(change("put", policy=released), change("put", policy=from_resource, owner="resource"))
    assert taken.refused is None and not taken.was_created
    assert refusal(decided(change("delete"), log=log)[1][0]) == ("owned", log.policies[APP], None)
    assert decided(change("delete", owners_policy_is_free=True), log=log)[0].policies == {}


def test_an_action_replaces_the_one_that_was_read() -> None:
    """Two executors that have read the same: the first in the log acts."""
    first, second = action(plan(1)), action(plan(2))
    acts = [change("action", action=each, expected=0) for each in (first, second)]
    log, (_, _, refused) = decided(put(), *acts)
    assert (refused.refused, refused.action) == ("conflict", first)
    assert log.actions == {APP: first}


def test_a_deleted_policy_takes_its_action_along() -> None:
    """A policy of that name that comes later has none, and an executor of before writes none."""
    log, _ = decided(put(), change("action", action=action(plan(1)), expected=0), change("delete"))
    assert log.actions == {}
    for expected in (0, 1):
        late = change("action", action=action(plan(1)), expected=expected)
        assert decided(late, log=log)[1][0].refused == "missing"


def test_what_the_log_lost_is_decided_again_unless_it_has_something_newer() -> None:
    """A view still has it; whoever owned the policy, and however long it waited."""
    log, _ = decided(put(), at=5000)
    older = put(job="b", again=4000)
    assert decided(older, log=log)[1][0].refused == "conflict"
    newer = change("put", policy=with_metadata(policy(), owner="resource"), again=6000)
    log, (taken,) = decided(newer, log=log, at=7000)
    assert (taken.refused, taken.version) == (None, 7000)
    assert decided(change("delete", expected=7000, again=8000), log=log)[0].policies == {}
    assert not is_expired(newer, NOON, NOON + timedelta(hours=1))
    assert is_expired(put(), NOON, NOON + timedelta(seconds=31))


def test_of_two_policies_of_a_target_the_newer_one_stays() -> None:
    """The topic lost the deletion of the older one."""
    target = {"flink": {"url": "http://jm:8081", "job": "orders"}}
    both = {name: policy(name, version=n, application=target) for name, n in ((APP, 2), (OTHER, 3), (THIRD, 1))}
    assert Log.of(both, {}).displaced() == [APP, THIRD]
    assert Log.of({APP: both[APP]}, {}).displaced() == []


names = st.sampled_from([APP, OTHER, THIRD])
jobs = st.sampled_from(["a", "b", "c"])
expectations = st.sampled_from([None, 0, 1000, 1001, 1002])
requests = st.one_of(
    st.builds(put, names, jobs, expected=expectations, owner=st.sampled_from(["rest", "resource"])),
    st.builds(change, st.sampled_from(["delete", "pause", "resume"]), names, expected=expectations),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(requests, max_size=12))
def test_whatever_is_requested_the_log_stays_whole(changes: list[Change]) -> None:
    """No two policies of a target, no version twice; what is refused changes nothing, and what is accepted is its
    decision's policy."""
    log, versions = Log(), list[int]()
    for each in changes:
        before, (log, answer) = log, decide(log, each, 1000)
        if answer.version is None:
            assert log is before
        else:
            assert answer.refused is None
            versions.append(answer.version)
            assert log.policies.get(each.application) == answer.policy
        _assert_no_target_is_shared(log.policies.values())
    assert versions == sorted(set(versions))


def _assert_no_target_is_shared(policies: Any) -> None:
    found: list[ScalingPolicy] = list(policies)
    claimed = [claim for each in found for claim in claims(each.subject)]
    assert len(claimed) == len(set(claimed))


@pytest.mark.parametrize("kind", ["put", "delete", "pause", "resume"])
def test_what_is_decided_twice_is_decided_alike(kind: str) -> None:
    """The next owner decides what the one before could not commit: from the same log it comes to the same."""
    log, _ = decided(put(), put(OTHER, job="b"))
    request = put(job="c") if kind == "put" else change(kind)
    assert decide(log, request, 2000) == decide(log, request, 2000)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once: what happens meanwhile is the schedule's."""
    monkeypatch.setattr(loop, "MIN_BACKOFF_SECONDS", 0.0)


FAULTS: list[tuple[Fault, ...]] = [
    (),
    ("emptied view",),
    ("emptied view", "cut changes"),
    ("emptied view", "cut policies"),
    ("emptied view", "cut changes", "cut policies"),
]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: ", ".join(faults) or "none")
async def test_no_schedule_of_crashes_breaks_the_log(faults: tuple[Fault, ...]) -> None:
    """Requests, decisions, transactions and the view in any order, with kills, owners that do not know of their loss,
    an emptied view and lost ends of topics: three schedules of 150 steps."""
    for seed in range(3):
        await World(seed, faults).run()


@pytest.mark.thorough
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: ", ".join(faults) or "none")
async def test_no_schedule_of_five_hundred_breaks_the_log(faults: tuple[Fault, ...]) -> None:
    """The same, a hundred schedules for each kind of loss."""
    for seed in range(100, 200):
        await World(seed, faults).run()


@pytest.mark.thorough
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("rule", ["fencing", "reading from the beginning", "comparing positions"])
async def test_the_schedules_find_a_missing_rule(rule: Rule) -> None:
    """Each rule of the decision record is needed: without it some schedule breaks an invariant."""
    for seed in range(200):
        try:
            await World(seed, FAULTS[-1], without=rule).run()
        except AssertionError:
            return
    pytest.fail(f"no schedule needs {rule}")
