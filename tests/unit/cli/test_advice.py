"""What `weir run` prints of an application, from its messages."""

from typing import Any

import pytest
import yaml
from rich.console import Console

from tests.sentences import assert_reads_well
from weir_cli.advice import Advice, line, screen
from weir_cli.single_run import policy_text
from weir_contracts import Analysis, Plan, example, parse_policy, policy_of
from weir_knowledge.summary import Summary


def analysis(**changes: Any) -> Analysis:
    return Analysis.model_validate({**example("analysis"), **changes})


def plan(**changes: Any) -> Plan:
    return Plan.model_validate({**example("plan"), **changes})


def hold(code: str = "objective-held") -> Plan:
    return plan(kind="hold", action=None, code=code)


def advice(analysis: Analysis | None, plan: Plan | None, **summary: Any) -> Advice:
    return Advice(Summary(application="shop/orders", mode="advise", **summary), analysis, plan)


def printed(*shown: Advice, notes: tuple[str, ...] = ()) -> str:
    console = Console(width=200, record=True, file=None)
    with console.capture() as captured:
        console.print(screen(shown, notes))
    return captured.get()


def test_a_change_says_what_it_costs() -> None:
    """Slots by the job's slot sharing groups, now and then."""
    change = plan()
    assert change.approved is not None
    before, after = (max(vector.values()) for vector in (change.current, change.approved))
    found = advice(analysis(), change)
    assert found.slots is not None
    now, then = found.slots
    assert (then > now) == (after > before)
    assert str(abs(then - now)) in found.cost
    assert_reads_well(f"{found.cost}.")


def test_unknown_is_a_dash_and_never_a_number() -> None:
    """Before the first reading nothing is known of the application but its name."""
    found = advice(None, None)
    assert found.utilization is None
    assert found.slots is None
    assert found.document()["decision"] is None
    assert "no reading yet" in line(found)
    assert "wait for readings" in printed(found)


@pytest.mark.parametrize(
    ("code", "is_explained"), [("objective-held", True), ("warming-up", False), ("metric-missing", False)]
)
def test_a_hold_that_waits_for_readings_is_no_advice_yet(code: str, is_explained: bool) -> None:
    """`--once` goes on until there is a decision that rests on a capacity."""
    assert advice(analysis(), hold(code)).is_explained is is_explained


def test_the_document_has_the_decision_with_its_reason() -> None:
    """For programs: kind, code, sentence and vector of the plan."""
    change = plan()
    decision = advice(analysis(), change).document()["decision"]
    assert decision == {
        "kind": "scale",
        "code": change.code,
        "sentence": change.sentence,
        "parallelism": change.approved,
        "at": change.created_at.isoformat(),
    }


def test_a_written_policy_can_be_applied_as_it_is() -> None:
    """It names the job as the found one did, is bounded by the slots that the cluster has, and says why."""
    change, seen = plan(), analysis()
    found = policy_of(
        "shop/orders", application={"flink": {"url": "http://a:8081", "job": "o"}}, objective={"maxLag": "30s"}
    )
    text = policy_text(advice(seen, change, bottleneck="enrich"), found)
    written = parse_policy(yaml.safe_load(text))
    assert written.subject.application == found.subject.application
    assert written.spec.mode == "advise"
    assert seen.deployment is not None
    assert seen.deployment.slots is not None
    assert written.spec.bounds.max == seen.deployment.slots.total
    assert text.startswith(f"# bottleneck: enrich; {change.sentence}")


def test_the_screen_has_a_line_for_each_application_and_its_reason() -> None:
    """Notes first, the table, and the sentences of the plans."""
    change = plan()
    shown = printed(advice(analysis(), change, status="running", lag_seconds=3.25), notes=("12 s",))
    assert shown.startswith("12 s")
    assert "3.2 s" in shown
    assert change.sentence[:60] in shown
