"""A rescale in place: resource requirements, checkpoints, and the cluster's settings for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir_contracts import MAX_SECONDS, Parallelism, RescaleSettings, Topology, within
from weir_engines.flink.rest import (
    MAX_PARALLELISM,
    Unreadable,
    count,
    flink_seconds,
    instant,
    mapping,
    number,
    sequence,
)

_ADAPTIVE = "jobmanager.adaptive-scheduler."
_TRIGGERS_CHECKPOINT = f"{_ADAPTIVE}rescale-trigger.active-checkpoint.enabled"
"""Option of Flink (FLINK-36753): once a rescale has its resources, the scheduler triggers the checkpoint that it waits for."""
UNLIMITED_SLOTS = 2**31 - 1
"""Flink's default of `slotmanager.number-of-slots.max`."""


@dataclass(frozen=True)
class CheckpointStatistics:
    """Checkpoints of a job; None: unknown, or there is none."""

    last_completed_at: datetime | None = None
    last_duration_seconds: float | None = None
    completed: int | None = None
    failed: int | None = None
    in_progress: int | None = None


def checkpoints(document: Any) -> CheckpointStatistics:
    """Parse `GET /jobs/:id/checkpoints`."""
    raw = mapping(document, "/jobs/:id/checkpoints")
    counts = mapping(raw.get("counts") or {}, "/jobs/:id/checkpoints counts")
    latest = mapping(raw.get("latest") or {}, "/jobs/:id/checkpoints latest")
    done = mapping(latest.get("completed") or {}, "/jobs/:id/checkpoints latest.completed")
    duration = number(done.get("end_to_end_duration"))
    return CheckpointStatistics(
        last_completed_at=instant(done.get("latest_ack_timestamp")),
        last_duration_seconds=None if duration is None else within(duration / 1000, MAX_SECONDS),
        completed=count(counts.get("completed")),
        failed=count(counts.get("failed")),
        in_progress=count(counts.get("in_progress")),
    )


def checkpoint_interval_seconds(document: Any) -> float | None:
    """Parse `GET /jobs/:id/checkpoints/config`. None: off, which Flink writes as the maximum of a long."""
    where = "/jobs/:id/checkpoints/config"
    milliseconds = number(mapping(document, where).get("interval"))
    if milliseconds is None and mapping(document, where).get("interval") != 2**63 - 1:
        raise Unreadable(f"{where} interval", "expected milliseconds")
    return None if not milliseconds else within(milliseconds / 1000, MAX_SECONDS)


Requirements = Mapping[str, tuple[int | None, int | None]]
"""Lower and upper bound by vertex id; None: unset."""


def requirements(document: Any) -> Requirements:
    """Parse `GET /jobs/:id/resource-requirements`. None: unset, which Flink writes as -1."""
    found = {}
    for vertex_id, entry in mapping(document, "resource-requirements").items():
        where = f"resource-requirements {vertex_id[:60]}"
        bounds = mapping(mapping(entry, where).get("parallelism"), f"{where} parallelism")
        found[vertex_id] = (_bound(bounds.get("lowerBound")), _bound(bounds.get("upperBound")))
    return found


def _bound(value: Any) -> int | None:
    bound = count(value)
    return bound if bound and bound <= MAX_PARALLELISM else None


def configuration(document: Any) -> dict[str, str]:
    """Parse `GET /jobmanager/config`: the keys that are set explicitly."""
    entries = sequence(document, "/jobmanager/config")
    return {
        e["key"]: e["value"]
        for e in entries
        if isinstance(e, dict) and isinstance(e.get("key"), str) and isinstance(e.get("value"), str)
    }


def triggers_checkpoint(configuration: Mapping[str, str] | None) -> bool:
    """Return whether the cluster itself triggers the checkpoint that a rescale waits for, as far as it says."""
    return configuration is not None and configuration.get(_TRIGGERS_CHECKPOINT, "").strip().lower() == "true"


def bounds_by_name(wanted: Requirements | None, graph: Topology) -> tuple[Parallelism | None, Parallelism | None]:
    """Return lower and upper bounds by operator name, each None if the bound of an operator is missing or unset."""
    lower, upper = (
        ({o.name: wanted[o.id][i] for o in graph.operators if o.id in wanted} for i in (0, 1)) if wanted else ({}, {})
    )
    return _complete(lower, graph), _complete(upper, graph)


def _complete(bounds: Mapping[str, int | None], graph: Topology) -> Parallelism | None:
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return given if len(given) == len(graph.operators) else None


def request_body(graph: Topology, parallelism: Parallelism) -> dict[str, Any]:
    """Return the body of `PUT /jobs/:id/resource-requirements`.

    The lower bound is 1: with a higher one the next restart would wait for slots, and fail without them.
    """
    return {o.id: {"parallelism": {"lowerBound": 1, "upperBound": parallelism[o.name]}} for o in graph.operators}


def rescale_settings(
    configuration: Mapping[str, str] | None,
    version: str | None,
    interval_seconds: float | None,
    *,
    checkpointing_off: bool = False,
    web_rescale: bool | None = None,
) -> RescaleSettings:
    """Return the cluster's settings, unset ones at Flink's defaults. Names and meanings changed with Flink 2.0.

    `web_rescale` says whether the cluster rescales in place (`GET /config`); None: not requested.
    """
    scheduler = None if web_rescale is None else "adaptive" if web_rescale else "default"
    if configuration is None:
        return RescaleSettings(scheduler=scheduler)
    scheduler = scheduler or configuration.get("jobmanager.scheduler", "default").lower()[:50]
    if configuration.get("scheduler-mode", "").strip().lower() == "reactive":
        scheduler = "reactive"  # also adaptive, but without resource requirements
    max_slots = _max_slots(configuration)
    own = {key.removeprefix(_ADAPTIVE): value for key, value in configuration.items() if key.startswith(_ADAPTIVE)}
    if (version or "2").startswith("1."):
        return RescaleSettings(
            scheduler=scheduler,
            cooldown_seconds=flink_seconds(own.get("scaling-interval.min"), 30.0),
            stabilization_seconds=flink_seconds(own.get("scaling-interval.max"), None),
            max_trigger_delay_seconds=0.0,  # these versions do not wait for a checkpoint
            max_slots=max_slots,
        )
    failures = count(own.get("rescale-trigger.max-checkpoint-failures", 2))
    interval = 0.0 if checkpointing_off else interval_seconds
    derived = within((failures + 1) * interval, MAX_SECONDS) if failures is not None and interval is not None else None
    return RescaleSettings(
        scheduler=scheduler,
        cooldown_seconds=flink_seconds(own.get("executing.cooldown-after-rescaling"), 30.0),
        stabilization_seconds=flink_seconds(own.get("executing.resource-stabilization-timeout"), 60.0),
        max_trigger_delay_seconds=flink_seconds(own.get("rescale-trigger.max-delay"), derived),
        max_slots=max_slots,
    )


def _max_slots(configuration: Mapping[str, str]) -> int | None:
    """Return the number of slots up to which the cluster starts TaskManagers; None for a standalone cluster.

    Flink's client and the Flink Kubernetes Operator set `execution.target`; in standalone mode the operator sets
    `remote`.
    """
    if not configuration.get("execution.target", "").startswith(("kubernetes-", "yarn-")):
        return None
    try:
        limit = count(int(configuration.get("slotmanager.number-of-slots.max", UNLIMITED_SLOTS)))
    except ValueError:
        limit = None
    return UNLIMITED_SLOTS if limit is None else limit
