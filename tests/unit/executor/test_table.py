"""The table of legal moves, and the data of events, exhaustively."""

from typing import Any, get_args

import pytest

from tests.unit.executor.builders import OTHER_ATTEMPT, action, after
from weir_contracts import TERMINAL, Phase
from weir_executor.core.table import (
    LEGAL,
    ROLLBACK_EVENTS,
    Event,
    EventName,
    IllegalMove,
    Lost,
    RequestAccepted,
    Running,
    TakenOver,
    Timed,
    move,
)

PHASES = get_args(Phase)
EVENTS = get_args(EventName)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", EVENTS)
def test_every_pair_is_a_legal_move_or_an_error(phase: Phase, name: EventName) -> None:
    """A pair outside the table raises an error."""
    before, event = action(phase), Event(name, "so it is")
    if (phase, name) not in LEGAL:
        with pytest.raises(IllegalMove):
            move(before, event, after(9))
        return
    moved = move(before, event, after(9))
    assert moved.phase == LEGAL[phase, name]
    assert moved.version == before.version + 1
    assert (moved.finished_at == after(9)) is moved.terminal
    assert (moved.sentence, moved.code) == ("so it is", name)
    assert moved.deadline_at == (None if moved.terminal else before.deadline_at)


@pytest.mark.parametrize(
    ("phase", "event", "changed"),
    [
        ("intended", TakenOver("resumed", "…", OTHER_ATTEMPT), {"attempt_id": OTHER_ATTEMPT}),
        ("intended", Lost("lost", "…", None, code="in-flight"), {"code": "in-flight", "deadline_at": None}),
        ("intended", Timed("recorded", "…", after(40)), {"deadline_at": after(40)}),
        (
            "applying",
            RequestAccepted("accepted", "…", after(40), after(8)),
            {"requested_at": after(8), "deadline_at": after(40)},
        ),
        (
            "rolling-back",
            RequestAccepted("accepted", "…", after(40), after(8)),
            {"rollback_requested_at": after(8), "deadline_at": after(40)},
        ),
        (
            "verifying",
            Running("running", "…", after(40), after(8)),
            {"running_at": after(8), "deadline_at": after(40)},
        ),
    ],
)
def test_an_event_changes_only_the_fields_of_its_data(phase: Phase, event: Event, changed: dict[str, Any]) -> None:
    """Phase, version, code, sentence and time of the observation change in every move."""
    before = action(phase)
    moved = move(before, event, after(9)).model_dump()
    always = {"phase", "version", "code", "sentence", "checked_at", "finished_at"}
    differing = {name for name, value in before.model_dump().items() if moved[name] != value}
    assert differing - always == changed.keys() - always
    assert {name: moved[name] for name in changed} == changed


def test_nothing_follows_an_end() -> None:
    """Ended actions stay ended; what comes after is a new action."""
    assert not [pair for pair in LEGAL if pair[0] in TERMINAL]


def test_every_phase_can_be_reached_and_left() -> None:
    """There is no dead end but the ends, and no phase that nothing leads to."""
    reached = set(LEGAL.values())
    assert reached == set(PHASES)
    left = {phase for phase, _ in LEGAL if phase is not None}
    assert left == set(PHASES) - TERMINAL


def test_every_phase_leads_to_an_end() -> None:
    """From each there is a way out, whatever the others do."""
    ends = set(TERMINAL)
    while grown := {p for (p, _), to in LEGAL.items() if p is not None and to in ends} - ends:
        ends |= grown
    assert ends == set(PHASES)


def test_only_four_events_roll_back() -> None:
    """Not RUNNING, below requested, a restart loop, less capacity: that lag grew is none of them."""
    go_on = {"accepted", "found-requested", "evicted", "waiting"}
    assert {event for (_, event), to in LEGAL.items() if to == "rolling-back"} - go_on == set(ROLLBACK_EVENTS)
