"""Health of a deployment from Flink's job states."""

from weir_contracts import Health

_HEALTH: dict[str, Health] = {
    "INITIALIZING": "restarting",
    "CREATED": "restarting",
    "RUNNING": "running",
    "FAILING": "restarting",
    "RESTARTING": "restarting",
    "RECONCILING": "restarting",
    "FAILED": "failed",
    "CANCELLING": "ended",
    "CANCELED": "ended",
    "FINISHED": "ended",
    "SUSPENDED": "ended",
}
"""Health by constant of Flink's `JobStatus`."""
TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})
"""States in which a job has released its slots (in Flink: globally terminal)."""


def health_of(state: str, *, all_running: bool = True) -> Health | None:
    """Return the health of a job in `state`, or None for an unknown state.

    A RUNNING job is restarting until every task runs (`all_running`).
    """
    found = _HEALTH.get(state.upper())
    return "restarting" if found == "running" and not all_running else found
