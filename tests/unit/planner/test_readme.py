"""The README says what the code does."""

import re
from pathlib import Path

from runtime.settings import table
from services.planner.core.guards import GUARDS
from services.planner.settings import PlannerSettings

FOLDER = Path(__file__).parents[3] / "services" / "planner"
README = (FOLDER / "README.md").read_text()


def test_the_settings_are_the_ones_there_are() -> None:
    """The table is generated; print it again after a change with runtime.settings.table(PlannerSettings, own_only=True)."""
    assert table(PlannerSettings, own_only=True) in README


def test_the_guards_are_told_in_their_order() -> None:
    """What is decided first cannot be undone later except towards caution, so the order matters."""
    rows = README.split("| guard |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", rows, re.MULTILINE) == list(GUARDS)


def test_every_code_of_the_planner_is_told() -> None:
    """Whoever meets a code in a plan finds it there."""
    root = FOLDER.parents[1]
    planner = "".join((root / name).read_text() for name in ("planners/rate/planner.py", "predictor/comparison.py"))
    replies = re.findall(r'TooLittle\("([a-z-]+)"|_reply\(situation, \w+, "([a-z-]+)"', planner)
    codes = {code for pair in replies for code in pair if code}
    assert len(codes) >= 7
    assert {code for code in codes if f"`{code}`" not in README} == set()
