"""Contract of a Flink job's reader, run against the memory cluster, Flink's REST shapes, and a real Flink."""

from collections.abc import Callable
from typing import Protocol

from weir_engines.flink.readings import FlinkReadings
from weir_engines.scrape import Collector

PROCESSED = 40


class Rig(Protocol):
    """A running job that has processed `PROCESSED` records, its source at parallelism 1 first in the graph."""

    flink: Collector
    by_id: Collector
    nobody: Collector
    """The same cluster, a job it does not have."""
    away: Collector
    """A cluster that does not answer."""
    topic: str
    """The source's, as metrics name it."""
    source: str
    """The source's vertex id."""

    async def until(self, condition: Callable[[FlinkReadings], bool]) -> FlinkReadings:
        """The first scrape that fulfils it."""

    async def process(self, records: int) -> None:
        """Let the job have so many more records."""

    async def rescale(self) -> None:
        """Another parallelism of everything but the source."""


def processed(records: int) -> Callable[[FlinkReadings], bool]:
    """Whether the source reports so many records read in this run."""

    def check(readings: FlinkReadings) -> bool:
        return any(source.records_in == records for source in readings.sources.values())

    return check


def positions(readings: FlinkReadings) -> int:
    """Sum of the source's reported positions."""
    (source,) = readings.sources.values()
    return sum(position for position in source.positions.values() if position is not None)


class FlinkSuite:
    """Subclass it with a fixture `rig`."""

    async def test_task_managers_have_cpu_and_memory(self, rig: Rig) -> None:
        """CPU in cores and memory in bytes of the JVM that runs them."""
        readings = await rig.until(lambda r: any(pod.cpu_cores is not None for pod in r.task_managers))
        worker = readings.task_managers[0]
        assert worker.name and worker.ready
        assert worker.cpu_cores is not None and 0 <= worker.cpu_cores <= 1024
        assert worker.memory_bytes is not None and worker.memory_bytes > 0

    async def test_a_running_job_is_read_completely(self, rig: Rig) -> None:
        """Graph, requirements, slots, checkpoints and timings, without a problem."""
        readings = await rig.until(processed(PROCESSED))
        job = readings.job
        assert job is not None and job.all_running and readings.reachable
        assert readings.problems == ()
        assert [source.id for source in job.sources] == [rig.source] == [job.vertices[0].id]
        assert {link.target for link in job.links} == {v.id for v in job.vertices[1:]}
        assert "HASH" in {link.ship_strategy for link in job.links}
        assert job.running_since is not None and job.now is not None and job.running_since <= job.now
        assert readings.requirements is not None
        assert readings.requirements == {v.id: (1, v.parallelism) for v in job.vertices}
        assert readings.slots_total == 8 and readings.slots_available == 7
        assert readings.checkpoints is not None and readings.checkpoints.completed is not None
        assert readings.checkpoint_interval_seconds == 10.0 and not readings.checkpointing_off
        assert readings.configuration is not None
        assert readings.configuration["jobmanager.scheduler"] == "adaptive"
        assert readings.version == "2.2.1"
        assert readings.restarts is not None
        assert set(readings.shares) == {v.id for v in job.vertices}

    async def test_positions_are_the_next_offset_to_process(self, rig: Rig) -> None:
        """After n records of an empty topic they sum up to n, and grow by what is processed."""
        assert positions(await rig.until(processed(PROCESSED))) == PROCESSED
        await rig.process(15)
        readings = await rig.until(processed(PROCESSED + 15))
        assert positions(readings) == PROCESSED + 15
        assert {topic for topic, _ in readings.sources[rig.source].positions} == {rig.topic}
        assert len(readings.sources[rig.source].positions) == 4
        assert readings.job is not None and all(v.complete for v in readings.job.vertices)

    async def test_a_job_is_found_by_id_too(self, rig: Rig) -> None:
        """A policy may name either."""
        one, other = await rig.flink.read(), await rig.by_id.read()
        assert one.job is not None and other.job is not None and one.job.id == other.job.id

    async def test_a_job_that_is_not_there_is_not_an_outage(self, rig: Rig) -> None:
        """The cluster answers, and says so."""
        readings = await rig.nobody.read()
        assert (readings.reachable, readings.job) == (True, None)
        assert "no job" in readings.message

    async def test_an_outage_is_not_an_absent_job(self, rig: Rig) -> None:
        """Nothing can be said about it; and nothing raises."""
        readings = await rig.away.read()
        assert (readings.reachable, readings.job) == (False, None)
        assert readings.message

    async def test_a_rescale_is_seen_as_another_run(self, rig: Rig) -> None:
        """Same job; the run began later, with another parallelism, and the source's counters begin again."""
        before = await rig.until(processed(PROCESSED))
        assert before.job is not None and before.job.running_since is not None
        since = before.job.running_since
        await rig.rescale()

        def rescaled(readings: FlinkReadings) -> bool:
            job = readings.job
            return job is not None and job.all_running and job.running_since is not None and job.running_since > since

        after = await rig.until(rescaled)
        assert after.job is not None and after.job.id == before.job.id
        assert after.job.vertices[0].parallelism == 1
        assert all(v.parallelism == 2 for v in after.job.vertices[1:])
        await rig.process(7)
        assert positions(await rig.until(processed(7))) >= 7
