"""Each symptom's sentence fits a line of 160 characters, whatever the names and the numbers."""

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, get_args

from tests.unit.analyzer.group_story import NOON, PARTITIONS, App
from tests.unit.analyzer.story import Job, Loop, Stage
from weir_analyzer.core import advance
from weir_contracts import MAX_SENTENCE, Instance, Pod, Symptom, SymptomCode, WorkloadStatus, policy_of

NAME = "enrich-with-customer"
KUBERNETES = "Unschedulable: 0/3 nodes are available: insufficient cpu"


def widened(symptom: Symptom, *names: str) -> str:
    """Return its sentence with names of 20 characters, and numbers of seven digits in place of those with three. Dates, times
    and shares stay."""
    text = symptom.evidence
    for name in (symptom.operator or NAME, *names):
        text = re.sub(rf"\b{re.escape(str(name))}\b", NAME, text)
    return re.sub(r"(?<![-:.\w])\d[\d,]*(\.\d+)?(?![-%:\d])", lambda n: "1,234,568" if len(n[0]) > 2 else "12345", text)


def seen(loop: Loop, **changes: Any) -> Iterable[Symptom]:
    return loop.now(**changes).symptoms


def bare(loop: Loop, status: str) -> Iterable[Symptom]:
    """Yield the symptoms of an application without readings."""
    nothing: dict[str, Any] = {"run": None, "topology": None, "operators": [], "partitions": []}
    return seen(loop, status=status, message="no route to the host", **nothing)


def of_the_application() -> Iterable[Symptom]:
    """A job that starts, restarts, cannot be reached, and ends; observations are lost on the way."""
    loop = Loop()
    yield from (symptom for _ in range(20) for symptom in seen(loop))
    loop.job.restart()
    yield from seen(loop)
    loop.job.run_for(60)
    _, analysis = advance(loop.memory, loop.job.observe(), lost_records=10)
    assert analysis is not None
    yield from analysis.symptoms
    for status in ("not_running", "not_found", "unreachable", "ended"):
        yield from bare(loop, status)


def of_a_backlog() -> Iterable[Symptom]:
    """A backlog that is worked off, one at a source that is the limit itself, and a standstill."""
    loop = Loop(Job(stages=[Stage("Source: orders", 600), Stage("enrich", 6000)], rate=300))
    loop.watch(40)
    for rate, seconds in ((900, 60), (300, 34)):
        loop.job.rate = rate
        yield from loop.watch(seconds).symptoms
    loop.job.stages[0].subtask_rate = 1e-9
    yield from loop.watch(30).symptoms


def of_operators() -> Iterable[Symptom]:
    """More subtasks that bring nothing, a subtask that is busier than the others, and readings that are missing."""
    loop = Loop(Job(rate=900))
    loop.watch(80)
    loop.job.stages[1].subtask_rate = 310
    loop.job.restart({"enrich": 2})
    yield from loop.watch(80).symptoms
    source, enrich, _ = loop.job.observe().operators
    uneven = enrich.model_copy(update={"busy_share_mean": 0.4, "busy_share_max": 0.95, "records_in": None})
    unknown = source.model_copy(update={"records_in": None, "records_out": None, "busy_ms": None})
    yield from seen(loop, operators=[unknown.model_copy(update={"busy_share_mean": None}), uneven])
    idle = Loop(Job(rate=900, stages=[Stage("Source: orders", 50_000), Stage("enrich", 600)]))
    for _ in range(40):
        idle.job.run_for(2)
        observation = idle.job.observe()
        waiting = observation.operators[1]
        spent = {"busy_ms": 0.0, "idle_ms": (waiting.busy_ms or 0) + (waiting.idle_ms or 0), "busy_share_mean": 0.2}
        spent["busy_share_max"] = 0.2
        changed = [observation.operators[0], waiting.model_copy(update=spent)]
        analysis = idle.see(observation.model_copy(update={"operators": changed}))
    assert analysis is not None
    yield from analysis.symptoms


def of_offsets() -> Iterable[Symptom]:
    """Partitions that were reset, have expired, are cut off, are read uncommitted, or are stamped with odd times; a counter
    that says more than the offsets, and commits of another job."""

    def partitions(loop: Loop, **changes: Any) -> list[Any]:
        return [p.model_copy(update=changes) for p in loop.job.observe().partitions]

    loop = Loop()
    loop.watch(60)
    end = loop.job.observe().partitions[0].log_end_offset or 0
    yield from seen(loop, partitions=partitions(loop, rewound_at=NOON + timedelta(seconds=50)))
    yield from seen(loop, partitions=partitions(loop, current_offset=10, log_start_offset=1500))
    yield from seen(loop, partitions=partitions(loop, current_offset=end + 5000))
    yield from seen(loop, partitions=partitions(loop, current_offset=end + 5000, high_watermark=end + 9000))
    for stamped_ms in (1, 10**18):
        for position in (10, end - 100):
            odd = partitions(loop, current_offset=position, refused_timestamp_ms=stamped_ms)
            yield from seen(loop, partitions=odd)
    yield from seen(loop, partitions=partitions(loop, committed_offset=end + 9000))
    for factor in (10, 0.1):
        loop = Loop()
        for _ in range(30):
            loop.job.run_for(2)
            observation = loop.job.observe()
            source, *others = observation.operators
            counted = source.model_copy(update={"records_in": int(factor * (source.records_in or 0))})
            analysis = loop.see(observation.model_copy(update={"operators": [counted, *others]}))
        assert analysis is not None
        yield from analysis.symptoms


def of_a_group() -> Iterable[Symptom]:
    """A group whose tasks move, whose threads wait, or of which a partition or an instance stands still."""
    restoring = [Instance(id="a", threads=2, standby_tasks=2, restore_remaining_records=1200)]
    for state in ("PreparingRebalance", "Reconciling"):
        group = {"state": state, "probing_rebalance_at": NOON + timedelta(minutes=10)}
        yield from App([25.0] * PARTITIONS, group=group, instances=restoring).run_for(5).symptoms
    waiting = [Instance(id="a", threads=2, blocked_share=0.8)]
    yield from App([100.0] * PARTITIONS, thread_rate=130.0, instances=waiting).run_for(400).symptoms
    yield from App([5.0, 5.0, 5.0, 400.0], thread_rate=150.0).run_for(400).symptoms
    instances = [Instance(id=f"p{n}", threads=1, state="RUNNING", members=[f"app-{n}-StreamThread-1"]) for n in (1, 2)]
    stuck = App([25.0] * PARTITIONS, instances=instances, commit_seconds=5.0)
    stuck.run_for(300)
    stuck.stuck = {1, 3}
    yield from stuck.run_for(100).symptoms


def of_sources_without_offsets() -> Iterable[Symptom]:
    """Change data: waiting records that jump or are refused, a busy share that is none, a metric that is not reported, and
    records that come late."""
    full = {"busy_share_mean": 1.0, "busy_share_max": 1.0, "busy_ms": None, "idle_ms": None}
    named = policy_of(
        "shop/orders",
        application={"flink": {"url": "http://flink:8081", "job": "orders"}},
        objective={"maxLag": "30s", "lagMetric": "currentFetchEventTimeLag"},
    )
    for rate, changes in (
        (300, {"pending_records": 0, "fetch_lag_seconds": 4500.0}),
        (300, {"pending_records": 1_234_567_890}),
        (300, {"pending_refused": f"are those of another source, {NAME}", "fetch_lag_seconds": 4.0}),
        (300, {"pending_records": 0, **full}),
        (300, {"behind_seconds": 0.0, **full}),
        (300, full),
        (900, full),
        (0, {"idle_seconds": 4500.0, **full}),
        (0, full),
    ):
        loop = Loop(Job(rate=300, stages=[Stage("Source: orders", 50_000), Stage("enrich", 20_000)]))
        for scrape in range(80):
            loop.job.rate = 300 if scrape < 30 else rate
            loop.job.run_for(2)
            observation = loop.job.observe(partitions=[], policy=named)
            given = full if scrape < 30 and "busy_ms" in changes else {"pending_records": 0} if scrape < 30 else changes
            source = observation.operators[0].model_copy(update=given)
            analysis = loop.see(observation.model_copy(update={"operators": [source, *observation.operators[1:]]}))
            assert analysis is not None
            yield from analysis.symptoms
    loop = Loop(Job(rate=900))
    for scrape in range(70):
        if scrape == 40:
            loop.job.restart({"enrich": 2})
        loop.job.run_for(2)
        source, *others = loop.job.observe().operators
        analysis = loop.see(loop.job.observe(partitions=[], operators=[source, *others]))
        assert analysis is not None
        yield from analysis.symptoms


def of_workloads() -> Iterable[Symptom]:
    """Pods that are pending, crash and exceed their memory; a rollout that runs, and one that is paused."""
    pods = [
        Pod(name="p0", phase="Pending", reason=KUBERNETES),
        Pod(name="p1", phase="Running", restarts=123_456, reason="CrashLoopBackOff: back-off 5m0s restarting"),
        Pod(name="p2", phase="Running", out_of_memory=True, memory_limit_bytes=2**50),
        Pod(name="p3", phase="Running", out_of_memory=True),
    ]
    counts = {"wanted": 123_456, "current": 3, "updated": 123, "ready": 3}
    workload = WorkloadStatus(kind="StatefulSet", name=NAME, namespace="shop", uid="u", **counts)
    for changes in ({"rolling_out": True}, {"paused": True}, {"rolling_out": True, "updated": None}):
        loop = Loop()
        deployment = loop.job.observe().deployment
        assert deployment is not None
        changed = {"workloads": [workload.model_copy(update=changes)], "pods": pods}
        yield from seen(loop, deployment=deployment.model_copy(update=changed))


STORIES: list[Callable[[], Iterable[Symptom]]] = [
    of_the_application, of_a_backlog, of_operators, of_offsets, of_a_group, of_sources_without_offsets,
    of_workloads,
]  # fmt: skip


def test_every_symptom_has_a_sentence_that_fits_a_line() -> None:
    """With names of 20 characters and numbers of seven digits. The stories show every symptom that there is."""
    symptoms = [symptom for story in STORIES for symptom in story()]
    assert {symptom.code for symptom in symptoms} == set(get_args(SymptomCode))
    for symptom in symptoms:
        assert not symptom.evidence.endswith("…")
        assert len(widened(symptom, "app-2", "app", "orders")) <= MAX_SENTENCE, widened(symptom)
