"""Derived values of one observation, from which symptoms and the analysis are made."""

from dataclasses import dataclass, field
from typing import NamedTuple

from weir_contracts import Estimate, Observation, OperatorReading

from .capacity import Measured
from .demand import Counted
from .lag import SourceLag
from .state import RunState
from .window import Shares, View


class OperatorWindow(NamedTuple):
    """One operator's readings in the current window."""

    reading: OperatorReading | None
    view: View | None
    spent: Shares
    input_rate: Estimate
    output_rate: Estimate


class OperatorContext(NamedTuple):
    """One operator in the current window: its readings and what they mean."""

    name: str
    parallelism: int
    is_source: bool
    reading: OperatorReading | None
    view: View | None
    spent: Shares
    input_rate: Estimate
    output_rate: Estimate
    measured: Measured
    learned_rate: float | None
    """Capacity learned at this parallelism, records/s."""

    @property
    def capacity(self) -> float | None:
        """The measured capacity at this parallelism, else the learned one, records/s."""
        return self.measured.whole.value if self.measured.whole.value is not None else self.learned_rate


class SourceContext(NamedTuple):
    """One source's demand and lag."""

    name: str
    arrival_rate: Estimate
    arrival_rate_trend: Estimate
    lag: SourceLag
    backlogged: bool
    waiting_since: float | None = None
    """Time since which records wait for a group whose throughput is known from commits."""
    counted: Counted | None = None
    """What it took in by its counter and by its offsets, if they contradict each other."""


@dataclass(frozen=True, slots=True)
class AnalysisContext:
    """The application at one observation."""

    observation: Observation
    at: float
    run: RunState | None
    """The run the observation was taken in; None while the job is not running."""
    stale_seconds: float
    """Time for which the engine's snapshot has not changed."""
    fresh_run: bool
    gap_seconds: float | None
    """Time since the observation before."""
    lost_records: int | None
    """Observations of this application's partition that retention deleted before they were read."""
    operators: dict[str, OperatorContext] = field(default_factory=dict)
    sources: dict[str, SourceContext] = field(default_factory=dict)
    targets: dict[str, Estimate] = field(default_factory=dict)
    selectivities: dict[tuple[str, str], Estimate] = field(default_factory=dict)
    bottleneck: str | None = None
