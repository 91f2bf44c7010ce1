"""Run an application's recorded messages through the present cores: which decisions would differ today, and how.

Observations pass the analyzer's core if the recording has the application from its beginning, since what the analyzer
learned before is not in it; else the recorded analyses are used. Each decision is made again by the planner and the
guards. The executor takes no part: the application and its outcomes are as they were recorded.
"""

import asyncio
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, zip_longest
from typing import Any

from pydantic import BaseModel, ValidationError

from weir_analyzer.core import AnalysisSettings, advance
from weir_contracts import (
    NO_REPLY,
    Amendment,
    Analysis,
    InvalidDocument,
    Observation,
    Outcome,
    Parallelism,
    Plan,
    PlannerChoice,
    PlanReply,
    PlanRequest,
    PolicySpec,
    changes,
    one_line,
)
from weir_planner.calls import plan_for, reads_observations
from weir_planner.core.decide import FAILED
from weir_planner.request_cache import MAX_OUTCOMES, RequestCache
from weir_planner.telemetry import no_reply
from weir_runtime.clock import SystemClock
from weir_runtime.http_client import Event
from weir_sdk.installed import UnknownPlanner, ask, planner_of, reads

from .loop import HISTORY_KEPT, OBSERVATIONS_KEPT, InProcess, Message

KINDS: Mapping[str, type[Message]] = {each.__name__.lower(): each for each in (Observation, Analysis, Plan, Outcome)}
"""Messages of a recording by the kind of their event."""
_WITHIN = timedelta(seconds=60)
"""Messages of different topics are recorded at most so long out of order."""
_RACE = timedelta(seconds=2)
"""An outcome this close to a decision may have reached the planner before or after it."""
SENTENCES = frozenset(
    {"sentence", "because", "evidence", "message", "basis", "planning_seconds", "learnt", "learned", "memory", "policy"}
)
"""Fields that may differ: sentences, states whose format belongs to one version, and the policy that is passed on.
`evidence` of a plan repeats its numbers."""
_SKIPPED = ("application", "target", "signals", "interval", "mode")
"""Parts of a policy that a recording decides."""


class InvalidRecording(ValueError):
    """The recording cannot be replayed; the sentence says why."""


@dataclass(frozen=True)
class Changed:
    """Planner and policy of the present decisions, instead of the recorded ones. None: the recorded one."""

    planner: str | None = None
    policy: PolicySpec | None = None

    def __bool__(self) -> bool:
        return self.planner is not None or self.policy is not None

    def of(self, analysis: Analysis) -> Analysis:
        """Return the analysis with the changed policy."""
        spec = analysis.policy.spec
        if self.policy is not None:
            given = {name: getattr(self.policy, name) for name in PolicySpec.model_fields if name not in _SKIPPED}
            spec = spec.model_copy(update=given)
        if self.planner is not None:
            choice = PlannerChoice(name=self.planner, timeout=spec.planner.timeout)
            spec = spec.model_copy(update={"planner": choice, "candidates": []})
        policy = analysis.policy.model_copy(update={"spec": spec})
        return analysis.model_copy(update={"policy": policy})


@dataclass(frozen=True)
class Difference:
    """A decision that is not what it was."""

    at: datetime
    observation_id: str
    recorded: str
    present: str
    first: str
    """The first guard or number that differs."""
    is_decision: bool
    """Whether the application would be scaled otherwise; else only reasons or numbers differ."""


@dataclass
class Comparison:
    """Result of a recording's replay."""

    application: str = ""
    recorded_from: datetime | None = None
    """Time of the first message."""
    decided_from: datetime | None = None
    decided_until: datetime | None = None
    decisions: int = 0
    incomplete: int = 0
    """Decisions that were not compared: the recording lacks what their planner had seen before."""
    unanswered: int = 0
    """Decisions that were not compared: their planner had given no usable reply."""
    analyses: int = 0
    """Analyses that were made again; 0: the recorded ones are used."""
    analyses_differ_from: datetime | None = None
    analyses_first: str | None = None
    """The first number of an analysis that differs, or the reason why the recorded analyses are used."""
    differences: list[Difference] = field(default_factory=list)


def compare(
    events: Iterable[Event], application: str, *, since: datetime | None = None, changed: Changed | None = None
) -> Comparison:
    """Replay the application's events, about in order of time, and compare its decisions from `since` on.

    Raises `InvalidRecording` for a message that cannot be read and for a planner that is not installed.
    """
    with asyncio.Runner() as runner:
        replayed = _Replayed(application, since, changed or Changed(), runner)
        for message in _in_order(events, application):
            replayed.take(message)
    return replayed.found


def last_request(events: Iterable[Event], application: str) -> PlanRequest | None:
    """Return the request about the application's last analysis, as its planner received it; None without an analysis.

    Raises `InvalidRecording` for a message that cannot be read.
    """
    cache = RequestCache(OBSERVATIONS_KEPT, HISTORY_KEPT)
    analysis: Analysis | None = None
    plan: Plan | None = None
    for message in _in_order(events, application):
        match message:
            case Observation():
                cache.observed(message)
            case Outcome():
                cache.happened(application, message)
            case Plan():
                # The decision on the last analysis is not part of what its planner received.
                if analysis is not None and message.observation_id == analysis.observation_id:
                    plan = message
                else:
                    cache.planned(message)
            case Analysis():
                if plan is not None:
                    cache.planned(plan, analysis)
                analysis, plan = message, None
    if analysis is None:
        return None
    now = analysis.observed_at if plan is None else _requested_at(plan)
    return cache.request(analysis, now)


def _in_order(events: Iterable[Event], application: str) -> Iterator[Message]:
    """Yield the messages by their own time; of one time, each behind what it rests on."""
    waiting: list[tuple[datetime, int, int, Message]] = []
    newest, numbers = datetime.min.replace(tzinfo=UTC), count()
    for event in events:
        contract = KINDS.get(event.kind)
        if contract is None or not isinstance(event.data, dict) or event.data.get("application") != application:
            continue
        try:
            message = contract.model_validate(event.data)
        except ValidationError as error:
            raise InvalidRecording(f"{event.kind}: {InvalidDocument.of(error)}") from None
        at, rank = _time(message), list(KINDS.values()).index(contract)
        newest = max(at, newest)
        heapq.heappush(waiting, (at, rank, next(numbers), message))
        while newest - waiting[0][0] > _WITHIN:
            yield heapq.heappop(waiting)[-1]
    while waiting:
        yield heapq.heappop(waiting)[-1]


def _time(message: Message) -> datetime:
    match message:
        case Plan():
            return message.created_at
        case Outcome():
            return message.at
    return message.observed_at


class _Replayed:
    """The state of a replay: what the planner's service knows, and the analyzer's state."""

    def __init__(self, application: str, since: datetime | None, changed: Changed, runner: asyncio.Runner) -> None:
        self.found = Comparison(application)
        self._since, self._changed, self._runner = since, changed, runner
        self._cache = RequestCache(OBSERVATIONS_KEPT, HISTORY_KEPT)
        self._planners = InProcess(_answer)
        self._state: Any = None
        self._is_analyzed: bool | None = None
        """Whether the analyzer's state is known. None: nothing was compared yet."""
        self._present: dict[object, Analysis] = {}
        self._analyses: dict[object, Analysis] = {}
        self._observed, self._planned = 0, 0
        self._late: list[Outcome] = []
        """Outcomes since shortly before the latest decision."""

    def take(self, message: Message) -> None:
        if isinstance(message, Outcome):
            # Outcomes are kept for longer than the others, so they do not show where the recording begins.
            if all(message.id != other.id for other in self._late):
                self._late.append(message)
            return
        self.found.recorded_from = self.found.recorded_from or _time(message)
        match message:
            case Observation():
                self._observe(message)
            case Analysis():
                self._analyse(message)
            case Plan():
                self._decide(message)

    def _observe(self, observation: Observation) -> None:
        self._observed += 1
        self._cache.observed(observation)
        if self._is_analyzed is False:
            return
        self._state, analysis = advance(self._state, observation, AnalysisSettings())
        if analysis is not None:
            self._present = {**dict(list(self._present.items())[-20:]), observation.id: analysis}

    def _analyse(self, recorded: Analysis) -> None:
        self._analyses = {**dict(list(self._analyses.items())[-20:]), recorded.observation_id: recorded}
        present = self._present.pop(recorded.observation_id, None)
        if self._is_analyzed is False:
            return
        lines = [] if present is None else _differing("analysis", recorded, present)
        if self._is_analyzed is None:
            self._is_analyzed = present is not None and not lines
            self.found.analyses_first = next(iter(lines), "analysis: its observation is missing")
        if not self._is_analyzed or present is None:
            return
        self.found.analyses += 1
        if self.found.analyses_differ_from is None:
            self.found.analyses_first = lines[0] if lines else None
            self.found.analyses_differ_from = recorded.observed_at if lines else None
        if lines:
            self._present[recorded.observation_id] = present

    def _decide(self, recorded: Plan) -> None:
        analysis = self._analyses.get(recorded.observation_id)
        now = _requested_at(recorded)
        for outcome in (each for each in self._late if each.at < now - _RACE):
            self._cache.happened(outcome.application, outcome)
        self._late = [each for each in self._late if each.at >= now - _RACE]
        present = self._present.get(recorded.observation_id, analysis)
        kept = recorded
        is_due = self._since is None or recorded.created_at >= self._since
        if analysis is None or present is None:
            self.found.incomplete += is_due
        elif is_due and self._is_repeatable(recorded, present):
            kept = self._compared(recorded, analysis, present, now)
        elif self._changed:
            kept = self._made(recorded, present, now, [])
        # Another planner goes on from its own decisions; the same one from those that were recorded.
        self._cache.planned(kept if self._changed else recorded, analysis)
        self._planned += 1

    def _is_repeatable(self, recorded: Plan, analysis: Analysis) -> bool:
        """Return whether the recording has all that a decision's planner had seen, and its reply; count it if not."""
        spec = self._changed.of(analysis).policy.spec
        names = [spec.planner.name, *(each.name for each in spec.candidates)]
        names += [spec.planner.fallback.name] if spec.planner.fallback else []
        for name in names:
            try:
                planner_of(name)
            except UnknownPlanner as error:
                raise InvalidRecording(f"{error}; name one with --planner") from None
        read = {part for name in names for part in reads(name)}
        needs = {"observations": (self._observed, OBSERVATIONS_KEPT), "history": (self._planned, HISTORY_KEPT)}
        has_all = self._planned > 0 and all(has >= kept for part, (has, kept) in needs.items() if part in read)
        # From its beginning on nothing is missing.
        if not self._is_analyzed and not has_all:
            self.found.incomplete += 1
            return False
        if recorded.code in NO_REPLY and not self._changed:
            self.found.unanswered += 1
            return False
        return True

    def _compared(self, recorded: Plan, analysis: Analysis, present: Analysis, now: datetime) -> Plan:
        """Compare a decision, with the outcomes close to it seen or not: their order is not recorded."""
        self.found.decided_from = self.found.decided_from or recorded.created_at
        self.found.decided_until = recorded.created_at
        self.found.decisions += 1
        racing = self._late
        seen = sum(outcome.at <= now for outcome in racing)
        made = self._made(recorded, present, now, racing[:seen])
        first = first_difference(recorded, made)
        for count_seen in range(len(racing) + 1) if first and racing and not self._changed else ():
            again = self._made(recorded, present, now, racing[:count_seen])
            if first_difference(recorded, again) is None:
                made, first = again, None
                break
        is_decision = recorded.approved != made.approved
        if first is None or (self._changed and not is_decision):
            return made
        if present is not analysis:
            first = next(iter(_differing("analysis", analysis, present)), first)
        self.found.differences.append(
            Difference(
                recorded.created_at,
                str(recorded.observation_id),
                decision(recorded),
                decision(made),
                first,
                is_decision,
            )
        )
        return made

    def _made(self, recorded: Plan, analysis: Analysis, now: datetime, outcomes: Sequence[Outcome]) -> Plan:
        """Return the present decision."""
        analysis = self._changed.of(analysis)
        wanted = reads_observations(self._planners, analysis.policy)
        request = self._cache.request(analysis, now, with_observations=wanted)
        if outcomes:
            newest = [*reversed(outcomes), *request.outcomes][:MAX_OUTCOMES]
            request = request.model_copy(update={"outcomes": newest, "quarantine": newest[0].quarantine})
        return self._runner.run(plan_for(self._planners, request, SystemClock(), created_at=recorded.created_at))


def _answer(request: PlanRequest, planner: str) -> PlanReply:
    """Ask a planner; a failure is a hold, as in the loop."""
    try:
        return ask(request, planner)
    except Exception as error:  # noqa: BLE001 - whatever a planner raises, its decision is a hold
        return no_reply(planner, FAILED, f"planner {planner} failed: {one_line(error)}")


def _requested_at(plan: Plan) -> datetime:
    """Return the time of the request: exactly where the plan's state has it, else from the duration of planning."""
    about = plan.created_at - timedelta(seconds=plan.planning_seconds or 0.0)
    state = plan.state
    times = [state.arrivals.at] if state.arrivals else []
    times += [state.recommendations[-1].at] if state.recommendations else []
    exact = max(times, default=about)
    return exact if abs(exact - about) < timedelta(seconds=1) and exact <= plan.created_at else about


# -- differences of two documents or decisions, without sentences and states ---------------------------------------------------


def comparable(document: Any) -> Any:
    """Return the document without sentences and states, numbers to nine digits."""
    if isinstance(document, dict):
        return {key: comparable(value) for key, value in document.items() if key not in SENTENCES}
    if isinstance(document, list):
        return [comparable(each) for each in document]
    if isinstance(document, float):
        return float(f"{document:.9g}")
    return document


def differences(place: str, before: Any, now: Any) -> list[str]:
    """Return one line for each value that is not what it was, by its path. A field that did not exist before is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [line for key in before for line in differences(f"{place}.{key}", before[key], now.get(key))]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            line
            for i, (one, other) in enumerate(zip(before, now, strict=True))
            for line in differences(f"{place}.{i}", one, other)
        ]
    return [] if before == now else [f"{place}: {json.dumps(before)[:120]} is now {json.dumps(now)[:120]}"]


def _differing(place: str, before: BaseModel, now: BaseModel) -> list[str]:
    return differences(place, *(comparable(each.model_dump(mode="json")) for each in (before, now)))


def decision(plan: Plan) -> str:
    """Return `hold (steady)`, or `work 2 → 4 (saturated)`."""
    return f"{_moved(plan, plan.approved)} ({plan.code})"


def _moved(plan: Plan, vector: Parallelism | None) -> str:
    return "hold" if vector is None else changes(plan.current, vector)


def first_difference(recorded: Plan, present: Plan) -> str | None:
    """Return the first guard or number that differs; None if the decision is the same."""
    before, now = (comparable(each.model_dump(mode="json")) for each in (recorded, present))
    numbers = differences("evidence", comparable(recorded.evidence), comparable(present.evidence))
    if recorded.planner != present.planner:
        numbers = []  # each planner has its own
    if before == now and not numbers:
        return None
    for one, other in zip_longest(recorded.amendments, present.amendments):
        if first := _guard_difference(one, other):
            return first
    if numbers:
        return numbers[0]
    if recorded.proposed != present.proposed:
        return f"proposed: {_moved(recorded, recorded.proposed)} is now {_moved(present, present.proposed)}"
    return next((line.removeprefix("plan.") for line in differences("plan", before, now)), None)


def _guard_difference(recorded: Amendment | None, present: Amendment | None) -> str | None:
    alone = recorded or present
    if recorded is None or present is None:
        which = "recorded" if recorded else "present"
        return f"guard {alone.guard}, {alone.code}: {which} only" if alone else None
    if recorded.guard != present.guard:
        return f"guard: {recorded.guard}, {recorded.code} is now {present.guard}, {present.code}"
    return next(iter(_differing(f"guard {recorded.guard}", recorded, present)), None)
