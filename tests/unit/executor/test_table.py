"""The table of legal moves, exhaustively."""

from typing import get_args

import pytest
from weir_contracts import TERMINAL, Phase

from services.executor.core import LEGAL, Event, move
from services.executor.core.table import ROLLBACK_EVENTS, IllegalMove
from tests.unit.executor.builders import action, after

PHASES = get_args(Phase)
EVENTS = get_args(Event)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("event", EVENTS)
def test_every_pair_is_a_legal_move_or_an_error(phase: Phase, event: Event) -> None:
    """What is not in the table does not happen, not even by mistake."""
    before = action(phase)
    if (phase, event) not in LEGAL:
        with pytest.raises(IllegalMove):
            move(before, event, after(9), sentence="so it is")
        return
    moved = move(before, event, after(9), sentence="so it is")
    assert moved.phase == LEGAL[phase, event]
    assert moved.version == before.version + 1
    assert (moved.finished_at == after(9)) is moved.terminal
    assert moved.sentence == "so it is"


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
    assert {event for (_, event), to in LEGAL.items() if to == "rolling-back"} - {"accepted", "found-requested"} == set(
        ROLLBACK_EVENTS
    )
