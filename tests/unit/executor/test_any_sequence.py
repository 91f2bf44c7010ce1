"""Any observations in any order: no illegal move, no request that was not decided, every end final."""

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.executor.builders import (
    BEFORE,
    NOON,
    OTHER_ATTEMPT,
    RULES,
    TOPOLOGY,
    WANTED,
    absent,
    action,
    analysis,
    away,
    operator_analysis,
    reading,
    snapshot,
)
from weir_contracts import TERMINAL, Outcome, derive_id
from weir_engines.driver import (
    Accepted,
    Jobs,
    Refusal,
    Rejected,
    Snapshot,
    Stopped,
    TaskManagers,
    Unanswered,
)
from weir_engines.flink.topology import health_of
from weir_executor.core.history import ActionHistory, recall, record_transition
from weir_executor.core.observed import Conflict, Observed, PolicyReading, Provide, Recorded, Request, RunJob, Step
from weir_executor.core.steps import next_step, resume, supersede
from weir_executor.core.table import Event

SUCCESSOR, RESTORED = ("a" * 16 + derive_id(action().id, which).hex[:16] for which in ("successor", "restored"))
FOREIGN = {"orders": 1, "enrich": 7, "sink": 7}

VECTORS = st.sampled_from([BEFORE, WANTED, FOREIGN])


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """The target in any shape."""
    kind = draw(st.sampled_from(["there"] * 8 + ["absent", "away"]))
    if kind != "there":
        return absent() if kind == "absent" else away()
    managers = TaskManagers(
        slots=draw(st.sampled_from([1, 2])),
        max=8,
        wanted=draw(st.sampled_from([None, 1, 2, 4, 4, 7])),
        registered_slots=draw(st.sampled_from([None, 0, 1, 4, 8])),
        free_slots=draw(st.sampled_from([None, 0, 1, 4])),
        is_settled=draw(st.booleans()),
        releasable=draw(st.sampled_from([None, 0, 1, 9])),
        refusal=draw(st.sampled_from([None, None, None, Refusal("rollout", "Deployment taskmanagers is rolling out")])),
    )
    newest = draw(st.sampled_from(["a" * 32] * 3 + [SUCCESSOR, SUCCESSOR, RESTORED, "b" * 32, ""]))
    over = draw(st.sampled_from(["RUNNING", "RUNNING", "FAILED", "FINISHED"]))
    jobs = Jobs(newest, over, is_over=over != "RUNNING", jar=draw(st.sampled_from(["orders.jar"] * 3 + [""])))
    state = draw(st.sampled_from(["RUNNING"] * 4 + ["RESTARTING", "FAILED", "CANCELED"]))
    return snapshot(
        draw(VECTORS),
        health=health_of(state),
        state=state,
        all_running=state == "RUNNING" and draw(st.booleans()),
        requested=draw(st.one_of(st.none(), VECTORS)),
        restarts=draw(st.one_of(st.none(), st.integers(0, 9))),
        job_id=draw(st.sampled_from(["a" * 32] * 6 + ["b" * 32])),
        steady_since=draw(st.one_of(st.none(), st.just(NOON))),
        checkpoint_in_progress=draw(st.one_of(st.none(), st.booleans())),
        topology=TOPOLOGY,
        managers=draw(st.one_of(st.none(), st.just(managers))),
        jobs=draw(st.one_of(st.none(), st.just(jobs), st.just(jobs), st.just(jobs))),
    )


ANSWERS: Any = st.one_of(
    st.none(),
    st.just(Recorded()),
    st.just(Conflict(action("applying", attempt_id=OTHER_ATTEMPT, version=9))),
    st.just(Accepted(NOON)),
    st.just(Stopped(NOON, "file:///savepoints/savepoint-1")),
    st.just(Rejected("no")),
    st.just(Unanswered("timeout")),
)
POLICIES = st.sampled_from(
    [reading(), reading(mode="paused"), reading(version=9), PolicyReading(reachable=False), None]
)
ANALYSES = st.sampled_from(
    [None, analysis(WANTED, [operator_analysis("enrich", 4, capacity=500.0)], window_started_at=NOON + timedelta(1))]
)
OBSERVED = st.builds(
    Observed, snapshot=snapshots(), analysis=ANALYSES, policy=POLICIES, answer=ANSWERS, planned_version=st.just(3)
)
CYCLE = st.tuples(OBSERVED, st.floats(0, 200), st.sampled_from(["step"] * 8 + ["resume", "supersede", "restart"]))


@examples(60)
@given(st.lists(CYCLE, max_size=25))
def test_the_machine_holds_its_promises(cycles: list[tuple[Observed, float, str]]) -> None:
    """Versions grow by one, terminal phases stay, requests are for `wanted` or the rollback target; the newest outcome
    suffices."""
    now = NOON
    published = record_transition(ActionHistory(), Step(action(version=1), Event("admitted", "…")), None, now, RULES)
    history, last = published.history, published.outcome
    for found, seconds, what in cycles:
        now += timedelta(seconds=seconds)
        before = history.action
        assert before is not None
        if what == "restart":
            history = recall(ActionHistory(), Outcome.model_validate_json(last.model_dump_json()))
            continue
        if what == "resume":
            step = resume(before, OTHER_ATTEMPT, now)
        elif what == "supersede":
            step = supersede(before, now)
        else:
            step = next_step(before, found, now, RULES)
        if before.phase in TERMINAL:
            assert step == Step(before)
            continue
        if step.instruction is not None and isinstance(step.instruction, Request):
            assert step.instruction.parallelism == (BEFORE if step.action.phase == "rolling-back" else WANTED)
            assert step.action.phase in ("applying", "rolling-back")
        if isinstance(step.instruction, RunJob):
            record = step.action.resubmission
            assert record is not None and record.savepoint is not None
            is_back = step.action.phase == "rolling-back"
            assert step.instruction == RunJob(BEFORE if is_back else WANTED, former=is_back)
        if isinstance(step.instruction, Provide):
            change, there = step.action.managers, found.snapshot.managers
            assert change is not None and there is not None
            grows = there.wanted is None or step.instruction.managers >= there.wanted
            assert grows if step.action.phase in ("preparing", "rolling-back") else step.action.phase == "releasing"
            assert step.instruction.managers >= min(change.before, change.wanted)
        if step.name is None:
            assert step.action.version == before.version
            history = ActionHistory(**{**history.__dict__, "action": step.action})
            continue
        assert step.action.version == before.version + 1
        published = record_transition(history, step, found.snapshot, now, RULES)
        last = published.outcome
        again = recall(ActionHistory(), Outcome.model_validate_json(last.model_dump_json()))
        assert (again.action, again.last_written) == (published.history.action, published.history.last_written)
        history = published.history
