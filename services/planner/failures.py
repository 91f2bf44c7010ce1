"""Why a planner gave no usable answer: an explained hold and a count, never an exception that reaches the loop."""

from prometheus_client import Counter
from weir_contracts import PlanReply

from runtime.labels import CardinalityLimiter

TIMEOUT, FAILED, INVALID, INVALID_REPLY = "planner-timeout", "planner-failed", "planner-invalid", "invalid-reply"
NO_ANSWER = frozenset({TIMEOUT, FAILED, INVALID, INVALID_REPLY})
"""Codes of a hold that stands for no usable answer; no planner may use them for its own."""

_COUNT = Counter("weir_planner_failures_total", "Planners that gave no answer", ["planner", "reason"])
_SHADOWS = Counter(
    "weir_planner_shadow_failures_total", "Planners that gave no answer about a simulated copy", ["planner", "reason"]
)
_planner = CardinalityLimiter(100)


class PlannerFailed(Exception):
    """A planner elsewhere gave no usable answer. `counts`: it is a sign that the planner itself is slow, down or broken, so that
    several in a row open its circuit; a refusal of one request is not."""

    def __init__(self, sentence: str, *, code: str = FAILED, counts: bool = True) -> None:
        self.sentence = sentence
        self.code = code
        self.counts = counts
        super().__init__(sentence)


def no_answer(
    planner: str, code: str, sentence: str, reason: str | None = None, *, of_shadow: bool = False
) -> PlanReply:
    """The hold. `reason` is the metric's label where it tells more than the code. What fails about a simulated copy is counted by
    itself: nothing was decided by it."""
    (_SHADOWS if of_shadow else _COUNT).labels(_planner(planner), reason or code).inc()
    return PlanReply(kind="hold", code=code, sentence=sentence[:2000])
