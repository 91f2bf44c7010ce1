"""Conditions of a ScalingPolicy resource: what holds of it, with the code of the reason and its sentence.

A reason has the form of Kubernetes' conventions (`ObjectiveHeld`); its code in Weir is the same word in kebab-case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from weir_contracts import Analysis, Plan, ScalingPolicy, format_duration
from weir_contracts.base import short_name
from weir_contracts.outcome import TERMINAL
from weir_contracts.planning import NO_OPINION

from .decisions import BECAUSE
from .newest import Newest
from .summary import Summary

HEALTHY = "the policy is in force, its application is observed, and nothing keeps Weir from scaling it"


@dataclass(frozen=True)
class Refusal:
    """Why the document of a resource is not in force."""

    reason: str
    sentence: str


@dataclass(frozen=True)
class Judged:
    """A condition: its type, whether it holds (None: unknown), and the reason."""

    type: str
    holds: bool | None
    reason: str
    sentence: str


@dataclass(frozen=True)
class InForce:
    """The policy in force that a resource wrote, and what is known of its application."""

    policy: ScalingPolicy
    newest: Newest
    summary: Summary


def camel_case(code: str) -> str:
    """Return a code of Weir as a reason of Kubernetes: `ObjectiveHeld` for `objective-held`."""
    return "".join(part.capitalize() for part in code.split("-"))


def accepted(refusal: Refusal | None, policy: ScalingPolicy | None) -> Judged:
    """Return whether the document of the resource is in force; `policy` is the one of an earlier document if it is not."""
    if refusal is None:
        version = policy.metadata.version if policy else None
        as_version = "" if version is None else f" as version {version}"
        return Judged("Accepted", True, "InForce", f"the policy is in force{as_version}")
    kept_generation = None if policy is None else policy.metadata.generation
    kept = "" if kept_generation is None else f". Generation {kept_generation} of this resource stays in force"
    return Judged("Accepted", False, refusal.reason, f"{refusal.sentence}{kept}")


def conditions_of(found: InForce | None) -> list[Judged]:
    """Return the conditions that are about the policy in force: `Observed`, `Planned`, `Acting`, `ObjectiveMet`."""
    if found is None:
        sentence = "no generation of this resource is in force"
        types = ("Observed", "Planned", "Acting", "ObjectiveMet")
        return [Judged(type_, None, "NotAccepted", sentence) for type_ in types]
    policy, newest, summary = found.policy, found.newest, found.summary
    return [
        _observed(summary),
        _planned(policy, newest.plan, summary),
        _acting(policy, summary),
        _met(policy, newest.analysis, summary),
    ]


def _observed(summary: Summary) -> Judged:
    ages = {"monitor": summary.ages_seconds.monitor, "analyzer": summary.ages_seconds.analyzer}
    if missing := [stage for stage, age in ages.items() if age is None]:
        return Judged("Observed", None, "NotObserved", f"no message yet from: {', '.join(missing)}")
    if silent := [stage for stage in ages if stage in summary.silent]:
        return Judged("Observed", False, "Silent", f"no message lately from: {', '.join(silent)}")
    if summary.status in ("not_found", "unreachable"):
        return Judged("Observed", False, camel_case(summary.obstacle_code or ""), summary.obstacle or "")
    if summary.problems:
        return Judged("Observed", True, "ObservedInPart", f"not everything could be read: {summary.problems[0]}")
    return Judged("Observed", True, "Current", "monitor and analyzer see the application")


def _planned(policy: ScalingPolicy, plan: Plan | None, summary: Summary) -> Judged:
    if plan is None:
        return Judged("Planned", None, "NotPlanned", "there is no plan yet")
    if plan.policy_version is not None and plan.policy_version < (policy.metadata.version or 0):
        return Judged("Planned", None, "PolicyChanged", "the last plan follows an earlier version of the policy")
    if "planner" in summary.silent:
        return Judged("Planned", False, "Silent", f"no plan since {plan.created_at:%Y-%m-%d %H:%M:%S} UTC")
    has_opinion = plan.kind != "hold" or plan.code not in NO_OPINION
    return Judged("Planned", has_opinion, camel_case(plan.code), plan.sentence)


def _acting(policy: ScalingPolicy, summary: Summary) -> Judged:
    if summary.mode == "paused":
        because = policy.metadata.annotations.get(BECAUSE)
        return Judged("Acting", False, "Paused", "mode paused requests nothing" + (f": {because}" if because else ""))
    if summary.mode != "act":
        return Judged("Acting", False, "Advising", f"mode {summary.mode} requests nothing")
    if summary.obstacle_code is not None:
        return Judged("Acting", False, camel_case(summary.obstacle_code), summary.obstacle or "")
    if summary.status is None:
        return Judged("Acting", None, "NotObserved", "the application was not observed yet")
    if summary.action_phase is not None and summary.action_phase not in TERMINAL:
        return Judged("Acting", True, camel_case(summary.action_phase), summary.action or "")
    last = f"; the last one: {summary.action}" if summary.action else ""
    return Judged("Acting", True, "NoActionNeeded", f"no action is in flight{last}")


def _met(policy: ScalingPolicy, analysis: Analysis | None, summary: Summary) -> Judged:
    objective = policy.spec.objective
    if analysis is None:
        return Judged("ObjectiveMet", None, "NotAnalyzed", "there is no analysis yet")
    if "analyzer" in summary.silent:
        return Judged("ObjectiveMet", None, "Silent", "no message lately from: analyzer")
    if objective.utilization is not None:
        return _busy_enough(objective.utilization, analysis)
    if objective.max_latency is not None:
        what, field, found = "latency", "maxLatency", analysis.expected_latency_seconds
    else:
        what, field, found = "lag", "maxLag", analysis.lag_seconds
    bound_seconds = objective.bound_seconds or 0.0
    bound, reason = f"{field} is {format_duration(timedelta(seconds=bound_seconds))}", field[0].upper() + field[1:]
    if found.proven is not None and found.proven > bound_seconds:
        at_least = "at least " if found.value is None else ""
        return Judged("ObjectiveMet", False, f"Above{reason}", f"{what} is {at_least}{found.proven:.1f} s, {bound}")
    if found.value is None:
        return Judged("ObjectiveMet", None, f"{what.capitalize()}Unknown", f"{what} is unknown, {bound}")
    return Judged("ObjectiveMet", True, f"Within{reason}", f"{what} is {found.value:.1f} s, {bound}")


def _busy_enough(target: float, analysis: Analysis) -> Judged:
    """Return whether no operator is busier than the objective."""
    known = [
        (each.utilization.value, each.operator) for each in analysis.operators if each.utilization.value is not None
    ]
    if not known:
        return Judged(
            "ObjectiveMet", None, "UtilizationUnknown", f"utilization is unknown, its objective is {target:.0%}"
        )
    share, operator = max(known)
    sentence = f"{short_name(operator)} is busy {share:.0%} of the time, the objective is {target:.0%}"
    return Judged(
        "ObjectiveMet", share <= target, "AboveUtilization" if share > target else "WithinUtilization", sentence
    )


def degraded(judged: Sequence[Judged], found: InForce | None) -> Judged:
    """Return the condition that something keeps Weir from its work, by the first reason: the document, the readings, the
    target, the planner, and a limit that keeps a missed objective from being met."""
    by_type = {each.type: each for each in judged}
    wrong = [each for each in (by_type["Accepted"], by_type["Observed"]) if each.holds is False]
    if found is not None:
        summary, plan = found.summary, found.newest.plan
        if summary.obstacle_code is not None:
            wrong.append(Judged("Acting", False, camel_case(summary.obstacle_code), summary.obstacle or ""))
        if by_type["Planned"].holds is False and summary.mode != "paused":
            wrong.append(by_type["Planned"])
        if by_type["ObjectiveMet"].holds is False and plan is not None and plan.infeasible:
            limit = plan.infeasible[0]
            wrong.append(Judged("ObjectiveMet", False, camel_case(limit.code), limit.because))
    if wrong:
        return Judged("Degraded", True, wrong[0].reason, wrong[0].sentence)
    unknown = [by_type[each] for each in ("Observed", "Planned") if by_type[each].holds is None]
    if unknown:
        return Judged("Degraded", None, unknown[0].reason, unknown[0].sentence)
    return Judged("Degraded", False, "AsExpected", HEALTHY)


def ready(of: Judged) -> Judged:
    """Return the condition of the whole: the opposite of `Degraded`, for tools that wait for a resource."""
    holds = None if of.holds is None else not of.holds
    return Judged("Ready", holds, "Ready" if holds else of.reason, of.sentence)
