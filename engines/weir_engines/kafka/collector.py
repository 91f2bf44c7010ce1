"""Collector of a consumer group: the coordinator's view of it, offsets of its topics, and its instances' metrics endpoints.

The endpoints' addresses come from the policy's endpoint target, else from the group: the host of each member, as the
brokers see it. No text of an endpoint's response is passed on.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import httpx
from pydantic import ValidationError

from weir_contracts import EndpointTarget, KafkaSignals, Problem, Subject
from weir_contracts.application import InstanceMetrics as Endpoint
from weir_contracts.document import read_json
from weir_contracts.plugins import EndpointState
from weir_engines.kafka.group import DescribedGroup, Membership, membership
from weir_engines.kafka.metrics import MAX_BYTES, BusyMeter, InstanceMetrics, Unreadable, instance_metrics, merged
from weir_engines.kafka.partitions import Brokers, BrokersAway, PartitionCollector
from weir_engines.kafka.readings import DEFAULT_COMMIT_SECONDS, STREAMS, GroupMeter, GroupReadings, scrape_of
from weir_engines.scrape import PartitionOffsets, Positions, Scrape
from weir_runtime.clock import Clock
from weir_runtime.http_client import async_client
from weir_runtime.reach import TARGETS, Allowed

MAX_INSTANCES = 200
MAX_CONCURRENT_CALLS = 8
_MAX_STATE_BYTES = 1_000_000
_MAX_PROBLEMS = 3


@dataclass(frozen=True)
class MetricsReadings:
    """Metrics of the instances that answered, and why others did not."""

    found: tuple[InstanceMetrics, ...] = ()
    problems: tuple[Problem, ...] = ()


class _Failed(Exception):
    """An endpoint without metrics; the sentence says why."""


class InstanceMetricsCollector:
    """Reader of all instances of one application. Failures are problems in the readings and not raised."""

    def __init__(
        self, endpoint: Endpoint, target: EndpointTarget | None, timeout_seconds: float, allowed: Allowed = TARGETS
    ) -> None:
        self._endpoint = endpoint
        self._target = target
        self._timeout_seconds = timeout_seconds
        self._client = async_client(
            timeout_seconds=timeout_seconds,
            answer_bytes=MAX_BYTES,
            connections=MAX_CONCURRENT_CALLS,
            allowed=allowed,
        )
        self._calls = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def close(self) -> None:
        await self._client.aclose()

    async def read(self, hosts: Iterable[str], now: Callable[[], float] | None = None) -> MetricsReadings:
        """Return the metrics of all instances, within the timeout; `hosts` are those of the group's members, `now` the monotonic
        time in seconds."""
        problems: list[Problem] = []
        urls = await self._urls(hosts, problems)
        answers = await asyncio.gather(*(self._metrics(url, now) for url in urls[:MAX_INSTANCES]))
        found = [each for each in answers if isinstance(each, InstanceMetrics)]
        failed = [(url, each) for url, each in zip(urls, answers, strict=False) if isinstance(each, str)]
        problems += [Problem(where=f"metrics {url}", what=reason) for url, reason in failed[:_MAX_PROBLEMS]]
        if len(failed) > _MAX_PROBLEMS or len(urls) > MAX_INSTANCES:
            what = f"{len(urls) - len(found)} of {len(urls)} instances report no metrics: busy time is unknown"
            problems.append(Problem(where="metrics", what=what))
        return MetricsReadings(tuple(found), tuple(problems))

    async def _urls(self, hosts: Iterable[str], problems: list[Problem]) -> list[str]:
        if self._target is None:
            named = sorted({f"[{host}]" if ":" in host else host for host in hosts if host})
            return [f"http://{host}:{self._endpoint.port}{self._endpoint.path}" for host in named]
        try:
            state = read_json(EndpointState, await self._get(str(self._target.url), _MAX_STATE_BYTES))
        except _Failed as error:
            problems.append(Problem(where="target.endpoint", what=str(error)))
            return []
        except ValidationError as error:
            field = ".".join(str(part) for part in error.errors(include_url=False, include_input=False)[0]["loc"])
            problems.append(
                Problem(where="target.endpoint", what=f"its answer is not valid at {field[:100] or 'its root'}")
            )
            return []
        return [str(each.metrics_url) for each in state.instances if each.metrics_url is not None]

    async def _metrics(self, url: str, now: Callable[[], float] | None) -> InstanceMetrics | str:
        """Return the metrics, or why there are none."""
        try:
            content = await self._get(url, MAX_BYTES)
            read_at = None if now is None else now()
            return replace(await asyncio.to_thread(instance_metrics, content), read_at=read_at)
        except (_Failed, Unreadable) as error:
            return str(error)

    async def _get(self, url: str, max_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_seconds), self._calls:
                response = await self._client.get(url)
        except (httpx.TimeoutException, TimeoutError):
            raise _Failed(f"no answer within {self._timeout_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _Failed(str(error)[:300] or type(error).__name__) from None
        if response.status_code != httpx.codes.OK:
            raise _Failed(f"status {response.status_code} instead of 200")
        if len(response.content) > max_bytes:
            raise _Failed(f"the answer has {len(response.content):,} bytes, more than {max_bytes:,}")
        return response.content


_INTERNAL = re.compile(
    r".*-(repartition|changelog|subscription-(registration|response)-topic"
    r"|KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic)",
    re.DOTALL,
)
"""Names after the application id of topics that Kafka Streams makes for itself, as its own reset tool knows them: their
records are inner work, not demand."""


def is_internal(topic: str, application: str) -> bool:
    """Return whether Kafka Streams has made the topic for an application with this id."""
    prefix = f"{application}-"
    # the name of an operation may be empty, so the prefix's hyphen is part of the ending, too
    return topic.startswith(prefix) and _INTERNAL.fullmatch(topic, len(prefix) - 1) is not None


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
        self,
        subject: Subject,
        brokers: Brokers,
        clock: Clock,
        metrics: InstanceMetricsCollector | None = None,
        *,
        on_closed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        kafka, group_id = subject.signals.kafka, subject.application.group_id
        if kafka is None or group_id is None:
            raise ValueError(f"{subject.id} is no consumer group with brokers")
        self._application = subject.application
        self._id = group_id
        self._kafka: KafkaSignals = kafka
        self._brokers = brokers
        self._clock = clock
        self._partitions = GroupPartitions(kafka, brokers, group_id, on_closed=on_closed)
        self._metrics = metrics
        self._meter = GroupMeter()
        self._busy = BusyMeter()
        self._membership = Membership()
        self._decoded: DescribedGroup | None = None

    async def close(self) -> None:
        """End the connections to the metrics endpoints, and the use of the brokers."""
        if self._metrics is not None:
            await self._metrics.close()
        await self._partitions.close()

    async def scrape(self) -> Scrape:
        """Return the group as its brokers report it now."""
        return scrape_of(await self.read())

    async def read(self) -> GroupReadings:
        empty = GroupReadings(self._id, self._application.engine, None)
        try:
            await self._brokers.topics()  # checks the addresses that the brokers advertise
            group = await self._brokers.group(self._id, raw=self._application.engine == STREAMS)
            self._remember(group)
            self._partitions.topics = self._topics() or await self._committed_topics(group)
        except BrokersAway as error:
            problem = Problem(where=f"kafka {self._kafka.bootstrap_servers}", what=str(error))
            return replace(empty, message=str(error), problems=(problem,))
        now = self._clock.now()
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
        hosts = (member.host for member in self._membership.members)
        return await self._metrics.read(hosts, self._clock.monotonic)

    def _measured(self, readings: GroupReadings, metrics: MetricsReadings) -> GroupReadings:
        """Return the readings with what the instances report."""
        contradictions = self._busy.add(metrics.found, self._clock.monotonic())
        measured = merged(readings.membership, metrics.found, self._busy)
        problems = (*readings.problems, *metrics.problems, *contradictions)
        if self._busy.is_known and measured.busy is None and not metrics.problems and readings.membership.members:
            total = len(readings.membership.members)
            what = f"the blocked time of {measured.threads} of {total} threads is known: busy time is unknown"
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

    async def _committed_topics(self, group: DescribedGroup) -> tuple[str, ...]:
        """Return the topics that a group without members has read: its records wait. Raises `BrokersAway`."""
        if group.state != "Empty":
            return ()
        found = (await self._brokers.all_commits(self._id)).found
        return tuple(sorted({topic for topic, _ in found if not self._is_internal(topic)}))

    def _is_internal(self, topic: str) -> bool:
        return self._application.engine == STREAMS and is_internal(topic, self._id)

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
            what = f"the topics of {self._id[:60]!r} are unknown until it has members or commits: name them in spec.signals.kafka.topics"
            return [Problem(where=where, what=what)]
        without = [
            p for p in read if p.committed_offset is None and (p.log_end_offset or 0) > (p.log_start_offset or 0)
        ]
        if not without:
            return []
        what = f"{len(without)} of {len(read)} partitions have records and no commit: how many wait there is unknown"
        return [Problem(where=where, what=what)]
