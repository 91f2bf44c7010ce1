"""An executor that stops at any point of an action, and the replica that goes on from what was published.

The replicas are the real ones; bus, cluster and knowledge are in memory. A stopped replica does nothing more, as after
SIGKILL or SIGSTOP: its session runs out, the other one ends the action, and then the first one wakes up. The oracle is
the cluster, which counts requests.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.effort import some
from tests.unit.engines.memory_managers import ManagedMemory
from tests.unit.engines.memory_resubmission import ResubmittingMemory
from tests.unit.executor.builders import BEFORE, TOPOLOGY, WANTED
from tests.unit.executor.house import APP, House, Replica
from weir_contracts import Outcome, Parallelism
from weir_engines.driver import Accepted, Refusal, Rejected, Unanswered

pytestmark = pytest.mark.virtual_time

EVERY = 13
"""Each case takes every thirteenth point, so that they run side by side; the fast tests run the first case."""
NTH = some(range(EVERY), EVERY)


class Cluster(ManagedMemory):
    """A cluster with TaskManagers, in which `then` happens directly after a request, even if its response is lost."""

    then: Callable[[House], None] | None = None
    house: House

    async def request(self, *given: Any, **named: Any) -> Accepted | Rejected | Unanswered | Refusal:
        request_sent = len(self.requests)
        answer = await super().request(*given, **named)
        if self.then is not None and (len(self.requests) > request_sent or isinstance(answer, Rejected)):
            self.then(self.house)
        return answer


def cluster_of(house: House) -> Cluster:
    assert isinstance(house.driver, Cluster)
    return house.driver


class Story:
    """One action under two replicas."""

    end: Outcome
    """The last that was published before the first replica woke up."""

    def __init__(self, *, resubmits: bool = False) -> None:
        self.house = House(unobserved_limit_seconds=20.0, container_start_seconds=10.0)
        self.cluster: Cluster | ResubmittingMemory
        if resubmits:
            self.cluster = ResubmittingMemory(self.house.clock)
        else:
            self.cluster = Cluster(self.house.clock)
            self.cluster.house = self.house
            self.cluster.pool.wanted = self.cluster.pool.registered = 8  # enough, unless a story says otherwise
        self.house.driver = self.house.drivers["flink"] = self.cluster

    def changes(self) -> list[object]:
        """Everything that was requested of the cluster so far."""
        if isinstance(self.cluster, Cluster):
            return [*self.cluster.requests, *self.cluster.pool.provided]
        return [*self.cluster.savepoints.stops, *self.cluster.savepoints.runs]

    async def begin(
        self,
        prepare: Callable[[House], None] = lambda house: None,
        replicas: int = 2,
        wanted: Parallelism = WANTED,
    ) -> Replica:
        """A plan is on its way; returns the replica that is to act on it."""
        await self.house.start(replicas)
        await self.house.until(lambda: all(r.executor._consumer is not None for r in self.house.replicas))
        prepare(self.house)
        await self.house.plan(wanted)
        owner = self.house.owner()
        assert owner is not None
        return owner

    def over(self) -> bool:
        last = self.house.published()[-1:]
        return bool(last) and last[0].phase in ("verified", "rolled-back", "failed", "refused")

    async def stops(self, replica: Replica, at: int) -> bool:
        """Let it come to its `at`th effect; whether it came there before the action's end."""
        replica.ports.stop_at = at
        await self.house.until(lambda: replica.ports.stopped or self.over())
        return replica.ports.stopped

    async def followed(self, replica: Replica) -> None:
        """Its session runs out, and another replica goes on."""
        await self.house.quiet(9)
        self.house.bus.expire(replica.member)

    async def wakes(self, replica: Replica) -> None:
        """Nothing is requested, and nothing published but what had passed the fence (docs/adr/0006 names this window).

        Behind such a late outcome the owner publishes its newest once more.
        """
        base, changes = {outcome.id for outcome in self.house.published()}, self.changes()
        on_its_way = int(replica.ports.effects[-1] == "before publish")
        replica.ports.wake()
        await self.house.quiet(6)
        new = [outcome for outcome in self.house.published() if outcome.id not in base]
        assert len(new) <= on_its_way, self.house.phases()
        assert self.changes() == changes


@pytest.fixture
async def stories() -> AsyncIterator[list[Story]]:
    """Those of one test, ended after it."""
    begun: list[Story] = []
    yield begun
    for story in begun:
        await story.house.end()


async def interrupted(
    stories: list[Story],
    cut: int,
    prepare: Callable[[House], None],
    wanted: Parallelism = WANTED,
    *,
    resubmits: bool = False,
) -> Story | None:
    """Stopped at the `cut`th effect, replaced by another, awake again after the end; None: it has fewer effects."""
    story = Story(resubmits=resubmits)
    stories.append(story)
    first = await story.begin(prepare, wanted=wanted)
    if not await story.stops(first, cut):
        return None
    phases = [phase for phase in story.house.phases() if phase != "preparing"]
    assert not story.house.driver.requests or phases[:2] == ["intended", "applying"]
    await story.followed(first)
    await story.house.until(story.over)
    story.end = story.house.published()[-1]
    await story.wakes(first)
    await story.house.end()
    return story


async def every(
    stories: list[Story],
    nth: int,
    prepare: Callable[[House], None],
    judge: Callable[[Story], None],
    wanted: Parallelism = WANTED,
    *,
    resubmits: bool = False,
) -> int:
    """Run the story with each `EVERY`th cut from the `nth` on; returns how many there were."""
    cut = nth + 1
    while (story := await interrupted(stories, cut, prepare, wanted, resubmits=resubmits)) is not None:
        judge(story)
        cut += EVERY
    return cut


@pytest.mark.parametrize("nth", NTH)
@pytest.mark.parametrize("crash_above", [None, 2])
async def test_an_interrupted_action_ends_like_an_uninterrupted_one(
    stories: list[Story], crash_above: int | None, nth: int
) -> None:
    """Verified if the job can run so, rolled back if it crash-loops; each vector is requested once."""

    def prepare(house: House) -> None:
        house.job().crash_above = crash_above

    def judge(story: Story) -> None:
        last = story.end
        request_sent = [vector for _, vector in story.house.driver.requests]
        if crash_above is None:
            assert (last.phase, request_sent) == ("verified", [WANTED])
        else:
            assert (last.phase, request_sent) == ("rolled-back", [WANTED, BEFORE])
            assert [q.strikes for q in last.quarantine] == [1]

    assert await every(stories, nth, prepare, judge) > 20


MANAGED: dict[str, tuple[int, int, int | None, int, str, list[int]]] = {
    "brought": (1, 1, None, 1000, "verified", [4]),
    "brought and rolled back": (1, 1, 2, 1000, "rolled-back", [4, 1]),
    "late": (1, 1, None, 3, "failed", [4, 1]),
    "released": (4, 6, None, 1000, "verified", [1]),
}
"""Parallelism and TaskManagers before, parallelism above which the job crashes, managers that come; how the action ends,
and each number of managers that is requested."""


@pytest.mark.parametrize("nth", NTH)
@pytest.mark.parametrize("how", MANAGED)
async def test_an_interrupted_change_of_managers_ends_like_an_uninterrupted_one(
    stories: list[Story], how: str, nth: int
) -> None:
    """Wherever it stops: the managers come before the request, those that are not needed go, each number is requested
    once."""
    before, managers, crash_above, come, phase, provided = MANAGED[how]

    def prepare(house: House) -> None:
        job, pool = house.job(), cluster_of(house).pool
        job.crash_above, pool.come = crash_above, come
        job.observed = job.requested = dict(WANTED if before == 4 else BEFORE)
        pool.wanted = pool.registered = managers

    def judge(story: Story) -> None:
        pool = cluster_of(story.house).pool
        assert (story.end.phase, pool.provided) == (phase, provided), story.end.sentence
        assert pool.wanted == pool.registered == provided[-1]
        assert len(story.house.driver.requests) == {"late": 0, "brought and rolled back": 2}.get(how, 1)

    wanted = BEFORE if before == 4 else WANTED
    assert await every(stories, nth, prepare, judge, wanted) > 20


RESUBMITTED: dict[str, tuple[dict[str, object], int | None, str, str, list[Parallelism]]] = {
    "rescaled": ({}, None, "verified", "verified", [WANTED]),
    "crash-looping": ({}, 2, "rolled-back", "rolled-back", [WANTED, BEFORE]),
    "an unreadable savepoint": ({"unreadable": True}, None, "rolled-back", "rolled-back", [WANTED, BEFORE]),
    "no savepoint": ({"failure": "Checkpoint expired before completing"}, None, "failed", "savepoint-failed", []),
    "no jar": ({"run_failure": "Jar file does not exist"}, None, "failed", "rollback-rejected", []),
    "lost answers": ({"lost_answers": 2}, None, "verified", "verified", [WANTED]),
}
"""Behaviour of the cluster, parallelism above which the job crashes; how the action ends, and each parallelism that is run."""


@pytest.mark.parametrize("nth", NTH)
@pytest.mark.parametrize("how", RESUBMITTED)
async def test_an_interrupted_resubmission_ends_like_an_uninterrupted_one(
    stories: list[Story], how: str, nth: int
) -> None:
    """Wherever it stops: the job is stopped once, each successor is run once, and never are two of them there."""
    behaviour, crash_above, phase, code, runs = RESUBMITTED[how]

    def prepare(house: House) -> None:
        assert isinstance(house.driver, ResubmittingMemory)
        house.job().crash_above = crash_above
        for name, value in behaviour.items():
            setattr(house.driver.savepoints, name, value)

    def judge(story: Story) -> None:
        assert isinstance(story.cluster, ResubmittingMemory)
        found, last = story.cluster.savepoints, story.end
        assert (last.phase, last.code) == (phase, code), last.sentence
        assert ([vector for _, vector in found.runs], len(found.stops)) == (runs, 1)
        assert found.most_at_once == 1
        is_named = "savepoint file:///savepoints/" in last.sentence
        assert is_named == (code in ("rolled-back", "rollback-rejected")), last.sentence

    assert await every(stories, nth, prepare, judge, resubmits=True) > 20


def _refused(house: House) -> None:
    """The job allows less than is wanted."""
    small = [o.model_copy(update={"max_parallelism": 1}) for o in TOPOLOGY.operators]
    house.job().topology = TOPOLOGY.model_copy(update={"operators": small})


def _contested(house: House) -> None:
    """Another client requested another vector."""
    house.job().requested = dict.fromkeys(BEFORE, 7)


def _removed(house: House) -> None:
    """The job was removed."""
    house.driver.jobs.clear()


def _away(house: House) -> None:
    """The cluster became unreachable."""
    house.driver.away = {"http://127.0.0.1:8081": "connection refused"}


ENDS: dict[str, tuple[Callable[[House], None], str]] = {
    "refused by the engine": (_refused, "rejected"),
    "contested": (_contested, "contested"),
    "gone": (_removed, "job-gone"),
    "unreachable": (_away, "unreachable"),
}
"""Condition before the action, or event after its request, and the code of the failure."""


@pytest.mark.parametrize("nth", NTH)
@pytest.mark.parametrize("how", ENDS)
async def test_an_interrupted_action_fails_like_an_uninterrupted_one(stories: list[Story], how: str, nth: int) -> None:
    """With the same code, and with one request at most."""
    happens, code = ENDS[how]

    def prepare(house: House) -> None:
        if how == "refused by the engine":
            happens(house)
        else:
            cluster_of(house).then = happens

    def judge(story: Story) -> None:
        assert (story.end.phase, story.end.code) == ("failed", code), story.end.sentence
        assert [vector for _, vector in story.house.driver.requests] == [WANTED][: how != "refused by the engine"]

    assert await every(stories, nth, prepare, judge) > 8


@pytest.mark.parametrize("crash_above", [None, 2])
async def test_repeated_interruptions(stories: list[Story], crash_above: int | None) -> None:
    """Every replica stops after eight effects, enough for one transition: the action still ends."""
    story = Story()
    stories.append(story)

    def prepare(house: House) -> None:
        house.job().crash_above = crash_above
        for replica in house.replicas[:-1]:
            replica.ports.stop_at = 8

    await story.begin(prepare, replicas=8)
    while not story.over():
        owner = story.house.owner()
        assert owner is not None
        ports = owner.ports
        await story.house.until(lambda ports=ports: story.over() or ports.stopped)  # type: ignore[misc]
        if ports.stopped:
            await story.followed(owner)
    assert story.house.published()[-1].phase == ("verified" if crash_above is None else "rolled-back")
    assert sum(replica.ports.stopped for replica in story.house.replicas) > 1


@pytest.mark.parametrize("effect", ["before record", "after record", "before request"])
async def test_a_pause_before_the_takeover_ends_the_action(stories: list[Story], effect: str) -> None:
    """The replica stopped before its request, and the user paused: the replica that continues requests nothing."""
    story = Story()
    stories.append(story)
    first = await story.begin()
    await stopped_at(story, first, effect)
    story.house.knowledge.set_mode(APP, "paused", story.house.clock.now())
    await story.followed(first)
    await story.house.until(story.over)
    last = story.house.published()[-1]
    assert last.code in ("not-act", "policy-changed") and last.phase in ("refused", "failed")
    await story.wakes(first)
    assert story.house.driver.requests == []


async def stopped_at(story: Story, replica: Replica, effect: str) -> None:
    """Stop it at the first such effect."""

    def stop(found: str) -> None:
        if found == effect:
            replica.ports.stop_at = len(replica.ports.effects)

    replica.ports.on_effect = stop
    await story.house.until(lambda: replica.ports.stopped)
    replica.ports.on_effect = lambda found: None


# -- directly before the request -----------------------------------------------------------------------------------


async def held_up(stories: list[Story], seconds: float, meanwhile: Callable[[House], None]) -> House:
    """The claim was made, and then the brokers were away for so long before `applying` was acknowledged."""
    story = Story()
    stories.append(story)
    house = story.house
    replica = await story.begin(replicas=1)

    def happen(effect: str) -> None:
        if effect == "after record" and house.phases() == ["intended"]:
            house.bus.break_down()
            meanwhile(house)

    replica.ports.on_effect = happen
    await house.until(lambda: house.knowledge.actions.get(APP) is not None)
    await house.quiet(seconds)
    assert house.phases() == ["intended"]
    house.bus.mend()
    await house.until(story.over)
    return house


@pytest.mark.thorough
async def test_no_request_for_a_plan_that_expired_meanwhile(stories: list[Story]) -> None:
    """The brokers were away for minutes, the user paused meanwhile: the action ends without a request."""

    def pause(house: House) -> None:
        house.knowledge.set_mode(APP, "paused", house.clock.now())

    house = await held_up(stories, 370, pause)
    assert house.phases() == ["intended", "applying", "failed"]
    assert house.published()[-1].code == "expired"
    assert house.driver.requests == []


async def test_no_request_on_a_policy_that_was_read_before_a_stop(stories: list[Story]) -> None:
    """The process stood still for 6 s, less than a session, with the policy of before the user's pause in hand."""
    story = Story()
    stories.append(story)
    replica = await story.begin(replicas=1)

    def stop(effect: str) -> None:
        if effect == "after policy" and story.house.phases()[-1:] == ["applying"]:
            replica.ports.stop_at = len(replica.ports.effects)

    replica.ports.on_effect = stop
    await story.house.until(lambda: replica.ports.stopped)
    replica.ports.on_effect = lambda effect: None
    story.house.knowledge.set_mode(APP, "paused", story.house.clock.now())
    await story.house.quiet(6)
    replica.ports.wake()
    await story.house.until(story.over)
    assert (story.house.phases()[-1], story.house.published()[-1].code) == ("failed", "not-act")
    assert story.house.driver.requests == []


@pytest.mark.parametrize(
    ("mode", "code"), [("paused", "not-act"), ("advise", "not-act"), ("act", "policy-changed"), ("", "policy-changed")]
)
async def test_no_request_after_the_policy_changed(stories: list[Story], mode: str, code: str) -> None:
    """Paused, changed or deleted while `applying` was on its way."""

    def change(house: House) -> None:
        if mode:
            house.knowledge.set_mode(APP, mode, house.clock.now())
        else:
            del house.knowledge.policies[APP]

    house = await held_up(stories, 3, change)
    assert (house.phases()[-1], house.published()[-1].code) == ("failed", code)
    assert house.driver.requests == []


async def test_no_request_against_foreign_requirements(stories: list[Story]) -> None:
    """They were set between observation and request: contested, and kept."""
    theirs = dict.fromkeys(BEFORE, 7)

    def scale(house: House) -> None:
        house.job().requested = theirs

    house = await held_up(stories, 3, scale)
    assert (house.phases()[-1], house.published()[-1].code) == ("failed", "contested")
    assert (house.driver.requests, house.job().requested) == ([], theirs)


async def test_no_request_while_the_policy_cannot_be_read(stories: list[Story]) -> None:
    """Knowledge is away: nothing is requested until it is back or the plan expires."""

    def lose(house: House) -> None:
        house.knowledge.away = "connection refused"

    house = await held_up(stories, 3, lose)
    assert house.phases()[-1] == "failed" and house.published()[-1].code in ("unreachable", "expired")
    assert house.driver.requests == []


async def test_a_rollback_needs_no_policy(stories: list[Story]) -> None:
    """The policy cannot be read while the new parallelism crash-loops: it is rolled back."""
    story = Story()
    stories.append(story)
    await story.begin(lambda house: setattr(house.job(), "crash_above", 2))
    await story.house.until(lambda: bool(story.house.driver.requests))
    story.house.knowledge.away = "connection refused"
    await story.house.until(story.over)
    assert [vector for _, vector in story.house.driver.requests] == [WANTED, BEFORE]
    assert story.house.published()[-1].phase == "rolled-back"
