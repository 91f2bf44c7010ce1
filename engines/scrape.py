"""What a collector reads of one application at one instant, in contract values: the same for every engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from weir_contracts import Deployment, ObservationStatus, OperatorReading, Problem, Run, Topology

Positions = Mapping[tuple[str, int], int | None]
"""Next offset to process by topic, as the engine's metrics name it, and partition. None: the source has not reported one."""


@dataclass(frozen=True)
class Scrape:
    """One application as its engine reports it. Without a `topology` only `status`, `message` and `problems` count."""

    status: ObservationStatus
    message: str
    source_time: datetime | None = None
    """The engine's own clock."""
    run: Run | None = None
    """None unless `status` is running."""
    deployment: Deployment | None = None
    topology: Topology | None = None
    """`source_partitions` are those that the engine reports; the brokers may know more."""
    operators: tuple[OperatorReading, ...] = ()
    sources: Mapping[str, Positions] = field(default_factory=dict)
    """Positions of each source operator by name; empty for a source that reports none."""
    commits_expected: str = ""
    """Why the application has committed offsets by now if it commits any, as a phrase; empty if it may not have."""
    problems: tuple[Problem, ...] = ()
