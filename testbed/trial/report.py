"""Report of a trial: samples, decisions, actions, their summary and the result. Pure.

The result depends on an independent probe at the sink; Weir's own lag is reported next to it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from weir_contracts import counted, listed

SAMPLE_SECONDS = 2.0
"""Time between two samples of the series."""

STEP_RATIO = 1.25
"""A load step: the target rate rises by this ratio or more between two samples."""

SETTLED_SAMPLES = 3
"""The end is within the objective when the last samples all are, so one lucky sample decides nothing."""


@dataclass(frozen=True)
class Sample:
    """The trial at `t` seconds after the load began. Rates in records/s; None is unknown."""

    t: float
    target_rate: float | None
    """Rate of the trace."""
    input_rate: float | None
    """Produced rate."""
    lag_records: float | None
    lag_seconds: float | None
    """By Weir."""
    probe_lag_seconds: float | None
    """By the probe at the sink."""
    parallelism: Mapping[str, int] = field(default_factory=dict)
    requested: Mapping[str, int] = field(default_factory=dict)
    planned: Mapping[str, int] = field(default_factory=dict)
    slots: int | None = None


@dataclass(frozen=True)
class Decision:
    """One plan, a hold included, in short. `time` is seconds after the load began."""

    plan_id: str
    time: float
    current: Mapping[str, int]
    approved: Mapping[str, int] | None
    reason_code: str
    sentence: str
    amendments: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class ActionRecord:
    """One action, times in seconds after the load began."""

    plan_id: str
    requested_at: float | None
    running_at: float | None
    verified_at: float | None
    before: Mapping[str, int]
    wanted: Mapping[str, int]
    outcome: str
    sentence: str

    def to_document(self) -> dict[str, Any]:
        """Return the action with the names of the report: `from` and `to` are no names in Python."""
        document = asdict(self)
        document["from"] = document.pop("before")
        document["to"] = document.pop("wanted")
        return document


@dataclass(frozen=True)
class LoadStep:
    """A rise of the load and how it was answered, in seconds after the step; None: not within the trial."""

    at: float
    from_rate: float
    to_rate: float
    reaction_seconds: float | None
    """Until the engine had accepted a rescale."""
    recovered_seconds: float | None
    """Until the probe's lag was within the objective for good (until the next step or the end)."""


@dataclass(frozen=True)
class TrialResult:
    passed: bool
    sentence: str


def load_steps(samples: Sequence[Sample], actions: Sequence[ActionRecord], objective_seconds: float) -> list[LoadStep]:
    """Every rise of the target rate by `STEP_RATIO` or more, merged while it goes on rising."""
    rises: list[tuple[float, float, float]] = []
    for earlier, later in itertools.pairwise(samples):
        low, high = earlier.target_rate, later.target_rate
        if low is None or high is None or low <= 0 or high / low < STEP_RATIO:
            continue
        if rises and earlier.t - rises[-1][0] <= 2 * SAMPLE_SECONDS:
            rises[-1] = (rises[-1][0], rises[-1][1], high)
        else:
            rises.append((later.t, low, high))
    steps = []
    for i, (at, low, high) in enumerate(rises):
        until = rises[i + 1][0] if i + 1 < len(rises) else float("inf")
        steps.append(
            _answered(
                at=at,
                low=low,
                high=high,
                until=until,
                samples=samples,
                actions=actions,
                objective_seconds=objective_seconds,
            )
        )
    return steps


def _answered(
    *,
    at: float,
    low: float,
    high: float,
    until: float,
    samples: Sequence[Sample],
    actions: Sequence[ActionRecord],
    objective_seconds: float,
) -> LoadStep:
    # A sample is up to SAMPLE_SECONDS late, so a request may seem to come just before its step.
    accepted = [
        a.requested_at for a in actions if a.requested_at is not None and at - SAMPLE_SECONDS <= a.requested_at < until
    ]
    within, first_result = [s for s in samples if at <= s.t < until], _first_result(samples)
    late = [s.t for s in within if _is_late(s, objective_seconds, first_result)]
    after = [s.t for s in within if not late or s.t > max(late)]
    return LoadStep(
        at=at,
        from_rate=low,
        to_rate=high,
        reaction_seconds=max(0.0, round(min(accepted) - at, 2)) if accepted else None,
        recovered_seconds=round(after[0] - at, 2) if after else None,
    )


def _first_result(samples: Sequence[Sample]) -> float:
    """Return the time of the first sample with a result at the sink; infinite without one."""
    return next((s.t for s in samples if s.probe_lag_seconds is not None), math.inf)


def _is_late(sample: Sample, objective_seconds: float, first_result: float) -> bool:
    """Return whether the lag at the sink was above the objective; so it counts where the probe has lost the results.

    Before the first result no record is older than the load itself.
    """
    if sample.probe_lag_seconds is not None:
        return sample.probe_lag_seconds > objective_seconds
    return sample.t > (objective_seconds if sample.t < first_result else 0.0)


def summary(samples: Sequence[Sample], actions: Sequence[ActionRecord], objective_seconds: float) -> dict[str, Any]:
    """Return the figures of the trial.

    `violation_share` is the share of samples whose probe lag was above the objective. `slot_seconds` is the integral of
    the slots in use.
    """
    judged = [s for s in samples if s.t >= 0]
    violated = sum(_is_late(s, objective_seconds, _first_result(judged)) for s in judged)
    slot_seconds = sum(a.slots * (b.t - a.t) for a, b in itertools.pairwise(judged) if a.slots is not None)
    steps = load_steps(judged, actions, objective_seconds)
    errors = [
        abs(s.lag_seconds - s.probe_lag_seconds)
        for s in judged
        if s.lag_seconds is not None and s.probe_lag_seconds is not None
    ]
    return {
        "objective_seconds": objective_seconds,
        "violation_share": round(violated / len(judged), 4) if judged else None,
        "slot_seconds": round(slot_seconds, 1),
        "rescales": sum(1 for a in actions if a.running_at is not None),
        "reaction_seconds": [step.reaction_seconds for step in steps],
        "load_steps": [asdict(step) for step in steps],
        "max_probe_lag_seconds": max(
            (s.probe_lag_seconds for s in judged if s.probe_lag_seconds is not None), default=None
        ),
        "median_lag_difference_seconds": sorted(errors)[len(errors) // 2] if errors else None,
    }


def closing_lines(figures: Mapping[str, Any]) -> list[str]:
    """Return the figures of `summary` for people, each with its unit and what it is measured by."""
    objective, share, lag = (
        figures[name] for name in ("objective_seconds", "violation_share", "max_probe_lag_seconds")
    )
    late = "" if share is None else f", {share:.1%} of the time above the objective of {objective:g} s"
    peak = "no result was seen" if lag is None else f"at most {lag:.1f} s"
    reactions = [each for each in figures["reaction_seconds"] if each is not None]
    reaction = f"accepted {listed([f'{each:.1f} s' for each in reactions])} after the load rose" if reactions else ""
    return [
        f"lag at the sink: {peak}{late}",
        f"slots: {figures['slot_seconds'] / 3600:,.2f} slot-hours",
        f"rescales: {figures['rescales']}{f', {reaction}' if reaction else ''}",
    ]


def judge(
    samples: Sequence[Sample],
    actions: Sequence[ActionRecord],
    decisions: Sequence[Decision],
    objective_seconds: float,
    mode: str,
) -> TrialResult:
    """Return whether the trial passed, with a sentence.

    In mode `act`: at least one rescale verified and the job within its objective at the end, by the probe. In mode
    `advise`: decisions were made and no action was taken.
    """
    if mode != "act":
        if actions:
            return TrialResult(False, f"the mode is {mode}, but {counted(len(actions), 'action')} changed the job")
        if not decisions:
            return TrialResult(False, "no decision was made")
        return TrialResult(
            True, f"Weir made {counted(len(decisions), 'decision')} and, in mode {mode}, changed nothing"
        )
    verified = sum(1 for a in actions if a.verified_at is not None)
    if not verified:
        return TrialResult(
            False, f"no rescale was verified ({counted(len(actions), 'action')}, {counted(len(decisions), 'decision')})"
        )
    last = [s.probe_lag_seconds for s in samples[-SETTLED_SAMPLES:]]
    if len(last) < SETTLED_SAMPLES or any(lag is None for lag in last):
        return TrialResult(False, "the probe saw no results at the end")
    worst = max(lag for lag in last if lag is not None)
    if worst > objective_seconds:
        return TrialResult(
            False, f"at the end the probe's lag was {worst:.1f} s, above the objective of {objective_seconds:g} s"
        )
    return TrialResult(
        True,
        f"{counted(verified, 'rescale')} verified; at the end the probe's lag was {worst:.1f} s, within the "
        f"objective of {objective_seconds:g} s",
    )
