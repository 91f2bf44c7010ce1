"""Windows and thresholds of the analysis. All times are seconds of the observations' own clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """Windows and thresholds of the analysis; the defaults are made for Flink scraped every 1 to 10 s."""

    warm_up_seconds: float = 10.0
    """After `running_since`; readings of that time teach nothing: a cold JVM looks half as fast as a warm one."""
    capacity_window_seconds: float = 30.0
    """Shortest window from which capacity, utilisation and selectivity are taken. Flink books idle and backpressured
    spells up to 5 s late, so anything much shorter is noise."""
    rate_window_seconds: float = 15.0
    """Window of the input and output rates of operators."""
    arrival_window_seconds: float = 6.0
    """Window of the arrival rate, at least two scrapes: short, so that a load step shows at once."""
    trend_window_seconds: float = 60.0
    """Window of trends (arrival rate, lag growth) and the reach of the ring of samples."""
    history_seconds: float = 2400.0
    """How far back the log-end history reaches: the oldest lag that can be told from it without guessing."""
    saturated_share: float = 0.95
    """Busy share from which an operator counts as saturated: its throughput is then its capacity."""
    backlog_seconds: float = 5.0
    """A source lagging by less is not backlogged: positions are read up to a few seconds late."""
    low_busy_share: float = 0.1
    """Below this busy share a capacity computed from it deserves little confidence."""
    off_share: float = 0.25
    """A measurement further than this from what was learnt at the same parallelism rescales the whole curve, unless it is the old point
    that other parallelisms did not let expect: then it takes that point's place."""
    skew_ratio: float = 1.5
    """Busiest subtask's busy share over the mean, from which the symptom `skewed` is shown."""
    silence_seconds: float = 600.0
    """Without any output for this long an edge's selectivity is taken as 0 rather than unknown."""
    max_restart_seconds: float = 600.0
    """A longer absence is an outage, not a restart to learn from."""
    max_unobserved_seconds: float = 90.0
    """Where nothing was observed for longer than this before a new run, nobody knows when the last one ended."""
