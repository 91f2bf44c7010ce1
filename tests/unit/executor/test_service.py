"""Stories of the executor with everything around it in memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from tests.unit.executor.builders import BEFORE, NOON, TOPOLOGY, WANTED, action, analysis, operator_analysis
from tests.unit.executor.house import APP, TRACE, House
from weir_contracts import Analysis, DeadLetter, DeploymentRef, Outcome, Parallelism, Plan, example
from weir_contracts.base import MAX_ORDER
from weir_contracts.topics import DEAD_LETTERS, OUTCOMES, PLANS, POLICIES
from weir_engines.driver import Rejected, Snapshot
from weir_executor import effects
from weir_executor.service import REFUSED_PAUSE_SECONDS
from weir_runtime.bus import BusError, Outgoing, partition_of
from weir_runtime.messages import TooLarge, encode, new_traceparent

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    await made.start()
    yield made
    await made.end()


async def test_a_plan_is_applied_and_verified(house: House) -> None:
    """An outcome for each transition, in the order of effects; restart time, trace and the action in knowledge."""
    the_plan = await house.plan()
    await house.until(house.ended("verified"))
    assert house.phases() == ["intended", "applying", "verifying", "verifying", "verified"]
    last = house.published()[-1]
    assert (last.plan_id, last.observation_id) == (the_plan.id, the_plan.observation_id)
    assert last.restart_seconds == pytest.approx(3.0, abs=1.0)
    assert (last.before, last.wanted, last.observed, last.last_written) == (BEFORE, WANTED, WANTED, WANTED)
    assert house.driver.requests == [("orders", WANTED)]
    traces = {record.headers["traceparent"].split("-")[1] for record in house.records()}
    assert traces == {TRACE.split("-")[1]}
    await house.until(lambda: house.knowledge.actions[APP].phase == "verified")


async def test_the_log_can_be_followed_by_the_trace(house: House) -> None:
    """A line for the plan that was considered and one for each transition, all of one trace; a refusal has its code."""
    with capture_logs() as lines:
        await house.plan()
        await house.until(house.ended("verified"))
        await house.plan({**WANTED, "enrich": 4}, mode="advise")
        await house.until(house.ended("refused"))
        await house.quiet(1)
    considered = [line for line in lines if line["event"] == "considered"]
    assert [line["decision"] for line in considered] == ["admitted", "refused"]
    assert considered[1]["code"] == "not-act" and considered[0]["seconds"] >= 0
    moves = [line for line in lines if line["event"] == "outcome"]
    assert [(line["phase"], line["code"]) for line in moves] == [(o.phase, o.code) for o in house.published()]
    of_the_application = [line for line in lines if line.get("application") == APP]
    assert {line["traceparent"].split("-")[1] for line in of_the_application} == {TRACE.split("-")[1]}


async def test_a_plan_that_comes_twice_is_acted_on_once(house: House) -> None:
    """Kafka delivers at least once."""
    the_plan = await house.plan()
    await house.until(house.ended("verified"))
    count = len(house.published())
    await house.publish(PLANS, APP, the_plan)
    await house.quiet()
    assert len(house.published()) == count


async def test_only_the_newest_plan_of_a_batch_counts(house: House) -> None:
    """The executor was away: the last of three plans is admitted, the others are refused as superseded."""
    replica = house.replicas.pop()
    await replica.end()
    for enrich in (2, 3, 4):
        await house.plan({**WANTED, "enrich": enrich})
    house.replica()
    await house.until(house.ended("verified"))
    assert [parallelism["enrich"] for _, parallelism in house.driver.requests] == [4]
    assert [o.wanted["enrich"] for o in house.published() if (o.phase, o.code) == ("refused", "superseded-plan")] == [
        2,
        3,
    ]


async def test_a_plan_that_comes_twice_in_a_batch_does_not_supersede_itself(house: House) -> None:
    """The planner published it again without an acknowledgement."""
    replica = house.replicas.pop()
    await replica.end()
    await house.publish(PLANS, APP, await house.plan())
    house.replica()
    await house.until(house.ended("verified"))
    assert [o.code for o in house.published() if o.phase == "refused"] == []


async def test_advice_and_holds_do_nothing(house: House) -> None:
    """Advice is refused with its reason, a hold gets no outcome."""
    await house.plan(None)
    await house.plan(mode="advise")
    await house.until(house.ended("refused"))
    assert [(o.phase, o.code) for o in house.published()] == [("refused", "not-act")]
    assert house.driver.requests == []


async def test_slots_are_missing(house: House) -> None:
    """200 OK, and then it runs with three: rolled back at the deadline, and not tried again soon."""
    house.job().slots = 3
    await house.plan()
    await house.until(house.ended("rolled-back"))
    assert house.phases()[-3:] == ["rolling-back", "rolling-back", "rolled-back"]
    assert house.driver.requests == [("orders", WANTED), ("orders", BEFORE)]
    assert house.job().observed == BEFORE
    published = house.published()[-1]
    assert published.last_written == BEFORE
    assert [q.parallelism for q in published.quarantine] == [WANTED]
    house.job().slots = 100
    await house.plan()
    await house.until(lambda: house.published()[-1].code == "quarantined")
    house.clock.advance(301)
    await house.plan()
    await house.until(house.ended("verified"))


async def test_a_restart_loop_is_rolled_back_with_longer_quarantine_each_time(house: House) -> None:
    """The job crashes with more than two subtasks; five minutes, then ten."""
    house.job().crash_above = 2
    lengths = []
    for times in (1, 2):
        await house.plan()
        await house.until(lambda times=times: house.phases().count("rolled-back") == times)
        assert "restart-loop" in {outcome.code for outcome in house.published()}
        start = next(o for o in reversed(house.published()) if o.code == "restart-loop")
        lengths.append((start.quarantine[0].until - start.at).total_seconds())
        house.clock.advance(700)
    assert lengths == [300, 600]


async def test_more_subtasks_with_less_capacity_are_rolled_back(house: House) -> None:
    """The first warm window after verification shows 700 instead of 1000 records/s."""
    before = [operator_analysis("enrich", 1, capacity=1000.0), operator_analysis("sink", 1, capacity=None)]
    await house.analysis(_of_now(house, analysis(BEFORE, before, at=house.clock.now())))
    await house.until(lambda: house.replicas[0].executor.analyses.get(APP) is not None)
    await house.plan()
    await house.until(house.ended("verified"))
    await house.quiet(40)
    worse = analysis(
        WANTED, [operator_analysis("enrich", 4, capacity=700.0)], at=house.clock.now(), window_seconds=35.0
    )
    await house.analysis(_of_now(house, worse))
    await house.until(house.ended("rolled-back"))
    assert house.job().requested == BEFORE
    assert [o.code for o in house.published()[-3:]] == ["capacity-worse", "rollback-requested", "rolled-back"]
    await house.until(lambda: house.knowledge.actions[APP].phase == "rolled-back")


def _of_now(house: House, made: Analysis) -> Analysis:
    assert made.deployment is not None
    there = made.deployment.model_copy(update={"job_id": house.job().job_id})
    return made.model_copy(update={"deployment": there})


async def test_a_newer_plan_follows_once_the_first_has_run(house: House) -> None:
    """Before that it is refused; afterwards the first is superseded, and its end reports that it ran."""
    house.rules = house.rules.__class__(settle_seconds=60)
    await house.replicas.pop().end()
    house.replica()
    await house.plan()
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    await house.plan({**WANTED, "enrich": 6})
    await house.until(lambda: "in-flight" in [o.code for o in house.published()])
    await house.until(lambda: house.published()[-1].code == "running")
    await house.plan({**WANTED, "enrich": 6})
    await house.until(lambda: house.job().observed["enrich"] == 6)
    codes = [o.code for o in house.published()]
    assert codes[codes.index("running") :][:3] == ["running", "superseded-running", "admitted"]
    versions = [o.action.version for o in house.published() if o.action is not None]
    assert versions == sorted(set(versions)), "each move has a new version"


async def test_another_client_scales_too(house: House) -> None:
    """Held until the policy is changed: then Weir takes over again."""
    await house.plan()
    await house.until(house.ended("verified"))
    house.job().requested = {**WANTED, "enrich": 7}
    house.job().checkpoint_at = house.clock.now()
    await house.quiet(6)
    await house.plan({**WANTED, "enrich": 5})
    await house.until(lambda: house.published()[-1].code == "contested")
    assert house.driver.requests == [("orders", WANTED)]
    house.clock.advance(30)
    house.knowledge.set_mode(APP, "act", house.clock.now())
    await house.plan({**WANTED, "enrich": 5})
    await house.until(house.ended("verified"))
    assert house.job().observed["enrich"] == 5


async def test_a_target_that_changed_is_observed_again_before_the_request(house: House) -> None:
    """The first request names the version that was observed; the second one, after a new observation, the present one."""
    job, request = house.job(), house.driver.request
    job.version = "1"
    versions: list[str | None] = []

    async def changing(*given: Any, **named: Any) -> Any:
        versions.append(named["version"])
        if len(versions) == 1:
            job.version = "2"
        return await request(*given, **named)

    house.driver.request = changing  # type: ignore[method-assign]
    await house.plan()
    await house.until(house.ended("verified"))
    assert versions == ["1", "2"]
    assert house.driver.requests == [("orders", WANTED)]


async def test_a_bad_plan_is_sent_to_the_dead_letter_topic(house: House) -> None:
    """Not JSON, a missing field, a key that is another application's: each with its reason and place. A tombstone is no
    error."""
    await house.bus.publish(PLANS.name, APP, None, {})
    await house.publish(PLANS, APP, b"{not json")
    await house.publish(PLANS, APP, b'{"application": "shop/orders"}')
    await house.publish(PLANS, "shop/other", await house.make(WANTED, APP, number=90))
    await house.plan()
    await house.until(house.ended("verified"))
    letters = [r.value or b"" for r in house.bus.records(DEAD_LETTERS.name)]
    assert len(letters) == 3
    assert all(PLANS.name.encode() in letter for letter in letters)


class TestRefusedForGood:
    """A record that the brokers or knowledge never accept is no outage: its action ends with a reason, and the application is
    free for other plans."""

    @pytest.mark.parametrize("by", ["brokers", "encode"])
    async def test_a_plan_whose_intent_is_never_accepted_is_a_dead_letter(
        self, house: House, monkeypatch: pytest.MonkeyPatch, by: str
    ) -> None:
        """Larger than the brokers or a reader accept: nothing is requested, and the next plan of the partition is
        considered."""
        same = partition_of(APP, 4)
        other = next(name for i in range(99) if partition_of(name := f"shop/job-{i}", 4) == same)
        await house.add(other)
        if by == "brokers":
            house.bus.refuses = lambda record: record.topic == OUTCOMES.name and record.key == APP
        else:

            def limited(message: Outcome, **of: Any) -> Any:
                if message.application == APP:
                    raise TooLarge("the message has 9,000,000 bytes, more than 8,000,000")
                return encode(message, **of)

            monkeypatch.setattr(effects, "encode", limited)
        await house.plan()
        await house.plan(application=other)
        await house.until(house.ended("verified", other))
        (letter,) = [DeadLetter.model_validate_json(r.value or b"") for r in house.bus.records(DEAD_LETTERS.name)]
        assert (letter.code, letter.key) == ("outcome-refused", APP)
        assert (house.phases(), [job for job, _ in house.driver.requests]) == ([], [other.rpartition("/")[2]])

    @pytest.mark.parametrize("accepts_end", [True, False])
    async def test_an_action_whose_outcome_is_never_accepted_fails(self, house: House, accepts_end: bool) -> None:
        """The brokers' limit was lowered meanwhile. The action fails in its topic if that is accepted, else in knowledge and in
        the log; the step is not repeated. The end is published once the limit is raised, or a newer outcome, since other
        replicas count the actions in the topic."""
        await house.plan()
        await house.until(lambda: "intended" in house.phases())
        house.bus.refuses = lambda record: (
            record.topic == OUTCOMES.name and not (accepts_end and b'"outcome-refused"' in (record.value or b""))
        )
        expected = ["outcome-refused"] * (1 if accepts_end else 2)
        with capture_logs() as lines:
            await house.until(lambda: [e for line in lines if (e := line["event"]) == expected[0]] == expected)
            await house.quiet()
        assert [line["event"] for line in lines].count("outcome-refused") == len(expected)
        assert "step-failed" not in [line["event"] for line in lines]
        stored = house.knowledge.actions[APP]
        assert (stored.terminal, stored.code) == (True, "outcome-refused")
        assert stored.sentence.startswith("its outcome cannot be written: ")
        house.bus.refuses = lambda _record: False
        house.clock.advance(REFUSED_PAUSE_SECONDS)
        await house.until(lambda: house.published()[-1].code == "outcome-refused")
        assert house.published()[-1].terminal
        assert [outcome.code for outcome in house.published()].count("outcome-refused") == 1
        await house.plan({**WANTED, "enrich": 3})
        await house.until(house.ended("verified"))

    async def test_an_outcome_that_an_older_one_follows_is_repeated_until_it_is_accepted(self, house: House) -> None:
        """The broker's limit was lowered meanwhile: compaction would keep the older one, and its action with it."""
        await house.plan()
        await house.until(house.ended("verified"))
        first, *_, newest = house.records()
        house.bus.refuses = lambda record: record.topic == OUTCOMES.name and record.value != first.value
        with capture_logs() as lines:
            await house.bus.publish(OUTCOMES.name, APP, first.value, first.headers)
            await house.until(lambda: "outcome-refused" in (line["event"] for line in lines))
            await house.quiet()
        assert [line["event"] for line in lines].count("outcome-refused") == 1
        house.bus.refuses = lambda _record: False
        house.clock.advance(REFUSED_PAUSE_SECONDS)
        await house.until(lambda: house.records()[-1].value == newest.value)

    async def test_a_dead_letter_is_not_lost_in_an_outage(self, house: House) -> None:
        """A plan is no JSON while the brokers are away: its dead letter is sent until they accept it, since the next commit would
        pass the plan. A letter that they refuse is logged, and the next plan is considered."""
        house.bus.refuses = lambda record: record.topic == DEAD_LETTERS.name
        send, attempts = house.bus.publish_many, []

        async def away(records: Sequence[Outgoing]) -> None:
            if records[0].topic == DEAD_LETTERS.name and not attempts:
                attempts.append(records[0])
                raise BusError("kafka: weir.dead-letters: Local: All broker connections are down")
            await send(records)

        with capture_logs() as lines:
            await house.publish(PLANS, APP, b"{not json")
            await house.until(lambda: "dead-letter-refused" in (line["event"] for line in lines))
        house.bus.refuses = lambda _record: False
        house.bus.publish_many = away  # type: ignore[method-assign]
        await house.publish(PLANS, APP, b"{neither")
        await house.plan()
        await house.until(house.ended("verified"))
        (letter,) = [DeadLetter.model_validate_json(r.value or b"") for r in house.bus.records(DEAD_LETTERS.name)]
        assert (len(attempts), letter.code, letter.key) == (1, "invalid", APP)

    async def test_an_intent_that_knowledge_never_stores_is_refused(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It waited for its plan to expire, as in an outage."""

        async def record(_action: object, _version: int) -> Rejected:
            return Rejected("PUT /v1/applications/shop/orders/action: 413 the body is too large")

        monkeypatch.setattr(house.knowledge, "record", record)
        await house.plan()
        await house.until(house.ended("refused"), seconds=5.0)
        (last,) = house.published()[-1:]
        assert last.code == "intent-rejected"
        assert last.sentence.startswith(
            "knowledge does not store the intent: PUT /v1/applications/shop/orders/action: 413"
        )
        assert house.driver.requests == []


class TestOutages:
    """During an outage the executor holds, reports it, and recovers by itself."""

    async def test_without_knowledge_no_action_begins(self, house: House) -> None:
        """The mode cannot be read: the plan is refused, and the next one is admitted when it can be read."""
        house.knowledge.away = "connection refused"
        await house.plan()
        await house.until(lambda: house.published()[-1:] != [] and house.published()[-1].code == "unreachable")
        assert house.driver.requests == []
        house.knowledge.away = None
        await house.plan()
        await house.until(house.ended("verified"))

    async def test_the_response_to_the_record_is_lost(self, house: House) -> None:
        """The conflict that follows shows the own attempt id: the action was stored."""
        house.knowledge.lost_answers = 1
        await house.plan()
        await house.until(house.ended("verified"))
        assert house.phases().count("intended") == 1

    async def test_verifying_continues_without_knowledge(self, house: House) -> None:
        """Rolling back continues, too."""
        house.job().slots = 3
        await house.plan()
        await house.until(lambda: "verifying" in house.phases())
        house.knowledge.away = "connection refused"
        await house.until(house.ended("rolled-back"))
        house.knowledge.away = None
        house.job().slots = 100
        await house.plan({**WANTED, "enrich": 3})
        await house.until(house.ended("verified"))

    async def test_an_emptied_knowledge_is_no_obstacle(self, house: House) -> None:
        """Redis came back without its data, policies rebuilt."""
        await house.plan()
        await house.until(house.ended("verified"))
        house.knowledge.actions.clear()
        await house.plan({**WANTED, "enrich": 5})
        await house.until(lambda: house.job().observed["enrich"] == 5)
        await house.until(house.ended("verified"))

    async def test_without_the_brokers_there_is_no_transition(self, house: House) -> None:
        """The intent cannot be published, so nothing is requested; it continues when the brokers are back."""
        await house.plan()
        await house.until(lambda: bool(house.phases()))
        house.bus.break_down()
        moves, requests = len(house.published()), len(house.driver.requests)
        await house.quiet(10)
        assert len(house.published()) == moves
        assert len(house.driver.requests) <= requests + 1
        house.bus.mend()
        await asyncio.wait_for(_real(house, "verified"), 10)

    async def test_the_target_is_lost_during_an_action(self, house: House) -> None:
        """Two minutes of silence do not count against the rescale."""
        await house.plan()
        await house.until(lambda: "verifying" in house.phases())
        house.driver.away["http://127.0.0.1:8081"] = "connection refused"
        await house.quiet(30)
        house.clock.advance(90)
        house.driver.away.clear()
        await house.until(house.ended("verified"))

    async def test_the_response_to_the_request_is_lost(self, house: House) -> None:
        """The observed requirements show that it was accepted."""
        house.driver.lost_answers = 1
        await house.plan()
        await house.until(house.ended("verified"))
        assert "found-requested" in [o.code for o in house.published()]

    async def test_the_policy_is_deleted_during_an_action(self, house: House) -> None:
        """An action ends at the target at which it began."""
        await house.plan()
        await house.until(lambda: "verifying" in house.phases())
        del house.knowledge.policies[APP]
        await house.bus.publish(POLICIES.name, APP, None)
        await house.until(house.ended("verified"))

    async def test_a_bug_in_one_step_does_not_end_the_action(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is logged, and the step is repeated."""
        original, failures = house.driver.observe, [RuntimeError("a bug")] * 3

        async def observe(target: object) -> Snapshot:
            if house.phases() and failures:
                raise failures.pop()
            return await original(target)  # type: ignore[arg-type]

        monkeypatch.setattr(house.driver, "observe", observe)
        with capture_logs() as logs:
            await house.plan()
            await house.until(house.ended("verified"))
        assert not failures
        assert [line["error"] for line in logs if line["event"] == "step-failed"] == ["a bug"] * 3


async def _real(house: House, phase: str) -> None:
    """For what waits in real time, too."""
    while not house.ended(phase)():
        house.clock.advance(0.25)
        await asyncio.sleep(0.01)


class TestReplicas:
    """Partitions are shared; a dead one's actions are taken over."""

    @pytest.mark.parametrize("moment", ["intended", "applying", "verifying", "rolling-back"])
    async def test_an_action_is_taken_over(self, house: House, moment: str) -> None:
        """Killed in any phase: another process completes it, from the outcomes alone."""
        if moment == "rolling-back":
            house.job().slots = 3
        first = house.replicas.pop()
        await house.plan()
        await house.until(lambda: moment in house.phases())
        await first.kill()
        house.replica()
        end = "rolled-back" if moment == "rolling-back" else "verified"
        await house.until(house.ended(end))
        assert house.job().requested == (BEFORE if moment == "rolling-back" else WANTED)

    async def test_an_unknown_target_ends_the_action(self, house: House) -> None:
        """The policy was deleted while its action had no owner: it fails with that reason."""
        first = house.replicas.pop()
        await house.plan()
        await house.until(lambda: "verifying" in house.phases())
        await first.kill()
        del house.knowledge.policies[APP]
        await house.bus.publish(POLICIES.name, APP, None)
        house.replica()
        await house.until(house.ended("failed"))
        assert "policy was deleted" in house.published()[-1].sentence

    async def test_a_takeover_keeps_the_trace(self, house: House) -> None:
        """By the observation's id, since the plan's trace ended with its process."""
        first = house.replicas.pop()
        the_plan = await house.plan()
        await house.until(lambda: "verifying" in house.phases())
        await first.kill()
        house.replica()
        await house.until(house.ended("verified"))
        expected = new_traceparent(the_plan.observation_id).split("-")[1]
        assert house.records()[-1].headers["traceparent"].split("-")[1] == expected

    async def test_two_replicas_share_the_work(self, house: House) -> None:
        """Eight applications: each plan is applied by exactly one replica, and each replica has some."""
        house.replica()
        await house.quiet(1)
        names = [f"shop/app-{i}" for i in range(8)]
        for i, name in enumerate(names):
            await house.add(name, url=f"http://127.0.0.1:{9000 + i}")
        for name in names:
            await house.plan(application=name)
        await house.until(lambda: all(house.ended("verified", name)() for name in names))
        assert len(house.driver.requests) == 8
        attempts = {o.action.attempt_id for name in names for o in house.published(name) if o.action}
        assert len(attempts) == 2

    async def test_the_actions_of_a_leaving_replica_continue(self, house: House) -> None:
        """Rolling restart of the executor in the middle of four actions."""
        names = [f"shop/app-{i}" for i in range(4)]
        for i, name in enumerate(names):
            await house.add(name, url=f"http://127.0.0.1:{9000 + i}")
            await house.plan(application=name)
        await house.until(lambda: all("verifying" in house.phases(name) for name in names))
        house.replica()
        await house.quiet(1)
        await house.replicas.pop(0).end()
        await house.until(lambda: all(house.ended("verified", name)() for name in names))
        assert len(house.driver.requests) == 4


class TestLimits:
    """Limits across applications."""

    async def test_one_cluster_restarts_two_jobs_at_once(self, house: House) -> None:
        """The third waits until another one runs again; that one need not be verified."""
        names = [f"shop/app-{i}" for i in range(3)]
        for name in names:
            await house.add(name)
        plans: list[Plan] = [await house.plan(application=name) for name in names]
        assert len(plans) == 3
        await house.until(lambda: all(house.published(name) for name in names))
        codes = [house.published(name)[-1].code for name in names]
        assert codes.count("too-many-actions") == 1
        waiting = names[codes.index("too-many-actions")]
        others = [name for name in names if name != waiting]
        await house.until(lambda: all(house.published(name)[-1].code == "running" for name in others))
        await house.plan(application=waiting)
        await house.until(lambda: "intended" in house.phases(waiting))
        assert not any("verified" in house.phases(name) for name in others)
        await house.until(lambda: all(house.ended("verified", name)() for name in names))

    async def test_a_fleet_does_not_shrink_at_once(self, house: House) -> None:
        """All eight recommend less at the same time: from the fifth on none shrinks."""
        names = [f"shop/app-{i}" for i in range(8)]
        for i, name in enumerate(names):
            job = await house.add(name, url=f"http://127.0.0.1:{9000 + i}")
            job.observed = job.requested = dict(WANTED)
        await house.quiet(1)
        for name in names:
            await house.plan(BEFORE, application=name)
        await house.until(lambda: all(house.published(name) for name in names))
        await house.quiet(2)
        held = [name for name in names if house.published(name)[-1].code == "fleet-shrinking"]
        assert len(held) >= 4
        house.clock.advance(timedelta(minutes=2).total_seconds())
        await house.plan(BEFORE, application=held[0])
        await house.until(house.ended("verified", held[0]))


class TestForgedOutcomes:
    """Another program may write to the topic of outcomes, where nothing is signed. What it says is evidence."""

    async def forge(
        self, house: House, phase: str, *, wanted: Parallelism, before: Parallelism, **outcome: Any
    ) -> None:
        """End the executor, publish an outcome as if an action of it were in `phase`, and start another executor."""
        await house.replicas.pop().kill()
        job = house.job()
        deployment = DeploymentRef(
            job_id=job.job_id, graph_hash=TOPOLOGY.graph_hash(), requested=before, observed=before
        )
        now = house.clock.now()
        forged = action(
            phase,
            id=UUID(int=9),
            plan_id=UUID(int=8), application=APP, deployment=deployment, before=before, wanted=wanted, started_at=now,
            checked_at=now, deadline_at=now + timedelta(minutes=1), **outcome.pop("action", {}),
        )  # fmt: skip
        message = Outcome(
            **{
                "id": UUID(int=7),
                "application": APP,
                "plan_id": forged.plan_id,
                "observation_id": forged.observation_id,
                "at": now,
                "phase": phase,
                "code": "admitted",
                "sentence": "as if it were so",
                "before": before,
                "wanted": wanted,
                "action": forged,
                "last_written": wanted,
                "epoch": 3,
                "sequence": 9,
                **outcome,
            }
        )
        await house.publish(OUTCOMES, APP, message)
        house.replica()

    @pytest.mark.parametrize("mode", ["act", "advise", "paused"])
    async def test_a_rollback_beyond_the_bounds_is_not_made(self, house: House, mode: str) -> None:
        """120 subtasks where the policy allows 8: nothing is requested, whatever the policy's mode."""
        held = house.knowledge.policies[APP]
        held = held.model_copy(update={"spec": held.spec.model_copy(update={"mode": mode})})
        house.knowledge.policies[APP] = held
        await house.publish(POLICIES, APP, held)
        house.job().requested = WANTED
        await self.forge(house, "rolling-back", wanted=WANTED, before=dict.fromkeys(WANTED, 120))
        await house.until(house.ended("failed"))
        assert house.published()[-1].code == "out-of-bounds"
        assert house.driver.requests == []

    async def test_a_request_beyond_the_bounds_is_not_repeated(self, house: House) -> None:
        """As if an executor had been killed between its record and its request."""
        await self.forge(house, "applying", wanted=dict.fromkeys(WANTED, 120), before=BEFORE)
        await house.until(house.ended("failed"))
        assert house.published()[-1].code == "out-of-bounds"
        assert house.driver.requests == []

    @pytest.mark.parametrize("numbers", [{"epoch": MAX_ORDER, "sequence": MAX_ORDER}, {"epoch": MAX_ORDER}])
    async def test_the_largest_numbers_do_not_wedge_an_application(self, house: House, numbers: dict[str, int]) -> None:
        """An outcome that nothing could follow would end scaling for good."""
        await self.forge(
            house, "verified", wanted=BEFORE, before=BEFORE, action={"version": MAX_ORDER, "finished_at": NOON}, **numbers
        )  # fmt: skip
        await house.quiet(5)
        await house.plan()
        await house.until(lambda: house.phases()[-2:] == ["verifying", "verified"])
        assert [vector for _, vector in house.driver.requests] == [WANTED]

    @pytest.mark.parametrize("number", ["epoch", "sequence"])
    def test_numbers_beyond_the_largest_are_a_dead_letter(self, number: str) -> None:
        """2^63 - 1 is no number of takeovers."""
        with pytest.raises(ValidationError, match=number):
            Outcome.model_validate({**example("outcome"), number: 2**63 - 1})

    async def test_an_outcome_of_a_time_to_come_is_a_dead_letter(self, house: House) -> None:
        """The time orders outcomes beyond their retention, so it would be the newest for good."""
        await self.forge(
            house, "verified", wanted=BEFORE, before=BEFORE, at=NOON + timedelta(days=3650)
        )  # fmt: skip
        await house.until(lambda: bool(house.bus.records(DEAD_LETTERS.name)))
        (letter,) = [DeadLetter.model_validate_json(r.value or b"") for r in house.bus.records(DEAD_LETTERS.name)]
        assert (letter.code, letter.field) == ("implausible", "at")
        await house.plan()
        await house.until(lambda: [vector for _, vector in house.driver.requests] == [WANTED])
