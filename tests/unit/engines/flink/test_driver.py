"""Flink's answers: recorded ones mean what they should, hostile ones name call and field."""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.engines.flink.fake_cluster import FakeFlink
from tests.unit.engines.flink.test_responses import DEFAULT_SCHEDULER, NO_SUCH_JOB, refusal
from tests.unit.engines.memory_jobs import MemoryDriver
from tests.unit.executor.builders import BEFORE, JOB, NOON, TOPOLOGY, WANTED, subject
from weir_engines.driver import Rejected, Unanswered, Unfenced
from weir_engines.flink.driver import MAX_ANSWER_BYTES, FlinkDriver
from weir_runtime.clock import FakeClock

RECORDED = Path(__file__).parent / "recorded" / "driver"
REAL_JOB = "5ccd81b6e34f5a1a600a6ab743d937c8"


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text())


class TestRecorded:
    """A 2.2.1 cluster right after `enrich` went from 2 to 4."""

    @pytest.fixture
    async def driver(self) -> AsyncIterator[FlinkDriver]:
        paths = {
            "/jobs/overview": "jobs_overview",
            f"/jobs/{REAL_JOB}": "job",
            f"/jobs/{REAL_JOB}/resource-requirements": "resource_requirements",
            f"/jobs/{REAL_JOB}/checkpoints": "checkpoints",
            f"/jobs/{REAL_JOB}/checkpoints/config": "checkpoints_config",
            f"/jobs/{REAL_JOB}/metrics": "metrics",
            f"/jobs/{REAL_JOB}/jobmanager/config": "jobmanager_config",
            "/config": "config",
        }
        transport = httpx.MockTransport(lambda r: httpx.Response(200, json=recorded(paths[r.url.path])))
        driver = FlinkDriver(FakeClock(NOON), transport=transport)
        yield driver
        await driver.close()

    async def test_recorded_responses_are_parsed(self, driver: FlinkDriver) -> None:
        """Names in topological order, both parallelisms, timings; Flink's `now` is our noon."""
        found = await driver.observe(subject("rec"))
        there = found.deployment
        assert found.reachable and found.all_running and there is not None
        wanted = {"Source: orders": 2, "parse": 2, "enrich": 4, "aggregate": 2, "sink: Writer": 2}
        assert there.observed == there.requested == wanted
        assert list(there.observed) == list(wanted)
        assert there.restarts == 2
        assert there.rescale.scheduler == "adaptive"
        assert (there.rescale.cooldown_seconds, there.rescale.stabilization_seconds) == (1.0, 1.0)
        assert there.rescale.max_trigger_delay_seconds == 90.0
        assert there.checkpoints is not None
        assert (there.checkpoints.interval_seconds, there.checkpoints.last_duration_seconds) == (30.0, 0.127)
        assert found.steady_since == NOON + timedelta(milliseconds=1795241806845 - 1795241811004)
        assert found.running_since == NOON + timedelta(milliseconds=1795241805766 - 1795241811004)


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("TRUE ", True), ("false", False), (None, False)])
async def test_a_cluster_that_triggers_the_checkpoint_itself_is_known(value: str | None, expected: bool) -> None:
    """By the option of FLINK-36753 (apache/flink#27921), whose default is seen nowhere: unset, Weir triggers one."""
    clock = FakeClock(NOON)
    history = MemoryDriver(clock)
    history.add(subject(), TOPOLOGY, BEFORE, JOB)
    flink = FakeFlink(history, subject())
    option = {"key": "jobmanager.adaptive-scheduler.rescale-trigger.active-checkpoint.enabled", "value": value}
    settings = [] if value is None else [option]
    flink.broken[f"/jobs/{JOB}/jobmanager/config"] = (200, json.dumps(settings).encode())
    driver = FlinkDriver(clock, transport=flink.transport)
    found = await driver.observe(subject())
    await driver.close()
    assert found.reachable and found.can_trigger_checkpoint
    assert found.engine_triggers_checkpoint is expected


class TestHostile:
    """Whatever comes, it is an answer with a reason and never an exception."""

    @pytest.fixture
    async def flink(self) -> AsyncIterator[FakeFlink]:
        clock = FakeClock(NOON)
        history = MemoryDriver(clock)
        history.add(subject(), TOPOLOGY, BEFORE, JOB)
        yield FakeFlink(history, subject())

    async def reason(self, flink: FakeFlink, path: str, answer: Any) -> str:
        flink.broken[path] = answer
        driver = FlinkDriver(FakeClock(NOON), transport=flink.transport)
        found = await driver.observe(subject())
        await driver.close()
        assert not found.reachable
        return found.reason

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (b"", "the answer is not JSON"),
            (b'{"jobs": [', "the answer is not JSON"),
            (b"<html>login</html>", "the answer is not JSON"),
            (b"[]", "expected an object"),
            (b"{}", "jobs: expected a list"),
            (b'{"jobs": null}', "jobs: expected a list"),
            (b'{"jobs": [{"jid": "../../x", "name": "orders"}]}', "jobs.0.jid: expected an id"),
        ],
    )
    async def test_an_invalid_overview_is_an_outage(self, flink: FakeFlink, body: bytes, expected: str) -> None:
        """Call and field are named; an id that would change the path of the next call is refused."""
        reason = await self.reason(flink, "/jobs/overview", (200, body))
        assert reason.removeprefix("GET ").startswith("/jobs/overview")
        assert expected in reason

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"now": "soon"}, "now: "),
            ({"now": float("inf")}, "now: "),
            ({"now": 10**30}, "now: "),
            ({"vertices": [], "plan": {"nodes": []}}, "vertices: expected at least one"),
            ({"vertices": [{"id": "v1", "name": "orders", "parallelism": 0}]}, "vertices.0.parallelism: "),
            ({"vertices": [{"id": "v1", "name": "orders", "parallelism": 10**9}]}, "vertices.0.parallelism: "),
            ({"plan": {"nodes": []}}, "plan.nodes: lack the vertex"),
            ({"state": None}, "state: "),
        ],
    )
    async def test_invalid_details_are_an_outage(self, flink: FakeFlink, change: dict[str, Any], expected: str) -> None:
        """Wrong types, huge and missing values."""
        body = {**recorded("job"), **change}
        reason = await self.reason(flink, f"/jobs/{JOB}", (200, json.dumps(body).encode()))
        assert expected in reason

    @pytest.mark.parametrize("state", ["CANCELED", "FAILED"])
    async def test_a_job_that_ended_while_it_restarted_is_gone(self, flink: FakeFlink, state: str) -> None:
        """Flink keeps no graph of it. As an outage it would block the cluster's other actions for ten minutes."""
        body = {**recorded("job"), "state": state, "vertices": [], "plan": {}}
        flink.broken[f"/jobs/{JOB}"] = (200, json.dumps(body).encode())
        line = {"jid": JOB, "name": "orders", "state": state}
        flink.broken["/jobs/overview"] = (200, json.dumps({"jobs": [line]}).encode())
        driver = FlinkDriver(FakeClock(NOON), transport=flink.transport)

        found = await driver.observe(subject())

        await driver.close()
        assert found.reachable
        assert found.deployment is None
        assert found.reason == f"job {JOB} is {state}"

    async def test_a_graph_with_a_cycle_is_refused(self, flink: FakeFlink) -> None:
        """Its topological order does not exist."""
        body = recorded("job")
        body["plan"]["nodes"][0]["inputs"] = [{"id": body["plan"]["nodes"][-1]["id"]}]
        assert "cycle" in await self.reason(flink, f"/jobs/{JOB}", (200, json.dumps(body).encode()))

    async def test_an_error_is_an_outage(self, flink: FakeFlink) -> None:
        """503 while the JobManager elects a leader, 302 to a login page."""
        assert "503" in await self.reason(flink, "/jobs/overview", (503, b"no leader"))
        assert "302" in await self.reason(flink, "/jobs/overview", (302, b""))

    async def test_a_huge_response_is_cut_off(self, flink: FakeFlink) -> None:
        """It is not read to its end."""
        reason = await self.reason(flink, "/jobs/overview", (200, b" " * (MAX_ANSWER_BYTES + 1)))
        assert f"more than {MAX_ANSWER_BYTES} bytes" in reason

    @pytest.mark.parametrize("answer", [(200, b"{}"), (200, b'{"slots-total": -1}'), (503, b""), (200, b"nonsense")])
    async def test_slots_are_reported_or_unknown(self, flink: FakeFlink, answer: tuple[int, bytes]) -> None:
        """Seven have registered; an invalid response is unknown, not 0."""
        driver = FlinkDriver(FakeClock(NOON), transport=flink.transport)
        assert await driver.slots(subject()) == 7
        flink.broken["/overview"] = answer
        assert await driver.slots(subject()) is None
        await driver.close()

    async def test_reactive_mode_is_no_missing_feature(self, flink: FakeFlink) -> None:
        """Such a cluster offers no rescaling by requirements, but its scheduler is not the default one."""
        flink.broken["/config"] = (200, b'{"features": {"web-rescale": false}}')
        flink.broken[f"/jobs/{JOB}/jobmanager/config"] = (200, b'[{"key": "scheduler-mode", "value": "REACTIVE"}]')
        driver = FlinkDriver(FakeClock(NOON), transport=flink.transport)
        found = await driver.observe(subject())
        await driver.close()
        assert found.deployment is not None and found.deployment.rescale.scheduler == "reactive"

    async def test_slots_of_started_task_managers_are_waited_for(self, flink: FakeFlink) -> None:
        """On a cluster that starts TaskManagers itself: the time since which there are enough, after which a checkpoint is
        due."""
        native = b'[{"key": "execution.target", "value": "kubernetes-application"}]'
        flink.broken[f"/jobs/{JOB}/jobmanager/config"] = (200, native)
        (job,) = flink.driver.jobs.values()
        held, clock = TOPOLOGY.slots(job.observed), FakeClock(NOON)
        job.requested = dict.fromkeys(job.requested, held + 3)
        driver = FlinkDriver(clock, transport=flink.transport)

        async def resourced_at(answer: tuple[int, bytes]) -> datetime | None:
            flink.broken["/overview"] = answer
            clock.advance(1)
            return (await driver.observe(subject())).resourced_at

        def free(slots: int) -> tuple[int, bytes]:
            return 200, json.dumps({"slots-total": 20, "slots-available": slots}).encode()

        assert await resourced_at(free(2)) is None
        since = await resourced_at(free(3))
        assert since == clock.now()
        assert await resourced_at(free(4)) == since
        assert await resourced_at((503, b"")) is None
        await driver.close()

    async def test_silence_is_an_outage(self, flink: FakeFlink) -> None:
        """Timeouts and cut connections name the call."""

        def cut() -> httpx.Response:
            raise httpx.ReadTimeout("")

        assert f"GET /jobs/{JOB}: no answer in time" in await self.reason(flink, f"/jobs/{JOB}", cut)

    @pytest.mark.parametrize("path", ["checkpoints", "metrics", "resource-requirements", "jobmanager/config"])
    async def test_optional_responses_may_be_missing(self, flink: FakeFlink, path: str) -> None:
        """A missing value is None, not 0, and the job is still observed."""
        for answer in ((404, b"{}"), (200, b"nonsense"), (500, b"")):
            flink.broken[f"/jobs/{JOB}/{path}"] = answer
            driver = FlinkDriver(FakeClock(NOON), transport=flink.transport)
            found = await driver.observe(subject())
            await driver.close()
            assert found.deployment is not None and found.all_running
            missing = {
                "checkpoints": found.checkpoint_in_progress,
                "metrics": found.deployment.restarts,
                "resource-requirements": found.deployment.requested,
                "jobmanager/config": found.deployment.rescale.cooldown_seconds,
            }
            assert missing[path] is None

    @pytest.mark.parametrize(
        ("status", "body", "kind"),
        [
            (400, refusal("x.RestHandlerException: too much\n\tat y"), Rejected),
            (500, refusal("Internal server error.", DEFAULT_SCHEDULER), Rejected),
            (500, refusal("Internal server error.", NO_SUCH_JOB), Rejected),
            (500, refusal("Internal server error."), Unanswered),
            (503, b"Service temporarily unavailable", Unanswered),
            (429, b"", Unanswered),
        ],
    )
    async def test_a_request_that_fails_is_final_or_not(
        self, flink: FakeFlink, status: int, body: bytes, kind: type[Any]
    ) -> None:
        """A permanent error is rejected; one that may be an election is repeated."""
        flink.broken[f"/jobs/{JOB}/resource-requirements"] = (status, body)
        driver = FlinkDriver(FakeClock(NOON), transport=flink.transport)
        answer = await driver.request(subject(), JOB, WANTED, BEFORE, Unfenced())
        await driver.close()
        assert isinstance(answer, kind)
        assert str(status) in answer.reason
        assert "\tat" not in answer.reason


async def test_settings_are_read_once() -> None:
    """A cluster's configuration is read once in a while, not with every observation."""
    clock = FakeClock(NOON)
    history = MemoryDriver(clock)
    history.add(subject(), TOPOLOGY, BEFORE, JOB)
    flink = FakeFlink(history, subject())
    driver = FlinkDriver(clock, transport=flink.transport)
    for _ in range(10):
        await driver.observe(subject())
        clock.advance(0.5)
    assert flink.calls.count("GET /config") == 1
    clock.advance(600)
    await driver.observe(subject())
    assert flink.calls.count("GET /config") == 2
    await driver.close()


async def test_old_details_do_not_make_it_run() -> None:
    """Job details may be seconds old; the overview, which is not, still reports deploying tasks."""
    overview = recorded("jobs_overview")
    overview["jobs"][0]["tasks"].update(running=9, initializing=3)
    answers = {"/jobs/overview": overview, f"/jobs/{REAL_JOB}": recorded("job")}
    transport = httpx.MockTransport(lambda r: httpx.Response(200, json=answers.get(r.url.path)))
    driver = FlinkDriver(FakeClock(NOON), transport=transport)
    found = await driver.observe(subject("rec"))
    await driver.close()
    assert found.deployment is not None and not found.all_running
