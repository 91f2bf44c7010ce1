"""Scores as sums by hour, so that any number of hours adds up."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from weir_contracts import Candidate, CandidateScore, ScoredHour
from weir_contracts.shadows import MAX_CANDIDATES, MAX_HOURS

_FIGURES = tuple(
    name for name in CandidateScore.model_fields if name not in ("label", "planner", "parameters_id", "role")
)


class Sums:
    """What was added to one candidate's score in a turn."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def add(self, **figures: float) -> None:
        """Add to the figures of `CandidateScore` by name."""
        for name, value in figures.items():
            if value:
                self.figures[name] = self.figures.get(name, 0) + value


def added(
    hours: Sequence[ScoredHour], at: datetime, candidates: Sequence[Candidate], sums: Mapping[str, Sums]
) -> list[ScoredHour]:
    """The hours with a turn's sums in that of `at`; the newest of them are kept."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    found = next((each for each in hours if each.hour == hour), None) or ScoredHour(hour=hour, scores=[])
    scores = {(s.label, s.planner, s.parameters_id): s for s in found.scores}
    for candidate in candidates:
        key = (candidate.label, candidate.planner, candidate.parameters_id)
        known = scores.pop(key, None) or CandidateScore(
            label=candidate.label, planner=candidate.planner, parameters_id=candidate.parameters_id, role=candidate.role
        )
        scores[key] = with_more(known, sums[candidate.label].figures)
    # Those that are no longer tried stay in the hour, as far as there is room: parameters may be changed often.
    newest = list(scores.values())[-3 * MAX_CANDIDATES :]
    others = [each for each in hours if each.hour < hour]
    return [*others, ScoredHour(hour=hour, scores=newest)][-MAX_HOURS:]


def with_more(score: CandidateScore, figures: Mapping[str, float]) -> CandidateScore:
    """A score with figures added to it; to a thousandth, which keeps the message small."""
    return score.model_copy(
        update={
            name: round(getattr(score, name) + figures[name], 3)
            if isinstance(getattr(score, name), float)
            else getattr(score, name) + int(figures[name])
            for name in _FIGURES
            if name in figures
        }
    )
