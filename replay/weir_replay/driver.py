"""The executor's driver for simulated jobs: plans reach a simulation as they reach a cluster."""

from datetime import datetime

from weir_contracts import Parallelism, Subject, changes
from weir_engines.driver import Accepted, Fence, Refusal, Rejected, Snapshot, Unanswered, WithoutGroups, contested
from weir_runtime.clock import Clock

from .simulator import Simulation
from .simulator.observe import deployment_of
from .simulator.world import START, at


class SimulatedDriver(WithoutGroups):
    """Simulations by the URL of their cluster and the name of their job, advanced to the clock's time when they are
    used."""

    def __init__(self, clock: Clock) -> None:
        self.accepted_at: list[datetime] = []
        """Times at which a rescale was accepted; a rollback is one of its own."""
        self._clock = clock
        self._jobs: dict[tuple[str, str], Simulation] = {}

    def add(self, subject: Subject, simulation: Simulation) -> None:
        """Let `subject` name a simulation."""
        self._jobs[_key(subject)] = simulation

    async def observe(self, subject: Subject) -> Snapshot:
        found = self._find(subject)
        if isinstance(found, Snapshot):
            return found
        now, is_running = self._clock.now(), found.state == "RUNNING"
        since, completed = at(found.running_since), found.checkpoint_completed_at
        return Snapshot(
            at=now,
            reachable=True,
            deployment=deployment_of(found),
            all_running=is_running,
            running_since=since,
            steady_since=since if is_running else now,
            checkpoint_completed_at=None if completed is None else at(completed),
            checkpoint_in_progress=found.checkpoint_in_progress,
            topology=found.topology,
            can_trigger_checkpoint=True,
        )

    async def request(
        self,
        subject: Subject,
        job_id: str,
        parallelism: Parallelism,
        expected: Parallelism,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Accepted | Rejected | Unanswered | Refusal:
        found = self._find(subject)
        if isinstance(found, Snapshot):
            return Rejected(found.reason) if found.reachable else Unanswered(found.reason)
        if found.job_id != job_id:
            return Rejected(f"Could not find Flink job ({job_id})")
        before = found.requested
        if before not in (expected, parallelism):
            return contested(changes(expected, before))
        held = await fence.begin()
        if held is not None:
            return held
        refused = found.request(parallelism)
        if refused is not None:
            return Rejected(refused)
        if before != parallelism:
            self.accepted_at.append(self._clock.now())
        if found.conditions.lost_answers > 0:
            found.conditions.lost_answers -= 1
            return Unanswered("the answer was lost")
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        found = self._find(subject)
        if isinstance(found, Snapshot):
            return found.reason
        return found.trigger_checkpoint() if found.job_id == job_id else f"the cluster has no job {job_id}"

    async def close(self) -> None:
        return None

    def _find(self, subject: Subject) -> Simulation | Snapshot:
        """Return the simulation that a subject names as it is now, or the snapshot of one that is unreachable or not
        there."""
        url, name = _key(subject)
        now = self._clock.now()
        here = [(job, simulation) for (where, job), simulation in self._jobs.items() if where == url]
        if not here:
            return Snapshot(now, reachable=False, reason=f"nothing answers at {url}")
        away = next((simulation.conditions.away for _, simulation in here if simulation.conditions.away), None)
        if away is not None:
            return Snapshot(now, reachable=False, reason=away)
        found = next((simulation for job, simulation in here if name in (job, simulation.job_id)), None)
        if found is None:
            return Snapshot(now, reachable=True, reason=f"the cluster has no job {name!r}")
        found.advance((now - START).total_seconds())
        return found


def _key(subject: Subject) -> tuple[str, str]:
    return str(subject.flink.url).rstrip("/"), subject.flink.job
