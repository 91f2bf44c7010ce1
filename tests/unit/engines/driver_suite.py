"""Suite of all drivers, for the memory cluster, Flink's REST shapes and a real Flink."""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import pytest

from weir_contracts import Parallelism, Subject
from weir_engines.driver import Accepted, Driver, Refusal, Rejected, Snapshot, Unanswered, Unfenced

OPEN = Unfenced()
SKEW = timedelta(seconds=1.5)
"""Engine times are whole milliseconds, shifted between two clocks."""


class Closed:
    """A fence that lets so many changes through after the first, which is held at once if `held` is."""

    def __init__(self, held: Refusal | Unanswered | None, changes: int = 0) -> None:
        self._held = held
        self._changes = changes
        self.request_sent = 0

    async def begin(self) -> Refusal | Unanswered | None:
        self.request_sent += 1
        return self._held

    async def go_on(self) -> Unanswered | None:
        self._changes -= 1
        return Unanswered("not confirmed") if self._changes < 0 else None


class Rig(Protocol):
    """A running job and its cluster."""

    driver: Driver
    subject: Subject
    by_id: Subject
    nobody: Subject
    """The same cluster, a job it does not have."""
    away: Subject
    """A cluster that does not answer."""
    job_id: str
    before: Parallelism
    wanted: Parallelism
    too_much: Parallelism
    """Above the max parallelism of an operator."""

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """The first snapshot of the target that fulfils it."""


class DriverSuite:
    """Subclass it with a fixture `rig`."""

    async def test_a_running_job_is_observed(self, rig: Rig) -> None:
        """State, requested and observed parallelism, start times, and that it runs."""
        found = await rig.until(lambda s: s.runs(rig.before))
        assert found.reachable and found.deployment is not None
        assert found.deployment.job_id == rig.job_id
        assert found.deployment.requested == found.deployment.observed == rig.before
        assert found.deployment.requested_lower == dict.fromkeys(rig.before, 1)
        assert found.deployment.rescale.scheduler == "adaptive"
        assert found.deployment.restarts is not None
        assert found.running_since is not None and found.steady_since is not None
        assert found.running_since <= found.at + SKEW and found.steady_since <= found.at + SKEW

    async def test_a_job_is_found_by_id_too(self, rig: Rig) -> None:
        """A policy may name either."""
        found, other = await rig.driver.observe(rig.subject), await rig.driver.observe(rig.by_id)
        assert found.deployment is not None and other.deployment is not None
        assert other.deployment.ref() == found.deployment.ref()

    async def test_a_missing_job_is_not_an_outage(self, rig: Rig) -> None:
        """The cluster responds that it has no such job."""
        found = await rig.driver.observe(rig.nobody)
        assert (found.reachable, found.deployment) == (True, None)
        assert found.reason

    async def test_an_outage_is_not_an_absent_job(self, rig: Rig) -> None:
        """The state of the job is unknown, and no call raises."""
        found = await rig.driver.observe(rig.away)
        assert (found.reachable, found.deployment) == (False, None)
        assert found.reason
        assert isinstance(await rig.driver.request(rig.away, rig.job_id, rig.wanted, rig.before, OPEN), Unanswered)
        assert await rig.driver.trigger_checkpoint(rig.away, rig.job_id)

    async def test_a_request_is_accepted(self, rig: Rig) -> None:
        """The request is taken at once and runs soon after a triggered checkpoint, with a start time."""
        request_sent = await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
        assert isinstance(request_sent, Accepted)
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.requested == rig.wanted
        assert await rig.driver.trigger_checkpoint(rig.subject, rig.job_id) is None
        found = await rig.until(lambda s: s.runs(rig.wanted))
        assert found.steady_since is not None
        assert request_sent.at - SKEW <= found.steady_since <= found.at + SKEW

    async def test_a_request_may_be_repeated(self, rig: Rig) -> None:
        """A resumed action may repeat a request."""
        await rig.until(lambda s: s.all_running)
        for _ in range(2):
            assert isinstance(await rig.driver.request(rig.subject, rig.job_id, rig.before, rig.before, OPEN), Accepted)
        assert (await rig.until(lambda s: s.runs(rig.before))).reachable

    async def test_too_high_a_parallelism_is_rejected_with_the_reason(self, rig: Rig) -> None:
        """It names the number that is too high."""
        answer = await rig.driver.request(rig.subject, rig.job_id, rig.too_much, rig.before, OPEN)
        assert isinstance(answer, Rejected)
        assert str(max(rig.too_much.values())) in answer.reason

    async def test_a_vector_must_fit_the_graph(self, rig: Rig) -> None:
        """It covers every operator."""
        missing, *rest = rig.wanted
        answer = await rig.driver.request(
            rig.subject, rig.job_id, {name: rig.wanted[name] for name in rest}, rig.before, OPEN
        )
        assert isinstance(answer, Rejected)
        assert missing in answer.reason

    async def test_a_request_to_a_missing_job_is_rejected(self, rig: Rig) -> None:
        """A repeated request would fail, too."""
        assert isinstance(await rig.driver.request(rig.subject, "f" * 32, rig.wanted, rig.before, OPEN), Rejected)

    async def test_foreign_requirements_are_left_alone(self, rig: Rig) -> None:
        """They are compared in the request itself, so that the latest ones count."""
        await rig.until(lambda s: s.runs(rig.before))
        answer = await rig.driver.request(rig.subject, rig.job_id, rig.wanted, {**rig.wanted, **rig.too_much}, OPEN)
        assert isinstance(answer, Refusal) and answer.code == "contested", answer
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.requested == rig.before

    @pytest.mark.parametrize("held", [Refusal("expired", "too late"), Unanswered("not confirmed")])
    async def test_a_closed_fence_lets_nothing_through(self, rig: Rig, held: Refusal | Unanswered) -> None:
        """Its response is the driver's."""
        await rig.until(lambda s: s.runs(rig.before))
        fence = Closed(held)
        assert await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, fence) == held
        assert fence.request_sent == 1
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.requested == rig.before
