"""The chaos campaign: its judge catches each lie and reports nothing proper, and its rounds are drawn by their seed."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bench.chaos import kubernetes
from bench.chaos.campaign import stop_of
from bench.chaos.endpoint import Endpoints
from bench.chaos.faults import SHARE_OF_TWO, Fault, draw
from bench.chaos.flink import POINTS, rescale_of, right
from bench.chaos.judge import (
    LIES,
    GroupReading,
    PolicyChange,
    PublishedPlan,
    Record,
    Request,
    judge,
)
from bench.chaos.proxy import Exchange
from bench.chaos.resubmit import ResubmittedTarget
from bench.chaos.simulated import FAULTS
from bench.chaos.workload import Sample, ServiceQueue, prometheus
from testbed.simulated_flink import NAMES
from weir_engines.flink_resubmit.responses import OVERRIDES
from weir_monitor.prometheus import value_of

APP, JOB = "shop/orders", "j1"
NOON = 1_767_268_800.0


def vector(work: int) -> dict[str, int]:
    return {"orders": 1, "work": work}


def request(
    seconds: float, work: int, *, sender: str | None = "exec-0", accepted: bool = True, stopped: float | None = None
) -> Request:
    """A request `seconds` after noon, perhaps of a job that was stopped for it."""
    begun_at = None if stopped is None else NOON + stopped
    return Request(NOON + seconds, sender, JOB, vector(work), accepted, begun_at)


def plan(seconds: float, work: int, *, life: float = 10.0) -> PublishedPlan:
    """A plan of `seconds` after noon."""
    return PublishedPlan(NOON + seconds, f"plan at {seconds:g}", APP, vector(work), NOON + seconds + life)


def put(seconds: float, mode: str = "act", highest: int = 12, *, answered: float | None = None) -> PolicyChange:
    """A policy that the user has put `seconds` after noon, answered 0.1 s later."""
    answered_at = NOON + (seconds + 0.1 if answered is None else answered)
    return PolicyChange(NOON + seconds, answered_at, APP, mode, range(1, highest + 1))


def readings(*spans: tuple[float, float, str | None]) -> list[GroupReading]:
    """Readings every 0.25 s, each span with one owner of the partition."""
    found = []
    for begin, end, owner in spans:
        for number in range(int((end - begin) * 4)):
            found.append(GroupReading(NOON + begin + number / 4, {} if owner is None else {0: owner}))
    return found


def record(*requests: Request, **seen: Any) -> Record:
    """One job that ran one subtask of `work`, owned by `exec-0` for a minute before and after noon."""
    at_end = requests[-1].wanted if requests else vector(1)
    defaults: dict[str, Any] = {
        "plans": [plan(0, 4)],
        "policies": [put(-50)],
        "readings": readings((-60, 60, "exec-0")),
        "at_end": {JOB: at_end},
    }
    return Record(
        partitions={APP: 0},
        applications={JOB: APP},
        at_start={JOB: vector(1)},
        requests=list(requests),
        **{**defaults, **seen},
    )


PROPER = {
    "a request soon after its plan": record(request(2, 4)),
    "no request at all": record(),
    "a request that Flink refused, and the same again": record(request(2, 4, accepted=False), request(3, 4)),
    "a rollback, though the plan has expired and the user has paused since": record(
        request(2, 4), request(50, 1), policies=[put(-50), put(20, "paused")]
    ),
    "two plans, two requests": record(request(2, 4), request(8, 6), plans=[plan(0, 4), plan(7, 6)]),
    "a later plan for a parallelism of before": record(
        request(2, 4), request(8, 6), request(14, 4), plans=[plan(0, 4), plan(7, 6), plan(13, 4)]
    ),
    "a request that left before the pause was certain": record(request(2, 4), policies=[put(-50), put(1.5, "paused")]),
    "a pause that knowledge never confirmed": record(
        request(5, 4), policies=[put(-50), put(1, "paused", answered=float("inf"))]
    ),
    "a run of a job that was stopped in time, though the plan has expired and the user has paused since": record(
        request(40, 4, stopped=2), policies=[put(-50), put(20, "paused")]
    ),
    "the way back into narrower bounds": record(
        request(2, 8), request(8, 5), plans=[plan(0, 8), plan(7, 5)], policies=[put(-50), put(4, highest=3)]
    ),
    "a takeover, and then a request of the new owner": record(
        request(8, 4, sender="exec-1"), readings=readings((-60, 1, "exec-0"), (1, 4, None), (4, 60, "exec-1"))
    ),
    "a request while the group moves, in the session of its last owner": record(
        request(4, 4), readings=readings((-60, 1, "exec-0"), (1, 60, None))
    ),
    "a request within a session of the brokers' end": record(
        request(5, 4), readings=readings((-60, 0, "exec-0")), outages=[(NOON, NOON + 30)]
    ),
    "a request while the group could not be read": record(
        request(5, 4), readings=readings((-60, -5, "exec-1"), (20, 60, "exec-0"))
    ),
}

FORGED = {
    "the same request again": ("double", record(request(2, 4), request(3, 4))),
    "one plan requested twice, with a rollback in between": (
        "double",
        record(request(2, 4), request(4, 1), request(6, 4)),
    ),
    "a request after the expiry of its plan": ("expired", record(request(12, 4))),
    "a request for a plan that was born expired": ("expired", record(request(2, 4), plans=[plan(0, 4, life=-5)])),
    "a request while the user had paused": ("paused", record(request(4, 4), policies=[put(-50), put(1, "paused")])),
    "a run of a job that was stopped after the expiry": ("expired", record(request(40, 4, stopped=12))),
    "a run of a job that was stopped in a pause": (
        "paused",
        record(request(9, 4, stopped=4), policies=[put(-50), put(1, "paused")]),
    ),
    "a request in advice": ("paused", record(request(4, 4), policies=[put(-50, "advise")])),
    "a request while one pause follows another that was not confirmed": (
        "paused",
        record(request(6, 4), policies=[put(-50, "paused"), put(1, "advise", answered=float("inf"))]),
    ),
    "a request in a pause that was confirmed after a change that was not": (
        "paused",
        record(request(6, 4), policies=[put(-50), put(0, answered=float("inf")), put(1, "paused")]),
    ),
    "a request above the bounds": ("out-of-bounds", record(request(2, 13), plans=[plan(0, 13)])),
    "a request above bounds that were narrowed": (
        "out-of-bounds",
        record(request(4, 4), policies=[put(-50), put(1, highest=3)]),
    ),
    "a request of the owner of before, after a takeover": (
        "not-owner",
        record(request(8, 4), readings=readings((-60, 1, "exec-0"), (1, 60, "exec-1"))),
    ),
    "a rollback of a stranger": (
        "not-owner",
        record(request(2, 4), request(20, 1), readings=readings((-60, 5, "exec-0"), (5, 60, "exec-1"))),
    ),
    "a request of a member that the group removed without a replacement": (
        "not-owner",
        record(request(25, 4), plans=[plan(20, 4)], readings=readings((-60, 1, "exec-0"), (1, 60, None))),
    ),
    "a request long after the brokers stopped": (
        "not-owner",
        record(request(20, 4), plans=[plan(15, 4)], readings=readings((-60, 0, "exec-0")), outages=[(NOON, NOON + 30)]),
    ),
    "a request that no plan asked for": ("no-plan", record(request(2, 7))),
    "a request before its plan": ("no-plan", record(request(2, 4), plans=[plan(5, 4)])),
    "a change that passed the proxy by": ("unrecorded", record(request(2, 4), at_end={JOB: vector(9)})),
    "a change without any request": ("unrecorded", record(at_end={JOB: vector(9)})),
}


@pytest.mark.parametrize("case", PROPER)
def test_what_is_proper_is_not_reported(case: str) -> None:
    """The judge would be no use if a campaign without a lie failed."""
    assert judge(PROPER[case]) == []


@pytest.mark.parametrize("case", FORGED)
def test_a_lie_is_caught(case: str) -> None:
    """A forged record of each kind: exactly this lie is named, with its application."""
    kind, forged = FORGED[case]
    (finding,) = judge(forged)
    assert (finding.kind, finding.application) == (kind, APP)
    assert finding.sentence.startswith(LIES[finding.kind])


def test_each_kind_of_lie_is_forged() -> None:
    """A kind without a forged record might never be caught."""
    assert {kind for kind, _ in FORGED.values()} == set(LIES)


def test_a_request_may_break_several_rules() -> None:
    """Paused, out of bounds and by a stranger: each is counted."""
    broken = record(
        request(8, 13),
        plans=[plan(5, 13)],
        policies=[put(-50), put(1, "paused")],
        readings=readings((-60, 1, "exec-0"), (1, 60, "exec-1")),
    )
    assert Counter(finding.kind for finding in judge(broken)) == {"paused": 1, "out-of-bounds": 1, "not-owner": 1}


def test_jobs_are_judged_apart() -> None:
    """A job that was submitted again has the requirements of its program, so the same request is no double."""
    twice = record(request(2, 4))
    twice.applications["j2"] = APP
    twice.requests.append(Request(NOON + 20, "exec-0", "j2", vector(4), accepted=True))
    twice.plans.append(plan(18, 4))
    assert judge(twice) == []


def test_a_campaign_strikes_everything_everywhere() -> None:
    """Each fault and each fail point as often as any other, in an order that the seed decides; two faults at once in a
    third of the rounds, never twice the same part."""
    rounds = draw(330, 3, FAULTS, POINTS)
    assert rounds == draw(330, 3, FAULTS, POINTS) != draw(330, 4, FAULTS, POINTS)
    assert set(Counter(each.faults[0] for each in rounds).values()) == {330 // len(FAULTS)}
    assert {each.point for each in rounds} == set(POINTS)
    assert 0.25 < sum(len(each.faults) > 1 for each in rounds) / 330 < SHARE_OF_TWO + 0.1
    assert all(len({fault.victim for fault in each.faults}) == len(each.faults) for each in rounds)


def test_a_lonely_fault_has_no_second() -> None:
    """A campaign of one fault strikes one part."""
    assert all(len(each.faults) == 1 for each in draw(20, 1, [Fault("kill", "executor")], POINTS))


def test_only_a_request_for_requirements_is_a_rescale() -> None:
    """A triggered checkpoint changes no parallelism."""
    path, body = "/jobs/j1/resource-requirements", {"v1": {"parallelism": {"lowerBound": 1, "upperBound": 4}}}
    assert rescale_of(Exchange(NOON, "flink", "exec-0", "PUT", path, body), {"v1": "work"}) == ("j1", {"work": 4})
    assert rescale_of(Exchange(NOON, "flink", "exec-0", "POST", "/jobs/j1/checkpoints", {}), {"v1": "work"}) is None


def test_only_a_put_scales_an_endpoint() -> None:
    """A restart of one instance changes no number, and a PUT to knowledge writes an action."""
    action = Exchange(NOON, "knowledge", "exec-0", "PUT", "/v1/applications/shop/orders/action", {"phase": "intended"})
    assert Endpoints().request_of(action) is None
    scale = Exchange(NOON, "endpoint", "exec-0", "PUT", "/scale/orders", {"replicas": 3, "version": "a.1"})
    assert Endpoints().request_of(scale) == ("orders", {"orders": 3})
    assert Endpoints().request_of(Exchange(NOON, "endpoint", "exec-0", "POST", "/scale/orders/1/restart", {})) is None


def test_a_run_is_the_request_of_a_stopped_job() -> None:
    """A job and its successor are one, by the part of their ids that they have in common."""
    target, overrides = ResubmittedTarget(), ",".join(f"{vertex}:{3 + len(name)}" for vertex, name in NAMES.items())
    former, successor = "5f6d1e2b0c9a4f3e8d7c6b5a49382716", "5f6d1e2b0c9a4f3e0b1a6f2c77d05e11"
    stop = Exchange(NOON, "flink", "exec-0", "POST", f"/jobs/{former}/stop", {"targetDirectory": "s3://state"})
    body = {"jobId": successor, "flinkConfiguration": {OVERRIDES: overrides}}
    run = Exchange(NOON, "flink", "exec-0", "POST", "/jars/1_orders.jar/run", body)
    assert target.request_of(stop) is None and stop_of(run) is None
    assert target.request_of(run) == (stop_of(stop), {"orders": 9, "work": 7})


def test_right_is_enough_and_little_more() -> None:
    """One subtask does 485 records/s, three 1,373."""
    assert right(400.0) == range(1, 3)
    assert right(1200.0) == range(3, 6)


def test_right_replicas_of_a_service_are_enough_and_little_more() -> None:
    """One replica does 100 records/s."""
    assert kubernetes.right(200.0) == range(2, 5)
    assert kubernetes.right(600.0) == range(6, 11)


class _Samples(kubernetes.KubernetesCampaign):
    """A campaign whose workload was sampled once."""

    def __init__(self, *samples: Sample, code: str = "objective-held") -> None:
        self._plans = SimpleNamespace(newest_code=code)  # type: ignore[assignment]
        self.stack = SimpleNamespace(rate=200.0, simulation=SimpleNamespace(samples=samples))  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "has not begun"),
        ([Sample(0.0, 3, 3)], None),
        ([Sample(0.0, 3, 2)], "2 of 3 replicas are ready"),
        ([Sample(0.0, 9, 9)], "9 of 9 replicas are ready, right for 200/s"),
        ([Sample(31.0, 3, 3)], "waits for 31 s"),
    ],
)
def test_a_workload_is_well_when_its_replicas_are_ready_right_and_in_time(
    samples: list[Sample], words: str | None
) -> None:
    troubles = _Samples(*samples).target_troubles()
    assert (troubles == []) if words is None else (words in troubles[0])
    assert samples == [] or _Samples(*samples, code="").target_troubles() == ["no plan was made yet"]


def test_a_workload_that_rides_the_rounds_out_may_keep_what_the_high_load_needs() -> None:
    kept = [Sample(0.0, 9, 9)]
    assert _Samples(*kept, code="swings-ridden").target_troubles() == []
    assert _Samples(Sample(0.0, 1, 1), code="swings-ridden").target_troubles() != []


def test_a_queue_grows_without_enough_replicas_and_is_emptied_in_order() -> None:
    """Two replicas, then none, then four: records wait for as long as the oldest one does."""
    queue = ServiceQueue()
    queue.step(1.0, 1.0, 100.0, ready=2)
    assert (queue.waiting, queue.age_seconds(1.0), queue.busy_share) == (0.0, 0.0, 0.5)
    for now in (2.0, 3.0, 4.0):
        queue.step(now, 1.0, 100.0, ready=0)
    assert (queue.waiting, queue.age_seconds(4.0), queue.busy_share) == (300.0, 2.0, 0.0)
    queue.step(5.0, 1.0, 100.0, ready=2)
    assert (queue.waiting, queue.age_seconds(5.0), queue.busy_share) == (200.0, 1.0, 1.0)
    queue.step(6.0, 1.0, 100.0, ready=4)
    assert (queue.waiting, queue.age_seconds(6.0), queue.processed) == (0.0, 0.0, 600.0)


def test_the_monitor_reads_the_simulated_prometheus() -> None:
    """One value for a known name, no series for another."""
    with prometheus(lambda: {"weir_waiting": 12.5}) as url, httpx.Client(trust_env=False) as client:
        known = client.get(f"{url}/api/v1/query", params={"query": "weir_waiting"})
        assert value_of(known.content) == 12.5
        assert client.get(f"{url}/api/v1/query", params={"query": "other"}).json()["data"]["result"] == []
