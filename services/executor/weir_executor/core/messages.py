"""Sentences of drivers: reasons for which requested instances do not run yet, and for which a target takes no request."""

from weir_contracts import short_name

ENDPOINT_WITHOUT_APPLICATION = "the endpoint does not know the application (404)"
NO_CHECKPOINTS = "the application has no checkpoints"
NO_INSTANCES = "the endpoint has 0 replicas: scale it to 1 by hand"
NO_GROUP = "the application is not a consumer group"
DISRUPTION_BUDGET = "the disruption budget of its pod allows no eviction now"


def instances_ready(ready: int, wanted: int, running: int, noun: str = "instances") -> str:
    more = "" if running <= wanted else f", and {running} run"
    return f"{ready} of {wanted} {noun} are ready{more}"


def pods_end(count: int) -> str:
    return f"{count} {'pod has' if count == 1 else 'pods have'} not ended yet"


def group_waits(count: int) -> str:
    return f"the group waits for {count} {'member' if count == 1 else 'members'} of instances that have ended"


def group_is(state: str) -> str:
    return f"the group is {short_name(state)}"


def without_member(count: int) -> str:
    return f"{count} {'instance has' if count == 1 else 'instances have'} no member of the group"


def unassigned(count: int) -> str:
    return f"{count} {'partition has' if count == 1 else 'partitions have'} no member of the group"


def odd_members(count: int, wanted: int) -> str:
    return f"the group has {count} {'member' if count == 1 else 'members'} instead of {wanted}"


def more_threads(threads: int, slots: int) -> str:
    return f"each instance has {threads} members of the group or more, and the target's slots say {slots}: correct them"
