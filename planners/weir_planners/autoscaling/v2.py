"""The arithmetic of a HorizontalPodAutoscaler (`autoscaling/v2`): what `hpa` and `keda-kafka` decide by.

After `pkg/controller/podautoscaler` of Kubernetes 1.34.2 (replica_calculator.go, horizontal.go) and, with
`version="1.32"`, of 1.32.10. It gives the numbers of that code, rounding included; `tests/golden/hpa` has what that
code answered. Values and targets are integers in thousandths, ratios are floats, and a division of integers truncates
towards zero, as there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

Version = Literal["1.32", "1.34"]
"""1.32: up to 1.32. 1.34: from 1.33 on."""
MAX_REPLICAS = 2**31 - 1
MAX_MILLI = 2**63 - 1
CPU_INITIALISATION_SECONDS = 300.0
READINESS_DELAY_SECONDS = 30.0
DOWNSCALE_STABILISATION_SECONDS = 300.0


class NoMetric(ValueError):
    """A metric gives no proposal; the sentence says why."""


@dataclass(frozen=True)
class Tolerance:
    """How far a ratio may be from 1 before it means a change."""

    up: float = 0.1
    down: float = 0.1
    version: Version = "1.34"

    def covers(self, ratio: float) -> bool:
        """In floats the two forms differ: 11/10 is inside 0.1 since 1.33, and was outside before."""
        if self.version == "1.32":
            return abs(1.0 - ratio) <= self.up
        return (1.0 - self.down) <= ratio <= (1.0 + self.up)


@dataclass(frozen=True)
class Replica:
    """A pod, or what stands for one. Times are seconds before now."""

    value_milli: int | None
    """None: it has no metric."""
    request_milli: int | None = 1000
    phase: Literal["Running", "Pending", "Failed", "Succeeded", "Unknown"] = "Running"
    deleting: bool = False
    ready: Literal["True", "False", "Unknown"] | None = "True"
    """The condition `Ready`; None: there is none."""
    started_ago: float | None = 3600.0
    transition_ago: float = 3600.0
    sample_ago: float = 0.0
    sample_window: float = 0.0


_RatioOf = Callable[[Sequence[tuple[Replica, int]]], float]


@dataclass(frozen=True)
class _Groups:
    ready: list[Replica]
    unready: list[Replica]
    missing: list[Replica]


def from_utilization(
    pods: Sequence[Replica], target_percent: int, current: int, tolerance: Tolerance, *, cpu: bool = True
) -> int:
    """Resource metric, target `Utilization`: usage over request, truncated to an integer per cent, over the target."""
    groups = _grouped(pods, cpu)
    if any(pod.request_milli is None for pod in pods):
        raise NoMetric("a replica has no request, and utilization is a share of it")

    def ratio(counted: Sequence[tuple[Replica, int]]) -> float:
        requested = sum(pod.request_milli or 0 for pod, _ in counted)
        if requested == 0:
            raise NoMetric("the requests sum up to 0")
        used = _quotient(100 * sum(value for _, value in counted), requested)
        return used / target_percent

    def at_target(pod: Replica) -> int:
        return _quotient((pod.request_milli or 0) * max(100, target_percent), 100)

    return _from_groups(groups, ratio, at_target, current, tolerance)


def from_values(
    pods: Sequence[Replica], target_milli: int, current: int, tolerance: Tolerance, *, cpu: bool = False
) -> int:
    """Resource or Pods metric, target `AverageValue`: the mean, truncated to thousandths, over the target."""

    def ratio(counted: Sequence[tuple[Replica, int]]) -> float:
        return _quotient(sum(value for _, value in counted), len(counted)) / target_milli

    return _from_groups(_grouped(pods, cpu), ratio, lambda _: target_milli, current, tolerance)


def _grouped(pods: Sequence[Replica], cpu: bool) -> _Groups:
    if not pods:
        raise NoMetric("there are no replicas")
    groups = _Groups([], [], [])
    for pod in pods:
        if pod.deleting or pod.phase == "Failed":
            continue
        if pod.phase == "Pending":
            groups.unready.append(pod)
        elif pod.value_milli is None:
            groups.missing.append(pod)
        elif cpu and _is_unready(pod):
            groups.unready.append(pod)
        else:
            groups.ready.append(pod)
    if not groups.ready:
        raise NoMetric("no replica that is ready has a metric")
    return groups


def _is_unready(pod: Replica) -> bool:
    """By readiness, which only CPU looks at: a starting process is busy with itself."""
    if pod.ready is None or pod.started_ago is None:
        return True
    if pod.started_ago < CPU_INITIALISATION_SECONDS:
        return pod.ready == "False" or pod.sample_ago > pod.transition_ago - pod.sample_window
    never_ready = pod.transition_ago > pod.started_ago - READINESS_DELAY_SECONDS
    return pod.ready == "False" and never_ready


def _from_groups(
    groups: _Groups, ratio_of: _RatioOf, at_target: Callable[[Replica], int], current: int, tolerance: Tolerance
) -> int:
    counted = [(pod, pod.value_milli or 0) for pod in groups.ready]
    ratio = ratio_of(counted)
    fill_unready = bool(groups.unready) and ratio > 1.0
    if not fill_unready and not groups.missing:
        return current if tolerance.covers(ratio) else _ceiling(ratio * len(counted))
    # What is not known is counted against the change: as idle going up, as on target going down.
    if ratio < 1.0:
        counted += [(pod, at_target(pod)) for pod in groups.missing]
    elif ratio > 1.0:
        counted += [(pod, 0) for pod in groups.missing]
    if fill_unready:
        counted += [(pod, 0) for pod in groups.unready]
    new = ratio_of(counted)
    if tolerance.covers(new) or (ratio < 1.0 < new) or (ratio > 1.0 > new):
        return current
    wanted = _ceiling(new * len(counted))
    reversed_by_count = (new < 1.0 and wanted > current) or (new > 1.0 and wanted < current)
    return current if reversed_by_count else wanted


def from_total(
    series_milli: Sequence[int], target_milli: int, current: int, ready: int | None, tolerance: Tolerance
) -> int:
    """Object or External metric, target `Value`: the total over the target, times the replicas that are ready. None:
    there are none at all, ready or not."""
    ratio = min(sum(series_milli), MAX_MILLI) / target_milli
    if current == 0:
        return _ceiling(ratio)
    if tolerance.covers(ratio):
        return current
    if ready is None:
        raise NoMetric("there are no replicas")
    return _ceiling(ratio * ready)


def from_average(series_milli: Sequence[int], target_milli: int, status: int, tolerance: Tolerance) -> int:
    """Object or External metric, target `AverageValue`: the total over the target, whatever runs (`status`) now."""
    total = sum(series_milli)
    if tolerance.version != "1.32" and any(t < 0 or t > MAX_MILLI for t in accumulate(series_milli)):
        # Since 1.33 a sum below 0 is taken for an overflow, so that a negative value asks for the most there may be.
        total = MAX_MILLI
    # With nothing running the original divides by 0, which no tolerance covers.
    if status > 0 and tolerance.covers(total / (float(target_milli) * status)):
        return status
    return _ceiling(total / target_milli)


def _quotient(a: int, b: int) -> int:
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def _ceiling(x: float) -> int:
    return MAX_REPLICAS if x > MAX_REPLICAS else max(-MAX_REPLICAS, math.ceil(x))


def max_proposal(proposals: Sequence[int | NoMetric], current: int) -> int:
    """Several metrics: the largest proposal. With one missing, only if it does not shrink."""
    wanted, missing = 0, None
    for proposal in proposals:
        if isinstance(proposal, NoMetric):
            missing = missing or proposal
        elif wanted == 0 or proposal > wanted:
            wanted = proposal
    if missing is not None and (wanted < current or all(isinstance(p, NoMetric) for p in proposals)):
        raise missing
    return wanted


@dataclass(frozen=True)
class RatePolicy:
    """So much within a period."""

    type: Literal["Pods", "Percent"]
    value: int
    period_seconds: int


@dataclass(frozen=True)
class Rules:
    """Rate limits of one direction."""

    window_seconds: float
    policies: tuple[RatePolicy, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"


@dataclass(frozen=True)
class Limits:
    """Limits of one workload. Without rules for both directions there is no `behavior`."""

    minimum: int
    maximum: int
    up: Rules | None = None
    down: Rules | None = None
    window_seconds: float = DOWNSCALE_STABILISATION_SECONDS


@dataclass(frozen=True)
class Event:
    """A change that was made: so many replicas more, or less."""

    at: float
    change: int
    outdated: bool = False


@dataclass(frozen=True)
class Records:
    """The controller's memory of a workload; `at` in seconds, rising."""

    recommendations: tuple[tuple[float, int], ...] = ()
    ups: tuple[Event, ...] = ()
    downs: tuple[Event, ...] = ()


@dataclass(frozen=True)
class SettledSize:
    """Final number of replicas, with the reasons of the conditions `AbleToScale` and `ScalingLimited`."""

    replicas: int
    able: str
    limited: str


def begun(records: Records, current: int, now: float) -> Records:
    """At the first sight of a workload its size is taken for a recommendation."""
    return records if records.recommendations else replace(records, recommendations=((now, current),))


def outside(limits: Limits, current: int) -> int | None:
    """Where a size outside the limits goes, whatever the metrics say; None: it is inside."""
    if current > limits.maximum:
        return limits.maximum
    return limits.minimum if current < limits.minimum else None


def settle(records: Records, limits: Limits, current: int, proposal: int, now: float) -> tuple[SettledSize, Records]:
    """Stabilise, limit the rate, keep within the limits; and record the proposal as it was."""
    if limits.up is None or limits.down is None:
        stable = max([proposal, *(n for at, n in records.recommendations if at >= now - limits.window_seconds)])
        able = "ScaleDownStabilized" if stable != proposal else "ReadyForNewScale"
        wanted, limited = _clamped(limits, current, stable)
        spans = (0.0, limits.window_seconds)
    else:
        stable = _stabilised(records, (limits.up, limits.down), current, proposal, now)
        direction = "ScaleUpStabilized" if proposal >= current else "ScaleDownStabilized"
        able = direction if stable != proposal else "ReadyForNewScale"
        wanted, limited = _paced(records, limits, current, stable, now)
        spans = (limits.up.window_seconds, limits.down.window_seconds)
    kept = _pruned((*records.recommendations, (now, proposal)), spans, now)
    return SettledSize(wanted, able, limited), replace(records, recommendations=kept)


def _clamped(limits: Limits, current: int, stable: int) -> tuple[int, str]:
    """Without `behavior`: at most twice the size or 4, down at once."""
    twice = max(2 * current, 4)
    maximum, reason = (twice, "ScaleUpLimit") if limits.maximum > twice else (limits.maximum, "TooManyReplicas")
    if stable < limits.minimum:
        return limits.minimum, "TooFewReplicas"
    return (maximum, reason) if stable > maximum else (stable, "DesiredWithinRange")


def _stabilised(records: Records, rules: tuple[Rules, Rules], current: int, proposal: int, now: float) -> int:
    up, down = rules
    minimum = min([proposal, *(n for at, n in records.recommendations if at > now - up.window_seconds)])
    maximum = max([proposal, *(n for at, n in records.recommendations if at > now - down.window_seconds)])
    return min(max(current, minimum), maximum)


def _paced(records: Records, limits: Limits, current: int, stable: int, now: float) -> tuple[int, str]:
    """Limit the change to the policies' rates in its direction."""
    if limits.up is not None and stable > current:
        limit = max(current, _rate_limit(records, limits.up, current, now, 1))
        maximum, reason = (limit, "ScaleUpLimit") if limits.maximum > limit else (limits.maximum, "TooManyReplicas")
        return (maximum, reason) if stable > maximum else (stable, "DesiredWithinRange")
    if limits.down is not None and stable < current:
        limit = min(current, _rate_limit(records, limits.down, current, now, -1))
        minimum, reason = (limit, "ScaleDownLimit") if limits.minimum < limit else (limits.minimum, "TooFewReplicas")
        return (minimum, reason) if stable < minimum else (stable, "DesiredWithinRange")
    return stable, "DesiredWithinRange"


def _rate_limit(records: Records, rules: Rules, current: int, now: float, sign: int) -> int:
    if rules.select == "Disabled":
        return current
    reached = []
    for policy in rules.policies:
        since = now - policy.period_seconds
        start = current - sum(e.change for e in records.ups if e.at > since)
        start += sum(e.change for e in records.downs if e.at > since)
        if policy.type == "Pods":
            reached.append(start + sign * policy.value)
        elif sign > 0:
            reached.append(_ceiling(start * (1 + policy.value / 100)))
        else:
            reached.append(int(start * (1 - policy.value / 100)))
    biggest = (rules.select == "Max") == (sign > 0)
    return max(reached) if biggest else min(reached)


def changed(records: Records, limits: Limits, before: int, after: int, *, at: float, now: float) -> Records:
    """Record a change that was made. Without `behavior` none is recorded, because none is read."""
    if limits.up is None or limits.down is None or before == after:
        return records
    event = Event(at, abs(after - before))
    if after > before:
        return replace(records, ups=_booked(records.ups, event, limits.up, now))
    return replace(records, downs=_booked(records.downs, event, limits.down, now))


def _booked(events: Sequence[Event], event: Event, rules: Rules, now: float) -> tuple[Event, ...]:
    """Replace the last event older than any period of its direction, as the original does, although the other direction
    may still count it."""
    longest_seconds = max((policy.period_seconds for policy in rules.policies), default=0)
    aged = [replace(e, outdated=e.outdated or e.at < now - longest_seconds) for e in events]
    free = [i for i, e in enumerate(aged) if e.outdated]
    if free:
        aged[free[-1]] = event
    else:
        aged.append(event)
    return tuple(aged)


def _pruned(
    recommendations: Sequence[tuple[float, int]], spans: tuple[float, float], now: float
) -> tuple[tuple[float, int], ...]:
    """Those that can still be the lowest of the upper window or the highest of the lower one: a later one that is as
    extreme outlives an earlier. So few are left that a plan can carry them, and no window decides otherwise."""
    up_seconds, down_seconds = spans
    kept: list[tuple[float, int]] = []
    minimum: float = math.inf
    maximum: float = -math.inf
    for at, n in reversed(recommendations):
        in_up, in_down = at >= now - up_seconds and n < minimum, at >= now - down_seconds and n > maximum
        if in_up or in_down:
            kept.append((at, n))
        minimum, maximum = min(minimum, n), max(maximum, n)
    return tuple(reversed(kept))
