"""Sentences of knowledge for users: errors of the API, readiness."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from weir_contracts import counted, fitted, format_duration

FULL_ADVICE = "raise maxmemory, or lower WEIR_KNOWLEDGE_EVENTS_MEGABYTES"


def unknown_application(application: str) -> str:
    return f"{application} is unknown: it has neither a policy nor messages"


def no_message(application: str, kind: str) -> str:
    return f"{application} has no {kind} yet"


def wrong_application(named: str, address: str) -> str:
    return f"the document is of {named}, the address is {address}"


def no_prediction_yet(application: str, reason: object) -> str:
    return f"{application} has no prediction yet: {reason}"


def outside(minimum: str, maximum: str) -> str:
    return f"must lie between {minimum} and {maximum}"


def streams_exhausted(count: int) -> str:
    return f"{count} event streams are open, the limit (WEIR_KNOWLEDGE_EVENT_STREAMS): try again later"


def no_policy(application: str) -> str:
    return f"there is no policy {application}"


def changed_by_another(application: str, version: int | None) -> str:
    now = "it does not exist" if version is None else f"its version is {version}"
    return f"another writer changed {application}: {now}; read it again and apply your change to that"


def owned(application: str, owner: str) -> str:
    """Say where the policy of an owner is changed."""
    namespace, _, name = application.partition("/")
    if owner == "resource":
        return (
            f"{application} belongs to the Kubernetes resource ScalingPolicy {name} in namespace {namespace}: change or delete that "
            f"(kubectl -n {namespace} edit scalingpolicy {name}). Pause and resume work without it"
        )
    return (
        f"{application} was written through the REST API: its owner changes it there, or releases it to this resource "
        'by its annotation weir.dev/release: "true" (weir apply)'
    )


def in_force(version: int | None) -> str:
    return "the policy is in force" if version is None else f"the policy is in force as version {version}"


def not_in_force(reason: str, kept_generation: int | None) -> str:
    """Say why a resource's document is not in force, and which earlier one still is."""
    kept = "" if kept_generation is None else f". Generation {kept_generation} of this resource stays in force"
    return f"{reason}{kept}"


NOT_OBSERVED = "the target was not observed yet"
READY = "the policy is in force, its application is observed, and nothing keeps Weir from scaling it"


def no_obstacle(mode: str | None) -> str:
    return "nothing is known that keeps Weir from scaling the target" + (
        "" if mode == "act" else f"; mode {mode} requests nothing"
    )


def silent(stages: Sequence[str]) -> str:
    return f"no message lately from: {', '.join(stages)}" if stages else "all services send messages"


def objective_met(is_met: bool | None, bound_seconds: float) -> str:
    bound = f"maxLag of {format_duration(timedelta(seconds=bound_seconds))}"
    if is_met is None:
        return f"lag is unknown; the policy has a {bound}"
    return f"lag is within the {bound}" if is_met else f"lag exceeds the {bound}"


def target_taken(application: str, other: str) -> str:
    return f"{application} has the target of {other}: only one policy may scale a job. Delete {other} or change its target first"


def planners_unchecked(reason: object) -> str:
    return f"the policy was not stored: its planners changed, and the planner service cannot check them ({reason})"


def yaml_too_large(max_bytes: int) -> str:
    return f"YAML is larger than {max_bytes} bytes: send it as JSON"


def policy_too_large(size_bytes: int, max_bytes: int) -> str:
    return (
        f"the policy has {size_bytes:,} bytes, more than {max_bytes:,}: shorten its parameters, labels or annotations"
    )


def unreadable_body(sentence: str, line: int | None) -> str:
    return f"line {line} {sentence}" if line else sentence


def several_documents(count: int) -> str:
    return f"the body holds {count} documents: send each to its own address"


def redis_refused(error: object) -> str:
    """Without the password: Redis' own sentence, and the setting."""
    return f"redis: {error}: set user and password in WEIR_KNOWLEDGE_REDIS_URL (redis://user:password@host:6379/0)"


def redis_full(memory: Mapping[str, Any]) -> str:
    used = "all memory that it may use (maxmemory)"
    if memory.get("maxmemory"):
        used = f"{memory['used_memory'] / 1e6:.0f} MB of the {memory['maxmemory'] / 1e6:.0f} MB that it may (maxmemory)"
    return f"redis is full: it uses {used} and refuses writes: {FULL_ADVICE}"


def incomplete() -> str:
    return "the store is being compared with the topics, since it is new or lost its data: try again in some seconds"


def redis_contended(key: str, attempts: int) -> str:
    return f"redis: {key} was changed {attempts} times while it was read: try again"


def state_changed(application: str) -> str:
    return f"redis: {application} was changed by another replica meanwhile"


def spent(unit: str, used: float, peak: float, peak_slots: int, uncounted: timedelta) -> str:
    """Say what was used since the policy acts, against the static peak, and how much of the time is unknown."""
    saved = max(0.0, 1 - used / peak) if peak > 0 else 0.0
    less = f"{saved:.0%} less than" if saved >= 0.005 else "as much as"
    gap = f"; {_hours(uncounted)} unknown or paused" if uncounted > timedelta(minutes=1) else ""
    held = counted(peak_slots, unit)
    return f"{used:,.1f} {unit}-hours used since the policy acts, {less} a static peak of {held}: {peak:,.1f}{gap}"


def nothing_spent() -> str:
    """Say why no slot-hours are known."""
    return "slot-hours are unknown: too little was observed since the policy acts"


def advised(
    unit: str, followed: float, running: float, *, late: tuple[float | None, float | None], rescales: int, hours: float
) -> str:
    """Say what following the plans would have cost instead of what ran, how late both are, and by what."""
    share = 1 - followed / running
    saved = f"{share:.0%} less" if share >= 0 else f"{-share:.0%} more"
    then, now = late
    lateness = "lateness unknown" if then is None or now is None else f"late {then:,.0f} s instead of {now:,.0f} s"
    return fitted(
        f"following the plans for {hours:,.1f} h: {followed:,.1f} {unit}-hours instead of {running:,.1f} ({saved})",
        f", {lateness}",
        f", {counted(rescales, 'rescale')}",
        "" if then is None else " (predicted)",
    )


def too_little_advised(seconds: float, min_seconds: float) -> str:
    """Say why it is unknown what following the plans would have cost."""
    return f"saving unknown yet: {seconds / 60:,.0f} of {min_seconds / 60:,.0f} min of plans and slots are recorded"


def _hours(time: timedelta) -> str:
    return f"{time.total_seconds() / 3600:,.1f} h"
