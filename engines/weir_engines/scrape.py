"""Scrape: readings of one application at one instant, the same for every engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

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
