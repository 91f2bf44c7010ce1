"""Takes one sample of a running trial, what the load generator, the probe and the knowledge service say at the same
moment, and follows the service's event feed, so that nothing is missed between two samples."""

import contextlib
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from weir_contracts import ActionState, Analysis, Observation, Outcome, Plan
from weir_runtime.http_client import ENDLESS, Event, client, parse_events

from .loop_stack import LoopStack
from .report import ActionRecord, Decision, Sample

TIMEOUT_SECONDS = 1.5
"""Below the sampling interval: a service that is slow to answer must not make samples late."""

BREAK_SECONDS = 1.0
"""Pause between two connections to the event feed."""
REPORTED_KINDS = frozenset({"plan", "outcome"})
UNREPORTED_FIELDS = frozenset({"state", "evidence", "prediction", "hold_prediction", "infeasible", "alternatives"})
"""Of a plan: most of its size and no part of a report. Messages are whole without them."""


@dataclass(frozen=True)
class Snapshot:
    """A sample with what only the live view shows."""

    sample: Sample
    operators: tuple[str, ...] = ()
    slots_total: int | None = None
    decision: str = ""
    action: str = ""
    notes: tuple[str, ...] = field(default=())


class Sampler:
    """Asks; whatever does not answer in time is unknown in that sample."""

    def __init__(self, stack: LoopStack) -> None:
        self._stack = stack
        self._client = client(timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self._client.close()

    def take(self) -> Snapshot:
        """The state of the trial now."""
        stack = self._stack
        state = self._get(f"{stack.load_url}/state") or {}
        observation = self._message("observation", Observation)
        analysis = self._message("analysis", Analysis)
        plan = self._message("plan", Plan)
        action = self._message("action", ActionState)
        t = stack.elapsed_seconds()
        deployment = observation.deployment if observation else None
        probe = stack.probe
        sample = Sample(
            t=round(t, 2),
            target_rate=_number(state, "target_rate"),
            input_rate=_number(state, "rate"),
            lag_records=analysis.lag_records.value if analysis else None,
            lag_seconds=analysis.lag_seconds.value if analysis else None,
            probe_lag_seconds=None if probe is None else _rounded(probe.lag_seconds()),
            parallelism=dict(deployment.observed) if deployment else {},
            requested=dict(deployment.requested or {}) if deployment else {},
            planned=dict(plan.approved or plan.current) if plan else {},
            slots=_slots_used(observation),
        )
        return Snapshot(
            sample=sample,
            operators=tuple(observation.topology.names) if observation and observation.topology else (),
            slots_total=deployment.slots.total if deployment and deployment.slots else None,
            decision=plan.sentence if plan else "",
            action=f"{action.phase}: {action.sentence}" if action else "",
            notes=(f"observed: {observation.message}",) if observation and observation.status != "running" else (),
        )

    def _message(self, noun: str, model: Any) -> Any:
        document = self._get(f"{self._stack.application_url}/{noun}")
        return None if document is None else model.model_validate(document)

    def _get(self, url: str) -> Any:
        try:
            answer = self._client.get(url)
            return answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None


def _number(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    return float(value) if isinstance(value, int | float) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _slots_used(observation: Observation | None) -> int | None:
    """Σ over slot sharing groups of their largest parallelism: what this job occupies, other jobs of the cluster left
    out."""
    if observation is None or observation.topology is None or observation.deployment is None:
        return None
    groups: dict[str | None, int] = {}
    for operator in observation.topology.operators:
        observed = observation.deployment.observed.get(operator.name, 0)
        groups[operator.slot_sharing_group] = max(groups.get(operator.slot_sharing_group, 0), observed)
    return sum(groups.values())


def decisions_of(events: list[Event], began: float) -> list[Decision]:
    """All plans of the feed, each once. `began`: when the load began, in seconds since the epoch."""
    found: dict[str, Decision] = {}
    for event in events:
        if event.kind != "plan":
            continue
        plan = Plan.model_validate(event.data)
        found[str(plan.id)] = Decision(
            plan_id=str(plan.id),
            time=round(plan.created_at.timestamp() - began, 2),
            current=plan.current,
            approved=plan.approved,
            reason_code=plan.code,
            sentence=plan.sentence,
            amendments=[a.model_dump(mode="json") for a in plan.amendments],
        )
    return list(found.values())


def actions_of(events: list[Event], began: float) -> list[ActionRecord]:
    """The last state of every action in the feed, oldest first; refusals are no actions."""
    found: dict[str, ActionRecord] = {}
    for event in events:
        if event.kind != "outcome":
            continue
        action = Outcome.model_validate(event.data).action
        if action is None:
            continue
        since = {
            name: None if at is None else round(at.timestamp() - began, 2)
            for name, at in (
                ("requested", action.requested_at),
                ("running", action.running_at),
                ("finished", action.finished_at),
            )
        }
        found[str(action.id)] = ActionRecord(
            plan_id=str(action.plan_id),
            requested_at=since["requested"],
            running_at=since["running"],
            verified_at=since["finished"] if action.phase == "verified" else None,
            before=action.before,
            wanted=action.wanted,
            outcome=action.phase,
            sentence=action.sentence,
        )
    return list(found.values())


class EventFollower:
    """Reads the feed on a separate thread, resuming by `Last-Event-ID` after a break, until stopped.

    It may run for hours and keeps what it reads: only events of `kinds` (None: all), without the fields `without` of
    their data.
    """

    def __init__(self, url: str, *, kinds: Collection[str] | None = None, without: Collection[str] = ()) -> None:
        self._url = url
        self._kinds = kinds
        self._without = without
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="event-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the thread ends with its connection."""
        self._stopped.set()

    def events(self) -> list[Event]:
        """Return the kept events so far, oldest first."""
        with self._lock:
            return list(self._events)

    def _follow(self) -> None:
        last = "0"
        timeout = httpx.Timeout(5.0, read=30.0)
        with client(timeout=timeout) as http:
            while not self._stopped.is_set():
                # A status error is a break like any other: the service may be on its way up.
                with (
                    contextlib.suppress(httpx.HTTPError),
                    http.stream("GET", self._url, headers={"Last-Event-ID": last}, extensions=ENDLESS) as response,
                ):
                    response.raise_for_status()
                    for event in parse_events(response.iter_lines()):
                        last = event.id or last
                        self._keep(event)
                        if self._stopped.is_set():
                            return
                self._stopped.wait(BREAK_SECONDS)

    def _keep(self, event: Event) -> None:
        if self._kinds is not None and event.kind not in self._kinds:
            return
        if self._without and isinstance(event.data, dict):
            slim = {name: value for name, value in event.data.items() if name not in self._without}
            event = Event(event.id, event.kind, slim)
        with self._lock:
            self._events.append(event)
