"""Readings of one application at one instant, the same for every engine, and the collector that reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from weir_contracts import Deployment, ObservationStatus, OperatorReading, PartitionReading, Problem, Run, Topology

Positions = Mapping[tuple[str, int], int | None]
"""Next offset to process, by topic (named as in the engine's metrics) and partition. None: not reported yet."""


@dataclass(frozen=True)
class Scrape:
    """Application as its engine reports it. Without a `topology` only `status`, `message` and `problems` have
    meaning."""

    status: ObservationStatus
    message: str
    source_time: datetime | None = None
    """Time of the readings by the engine's clock."""
    run: Run | None = None
    """None unless `status` is running."""
    deployment: Deployment | None = None
    topology: Topology | None = None
    """Graph with the `source_partitions` that the engine reports; the brokers may list more."""
    operators: tuple[OperatorReading, ...] = ()
    sources: Mapping[str, Positions] = field(default_factory=dict)
    """Positions of each source operator by name; empty for a source that reports none."""
    partitions: tuple[PartitionReading, ...] = ()
    """Offsets of queues that the engine measures itself: they do not limit the parallelism of a source."""
    commits_expected: str = ""
    """Phrase with the reason why the application must have committed offsets by now; empty if it need not have."""
    problems: tuple[Problem, ...] = ()


class Collector(Protocol):
    """Reader of one application from its engine. It reports failures as problems in the scrape and does not raise
    them."""

    async def scrape(self) -> Scrape:
        """Return the application as its engine reports it now."""

    async def close(self) -> None:
        """End its own connections; those that it shares with others stay."""


@dataclass(frozen=True)
class PartitionOffsets:
    """Offsets of one partition at the brokers; `metric_topic` is the topic's name in the engine's metrics."""

    topic: str
    metric_topic: str
    partition: int
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    committed_offset: int | None = None
    committed_at: datetime | None = None
    next_record_offset: int | None = None
    position_appended_at: datetime | None = None
    refused_timestamp_ms: int | None = None
    high_watermark: int | None = None
    rewound_at: datetime | None = None
    """Time at which the committed offset or the end of the log was seen to fall."""
    has_stale_position: bool = False
    """Whether the source's position is of an earlier log, so that it says nothing about this one."""

    def reading(self, operator: str, **more: Any) -> PartitionReading:
        """Return the partition as a part of an observation, with `more` of its fields."""
        return PartitionReading(
            operator=operator,
            topic=self.topic,
            partition=self.partition,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            committed_offset=self.committed_offset,
            committed_at=self.committed_at,
            next_record_offset=self.next_record_offset,
            position_appended_at=self.position_appended_at,
            refused_timestamp_ms=self.refused_timestamp_ms,
            high_watermark=self.high_watermark,
            rewound_at=self.rewound_at,
            **more,
        )
