"""Stories of what brokers hold besides records with correct times: markers of transactions, and times of events."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.loop.streams_world import StreamsWorld
from tests.loop.world import World, job
from weir_contracts import KafkaSignals, Observation
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.partitions import Isolation, Offsets, PartitionCollector
from weir_engines.kafka.positions import FirstRecord, FirstRecords
from weir_replay.simulator import streams
from weir_replay.streams import SimulatedBrokers


class MarkedLogs:
    """Brokers of a simulated job's topic that ends, in each partition, with the marker of a transaction."""

    def __init__(self) -> None:
        self.records: dict[Place, int] = {}

    async def topics(self, *, fresh: bool = False) -> Mapping[str, Sequence[int]]:
        del fresh
        return {"orders": [number for _, number in self.records]}

    async def ends(self, places: Sequence[Place], end: str, isolation: Isolation) -> Offsets:
        del isolation
        return Offsets({place: self.records[place] + 1 if end == "last" else 0 for place in places})

    async def commits(self, places: Sequence[Place], group: str) -> Offsets:
        raise NotImplementedError

    group = all_commits = commits

    async def first_records(self, positions: Mapping[Place, int], isolation: Isolation) -> FirstRecords:
        del isolation
        return FirstRecords({p: FirstRecord(max(at, self.records[p] + 1), exists=False) for p, at in positions.items()})


@pytest.mark.thorough
def test_an_idle_topic_of_transactions_lets_the_job_shrink() -> None:
    """1,200 records/s in transactions, then the input pauses at 200 s: the last offset of each partition is a marker, which
    no source gets. Nothing waits, nothing stalls, and one subtask is left, as without transactions."""
    world, logs = World(job(3), lambda t: 1200.0 if t < 200 else 0.0), MarkedLogs()
    thread = ThreadPoolExecutor(1)
    collector = PartitionCollector(KafkaSignals(bootstrapServers="kafka.test:9092"), logs)  # type: ignore[arg-type]

    def with_markers(observation: Observation) -> Observation:
        logs.records = {(p.topic, p.partition): p.log_end_offset or 0 for p in observation.partitions}
        positions = {(p.topic, p.partition): p.current_offset for p in observation.partitions}
        name = observation.partitions[0].operator
        # the story's own event loop runs in this thread
        read = thread.submit(asyncio.run, collector.scrape({name: positions}, observation.observed_at)).result(10)
        partitions = [
            found.reading(name, current_offset=p.current_offset)
            for p, (_, found) in zip(observation.partitions, read.partitions, strict=True)
        ]
        return observation.model_copy(update={"partitions": partitions})

    world.edit = with_markers
    world.live(300)
    assert world.analysis is not None
    assert (world.analysis.lag_records.value, world.analysis.lag_seconds.value) == (0, 0)
    assert not world.analysis.has("stalled")
    world.live(650)  # an input that fell counts as an outage upstream for ten minutes
    assert world.p() == 1
    assert world.moves()[-1][1] == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shift",
    [timedelta(days=365), timedelta(days=-3), None],
    ids=["a producer's clock is a year ahead", "events are three days old", "no timestamps"],
)
def test_event_times_change_no_decision(monkeypatch: pytest.MonkeyPatch, shift: timedelta | None) -> None:
    """A burst while two threads are the most, then twelve: lag in seconds follows append times, whatever the records'
    timestamps are, and the moves are those of an application whose records carry append times."""
    original = SimulatedBrokers.first_records

    async def stamped(self: SimulatedBrokers, positions: Mapping[Place, int], isolation: Isolation) -> FirstRecords:
        found = {}
        for place, record in (await original(self, positions, isolation)).found.items():
            at = None if shift is None else (record.timestamp_ms or 0) + round(shift.total_seconds() * 1000)
            found[place] = replace(record, timestamp_ms=at, is_append_time=False)
        return FirstRecords(found)

    def run() -> tuple[StreamsWorld, list[float]]:
        load = lambda t: 4000.0 if 100 <= t < 145 else 700.0  # noqa: E731
        world = StreamsWorld(streams(2, commit_interval_seconds=30.0), load, bounds={"min": 1, "max": 2}).live(160)
        spec = world.policy.spec
        bounds = spec.bounds.model_copy(update={"max": 12})
        world.policy = world.policy.model_copy(update={"spec": spec.model_copy(update={"bounds": bounds})})
        errors = []
        for seconds in (10, 40, 20, 130):
            world.live(seconds)
            assert world.analysis is not None and world.analysis.lag_seconds.value is not None
            errors.append(world.analysis.lag_seconds.value - world.lag)
        return world, errors

    usual, _ = run()
    monkeypatch.setattr(SimulatedBrokers, "first_records", stamped)
    odd, errors = run()
    assert odd.moves() == usual.moves() != []
    assert max(map(abs, errors)) < 35  # lag is as of a commit, and commits are 30 s apart
    assert odd.analysis is not None and odd.analysis.lag_records.value is not None
