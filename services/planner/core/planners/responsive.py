"""The planner `responsive`: ordered diagnosers, each of which wants more replicas, fewer or nothing; the first that wants anything wins.

The policy of Responsive (`application.responsive.dev/v1` ResponsivePolicy) for Kafka Streams. Names, parameters and directions are as
published; its controller is closed and no formula of a diagnoser is, so the formulas are Weir's, made after what its documentation says.
One number of replicas n for the application: what its widest operator has, and every operator gets. λ arrivals, μ what n replicas can
process, L lag in records, all over the sources; "node" is a replica; the busiest one is taken to do `skew` times the mean.

    PROCESSING_RATE_SCALE_UP    mean over the window of (taken in / n) · skew > rate               n + 1
    PROCESSING_RATE_SCALE_DOWN  the same < rate: all nodes are below                               n − 1
    ARRIVAL_RATE_SCALE_UP       mean over the window of (λ / n) · skew > rate                      n + 1
    LAG_SCALE_UP                dL/dt > least_growth_share · λ                                     n + 1
    EXPECTED_LATENCY            max(0, L + (λ − μ) · projection) / μ > max                         by its strategy:
        FIXED_REPLICA           n + replicas
        RATE_BASED              ⌈n · (λ + max(0, L − max · λ) / buffer) / μ⌉: carries the arrivals and is back under `max` in `buffer`
        SCALE_TO_MAX            as many as there may be
    THREAD_SATURATION           busiest thread blocked for more than threshold of its time in each of the last windows    n − 1

A thread is blocked when it is not busy. μ is the load at which the first operator is full, by its true processing rate. Nobody is
shrunk while the application restores, starts or catches up (a restoring thread looks idle), or while a diagnoser upwards could not
be asked. Lag or latency that grows while the threads are mostly blocked is not a matter of replicas: look at brokers and network.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from weir_contracts import PlanReply, PlanRequest
from weir_contracts.planning import Number

from predictor.flow import arrivals_at, flow_of
from predictor.words import changes

from .present import Present, missing, present_of, reply_of, seconds_since_action, total

MOST_READINGS = 120
MOST_NUMBER = 1e15
RESTORING = ("warming-up", "catching-up", "restarting", "stalled", "not-running")
DEFAULT_LATENCY_SECONDS = 60.0


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_Window = Annotated[float, Field(gt=0, le=86_400)]


class RateDiagnoser(_Settings):
    """A rate of one node, in records/s, over a window."""

    type: Literal["PROCESSING_RATE_SCALE_UP", "PROCESSING_RATE_SCALE_DOWN", "ARRIVAL_RATE_SCALE_UP"]
    rate: float = Field(gt=0, le=MOST_NUMBER, description="records/s of one node")
    window_seconds: _Window = 15.0


class LagDiagnoser(_Settings):
    """The derivative of lag."""

    type: Literal["LAG_SCALE_UP"]
    least_growth_share: float = Field(
        default=0.05, ge=0, le=10, description="growth of lag over the arrivals, up to which it is noise"
    )


class FixedReplica(_Settings):
    type: Literal["FIXED_REPLICA"]
    replicas: int = Field(default=1, ge=1, le=32_768)


class OtherStrategy(_Settings):
    type: Literal["RATE_BASED", "SCALE_TO_MAX"] = "RATE_BASED"


class LatencyDiagnoser(_Settings):
    """The latency to be expected by a record that arrives now."""

    type: Literal["EXPECTED_LATENCY"]
    max_expected_latency_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="by default the policy's objective, else 60"
    )
    projection_seconds: float = Field(default=60.0, ge=0, le=86_400, description="how far lag is thought on, in s")
    scale_down_buffer_seconds: float = Field(
        default=60.0, gt=0, le=86_400, description="time to be back under the maximum: smaller means more replicas"
    )
    grace_seconds: float = Field(default=60.0, ge=0, le=86_400, description="after a run's start it says nothing, in s")
    stagger_seconds: float = Field(
        default=0.0, ge=0, le=86_400, description="least time between two of its wishes, in s"
    )
    scale_up_strategy: FixedReplica | OtherStrategy = Field(default=OtherStrategy(), discriminator="type")


class SaturationDiagnoser(_Settings):
    """Threads that are mostly blocked."""

    type: Literal["THREAD_SATURATION"]
    threshold: float = Field(default=0.65, gt=0, lt=1, description="blocked share of every thread's time")
    window_seconds: _Window = 60.0
    num_windows: int = Field(default=2, ge=1, le=60, description="windows in a row in which it must hold")
    grace_seconds: float = Field(default=60.0, ge=0, le=86_400, description="after a run's start it says nothing, in s")


Diagnoser = Annotated[
    RateDiagnoser | LagDiagnoser | LatencyDiagnoser | SaturationDiagnoser, Field(discriminator="type")
]


class ResponsiveParameters(_Settings):
    """The planner's own settings; the default is the documentation's example. Replicas are bounded by the policy."""

    diagnosers: tuple[Diagnoser, ...] = Field(
        default=(LatencyDiagnoser(type="EXPECTED_LATENCY"), SaturationDiagnoser(type="THREAD_SATURATION")),
        min_length=1,
        max_length=20,
        description="in order: the first that wants anything wins",
    )
    max_scale_up_replicas: int | None = Field(
        default=None, ge=1, le=32_768, description="most replicas added by one evaluation"
    )
    state_transition_cooldown_seconds: float = Field(
        default=60.0, ge=0, le=86_400, description="after an action nothing is diagnosed, in s"
    )
    rebalance_cooldown_seconds: float = Field(
        default=60.0, ge=0, le=86_400, description="after a run's start (a rebalance) nothing is diagnosed, in s"
    )


class _Reading(BaseModel):
    """One turn. Records/s of the busiest node; None is unknown."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    at: float = Field(ge=0, le=1e11)
    taken: float | None = None
    arriving: float | None = None
    blocked: float | None = None
    """Share of the busiest thread."""


class _Memory(BaseModel):
    model_config = ConfigDict(extra="forbid")

    replicas: int | None = None
    readings: list[_Reading] = Field(default_factory=list, max_length=MOST_READINGS)
    """Since this parallelism runs, oldest first."""
    wished_at: float | None = Field(default=None, ge=0, le=1e11)
    """When the expected latency last wanted more."""

    def document(self) -> dict[str, Any]:
        return self.model_dump(exclude_defaults=True)


@dataclass(frozen=True)
class _Case:
    """The request, read once; None is unknown, and `why` says why."""

    present: Present
    parameters: ResponsiveParameters
    now: float
    run_seconds: float | None
    arriving: float | None
    lag_records: float | None
    growth: float | None
    sustained: float | None
    """μ: records/s at all sources at which the first operator is full."""
    restoring: str | None
    objective_seconds: float | None
    memory: _Memory

    def window(self, seconds: float, until: float = 0.0) -> list[_Reading] | None:
        """The readings of a window that ended `until` seconds ago; None if it is not covered."""
        ends = self.now - until
        found = [r for r in self.memory.readings if ends - seconds < r.at <= ends]
        covered = bool(self.memory.readings) and self.memory.readings[0].at <= ends - seconds
        return found if covered and found else None


@dataclass(frozen=True)
class _Opinion:
    """`replicas` is what a diagnoser wants; None: nothing. `blind`: what it would have had to know."""

    replicas: float | None = None
    because: str = ""
    blind: str | None = None


def plan_by_responsive(request: PlanRequest, parameters: ResponsiveParameters) -> PlanReply:
    """The answer to one request; see the module."""
    memory = _remembered(request)
    present = present_of(request, memory.document())
    if isinstance(present, PlanReply):
        return present
    case = _case_of(request, present, parameters, memory)
    kept = case.memory.document()
    waits = _cooling(request, case)
    if waits is not None:
        return reply_of(present, None, "cooldown", waits, {}, kept)
    opinions = [(d, DIAGNOSERS[d.type](case, d)) for d in parameters.diagnosers]
    evidence = _evidence(case, opinions)
    wish = next(((d, o) for d, o in opinions if o.replicas is not None and o.replicas != present.replicas), None)
    blind = next((o for d, o in opinions if o.blind is not None and d.type in UPWARDS), None)
    if wish is None:
        blind = blind or next((o for _, o in opinions if o.blind is not None), None)
        if blind is not None:
            return missing(str(blind.blind), blind.because, kept)
        return reply_of(present, None, "no-diagnosis", "no diagnoser wants anything", evidence, kept)
    diagnoser, opinion = wish
    if (opinion.replicas or 0) < present.replicas:
        return _fewer(case, opinion, blind, evidence)
    return _more(case, diagnoser, opinion, evidence)


def _more(case: _Case, diagnoser: BaseModel, opinion: _Opinion, evidence: Mapping[str, Number]) -> PlanReply:
    present, now = case.present, case.present.replicas
    kept = case.memory
    if isinstance(diagnoser, LagDiagnoser | LatencyDiagnoser) and _is_blocked(case):
        sentence = f"{opinion.because}, and yet all threads are mostly blocked: more replicas would not help, look at brokers and network"
        return reply_of(present, None, "blocked-but-late", sentence, evidence, kept.document())
    wanted = opinion.replicas or 0.0
    if case.parameters.max_scale_up_replicas is not None:
        wanted = min(wanted, now + case.parameters.max_scale_up_replicas)
    widest = max(present.limits, key=lambda name: present.limits[name][1])
    replicas = max(now, present.within(widest, wanted))
    if isinstance(diagnoser, LatencyDiagnoser):
        kept = kept.model_copy(update={"wished_at": case.now})
    vector = present.uniform(replicas)
    # What has more than it may is for the bounds to say.
    vector = {name: max(p, present.current[name]) for name, p in vector.items()}
    if vector == present.current:
        sentence = f"{opinion.because}, and {now} is as many as there may be"
        return reply_of(present, None, "nothing-helps", sentence, evidence, kept.document())
    sentence = f"{changes(present.current, vector)}: {opinion.because}"
    return reply_of(present, vector, "overloaded", sentence, evidence, kept.document())


def _fewer(case: _Case, opinion: _Opinion, blind: _Opinion | None, evidence: Mapping[str, Number]) -> PlanReply:
    present, kept = case.present, case.memory.document()
    if case.restoring is not None:
        sentence = f"{opinion.because}, but the application is {case.restoring}: a restoring thread looks idle"
        return reply_of(present, None, "restoring", sentence, evidence, kept)
    if blind is not None:
        return missing(str(blind.blind), blind.because, kept)
    wanted = present.uniform(max(1, math.ceil(opinion.replicas or 1)))
    vector = {name: min(p, present.current[name]) for name, p in wanted.items()}
    if vector == present.current:
        sentence = f"{opinion.because}, and {present.replicas} is as few as there may be"
        return reply_of(present, None, "at-least", sentence, evidence, kept)
    sentence = f"{changes(present.current, vector)}: {opinion.because}"
    return reply_of(present, vector, "over-provisioned", sentence, evidence, kept)


def _is_blocked(case: _Case) -> bool:
    """Whether the busiest thread is blocked for more than the policy's saturation diagnoser tolerates."""
    limits = [d.threshold for d in case.parameters.diagnosers if isinstance(d, SaturationDiagnoser)]
    newest = case.memory.readings[-1].blocked if case.memory.readings else None
    return bool(limits) and newest is not None and newest > max(limits)


def _cooling(request: PlanRequest, case: _Case) -> str | None:
    since, quiet = seconds_since_action(request), case.parameters.state_transition_cooldown_seconds
    if since is not None and since < quiet:
        return f"an action was {since:.0f} s ago, and nothing is diagnosed for {quiet:.0f} s after one"
    quiet = case.parameters.rebalance_cooldown_seconds
    if case.run_seconds is not None and case.run_seconds < quiet:
        return f"the run began {case.run_seconds:.0f} s ago, and nothing is diagnosed for {quiet:.0f} s after that"
    return None


# -- the diagnosers -----------------------------------------------------------------------------------------------


def _rate(case: _Case, d: RateDiagnoser) -> _Opinion:
    readings = case.window(d.window_seconds)
    if readings is None:
        return _Opinion()
    arriving = d.type == "ARRIVAL_RATE_SCALE_UP"
    values = [r.arriving if arriving else r.taken for r in readings]
    known = [value for value in values if value is not None]
    what = "the arrival rate" if arriving else "the processing rate"
    if len(known) != len(values):
        return _Opinion(blind=what, because="a reading of its window is missing")
    mean, n = sum(known) / len(known), case.present.replicas
    words = f"{what} of the busiest node is {mean:,.0f} records/s over {d.window_seconds:.0f} s, and the limit {d.rate:,.0f}"
    if d.type == "PROCESSING_RATE_SCALE_DOWN":
        return _Opinion(n - 1 if n > 1 else None, words) if mean < d.rate else _Opinion()
    return _Opinion(n + 1, words) if mean > d.rate else _Opinion()


def _lag(case: _Case, d: LagDiagnoser) -> _Opinion:
    if case.growth is None or case.arriving is None:
        what = "the growth of lag" if case.growth is None else "the arrival rate"
        return _Opinion(blind=what, because="a source does not tell it")
    if case.growth <= d.least_growth_share * case.arriving or case.growth <= 0:
        return _Opinion()
    return _Opinion(case.present.replicas + 1, f"lag grows by {case.growth:,.0f} records/s")


def _latency(case: _Case, d: LatencyDiagnoser) -> _Opinion:
    if case.run_seconds is not None and case.run_seconds < d.grace_seconds:
        return _Opinion()
    for what, value in (("the arrival rate", case.arriving), ("the lag", case.lag_records)):
        if value is None:
            return _Opinion(blind=what, because="a source does not tell it")
    arriving, lag, sustained = case.arriving or 0.0, case.lag_records or 0.0, case.sustained
    if not sustained:
        return _Opinion(blind="what the replicas sustain", because="no operator's true processing rate is known yet")
    most = d.max_expected_latency_seconds or case.objective_seconds or DEFAULT_LATENCY_SECONDS
    expected = max(0.0, lag + (arriving - sustained) * d.projection_seconds) / sustained
    if expected <= most:
        return _Opinion()
    wished = case.memory.wished_at
    if wished is not None and 0 <= case.now - wished < d.stagger_seconds:
        return _Opinion()
    n, strategy = case.present.replicas, d.scale_up_strategy
    if isinstance(strategy, FixedReplica):
        wanted = float(n + strategy.replicas)
    elif strategy.type == "SCALE_TO_MAX":
        wanted = float(max(n, case.present.most_replicas))
    else:
        demand = arriving + max(0.0, lag - most * arriving) / d.scale_down_buffer_seconds
        wanted = n * demand / sustained
        if math.isfinite(wanted):
            wanted = float(math.ceil(wanted - 1e-9))
    late = f"records are expected to wait {expected:,.0f} s ({d.projection_seconds:.0f} s from now), and the limit is {most:,.0f}"
    return _Opinion(wanted, late) if wanted > n else _Opinion()


def _saturation(case: _Case, d: SaturationDiagnoser) -> _Opinion:
    if case.run_seconds is not None and case.run_seconds < d.grace_seconds:
        return _Opinion()
    least = 1.0
    for i in range(d.num_windows):
        readings = case.window(d.window_seconds, i * d.window_seconds)
        if readings is None:
            return _Opinion()
        known = [r.blocked for r in readings if r.blocked is not None]
        if len(known) != len(readings):
            return _Opinion(blind="the busy share of every operator", because="a reading of its windows is missing")
        least = min(least, sum(known) / len(known))
    n = case.present.replicas
    if least <= d.threshold or n == 1:
        return _Opinion()
    whole = d.num_windows * d.window_seconds
    return _Opinion(n - 1, f"all threads were blocked for {least:.0%} of the last {whole:.0f} s or more")


DIAGNOSERS: Mapping[str, Callable[[_Case, Any], _Opinion]] = {
    "PROCESSING_RATE_SCALE_UP": _rate,
    "PROCESSING_RATE_SCALE_DOWN": _rate,
    "ARRIVAL_RATE_SCALE_UP": _rate,
    "LAG_SCALE_UP": _lag,
    "EXPECTED_LATENCY": _latency,
    "THREAD_SATURATION": _saturation,
}
UPWARDS = frozenset({"PROCESSING_RATE_SCALE_UP", "ARRIVAL_RATE_SCALE_UP", "LAG_SCALE_UP", "EXPECTED_LATENCY"})


# -- what they go by ----------------------------------------------------------------------------------------------


def _remembered(request: PlanRequest) -> _Memory:
    """What the last turn left; another version's, or a damaged one, is none."""
    try:
        return _Memory.model_validate(request.memory)
    except ValidationError:
        return _Memory()


def _case_of(request: PlanRequest, present: Present, parameters: ResponsiveParameters, memory: _Memory) -> _Case:
    analysis, now = request.analysis, request.now.timestamp()
    told = {source.operator: source for source in analysis.sources}
    sources = [told.get(name) for name in present.topology.sources]
    arriving = total([None if s is None else s.arrival_rate.value for s in sources])
    operators = {o.operator: o for o in analysis.operators}
    heads = [operators.get(name) for name in present.topology.sources]
    taken = total([None if o is None else o.input_rate.value for o in heads])
    skew = _skew(present, request)
    n = present.replicas
    if memory.replicas != n:
        memory = _Memory(replicas=n, wished_at=memory.wished_at)
    reading = _Reading(
        at=now,
        taken=None if taken is None else _number(taken / n * skew),
        arriving=None if arriving is None else _number(arriving / n * skew),
        blocked=_blocked(present, request),
    )
    return _Case(
        present=present,
        parameters=parameters,
        now=now,
        run_seconds=None if analysis.run is None else (request.now - analysis.run.running_since).total_seconds(),
        arriving=arriving,
        lag_records=total([None if s is None else s.lag_records.value for s in sources]),
        growth=_sum([None if s is None else s.lag_growth.value for s in sources]),
        sustained=_sustained(present, request),
        restoring=next((code for code in RESTORING if any(s.code == code for s in analysis.symptoms)), None),
        objective_seconds=request.policy.spec.objective.bound_seconds,
        memory=memory.model_copy(update={"readings": _kept(memory.readings, reading, parameters)}),
    )


def _kept(before: Sequence[_Reading], newest: _Reading, parameters: ResponsiveParameters) -> list[_Reading]:
    """The readings of the longest window and the one before it, which shows that it is covered; thinned out where they are too many."""
    longest = 0.0
    for d in parameters.diagnosers:
        if isinstance(d, RateDiagnoser):
            longest = max(longest, d.window_seconds)
        elif isinstance(d, SaturationDiagnoser):
            longest = max(longest, d.window_seconds * d.num_windows)
    readings = [*(r for r in before if r.at < newest.at), newest]
    outside = [i for i, r in enumerate(readings) if r.at <= newest.at - longest]
    readings = readings[outside[-1] if outside else 0 :]
    if len(readings) > MOST_READINGS:
        # The closest to its neighbours tells the least; the ends stay.
        gaps = {i: readings[i + 1].at - readings[i - 1].at for i in range(1, len(readings) - 1)}
        del readings[min(gaps, key=lambda i: gaps[i])]
    return readings


def _sustained(present: Present, request: PlanRequest) -> float | None:
    """Records/s at all sources at which the first operator is full, in the present mix; None while no operator's rate is known."""
    analysis = request.analysis
    flow = flow_of(present.topology, {(e.source, e.target): e.selectivity.value for e in analysis.edges})
    rates = {s.operator: max(0.0, s.arrival_rate.value or 0.0) for s in analysis.sources}
    whole = sum(rates.values())
    mix = {name: rate / whole for name, rate in rates.items()} if 0 < whole < math.inf else dict.fromkeys(rates, 1.0)
    full = []
    for operator in analysis.operators:
        rate, share = operator.true_processing_rate.value, arrivals_at(flow, operator.operator, mix)
        if rate is not None and rate > 0 and share is not None and share > 0:
            full.append(rate / share)
    least = min(full, default=math.inf)
    return least if math.isfinite(least) and least > 0 else None


def _skew(present: Present, request: PlanRequest) -> float:
    """Of the busiest operator; 1 where it is not known."""
    known = [
        (o.utilisation.value, o.skew.value)
        for o in request.analysis.operators
        if o.utilisation.value is not None and o.skew.value is not None and o.operator in present.current
    ]
    return min(1000.0, max(1.0, max(known, default=(0.0, 1.0))[1]))


def _blocked(present: Present, request: PlanRequest) -> float | None:
    """Share of its time that the busiest thread is not busy; None if an operator's is not known."""
    operators = {o.operator: o for o in request.analysis.operators}
    busy = 0.0
    for name in present.topology.names:
        found = operators.get(name)
        if found is None or found.utilisation.value is None:
            return None
        skew = found.skew.value
        busy = max(busy, found.utilisation.value * max(1.0, 1.0 if skew is None else skew))
    return round(1 - min(1.0, busy), 4)


def _number(value: float) -> float | None:
    return round(value, 2) if value < MOST_NUMBER else None


def _sum(values: Sequence[float | None]) -> float | None:
    """As `total`, and may be negative."""
    known = [value for value in values if value is not None]
    added = sum(known) if known and len(known) == len(values) else math.inf
    return added if math.isfinite(added) else None


def _evidence(case: _Case, opinions: Sequence[tuple[Any, _Opinion]]) -> dict[str, Number]:
    newest = case.memory.readings[-1]
    facts: dict[str, Number] = {
        "replicas": case.present.replicas,
        "arrival_rate_records_per_second": case.arriving,
        "sustained_records_per_second": case.sustained,
        "lag_records": case.lag_records,
        "lag_growth_records_per_second": case.growth,
        "busiest_node_records_per_second": newest.taken,
        "blocked_share_of_busiest_thread": newest.blocked,
    }
    for i, (diagnoser, opinion) in enumerate(opinions):
        facts[f"replicas_wanted[{i} {diagnoser.type}]"] = opinion.replicas
    return facts
