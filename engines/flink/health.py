"""Flink's job states in the words of every engine."""

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
"""By the constants of Flink's `JobStatus`."""
TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})
"""States in which a job has released its slots: Flink calls them globally terminal."""


def health_of(state: str, *, all_running: bool = True) -> Health | None:
    """Return the health of a job in `state`; None for a state that this version does not know.

    `all_running` is whether every task runs: a RUNNING job whose tasks are still deployed is restarting.
    """
    found = _HEALTH.get(state.upper())
    return "restarting" if found == "running" and not all_running else found
