"""A policy's planner, its candidates and its shadows: which plan wins, and what the plan says of the others."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.loop.world import without
from tests.sentences import assert_reads_well
from tests.unit.planner.build import APP, NOON, SOURCE, WORK, after, analysis, known, operator, policy, request, scale
from weir_contracts import MAX_SENTENCE, Contender, Plan, PlanReply, PlanRequest
from weir_planner.calls import plan_for
from weir_planner.core.candidates import MAX_MEMORIES_BYTES, ContenderRequest
from weir_planner.core.decide import FAILED, TIMEOUT
from weir_planner.request_cache import RequestCache
from weir_runtime.clock import FakeClock
from weir_sdk.installed import ask, reads

RATE = {"name": "rate"}
FIVE = {SOURCE: 1, WORK: 5}


def static(work: int, **more: Any) -> dict[str, Any]:
    return {"name": "static", "parameters": {"operators": {SOURCE: 1, WORK: work}}, **more}


class Asks:
    """Asks installed planners in this process; `replies` replaces the reply of a planner by its name."""

    def __init__(self, **replies: PlanReply) -> None:
        self.replies = {name.replace("_", "-"): reply for name, reply in replies.items()}
        self.requests: list[tuple[str, PlanRequest]] = []
        self.shadows_seconds: float | None = None

    async def start(self) -> None:
        return

    def looks_at(self, planner: str) -> frozenset[str]:
        return reads(planner)

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        self.requests.append((planner, request))
        return self.replies.get(planner) or ask(request, planner)

    async def ask_alongside(self, requests: Sequence[ContenderRequest], timeout_seconds: float) -> list[PlanReply]:
        if any(each.is_shadow for each in requests):
            assert all(each.is_shadow for each in requests)
            self.shadows_seconds = timeout_seconds
        return [await self.ask(each.request, each.planner, timeout_seconds) for each in requests]


def hold(code: str = "enough", memory: dict[str, Any] | None = None) -> PlanReply:
    return PlanReply(kind="hold", code=code, sentence=f"it is {code}", memory=memory or {})


async def planned(asks: Asks, question_: PlanRequest) -> tuple[Plan, Mapping[str, Contender]]:
    plan = await plan_for(asks, question_, FakeClock(NOON), created_at=question_.now)
    for each in plan.contenders:
        assert len(each.lost_because or "") <= MAX_SENTENCE
        assert_reads_well(each.lost_because or "")
    return plan, {each.label: each for each in plan.contenders}


def question(
    planner: dict[str, Any], *candidates: dict[str, Any], arrivals: float | None = 2000, **of: Any
) -> PlanRequest:
    spec = of.pop("spec", {})
    found = analysis(arrivals=arrivals, the_policy=policy(planner=planner, candidates=list(candidates), **spec), **of)
    return request(found)


async def test_the_cheapest_plan_that_meets_the_objective_wins() -> None:
    """2,000 records/s need five subtasks. The own planner takes eight, one candidate three, which is late; the plan is
    the other candidate's, and names the figures of all three."""
    plan, listed = await planned(Asks(), question(static(8), RATE, static(3, label="thrifty"), work=2))
    assert (plan.planner, plan.proposed) == ("rate", listed["rate"].proposed)
    assert listed["rate"].lost_because is None
    assert listed["static"].cost_slots == 8
    assert listed["static"].violation_seconds == 0
    assert listed["static"].lost_because == f"costs 8 slots, rate {listed['rate'].cost_slots}"
    late = listed["thrifty"]
    assert (late.violation_seconds or 0) > 0
    assert "above the objective" in (late.lost_because or "") or "never meets" in (late.lost_because or "")


@pytest.mark.parametrize("own", ["rate", "static"])
async def test_ties_go_to_the_own_planner(own: str) -> None:
    """The same vector from both."""
    replies = {"rate": scale(FIVE), "static": scale(FIVE)}
    other = "static" if own == "rate" else "rate"
    question_ = question(static(5) if own == "static" else RATE, static(5) if other == "static" else RATE)
    plan, listed = await planned(Asks(**replies), question_)
    assert plan.planner == own
    assert listed[other].lost_because == f"leads to the same parallelism as {own}"


async def test_a_candidate_that_fails_loses_and_harms_nobody() -> None:
    """A late one and a broken one are named; the plan is what it would be without them."""
    late, broken = hold(TIMEOUT), hold(FAILED)
    with_them, listed = await planned(Asks(ds2=late, hpa=broken), question(RATE, {"name": "ds2"}, {"name": "hpa"}))
    alone, none = await planned(Asks(), question(RATE))
    assert (with_them.approved, with_them.sentence) == (alone.approved, alone.sentence)
    assert none == {}
    assert {label: each.code for label, each in listed.items()} == {
        "rate": alone.code,
        "ds2": TIMEOUT,
        "hpa": FAILED,
    }
    assert listed["ds2"].lost_because == late.sentence
    assert listed["ds2"].cost_slots is None


async def test_a_candidate_decides_where_the_own_planner_fails() -> None:
    """The failed one is listed, and its memory stays."""
    plan, listed = await planned(Asks(rate=hold(TIMEOUT)), question(RATE, static(5)))
    assert (plan.planner, plan.approved) == ("static", FIVE)
    assert listed["rate"].lost_because == "it is planner-timeout"
    assert plan.prediction is not None
    assert plan.state.planner == "rate"


async def test_without_any_usable_reply_the_application_is_held() -> None:
    """With the own planner's failure as the reason."""
    plan, listed = await planned(Asks(rate=hold(TIMEOUT), static=hold(FAILED)), question(RATE, static(5)))
    assert (plan.kind, plan.code, plan.planner) == ("hold", TIMEOUT, "rate")
    assert listed["rate"].lost_because is None


async def test_where_nothing_can_be_judged_the_own_planner_decides() -> None:
    """The arrivals are unknown, so that the predictor cannot compare; their requests say so."""
    plan, listed = await planned(Asks(rate=hold()), question(RATE, static(5), arrivals=None))
    assert plan.planner == "rate"
    assert "not judged, so rate decides" in (listed["static"].lost_because or "")
    assert listed["static"].violation_seconds is None
    assert listed["static"].cost_slots == 5


@pytest.mark.parametrize("own_shrinks", [True, False])
async def test_shrinking_what_was_never_measured_does_not_win_by_ignorance(own_shrinks: bool) -> None:
    """The model lets an operator of unknown capacity take in everything, so that one subtask would look good enough. A
    candidate that proposes it loses; if the own planner does, it decides as it would alone."""
    small, large = scale({SOURCE: 1, WORK: 2}), hold()
    replies = {"rate": small, "static": large} if own_shrinks else {"rate": large, "static": small}
    half_busy = operator(WORK, 4, None, 2000, utilization=known(0.4))
    operators = [operator(SOURCE, 1, 100_000.0, 2000), half_busy]
    question_ = question(RATE, static(2), work=4, operators=operators)
    with without("sustained-rate", "scale-down-gate"):
        plan, listed = await planned(Asks(**replies), question_)
    assert plan.planner == "rate"
    words = "not judged, so rate decides" if own_shrinks else "what fewer subtasks of work process is unknown"
    assert words in (listed["static"].lost_because or "")


async def test_each_candidate_has_its_own_window_and_memory() -> None:
    """Shrinking must be recommended for a minute. The own planner holds at eight; the candidate recommends five for
    long enough, wins then, and gets back what it remembered."""
    spec = {"behavior": {"scaleDown": {"stabilization": "60s"}, "cooldown": "0s"}}
    cache, asks = RequestCache(30, 20), Asks(rate=hold())
    found = []
    for cycle in range(8):
        asks.replies["static"] = scale(FIVE).model_copy(update={"memory": {"cycle": cycle}})
        the_policy = policy(planner=RATE, candidates=[static(5)], **spec)
        seen = analysis(arrivals=2000, work=8, at=after(10 * cycle), the_policy=the_policy)
        plan, listed = await planned(asks, cache.request(seen, seen.observed_at))
        cache.planned(plan, seen)
        found.append((plan.planner, plan.approved))
        if cycle == 0:
            assert "stabilisation held its proposal; leads to the same" in (listed["static"].lost_because or "")
    assert found[:6] == [("rate", None)] * 6
    assert [planner for planner, _ in found[6:]] == ["static"] * 2
    assert all(approved is not None and approved[WORK] < 8 for _, approved in found[6:])
    memories = [question_.memory for name, question_ in asks.requests if name == "static"]
    assert memories == [{}, *({"cycle": cycle} for cycle in range(7))]
    assert all(question_.state.contenders == [] for _, question_ in asks.requests)


async def test_a_gap_keeps_the_memory_and_starts_the_windows_anew() -> None:
    """While the policy is paused no planner is called."""
    asks = Asks(rate=hold(), static=scale(FIVE).model_copy(update={"memory": {"level": 1}}))
    plan, _ = await planned(asks, question(RATE, static(5)))
    paused = question(RATE, static(5), spec={"mode": "paused"}).model_copy(update={"state": plan.state})
    asks.requests.clear()
    held, listed = await planned(asks, paused)
    assert (held.code, listed, asks.requests) == ("paused", {}, [])
    [kept] = held.state.contenders
    assert (kept.memory, kept.recommendations) == ({"level": 1}, [])


async def test_other_parameters_start_anew() -> None:
    """A memory of other parameters is not handed over."""
    asks = Asks(rate=hold(), static=scale(FIVE).model_copy(update={"memory": {"level": 1}}))
    plan, _ = await planned(asks, question(RATE, static(5)))
    asks.requests.clear()
    await planned(asks, question(RATE, static(6)).model_copy(update={"state": plan.state}))
    assert [question_.memory for name, question_ in asks.requests if name == "static"] == [{}]


async def test_the_memories_of_all_candidates_are_bounded() -> None:
    """Ten of 16 kB are more than a plan carries on: the first four are kept."""
    large = scale(FIVE).model_copy(update={"memory": {"text": "x" * 16_000}})
    candidates = [static(5, label=f"c{i}") for i in range(10)]
    plan, _ = await planned(Asks(rate=hold(), static=large), question(RATE, *candidates))
    sizes = [len(each.memory.get("text", "")) for each in plan.state.contenders]
    assert sizes == [16_000] * 4 + [0] * 6
    assert sum(sizes) < MAX_MEMORIES_BYTES
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.application == APP


def shadowed(planner: dict[str, Any], *shadows: dict[str, Any], **of: Any) -> PlanRequest:
    """Return a question of a policy with shadows."""
    return question(planner, *of.pop("candidates", []), spec={"shadows": list(shadows), **of.pop("spec", {})}, **of)


def as_without_shadows(plan: Plan) -> Plan:
    """Return the plan without what it says of shadows."""
    kept = {"contenders": [], "courses": []}
    return plan.model_copy(update={"contenders": [], "state": plan.state.model_copy(update=kept)})


async def test_a_shadow_never_wins() -> None:
    """As a candidate `rate` would win with five slots instead of eight: its plan is judged and listed, and the plan is the
    own planner's, down to its prediction."""
    plan, listed = await planned(Asks(), shadowed(static(8), RATE))
    alone, _ = await planned(Asks(), question(static(8)))
    assert as_without_shadows(plan) == as_without_shadows(alone)
    assert (plan.planner, plan.proposed) == ("static", {SOURCE: 1, WORK: 8})
    assert listed["rate"].is_shadow and not listed["static"].is_shadow
    assert listed["rate"].lost_because == "would be chosen instead of static if it were a candidate"
    assert listed["rate"].violation_seconds == 0
    assert (listed["rate"].cost_slots or 0) < (listed["static"].cost_slots or 0) == 8


async def test_a_candidate_wins_over_a_better_shadow() -> None:
    """Of six and five slots the shadow's five are better, and the candidate's six win over the own planner's eight."""
    asks = Asks(six=scale({SOURCE: 1, WORK: 6}), five=scale(FIVE))
    plan, listed = await planned(asks, shadowed(static(8), {"name": "five"}, candidates=[{"name": "six"}]))
    assert plan.planner == "six"
    assert listed["five"].lost_because == "would be chosen instead of six if it were a candidate"
    assert listed["static"].lost_because == "costs 8 slots, six 6"


async def test_a_worse_shadow_is_listed_with_the_reason() -> None:
    """Three subtasks are late, five are what the own planner proposes as well."""
    asks = Asks(rate=scale(FIVE), five=scale(FIVE))
    _, listed = await planned(asks, shadowed(RATE, static(3, label="thrifty"), {"name": "five"}))
    late = listed["thrifty"].lost_because or ""
    assert "above the objective" in late or "never meets" in late
    assert listed["five"].lost_because == "leads to the same parallelism as rate"


async def test_where_the_own_planner_fails_no_shadow_replaces_it() -> None:
    """The plan holds with the failure, and says that the shadow would have been chosen."""
    plan, listed = await planned(Asks(rate=hold(TIMEOUT)), shadowed(RATE, static(5)))
    assert (plan.kind, plan.code) == ("hold", TIMEOUT)
    assert listed["static"].lost_because == "would be chosen instead of rate if it were a candidate"


async def test_a_shadow_that_fails_changes_nothing() -> None:
    """One is late, one broken, one gives what is no reply at all: the plan is what it would be without them."""
    alone, _ = await planned(Asks(), question(RATE))
    plan, listed = await planned(
        Asks(ds2=hold(TIMEOUT), hpa=hold(FAILED)), shadowed(RATE, {"name": "ds2"}, {"name": "hpa"})
    )
    assert as_without_shadows(plan) == as_without_shadows(alone)
    assert {label: each.code for label, each in listed.items()} == {"rate": alone.code, "ds2": TIMEOUT, "hpa": FAILED}
    no_reply: Any = {"kind": "scale"}
    plan, listed = await planned(Asks(hpa=no_reply), shadowed(RATE, {"name": "hpa"}))
    assert as_without_shadows(plan) == as_without_shadows(alone)
    assert listed == {}


@pytest.mark.parametrize(
    ("interval", "timeout", "seconds"),
    [("5s", "2s", 0.5), ("1s", "2s", 0.25), ("60s", "2s", 2.0), ("5s", "100ms", 0.1)],
)
async def test_shadows_have_a_tenth_of_the_interval(interval: str, timeout: str, seconds: float) -> None:
    """And at most the planner's timeout: for them a plan waits no longer."""
    asks = Asks()
    await planned(asks, shadowed({**RATE, "timeout": timeout}, static(5), spec={"interval": interval}))
    assert asks.shadows_seconds == seconds


async def test_a_shadow_has_its_own_memory() -> None:
    """As a candidate has; the own planner's stays its own."""
    asks = Asks(rate=hold(memory={"own": 1}), static=scale(FIVE).model_copy(update={"memory": {"level": 1}}))
    plan, _ = await planned(asks, shadowed(RATE, static(5)))
    assert plan.state.memory == {"own": 1}
    asks.requests.clear()
    await planned(asks, shadowed(RATE, static(5)).model_copy(update={"state": plan.state, "memory": {"own": 1}}))
    assert dict(asks.requests)["static"].memory == {"level": 1}
    assert all(question_.state.courses == [] for _, question_ in asks.requests)
