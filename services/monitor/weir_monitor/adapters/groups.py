"""Collector of a consumer group from its brokers: the coordinator's view of the group, and offsets of its topics."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from weir_contracts import KafkaSignals, Problem, Subject
from weir_engines.kafka_streams.busy import BusyMeter, merged
from weir_engines.kafka_streams.group import DescribedGroup, Membership, membership
from weir_engines.kafka_streams.meter import GroupMeter
from weir_engines.kafka_streams.readings import DEFAULT_COMMIT_SECONDS, STREAMS, GroupReadings, scrape_of
from weir_engines.scrape import Positions, Scrape
from weir_monitor.core import PartitionOffsets
from weir_runtime.clock import Clock

from .instance_metrics import InstanceMetricsCollector, MetricsReadings
from .partitions import Brokers, BrokersAway, PartitionCollector

_INTERNAL = re.compile(
    r".*-(repartition|changelog|subscription-(registration|response)-topic"
    r"|KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic)",
    re.DOTALL,
)
"""Names after the application id of topics that Kafka Streams makes for itself, as its own reset tool knows them: their
records are inner work, not demand."""


class GroupPartitions(PartitionCollector):
    """Offsets of a group's topics, by their exact names."""

    topics: tuple[str, ...] = ()

    async def _places(
        self, sources: Mapping[str, Positions], problems: list[Problem]
    ) -> list[tuple[str, PartitionOffsets]]:
        """Return all partitions of the topics, also those that no member was assigned."""
        (name,) = sources
        listed = await self._brokers.topics()
        if any(topic not in listed for topic in self.topics):
            listed = await self._brokers.topics(fresh=True)
        places = []
        for topic in self.topics:
            if topic not in listed:
                problems.append(Problem(where=f"topic {topic}", what="the brokers have no such topic"))
            places += [(name, PartitionOffsets(topic, topic, number)) for number in listed.get(topic, ())]
        return places


class GroupCollector:
    """Collector of one group. It reports failures as problems in the scrape and does not raise them."""

    def __init__(
        self, subject: Subject, brokers: Brokers, clock: Clock, metrics: InstanceMetricsCollector | None = None
    ) -> None:
        kafka, group_id = subject.signals.kafka, subject.application.group_id
        if kafka is None or group_id is None:
            raise ValueError(f"{subject.id} is no consumer group with brokers")
        self._application = subject.application
        self._id = group_id
        self._kafka: KafkaSignals = kafka
        self._brokers = brokers
        self._clock = clock
        self._partitions = GroupPartitions(kafka, brokers, group_id)
        self._metrics = metrics
        self._meter = GroupMeter()
        self._busy = BusyMeter()
        self._membership = Membership()
        self._decoded: DescribedGroup | None = None

    async def close(self) -> None:
        """End the connections to the metrics endpoints; the brokers are shared."""
        if self._metrics is not None:
            await self._metrics.close()

    async def scrape(self) -> Scrape:
        """Return the group as its brokers report it now."""
        return scrape_of(await self.read())

    async def read(self) -> GroupReadings:
        empty = GroupReadings(self._id, self._application.engine, None)
        try:
            await self._brokers.topics()  # checks the addresses that the brokers advertise
            group = await self._brokers.group(self._id, raw=self._application.engine == STREAMS)
        except BrokersAway as error:
            problem = Problem(where=f"kafka {self._kafka.bootstrap_servers}", what=str(error))
            return replace(empty, message=str(error), problems=(problem,))
        self._remember(group)
        now = self._clock.now()
        self._partitions.topics = self._topics()
        metrics, offsets = await asyncio.gather(self._read_metrics(), self._partitions.scrape({self._id: {}}, now))
        read = [partition for _, partition in offsets.partitions]
        committed = {(p.topic, p.partition): p.committed_offset for p in read if p.committed_offset is not None}
        owners = self._membership.owners()
        lost = any(problem.where.startswith("commit") for problem in offsets.problems) or not read
        readings = replace(
            empty,
            group=group,
            membership=self._membership,
            run=self._meter.run(self._membership.key(), now) if self._membership.members else None,
            partitions=tuple([p.reading(self._id, owner=owners.get((p.topic, p.partition), "")) for p in read]),
            processed=self._meter.processed(committed, now) if not lost else None,
            commit_interval_seconds=self._commit_interval_seconds(),
            has_commits=bool(committed),
            problems=(*self._unknown(read), *offsets.problems),
        )
        return readings if self._metrics is None else self._measured(readings, metrics)

    async def _read_metrics(self) -> MetricsReadings:
        if self._metrics is None:
            return MetricsReadings()
        return await self._metrics.read(member.host for member in self._membership.members)

    def _measured(self, readings: GroupReadings, metrics: MetricsReadings) -> GroupReadings:
        """Return the readings with what the instances report."""
        self._busy.add(metrics.found, self._clock.monotonic())
        measured = merged(readings.membership, metrics.found, self._busy)
        problems = (*readings.problems, *metrics.problems)
        if measured.busy is None and not metrics.problems and readings.membership.members:
            total = len(readings.membership.members)
            what = f"metrics of {measured.threads} of {total} threads are known: busy time is unknown"
            problems = (*problems, Problem(where="metrics", what=what))
        processed = readings.processed
        by_threads = None if measured.busy is None or self._has_inner_topics else self._busy.processed
        if processed is not None:
            processed = self._meter.counted(processed, by_threads)
        return replace(
            readings,
            instances=measured.instances,
            busy=measured.busy,
            restores=measured.restores,
            processed=processed,
            is_counted=by_threads is not None,
            problems=problems,
        )

    @property
    def _has_inner_topics(self) -> bool:
        """Whether records are processed more than once: the threads' counters are then no records of the input."""
        return any(self._is_internal(topic) for topic in self._membership.topics)

    def _remember(self, group: DescribedGroup) -> None:
        """Keep the members, decoded once. While the group rebalances their assignments are empty: the last ones stay."""
        if not group.rebalances and group != self._decoded:
            self._membership = membership(group, is_streams=self._application.engine == STREAMS)
            self._decoded = group

    def _topics(self) -> tuple[str, ...]:
        """Return the topics of the policy, else those that the members read; the last ones while there are none."""
        if self._kafka.topics:
            return tuple(self._kafka.topics)
        found = tuple([topic for topic in self._membership.topics if not self._is_internal(topic)])
        return found or self._partitions.topics

    def _is_internal(self, topic: str) -> bool:
        is_streams = self._application.engine == STREAMS
        prefix = f"{self._id}-"
        # the name of an operation may be empty, so the prefix's hyphen is part of the ending, too
        return is_streams and topic.startswith(prefix) and _INTERNAL.fullmatch(topic, len(prefix) - 1) is not None

    def _commit_interval_seconds(self) -> float | None:
        streams = self._application.kafka_streams
        if streams is None:
            return self._meter.commit_interval_seconds
        if streams.commit_interval is not None:
            return streams.commit_interval.total_seconds()
        return self._meter.commit_interval_seconds or DEFAULT_COMMIT_SECONDS

    def _unknown(self, read: Sequence[PartitionOffsets]) -> list[Problem]:
        """Return the reason for which demand or lag is unknown."""
        where = f"group {self._id}"
        if not self._partitions.topics:
            group = repr(self._id[:60])
            what = f"the topics of {group} are unknown until it has members: name them in spec.signals.kafka.topics"
            return [Problem(where=where, what=what)]
        without = [
            p for p in read if p.committed_offset is None and (p.log_end_offset or 0) > (p.log_start_offset or 0)
        ]
        if not without:
            return []
        what = f"{len(without)} of {len(read)} partitions have records and no commit: how many wait there is unknown"
        return [Problem(where=where, what=what)]
