"""Which notifications a message leads to, and their forms."""

import json
from datetime import timedelta

import pytest

from tests.unit.knowledge.builders import APP, NOON, action, analysis, at, outcome, plan, policy
from weir_contracts import Analysis, Notification, Outcome, derive_id, unknown
from weir_contracts.base import Estimate
from weir_knowledge.core import HistoryLimits, State, remember
from weir_knowledge.notifications import (
    Lateness,
    Waiting,
    body_of,
    lateness_after,
    of_analysis,
    of_outcome,
    of_refusal,
)

MINUTE = timedelta(minutes=1)


def lag(cycle: float, seconds: float | None, at_least: float | None = None) -> Analysis:
    """An analysis 5 s × cycle after noon."""
    estimate = Estimate(value=seconds, lower_bound=at_least, basis="offsets", confidence=0.9)
    return analysis(cycle, lag_seconds=estimate)


def told(*analyses: Analysis, late_after: timedelta = MINUTE) -> list[Notification]:
    """What these lead to, in this order."""
    found, lateness = list[Notification](), None
    for each in analyses:
        before, lateness = lateness, lateness_after(lateness, each)
        if (notification := of_analysis(before, lateness, each, late_after)) is not None:
            found.append(notification)
    return found


def test_a_missed_objective_is_told_of_once_when_it_begins_and_once_when_it_ends() -> None:
    """Late from cycle 1 on, told at cycle 13, a minute later; in between nothing repeats."""
    late = [lag(cycle, 90.0 if cycle == 20 else 45.0) for cycle in range(1, 31)]
    missed, met = told(lag(0, 3.0), *late, lag(31, 12.0), lag(32, 5.0))
    assert (missed.kind, missed.at, missed.since, missed.measured_seconds) == ("objective-missed", at(13), at(1), 45.0)
    assert missed.sentence == "lag is 45 s, above the objective of 30s for 1m; 45 s at worst"
    assert (met.kind, met.at, met.since, met.worst_seconds) == ("objective-met", at(31), at(1), 90.0)
    assert met.sentence == "lag is 12 s, within the objective of 30s again after 2m30s; 90 s at worst"
    assert missed.id != met.id


def test_a_short_miss_is_not_told_of() -> None:
    """A second before its time is up the lag is within the objective again: neither begin nor end."""
    assert told(*(lag(cycle, 45.0) for cycle in range(1, 13)), lag(12.8, 3.0)) == []


def test_flapping_around_the_objective_is_not_told_of() -> None:
    """Each time within the objective begins anew."""
    assert told(*(lag(cycle, 45.0 if cycle % 3 else 20.0) for cycle in range(200))) == []


def test_an_unknown_lag_neither_begins_nor_ends_a_miss() -> None:
    """The time is up while nothing is known: told with the next proof, also if that is only a lower bound."""
    late = [lag(cycle, 45.0) for cycle in range(1, 6)]
    unknown_lag = [analysis(cycle) for cycle in range(6, 20)]
    (missed,) = told(*unknown_lag[:3], *late, *unknown_lag, lag(20, None, at_least=60.0), analysis(21))
    assert (missed.at, missed.since) == (at(20), at(1))
    assert missed.sentence == "lag is at least 60 s, above the objective of 30s for 1m35s; 60 s at worst"


def test_a_miss_ends_with_its_objective() -> None:
    """A policy that gets another objective, a larger one or one without a bound, ends it."""
    late = [lag(cycle, 45.0) for cycle in range(1, 20)]
    larger = lag(20, 45.0).model_copy(update={"policy": policy(APP, objective={"maxLag": "2m"})})
    none = lag(20, 45.0).model_copy(update={"policy": policy(APP, objective={"utilization": 0.7})})
    assert [each.kind for each in told(*late, larger)] == ["objective-missed", "objective-met"]
    ended = told(*late, none)[-1]
    assert (ended.code, ended.objective_seconds, ended.measured_seconds) == ("no-bound", None, None)
    assert ended.sentence == "the objective has no bound any more; it was missed for 1m35s, 45 s at worst"


def test_latency_counts_where_the_objective_bounds_it() -> None:
    """`maxLatency` looks at the expected latency, whatever the lag is."""
    slow = [
        analysis(
            cycle,
            policy=policy(APP, objective={"maxLatency": "10s"}),
            lag_seconds=Estimate(value=1.0, basis="offsets"),
            expected_latency_seconds=Estimate(value=25.0, basis="rates"),
        )
        for cycle in range(20)
    ]
    (missed,) = told(*slow)
    assert missed.sentence.startswith("latency is 25 s, above the objective of 10s")
    assert told(*(each.model_copy(update={"expected_latency_seconds": unknown("no rate")}) for each in slow)) == []


def test_the_same_miss_has_the_same_id() -> None:
    """A replica that decides it again, with another time to tell, derives the id from the miss and not from its figures."""
    late = [lag(cycle, 45.0) for cycle in range(1, 40)]
    first, again = told(*late)[0], told(*late, late_after=2 * MINUTE)[0]
    assert first.id == again.id and first.sentence != again.sentence
    assert told(*(lag(cycle, 45.0) for cycle in range(2, 40)))[0].id != first.id


def test_the_state_keeps_the_lateness() -> None:
    """A state that was stored and read goes on with it: a restart neither forgets nor repeats a miss."""
    state = State(application=APP)
    for cycle in range(1, 5):
        state = remember(state, lag(cycle, 40.0 + cycle), HistoryLimits())
    assert state.lateness == Lateness(since=at(1), at=at(4), worst_seconds=44.0)
    stored = State.model_validate_json(state.model_dump_json())
    assert remember(stored, lag(5, 1.0), HistoryLimits()).lateness is None


def phases(*names: str, **changes: object) -> list[Outcome]:
    """Outcomes of one action in these phases."""
    scale = plan(1, 4)
    return [
        outcome(scale, each, seconds, id=derive_id(scale.id, str(seconds)), action=action(scale, phase=each), **changes)
        for seconds, each in enumerate(names)
    ]


def of_outcomes(outcomes: list[Outcome]) -> list[Notification]:
    found = [of_outcome(each, outcomes[:number]) for number, each in enumerate(outcomes)]
    return [each for each in found if each is not None]


def test_each_phase_of_an_action_is_told_of_once() -> None:
    """A request that waits for pods has several outcomes in the phase verifying."""
    steps = phases("intended", "applying", "verifying", "verifying", "verifying", "verified", restart_seconds=3.0)
    accepted, verified = of_outcomes(steps)
    assert (accepted.kind, verified.kind) == ("action-accepted", "action-verified")
    assert (verified.sentence, verified.code, verified.restart_seconds) == ("it is verified", "healthy", 3.0)
    assert accepted.action_id == action(plan(1, 4)).id and accepted.plan_id == plan(1, 4).id
    assert of_outcomes(steps)[0].id == accepted.id != verified.id


def test_rollbacks_and_failures_are_told_of() -> None:
    """Both ends of a rollback; a superseded action and a refused plan are no news for people."""
    back = of_outcomes(phases("intended", "applying", "verifying", "rolling-back", "rolling-back", "rolled-back"))
    assert [each.kind for each in back] == ["action-accepted", "action-rolling-back", "action-rolled-back"]
    assert [each.kind for each in of_outcomes(phases("applying", "failed"))] == ["action-failed"]
    assert of_outcomes(phases("intended", "superseded")) == []
    assert of_outcomes([outcome(plan(1, 4), "refused")]) == []


def test_a_late_rollback_is_another_action() -> None:
    """It has the plan of the verified one, and an id of its own."""
    scale = plan(1, 4)
    late = action(scale, phase="rolling-back", id=derive_id(action(scale).id, "late-rollback"))
    steps = [*phases("verifying", "verified"), outcome(scale, "rolling-back", 60, action=late)]
    assert [each.kind for each in of_outcomes(steps)] == ["action-accepted", "action-verified", "action-rolling-back"]


def refusal(sentence: str = "spec.objective: is missing", version: int = 0, seconds: float = 0.0) -> Notification:
    when = NOON + timedelta(seconds=seconds)
    return of_refusal(APP, when, caller="ada", version=version, code="invalid", sentence=sentence)


def test_a_refusal_is_the_same_while_nothing_else_is_in_force() -> None:
    """A pipeline that sends a wrong document every minute has one id; after a policy came into force it is news again."""
    assert refusal().id == refusal(seconds=60).id
    assert len({refusal().id, refusal("spec.bounds: is wrong").id, refusal(version=7).id}) == 3
    assert len(refusal("x" * 5000).sentence) == 2000


def test_a_cloud_event_has_what_the_specification_requires() -> None:
    """CloudEvents 1.0, structured mode: attributes beside `data`, whose empty fields are left out."""
    event = json.loads(body_of(refusal(), "cloudevents", "/weir/prod"))
    assert event == {
        "specversion": "1.0",
        "id": str(refusal().id),
        "source": "/weir/prod",
        "type": "dev.weir.policy-refused.v1alpha1",
        "subject": APP,
        "time": "2026-01-01T12:00:00+00:00",
        "datacontenttype": "application/json",
        "dataschema": "https://weir.dev/schemas/v1alpha1/notification.schema.json",
        "data": {
            "id": str(refusal().id),
            "kind": "policy-refused",
            "application": APP,
            "at": "2026-01-01T12:00:00Z",
            "code": "invalid",
            "sentence": "spec.objective: is missing",
            "caller": "ada",
        },
    }
    assert Notification.model_validate(event["data"]) == refusal()


def test_a_text_for_slack_mentions_nobody() -> None:
    """Slack would take `<!channel>` of a job's name for a mention, and `<http…|…>` for a link."""
    text = json.loads(body_of(refusal("<!channel> a & b"), "slack", "/weir"))
    assert text == {"text": "*shop/orders* policy refused: &lt;!channel&gt; a &amp; b"}


@pytest.mark.parametrize("seconds", [0.0, 7200.5])
def test_a_place_comes_back_from_its_key(seconds: float) -> None:
    """Keys are in the order of time."""
    place = Waiting.of(refusal(), NOON + timedelta(seconds=seconds))
    assert Waiting.read(place.key) == place and place.namespace == "shop"
    assert place.key < Waiting.of(refusal(), NOON + timedelta(days=9000)).key
