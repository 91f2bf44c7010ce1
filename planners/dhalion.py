"""The planner `dhalion`: symptom, diagnosis, resolution, for each operator by itself.

Floratou et al., "Dhalion: Self-Regulating Stream Processing in Heron", VLDB 2017, with the numbers of TU Delft's
re-implementation (delftdata/espa-autoscaling):

    symptom      backpressure of an operator     its backpressured share of the time ≥ backpressure_threshold
                 pending growth of a source      records/s by which its lag grows ≥ pending_growth_share of what it
                 takes in
    diagnosis    under-provisioned               the operator behind a backpressured one that is not backpressured
    itself;
                                                 a source whose pending records grow and that nothing holds back
                 data skew                       such an operator whose busiest subtask does skew_threshold times the
                 mean over-provisioned                nothing is backpressured, no pending records grow, and an input
                 queue is almost empty
    resolution   up                              ⌈p · (1 + bp / (1 − bp))⌉, bp the largest backpressured share (at most
    0.9) upstream;
                                                 of a source ⌈p · (1 + growth / consumed)⌉, at most 10 times
                 down                            ⌊p · scale_down_factor⌋, 1 at least
                 skew                            the paper moves data; here it is reported and not scaled, which would
                 not help

Not measured are the queues inside a job: an operator's is taken to be almost empty while it is busy for quiet_share of
the time or less (ρ/(1 − ρ) records wait at one that is busy for ρ, 1 at 0.5). A source's is its lag: at most
pending_seconds of arrivals. The paper also never repeats what did not help; of that Weir keeps account for every
planner (quarantine and guards).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field
from weir_contracts import Analysis, Infeasible, Parallelism, PlanReply, SourceAnalysis, changes, listed, short_name
from weir_planner import Request, planner

from .answer import Answer

MAX_BACKPRESSURE = 0.9
MAX_FACTOR = 10.0


class DhalionParameters(BaseModel):
    """Parameters of the planner; shares of the time are between 0 and 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backpressure_threshold: float = Field(
        default=0.1, gt=0, lt=1, description="share of time under backpressure from which it counts as a symptom"
    )
    pending_growth_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="growth of a source's lag, as a share of its input rate, from which it counts as a symptom",
    )
    skew_threshold: float = Field(
        default=1.5,
        gt=1,
        le=1000,
        description="busy share of the busiest subtask, relative to the mean, from which data counts as skewed",
    )
    scale_down_factor: float = Field(
        default=0.8, gt=0, lt=1, description="share of the parallelism that is kept when scaling down"
    )
    quiet_share: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="busy share up to which the input queue of an operator counts as almost empty",
    )
    pending_seconds: float = Field(
        default=1.0,
        ge=0,
        le=86_400,
        description="backlog up to which a source counts as almost empty, in seconds of its arrivals",
    )
    cooldown_seconds: float = Field(
        default=120.0, ge=0, le=86_400, description="time after an action in which nothing is diagnosed, in s"
    )


@dataclass(frozen=True)
class _Symptoms:
    """Symptoms; every value is known."""

    backpressure: dict[str, float]
    growth: dict[str, float]
    """Of a source's pending records over what it takes in."""
    backpressured: list[str]
    growing: list[str]
    """Operators with each symptom."""


@planner(
    name="dhalion",
    description="symptom, diagnosis, resolution: grows the operator behind a backpressured one, shrinks what idles (after VLDB 2017)",
    parameters=DhalionParameters,
    reads=[],
)
def plan_by_dhalion(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(DhalionParameters)
    answer = Answer(request)
    since = request.seconds_since_action
    if since is not None and since < parameters.cooldown_seconds:
        sentence = f"the last action was {since:.0f} s ago; nothing is diagnosed within {parameters.cooldown_seconds:.0f} s of an action"
        return answer.hold("cooldown", sentence)
    symptoms = _symptoms_of(answer, parameters)
    if isinstance(symptoms, PlanReply):
        return symptoms
    answer.evidence |= {f"backpressured_share[{name}]": share for name, share in symptoms.backpressure.items()}
    answer.evidence |= {f"pending_growth_share[{name}]": growth for name, growth in symptoms.growth.items()}
    if symptoms.backpressured or symptoms.growing:
        return _up(answer, symptoms, parameters)
    return _down(answer, parameters)


def _symptoms_of(answer: Answer, parameters: DhalionParameters) -> _Symptoms | PlanReply:
    request, analysis = answer.request, answer.request.analysis
    backpressure, growth = {}, {}
    for name in request.topology.names:
        found = analysis.operator(name)
        if not request.topology.outputs(name):
            continue  # nothing behind a sink could hold it back
        if found is None or found.backpressure.value is None:
            reason = found.backpressure.basis if found else "it was not analysed"
            return answer.missing(f"the backpressure of {name}", reason)
        backpressure[name] = min(1.0, max(0.0, found.backpressure.value))
    sources = {source.operator: source for source in analysis.sources}
    for name in request.topology.sources:
        source, found = sources.get(name), analysis.operator(name)
        if source is None or source.lag_growth.proven is None:
            reason = source.lag_growth.basis if source else "it was not analysed"
            return answer.missing(f"the growth of {name}'s lag", reason)
        if found is None or found.input_rate.value is None:
            reason = found.input_rate.basis if found else "it was not analysed"
            return answer.missing(f"what {name} takes in", reason)
        growth[name] = _ratio(max(0.0, source.lag_growth.proven), max(0.0, found.input_rate.value))
    return _Symptoms(
        backpressure,
        growth,
        [name for name, share in backpressure.items() if share >= parameters.backpressure_threshold],
        [name for name, ratio in growth.items() if ratio > parameters.pending_growth_share],
    )


def _ratio(part: float, whole: float) -> float:
    """Return the ratio; infinite where nothing is taken in and something is wanted."""
    if part <= 0:
        return 0.0
    return part / whole if whole > 0 else math.inf


def _up(answer: Answer, symptoms: _Symptoms, parameters: DhalionParameters) -> PlanReply:
    request, analysis = answer.request, answer.request.analysis
    wanted: Parallelism = request.current
    reasons = []
    for name, factor, reason in _causes(request, symptoms):
        found = analysis.operator(name)
        skew = found.skew.value if found else None
        if skew is not None and skew >= parameters.skew_threshold and request.current[name] > 1:
            text = f"the busiest subtask of {short_name(name)} does {skew:.1f} times the mean: more subtasks would not help"
            answer.infeasible.append(Infeasible(operator=name, code="skewed", because=text))
            reasons.append(text)
            continue
        wanted[name] = max(request.current[name], answer.within(name, request.current[name] * factor))
        reasons.append(reason)
    text = listed(reasons, 90, "; ")
    if wanted != request.current:
        return answer.scale(wanted, "under-provisioned", f"{changes(request.current, wanted)}: {text}")
    code = "skewed" if any(i.code == "skewed" for i in answer.infeasible) else "nothing-helps"
    text = (
        text
        or f"{listed([*map(short_name, [*symptoms.backpressured, *symptoms.growing])])} held back by no operator behind"
    )
    return answer.hold(code, f"no permitted parallelism would resolve it: {text}")


def _causes(request: Request, symptoms: _Symptoms) -> Iterator[tuple[str, float, str]]:
    """Under-provisioned operators, each with the factor that resolves it and its diagnosis."""
    for name in request.topology.names:
        if name in symptoms.backpressured:
            continue
        held = {up: symptoms.backpressure[up] for up in request.topology.inputs(name) if up in symptoms.backpressured}
        if held:
            worst = max(held, key=lambda up: held[up])
            share = min(held[worst], MAX_BACKPRESSURE)
            yield (
                name,
                1 + share / (1 - share),
                f"{short_name(worst)} is backpressured for {held[worst]:.0%} of the time by {short_name(name)}",
            )
        elif name in symptoms.growing:
            growth = symptoms.growth[name]
            text = f"{growth:.0%} of what it takes in" if math.isfinite(growth) else "while it takes nothing in"
            yield name, min(1 + growth, MAX_FACTOR), f"what waits at {short_name(name)} grows by {text}"


def _down(answer: Answer, parameters: DhalionParameters) -> PlanReply:
    """Nothing is backpressured: operators with an almost empty queue shrink. An unknown queue is not empty."""
    request, analysis = answer.request, answer.request.analysis
    sources = {source.operator: source for source in analysis.sources}
    wanted: Parallelism = request.current
    unknown = []
    for name, p in request.current.items():
        empty = _almost_empty(analysis, name, sources.get(name), parameters)
        if empty is None:
            unknown.append(name)
        elif empty:
            # It never goes below what the policy allows, nor up.
            wanted[name] = min(p, max(request.limits[name].min, math.floor(p * parameters.scale_down_factor + 1e-9)))
    if wanted != request.current:
        sentence = (
            f"{changes(request.current, wanted)}: nothing is backpressured, and what waits there is next to nothing"
        )
        return answer.scale(wanted, "over-provisioned", sentence)
    if unknown:
        return answer.missing(f"what waits at {unknown[0]}", "its busy share or its lag is not known")
    return answer.hold("no-symptom", "nothing is backpressured and no queue is almost empty")


def _almost_empty(
    analysis: Analysis, name: str, source: SourceAnalysis | None, parameters: DhalionParameters
) -> bool | None:
    found = analysis.operator(name)
    if found is None or found.utilization.value is None:
        return None
    quiet = found.utilization.value <= parameters.quiet_share
    if source is None:
        return quiet
    if source.lag_records.value is None or source.arrival_rate.value is None:
        return None
    # A source that is busy needs its subtasks, however little waits.
    return quiet and source.lag_records.value <= max(0.0, source.arrival_rate.value) * parameters.pending_seconds
