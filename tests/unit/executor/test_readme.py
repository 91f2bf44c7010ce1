"""The README agrees with the code."""

from pathlib import Path
from typing import get_args

from weir_contracts import Phase
from weir_executor.core.table import ROLLBACK_EVENTS
from weir_executor.settings import Settings
from weir_runtime.settings import table

README = (Path(__file__).parents[3] / "services" / "executor" / "README.md").read_text()


def test_the_settings_are_the_ones_there_are() -> None:
    """The table is generated; print it again after a change with weir_runtime.settings.table(Settings, own_only=True)."""
    assert table(Settings, own_only=True) in README


def test_every_phase_and_reason_to_roll_back_is_drawn() -> None:
    """The diagram has the phases and rollback events of the table."""
    for word in (*get_args(Phase), *ROLLBACK_EVENTS):
        assert word in README, word
