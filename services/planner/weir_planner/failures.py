"""Holds for planners without a usable reply: explained and counted, never an exception that reaches the loop."""

from prometheus_client import Counter

from weir_contracts import PlanReply
from weir_runtime.loop import CardinalityLimiter

from .core.decide import FAILED

_COUNT = Counter("weir_planner_failures_total", "Planners that gave no answer", ["planner", "reason"])
_SHADOWS = Counter(
    "weir_planner_shadow_failures_total", "Shadows, and planners in trials, that gave no answer", ["planner", "reason"]
)
_planner = CardinalityLimiter(100)


class PlannerFailed(Exception):
    """A remote planner gave no usable reply. `counts`: the planner itself is slow, down or broken, so that several in a
    row open its circuit; a refusal of one request does not count."""

    def __init__(self, sentence: str, *, code: str = FAILED, counts: bool = True) -> None:
        self.sentence = sentence
        self.code = code
        self.counts = counts
        super().__init__(sentence)


def no_reply(
    planner: str, code: str, sentence: str, reason: str | None = None, *, of_shadow: bool = False
) -> PlanReply:
    """Return the hold, and count it; `reason` is the metric's label if it says more than the code.

    Failures of shadows and in trials are counted separately, since they decide nothing.
    """
    (_SHADOWS if of_shadow else _COUNT).labels(_planner(planner), reason or code).inc()
    return PlanReply(kind="hold", code=code, sentence=sentence)
