"""The executor's driver for simulated jobs: plans reach a simulation as they reach a cluster."""

from collections.abc import Callable
from datetime import datetime

from weir_contracts import Checkpoints, Deployment, Parallelism, Subject

from services.executor.core import Accepted, Refusal, Rejected, Snapshot, Unanswered, changes, contested
from services.executor.driver import Fence
from simulator import Simulation
from simulator.observe import rescale_settings


class SimulatedDriver:
    """Clusters by URL, with simulations by the name of their job. `at` tells the moment of a simulated second."""

    def __init__(self, at: Callable[[float], datetime]) -> None:
        self._at = at
        self._jobs: dict[tuple[str, str], Simulation] = {}

    def add(self, subject: Subject, simulation: Simulation) -> None:
        """Let `target` name a simulation."""
        self._jobs[_key(subject)] = simulation

    async def observe(self, subject: Subject) -> Snapshot:
        found = self._find(subject)
        if isinstance(found, Snapshot):
            return found
        now, running = self._at(found.now), found.state == "RUNNING"
        since = self._at(found.running_since)
        completed = found.checkpoint_completed_at
        return Snapshot(
            at=now,
            reachable=True,
            deployment=_deployment(found, self._at),
            all_running=running,
            running_since=since,
            steady_since=since if running else now,
            checkpoint_completed_at=None if completed is None else self._at(completed),
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
            return Rejected(found.because) if found.reachable else Unanswered(found.because)
        if found.job_id != job_id:
            return Rejected(f"Could not find Flink job ({job_id})")
        if found.requested not in (expected, parallelism):
            return contested(changes(expected, found.requested))
        held = await fence.begin()
        if held is not None:
            return held
        refused = found.request(parallelism)
        if refused is not None:
            return Rejected(refused)
        if found.conditions.lost_answers > 0:
            found.conditions.lost_answers -= 1
            return Unanswered("the answer was lost")
        return Accepted(self._at(found.now))

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        found = self._find(subject)
        if isinstance(found, Snapshot):
            return found.because
        return found.trigger_checkpoint() if found.job_id == job_id else f"the cluster has no job {job_id}"

    async def close(self) -> None:
        return None

    def _find(self, subject: Subject) -> Simulation | Snapshot:
        """The simulation a target names, or what is to be told of one that is away or not there."""
        url, name = _key(subject)
        here = [(job, simulation) for (where, job), simulation in self._jobs.items() if where == url]
        now = self._at(max((simulation.now for simulation in self._jobs.values()), default=0.0))
        if not here:
            return Snapshot(now, reachable=False, because=f"nothing answers at {url}")
        away = next((simulation.conditions.away for _, simulation in here if simulation.conditions.away), None)
        if away is not None:
            return Snapshot(now, reachable=False, because=away)
        found = next((simulation for job, simulation in here if name in (job, simulation.job_id)), None)
        return found or Snapshot(now, reachable=True, because=f"the cluster has no job {name!r}")


def _deployment(simulation: Simulation, at: Callable[[float], datetime]) -> Deployment:
    completed = simulation.checkpoint_completed_at
    return Deployment(
        job_id=simulation.job_id,
        job_name=simulation.application.name,
        graph_hash=simulation.graph_hash,
        health=simulation.health,
        state=simulation.state,
        started_at=at(simulation.started_at),
        requested=dict(simulation.requested),
        requested_lower=dict.fromkeys(simulation.requested, 1),
        observed=dict(simulation.observed),
        restarts=simulation.restarts,
        checkpoints=Checkpoints(
            interval_seconds=simulation.application.cluster.checkpoint_interval_seconds,
            last_completed_at=None if completed is None else at(completed),
            last_duration_seconds=simulation.checkpoint_seconds,
        ),
        rescale=rescale_settings(simulation),
    )


def _key(subject: Subject) -> tuple[str, str]:
    return str(subject.flink.url).rstrip("/"), subject.flink.job
