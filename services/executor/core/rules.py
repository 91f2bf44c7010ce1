"""The numbers that the executor decides by. One frozen value, made from the settings at start."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """Times in seconds, shares from 0 to 1."""

    settle_seconds: float = 10.0
    """The new parallelism must run this long without a restart before it counts as verified."""
    deadline_floor_seconds: float = 60.0
    """No rescale is given less time than this to reach RUNNING, whatever the cluster's own settings add up to."""
    container_start_seconds: float = 60.0
    """Where containers are what is scaled, so much more: they start and register before anything can run on them."""
    restart_estimate_seconds: float = 30.0
    """Assumed restart time until one was measured."""
    request_patience_seconds: float = 30.0
    """How long a request that gets no answer is repeated before the action is given up; not past the plan's expiry."""
    blind_patience_seconds: float = 600.0
    """How long an action is kept open while its cluster cannot be reached at all."""
    restart_loop: int = 3
    """Restarts beyond the rescale's own that make a restart loop."""
    restart_loop_seconds: float = 20.0
    """A restart loop lasts at least this long: a TaskManager that is lost makes a few restarts, too, and soon they end."""
    capacity_share: float = 0.9
    """Less than this share of the old capacity at the new parallelism is worse."""
    comparable_demand: float = 0.25
    """Demand may differ by this share from before for two capacities to be compared."""
    min_confidence: float = 0.5
    """Estimates below this confidence prove nothing."""
    min_utilisation: float = 0.5
    """An operator less busy than this is no bottleneck, and its capacity an extrapolation: it proves nothing."""
    capacity_window_seconds: float = 30.0
    """A warm window is at least this long and began after the new parallelism ran."""
    capacity_watch_seconds: float = 120.0
    """After verification a warm window is awaited for this long; a worse capacity then still rolls back."""
    quarantine_first_seconds: float = 300.0
    """How long a vector is kept away after its first rollback; doubles with each."""
    quarantine_longest_seconds: float = 7200.0
    """The longest quarantine; strikes are forgotten this long after it ended."""
    max_actions: int = 10
    """Actions in flight at once, over all applications."""
    max_actions_per_cluster: int = 2
    """Actions in flight at once on one cluster: each restarts a job there and replays."""
    fleet_share: float = 0.5
    """If at least this share of the applications began to want less within `fleet_window_seconds` of each other, none shrinks."""
    fleet_least: int = 5
    """Fewer applications than this make no fleet."""
    fleet_window_seconds: float = 60.0
    fleet_hold_seconds: float = 600.0
    """For so long after its own wish began; then each may."""
