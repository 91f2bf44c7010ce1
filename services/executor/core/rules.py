"""Parameters of the executor's decisions, built from the settings at start."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """Times in seconds, shares from 0 to 1."""

    settle_seconds: float = 10.0
    """The new parallelism must run this long without a restart before it counts as verified."""
    deadline_floor_seconds: float = 60.0
    """No rescale is given less time than this to reach RUNNING, whatever the cluster's own settings add up to."""
    container_start_seconds: float = 60.0
    """Additional time for a rescale by containers, which start and register first."""
    restart_estimate_seconds: float = 30.0
    """Assumed restart time until one is measured."""
    request_patience_seconds: float = 30.0
    """Time for which an unanswered request is repeated, at most until the plan expires."""
    blind_patience_seconds: float = 600.0
    """Time for which an action stays open while its cluster is unreachable."""
    restart_loop: int = 3
    """Restarts beyond the rescale's own that make a restart loop."""
    restart_loop_seconds: float = 20.0
    """Minimum duration of a restart loop; the loss of a TaskManager causes a few restarts that soon end."""
    capacity_share: float = 0.9
    """Less than this share of the old capacity at the new parallelism is worse."""
    comparable_demand: float = 0.25
    """Demand may differ by this share from before for two capacities to be compared."""
    min_confidence: float = 0.5
    """Estimates below this confidence are not compared."""
    min_utilisation: float = 0.5
    """Operators below this utilisation are not compared, since their capacity is extrapolated."""
    capacity_window_seconds: float = 30.0
    """A warm window is at least this long and began after the new parallelism ran."""
    capacity_watch_seconds: float = 120.0
    """After verification a warm window is awaited for this long; a worse capacity then still rolls back."""
    quarantine_first_seconds: float = 300.0
    """Quarantine of a vector after its first rollback; doubles with each."""
    quarantine_longest_seconds: float = 7200.0
    """Maximum quarantine; strikes expire this long after its end."""
    max_actions: int = 10
    """Actions in flight at once, over all applications."""
    max_actions_per_cluster: int = 2
    """Actions in flight at once on one cluster: each restarts a job there and replays."""
    fleet_share: float = 0.5
    """Share of applications that must begin to need less within `fleet_window_seconds` for none to shrink."""
    fleet_least: int = 5
    """Minimum number of such applications."""
    fleet_window_seconds: float = 60.0
    fleet_hold_seconds: float = 600.0
    """Hold time from the start of an application's own recommendation."""
