"""Sentences for users: reasons of holds and amendments, and the sentence of a plan, with numbers in a readable form."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from weir_contracts import (
    MAX_SENTENCE,
    Analysis,
    Parallelism,
    bounded,
    changes,
    counted,
    fitted,
    listed,
    short_name,
    sizes,
)

PAUSED = "the policy is paused"
NO_GRAPH = "the application's graph or deployment is unknown"
NO_PARALLELISM = "the parallelism of at least one operator is unknown"
ALREADY_RUNNING = "the application already runs at this parallelism"


def not_judged(application: str, reason: str) -> str:
    """Return why a proposal cannot be judged."""
    return bounded(f"{application} cannot be judged yet: {reason}", MAX_SENTENCE)


def names(operators: Iterable[str]) -> str:
    """Format as `parse, enrich`, naming as many operators as fit."""
    return listed(list(map(short_name, operators)))


def each(reasons: Sequence[str], more: int = 0) -> str:
    """Join reasons of single operators, as many as fit; `more` operators are left out already."""
    return listed([*reasons, *[""] * more], MAX_SENTENCE, "; ")


def stale(age_seconds: float, limit_seconds: float) -> str:
    return f"the observation is {age_seconds:.0f} s old, more than {limit_seconds:.0f} s: it is too old to plan on"


def job_ended(state: str) -> str:
    return f"the job is {state}; it can be scaled once it is submitted again"


def not_running(reason: str) -> str:
    return f"the application cannot be scaled: {reason}"


def incomplete_reply(missing: Sequence[str], extra: Sequence[str]) -> str:
    """Return what a reply does, as `misses work`; the caller adds the subject."""
    parts = [f"misses {names(missing)}"] if missing else []
    parts += [f"names the unknown operator {names(extra)}"] if extra else []
    return " and ".join(parts)


def into_limits(current: Parallelism, wanted: Parallelism, reasons: Sequence[str]) -> str:
    return fitted(f"{changes(current, wanted)}: {reasons[0]}", *(f"; {reason}" for reason in reasons[1:]))


def limited(
    current: Parallelism,
    approved: Parallelism,
    *,
    proposed: Parallelism,
    guards: Sequence[str],
    reason: str,
    max_lag_seconds: float | None,
) -> str:
    """Say what will be done, what was proposed and which guards limited it, then the planner's reason.

    Of the reason the first clause without the proposed change: what follows it predicts the proposed vector.
    """
    differ = {name: p for name, p in proposed.items() if approved.get(name) != p}
    other = str(*differ.values()) if len(differ) == 1 else sizes(differ, 30)
    cause = reason.removeprefix(f"{changes(current, proposed)}: ").partition("; ")[0]
    outlook = "" if max_lag_seconds is None else f"; lag peaks at {max_lag_seconds:.1f} s"
    return fitted(
        f"{changes(current, approved)} (the planner proposed {other}; limited by {listed(guards, 40)})",
        f": {cause}",
        outlook,
    )


def no_gain(current: Parallelism, left: Parallelism, guards: Sequence[str]) -> str:
    return f"{changes(current, left)}, limited by {listed(guards, 40)}, would gain nothing for its restart"


def only_in_part(analysis: Analysis) -> str | None:
    """Return which of arrivals and lag only a lower bound is known of; None: neither."""
    for what, unit, found in (
        ("arrival rate", "records/s", analysis.arrival_rate),
        ("lag", "s", analysis.lag_seconds),
        ("lag", "records", analysis.lag_records),
    ):
        if found.lower_bound is not None:
            return f"its {what} is known in part: at least {found.lower_bound:,.0f} {unit}"
    return None


def restart_of(evidence: str) -> str:
    return f"restart one instance: {evidence}"


def restart_is_near(evidence: str, seconds: float) -> str:
    return f"no change of size before the instance goes on or is restarted, after {seconds:.0f} s: {evidence}"


def out_of_bounds(name: str, parallelism: int, low: int, high: int) -> str:
    return f"{short_name(name)} runs at {parallelism}, the policy allows {low} to {high}"


def bounded_by_policy(before: Parallelism, after: Parallelism) -> str:
    return f"{changes(before, after)}: the policy's bounds"


def above_total(count: int, limit: int) -> str:
    return f"{count} subtasks exceed the policy's total of {limit}"


def below_total(count: int, limit: int) -> str:
    return (
        f"{counted(count, 'subtask')} {'is' if count == 1 else 'are'} fewer than the policy's total minimum of {limit}"
    )


def over_budget(slots: int, limit: int, budget: str) -> str:
    return f"{counted(slots, 'slot')} {'exceeds' if slots == 1 else 'exceed'} the {limit} of the budget's {budget}"


def minimum(limit: int) -> str:
    return f"the policy's minimum is {limit}"


def maximum(limit: int) -> str:
    return f"the policy's maximum is {limit}"


def key_groups(limit: int) -> str:
    return f"no operator has more than {limit} key groups"


def same_parallelism(level: int, count: int, instance: str, slots: int, reason: str) -> str:
    """Say what instances give to all operators, and which limit applied, if one did."""
    what = f"{count} {instance}{'s' if count > 1 else ''} of {slots} slot{'s' if slots > 1 else ''}"
    return f"all operators run at the same parallelism, {level} with {what}" + (f": {reason}" if reason else "")


def slots_missing(needed: int, limit: int, free: int, held: int) -> str:
    required = f"{counted(needed, 'slot')} {'is' if needed == 1 else 'are'} needed"
    return f"{required}, {limit} {'is' if limit == 1 else 'are'} available ({free} free, {held} held)"


def steps_limited(current: Parallelism, after: Parallelism) -> str:
    return f"{changes(current, after)}: the policy's largest step"


def too_many_actions(count: int, limit: int, left_seconds: float) -> str:
    return (
        f"{counted(count, 'action')} in the last hour, the policy allows {limit}: the next one in {left_seconds:.0f} s"
    )


def reserved_action(count: int, limit: int) -> str:
    return f"{count} of {counted(limit, 'action')} an hour {'is' if count == 1 else 'are'} used: the last one is reserved for growth"


def excluded(operators: Sequence[str], until: datetime, zone: str) -> str:
    return f"no change of {names(operators)}: an excluded period lasts until {until:%Y-%m-%d %H:%M} {zone}"


def in_flight(phase: str, sentence: str) -> str:
    return f"an action is in flight, {phase}: {sentence}"


def tasks_move(reason: str) -> str:
    return f"no change while tasks move: {reason}"


def one_step_in(after: Parallelism, operators: Sequence[str]) -> str:
    return f"one useful step at a time: {listed([f'{short_name(name)} to {after[name]}' for name in operators])}"


def one_step_out(after: Parallelism, operators: Sequence[str]) -> str:
    steps = listed([f"{short_name(name)} to {after[name]}" for name in operators])
    return f"one step at a time while state is warmed up: {steps}"


def input_fell(ago_seconds: float, usual_rate: float, left_seconds: float) -> str:
    return (
        f"the input fell {ago_seconds:.0f} s ago (usual: {usual_rate:,.0f} records/s), perhaps an outage upstream: "
        f"no scale-down for another {left_seconds:.0f} s"
    )


def stabilised(current: Parallelism, after: Parallelism, operators: Sequence[str]) -> str:
    """Name the operators that a recommendation in the window limits, as `enrich stays at 6`."""

    def limited_to(name: str) -> str:
        return f"{short_name(name)} {'stays at' if after[name] == current[name] else 'moves only to'} {after[name]}"

    levels = {after[name] for name in operators}
    of = f" of {levels.pop()}" if len(levels) == 1 else ""
    return f"{listed(list(map(limited_to, operators)))}: the stabilisation window still contains a recommendation{of}"


def waits_for_larger_step(current: Parallelism, later: Parallelism, seconds: float) -> str:
    """Say why a smaller scale-down waits for a larger one."""
    return f"{changes(current, later)} is possible in {seconds:.0f} s: one larger step instead of two with a cooldown"


def stabilising(operators: Sequence[str], window_seconds: float, left_seconds: float) -> str:
    return (
        f"scale-down of {names(operators)} must be recommended for {window_seconds:.0f} s, {left_seconds:.0f} s remain"
    )


def cooling_down(left_seconds: float, cause: str) -> str:
    return f"cooldown: no scale-down for another {left_seconds:.0f} s after {cause}"


def quarantined(reason: str, left_seconds: float) -> str:
    return f"this parallelism is quarantined for another {left_seconds:.0f} s since its rollback: {reason}"


def reversing(operators: Sequence[str], left_seconds: float) -> str:
    return f"{names(operators)} went up, down and up within 30 min: no scale-down for another {left_seconds:.0f} s"


def will_be_needed(name: str, wanted: int, rate: float, at_seconds: float, *, pays_seconds: float) -> str:
    subtasks = "1 subtask" if wanted == 1 else f"{wanted} subtasks"
    return (
        f"{short_name(name)} will be needed: up to {rate:,.0f} records/s are forecast, too many for {subtasks} "
        f"{_from(at_seconds)}; shrinking pays after {_time(pays_seconds)}"
    )


def _from(seconds: float) -> str:
    return "now" if seconds < 1 else f"from {_time(seconds)} on"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:,.0f} min"


def busy(name: str, share: float | None, limit: float, metrics_field: str = "") -> str:
    if share is None:
        remedy = f" without {metrics_field}" if metrics_field else ""
        return f"the busy share of {short_name(name)} is unknown{remedy}"
    return f"{short_name(name)} is busy {share:.0%} of the time, above its target of {limit:.0%}"


def above_sustained(wanted: Parallelism, limited: Mapping[str, tuple[float, float] | None]) -> str:
    """Name the operators with their needed and observed records/s per subtask; None: one of these is unknown."""

    def reason(name: str, rates: tuple[float, float] | None) -> str:
        if rates is None:
            return f"the demand of {short_name(name)} or its highest sustained rate is unknown"
        return f"{short_name(name)} at {wanted[name]} needs {rates[0]:,.0f} records/s per subtask, {rates[1]:,.0f} were observed"

    first, more = list(limited.items())[:2], len(limited) - 2
    return each([reason(name, rates) for name, rates in first], more)


def not_now(operators: Sequence[str], reason: str) -> str:
    return f"no scale-down of {names(operators)} while {reason}"


def above_capacity(name: str, parallelism: int, limit: float) -> str:
    return f"{short_name(name)} at {parallelism} would be above {limit:.0%} of its capacity"


def not_useful(name: str, parallelism: int, useful: int) -> str:
    return f"{short_name(name)} gains nothing from {parallelism} over {useful}"


def next_useful(name: str, parallelism: int, now: int, following: int) -> str:
    return f"{not_useful(name, parallelism, now)}; {following} is the next that does more"


def hot_key(name: str, skew: float, useful: int, *, is_source: bool) -> str:
    what = "partition" if is_source else "key"
    return (
        f"one subtask of {short_name(name)} is {skew:.1f} times as busy as the mean: more than {counted(useful, 'subtask')} "
        f"do not relieve a hot {what}"
    )


def downstream_bound(name: str, downstream: str) -> str:
    return f"{short_name(name)} waits for {short_name(downstream)}, which is saturated and does not grow"


def upstream_bound(name: str, limited: str, parallelism: int, reaching: float) -> str:
    subtasks = "subtask" if parallelism == 1 else "subtasks"
    return f"{short_name(limited)} is limited to {parallelism} {subtasks}, so at most {reaching:,.0f} records/s reach {short_name(name)}"


def within_tolerance(operators: Sequence[str], change: float, tolerance: float) -> str:
    return f"{names(operators)} would change by {change:.0%}, within the tolerance of {tolerance:.0%}"


def ineffective(name: str, before: tuple[int, float], after: tuple[int, float], left_seconds: float) -> str:
    """Compare capacity before and after growth, each as parallelism and records/s."""
    return (
        f"{short_name(name)} does {after[1]:,.0f} records/s with {after[0]} and did {before[1]:,.0f} with {before[0]}: "
        f"no growth for another {left_seconds:.0f} s"
    )


def unmeasured(operators: Sequence[str]) -> str:
    return f"the demand or capacity of {names(operators)} is unknown"


def undecided(reason: str, winner: str) -> str:
    return f"not judged, so {winner} decides: {reason}"


def not_known_to_suffice(operator: str) -> str:
    return f"not judged: what fewer subtasks of {short_name(operator)} process is unknown"


def held_by(guard: str, reason: str) -> str:
    return f"{guard} held its proposal; {reason}"


def same_as(winner: str) -> str:
    return f"leads to the same parallelism as {winner}"


def too_busy(utilization: float, limit: float) -> str:
    return f"the busiest operator would be used to {utilization:.0%} of its capacity, above {limit:.0%}"


def later_than(late_seconds: float, winner: str, best_seconds: float) -> str:
    own = f"{late_seconds:,.0f} s above the objective" if late_seconds < float("inf") else "never meets the objective"
    return f"{own}, {winner} {best_seconds:,.0f} s"


def dearer_than(slots: int, winner: str, best_slots: int) -> str:
    return f"costs {counted(slots, 'slot')}, {winner} {best_slots}"


def no_better_than(winner: str) -> str:
    return f"is no better than {winner}"


def better_than(winner: str) -> str:
    return f"would be chosen instead of {winner} if it were a candidate"
