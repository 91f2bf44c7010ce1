"""From an evaluation to a parallelism: the factor, its limits, alignment to key groups or partitions, and what is
waited for.

    factor = Capacity(target utilization, with restart) / true processing rate, within [1 - max down, 1 + max up]
    target = ceil(factor · p), within [min(p, min), max(p, max)] and the max parallelism; then aligned

Up: at once, unless the last scale-up was ineffective and detection is on. Down: when fewer have been wanted throughout
the scale-down interval, and then the largest of those recommendations. The job is rescaled if one operator that changes
lies outside its thresholds, and then all that change go together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite, isnan

from .evaluation import Evaluated, capacity_needed
from .ieee import MAX_INT, NAN, divide, java_max, java_min, metric, up_to_hundredths, whole
from .parameters import FlinkAutoscalerParameters, milliseconds


@dataclass(frozen=True)
class Limits:
    """Limits of an operator's parallelism. `partitions` and `keyed` give its alignment, if any."""

    min: int
    max: int
    max_parallelism: int
    partitions: int = 0
    keyed: bool = False

    @property
    def groups(self) -> int:
        """Partitions, else key groups; 0: nothing to align to."""
        if self.partitions > 0:
            return self.partitions
        return self.max_parallelism if self.keyed else 0


@dataclass(frozen=True)
class Rescaled:
    """One rescale of an operator, with what was known when it was decided."""

    at_ms: int
    before: int
    after: int
    true_processing_rate: float
    expected_processing_rate: float


@dataclass(frozen=True)
class Recommendation:
    at_ms: int
    parallelism: int
    outside: bool


@dataclass(frozen=True)
class Waiting:
    """A scale-down that waits: since when, and the recommendations that could still be the largest of the interval,
    oldest first."""

    since_ms: int
    recommendations: tuple[Recommendation, ...] = ()


@dataclass(frozen=True)
class Decision:
    """Decision about one operator."""

    parallelism: int | None
    """None: no change."""
    outside: bool = False
    """Whether this operator alone justifies a rescale."""
    expected_processing_rate: float = NAN
    factor: float = NAN
    raw: int | None = None
    """Parallelism by the factor, before limits and alignment."""
    waiting: Waiting | None = None
    """The scale-down that waits from now on."""
    limited: bool = False
    ineffective: bool = False


@dataclass(frozen=True)
class Scaled:
    parallelism: int
    raw: int
    limited: bool = False


@dataclass(frozen=True)
class JobDecision:
    """Decision about the job: `changes` are applied together, and only if `rescale`."""

    vertices: Mapping[str, Decision]
    changes: Mapping[str, int]
    rescale: bool
    waiting: Mapping[str, Waiting] = field(default_factory=dict)


def decide_job(
    evaluated: Mapping[str, Evaluated],
    limits: Mapping[str, Limits],
    history: Mapping[str, Sequence[Rescaled]],
    waiting: Mapping[str, Waiting],
    parameters: FlinkAutoscalerParameters,
    *,
    restart_seconds: int,
    now_ms: int,
) -> JobDecision:
    """Decide every operator of `limits`; others keep their parallelism."""
    found: dict[str, Decision] = {}
    for name, limit in limits.items():
        found[name] = decide_vertex(
            evaluated[name],
            limit,
            history.get(name, ()),
            waiting.get(name),
            parameters,
            restart_seconds=restart_seconds,
            now_ms=now_ms,
        )
    changes = {name: d.parallelism for name, d in found.items() if d.parallelism is not None}
    left = {name: w for name, w in waiting.items() if name not in found}
    left |= {name: d.waiting for name, d in found.items() if d.waiting is not None}
    return JobDecision(found, changes, any(d.outside for d in found.values() if d.parallelism is not None), left)


def decide_vertex(
    evaluated: Evaluated,
    limits: Limits,
    history: Sequence[Rescaled],
    waiting: Waiting | None,
    parameters: FlinkAutoscalerParameters,
    *,
    restart_seconds: int,
    now_ms: int,
) -> Decision:
    """Decide one operator independently."""
    rate, current = evaluated.true_processing_rate, evaluated.parallelism
    capacity = capacity_needed(evaluated, parameters.utilization_target, parameters, restart_seconds)
    if isnan(rate) or isnan(capacity):
        return Decision(None, waiting=waiting)
    factor = divide(capacity, rate)
    if parameters.observed_scalability_enabled:
        factor = factor / scalability(history, parameters)
    low, high = 1 - parameters.scale_down_max_factor, 1 + parameters.scale_up_max_factor
    factor = low if factor < low else high if factor > high else factor
    scaled = scale(current, factor, limits, parameters)
    wanted = scaled.parallelism
    if wanted == current:
        return Decision(None, factor=factor, raw=scaled.raw, limited=scaled.limited)
    expected = metric(divide(rate, current) * wanted if parameters.is_1_16 else rate * factor)
    decision = Decision(
        wanted,
        outside=rate < evaluated.scale_up_threshold or rate > evaluated.scale_down_threshold,
        expected_processing_rate=expected,
        factor=factor,
        raw=scaled.raw,
        limited=scaled.limited,
    )
    if wanted < current:
        return _delayed(decision, wanted, waiting, parameters, now_ms)
    if _was_ineffective(evaluated, history, parameters):
        blocked = parameters.scaling_effectiveness_detection_enabled
        return replace(decision, parallelism=None if blocked else wanted, ineffective=True)
    return decision


def _delayed(
    decision: Decision, wanted: int, waiting: Waiting | None, parameters: FlinkAutoscalerParameters, now_ms: int
) -> Decision:
    """Scaling down waits for the interval. Until 1.10 what waits goes with another operator's change; later it waits by
    itself."""
    interval = milliseconds(parameters.scale_down_interval_minutes)
    if interval <= 0:
        return replace(decision, waiting=waiting)
    waiting = waiting or Waiting(now_ms)
    too_early = now_ms - interval < waiting.since_ms
    if parameters.is_1_10:
        return replace(decision, outside=decision.outside and not too_early, waiting=waiting)
    kept = [w for w in waiting.recommendations if w.parallelism > wanted]
    recommendations = (*kept, Recommendation(now_ms, wanted, decision.outside))
    if too_early:
        return replace(decision, parallelism=None, waiting=Waiting(waiting.since_ms, recommendations))
    recommendations = tuple(w for w in recommendations if w.at_ms >= now_ms - interval)
    head = recommendations[0]
    return replace(
        decision, parallelism=head.parallelism, outside=head.outside, waiting=Waiting(waiting.since_ms, recommendations)
    )


def _was_ineffective(evaluated: Evaluated, history: Sequence[Rescaled], parameters: FlinkAutoscalerParameters) -> bool:
    """Whether the last scale-up brought too small a share of its expected gain."""
    if not history or history[-1].after != evaluated.parallelism or history[-1].after <= history[-1].before:
        return False
    last = history[-1]
    hoped = last.expected_processing_rate - last.true_processing_rate
    gain = divide(evaluated.true_processing_rate - last.true_processing_rate, hoped)
    return not gain >= parameters.scaling_effectiveness_threshold


def scalability(history: Sequence[Rescaled], parameters: FlinkAutoscalerParameters) -> float:
    """α = Σ p · rate / (Σ p² · rate at the smallest p / that p): the share of linear scaling that past rescales showed,
    rounded up."""
    if not history or len(history) < parameters.observed_scalability_min_observations:
        return 1.0
    base = history[-1]
    for rescale in reversed(history):
        if rescale.before < base.before:
            base = rescale
        if rescale.before == 1:
            break
    per_subtask = base.true_processing_rate / base.before
    if isnan(per_subtask) or any(isnan(rescale.true_processing_rate) for rescale in history):
        return 1.0
    total = 0.0
    for rescale in history:
        total += rescale.before * rescale.true_processing_rate
    alpha = divide(total, sum(rescale.before * rescale.before for rescale in history) * per_subtask)
    alpha = java_max(parameters.observed_scalability_coefficient_min, java_min(1.0, alpha))
    return up_to_hundredths(alpha) if isfinite(alpha) else 1.0


def scale(current: int, factor: float, limits: Limits, parameters: FlinkAutoscalerParameters) -> Scaled:
    """The parallelism that a factor leads to."""
    product = factor * current
    raw = whole(min(float(MAX_INT), float(ceil(product))) if isfinite(product) else java_min(product, MAX_INT))
    lower, upper = min(current, limits.min), max(current, limits.max)
    cap = min(limits.max_parallelism, upper)
    target = min(max(lower, raw), cap)
    groups = limits.groups
    if groups <= 0 or target <= 0:
        return Scaled(target, raw)
    if parameters.is_1_10:
        return Scaled(*_aligned_1_10(target, groups, lower, cap, raw))
    if parameters.is_1_16 and target == current:
        return Scaled(target, raw)
    mode, legacy = parameters.parallelism_alignment_mode, parameters.key_group_partitions_adjust_mode
    if not parameters.is_1_16 or (mode is None and legacy is not None):
        loose, may_cap = legacy == "MAXIMIZE_UTILIZATION", parameters.version == "1.16.1"
        found, limited = _aligned_legacy(target, current, groups, lower, cap, loose=loose, may_cap=may_cap)
        return Scaled(found, raw, limited)
    if mode == "OFF":
        return Scaled(target, raw)
    end = min(groups, cap)
    region = end if target > current else min(current, end)
    aligned = _first_aligned(target, region, groups, loose=mode != "EVENLY_SPREAD")
    if aligned is None:
        aligned = target if parameters.version == "1.16.0" else min(target, end)
    return Scaled(aligned, raw)


def _first_aligned(target: int, end: int, groups: int, *, loose: bool) -> int | None:
    """The smallest from `target` to `end` that divides the groups or, if that is enough, gives each subtask fewer of
    them."""
    for p in range(target, end + 1):
        if groups % p == 0 or (loose and groups // p < groups // target):
            return p
    return None


def _below(target: int, groups: int, lower: int) -> int:
    """The smallest parallelism that gives no subtask more groups than `target` does."""
    p = target
    while p > 0:
        if groups // p > groups // target:
            p += 0 if groups % p == 0 else 1
            break
        p -= 1
    return max(p, lower)


def _aligned_1_10(target: int, groups: int, lower: int, cap: int, raw: int) -> tuple[int, int, bool]:
    end = min(groups if target > groups // 2 else groups // 2, cap)
    aligned = _first_aligned(target, end, groups, loose=False)
    return (_below(target, groups, lower), raw, True) if aligned is None else (aligned, raw, False)


def _aligned_legacy(
    target: int, current: int, groups: int, lower: int, cap: int, *, loose: bool, may_cap: bool
) -> tuple[int, bool]:
    """Up to 1.15, and later where its key is set: searches down where nothing is found upwards, and does not reverse
    the direction; since 1.16.1 but for what runs with more subtasks than there are groups for."""
    grows = target > current
    end = min(groups, cap)
    aligned = _first_aligned(target, end if grows else min(current, end), groups, loose=loose)
    if aligned is not None:
        return aligned, False
    found = _below(target, groups, lower)
    if grows and found == end < current and may_cap:
        return found, True
    if (grows and found <= current) or (not grows and found >= current):
        return current, True
    return found, found != target
