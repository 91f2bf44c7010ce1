"""The README matches the code."""

import re
from pathlib import Path

from runtime.settings import table
from services.planner.core.guards import GUARDS
from services.planner.settings import PlannerSettings

FOLDER = Path(__file__).parents[3] / "services" / "planner"
README = (FOLDER / "README.md").read_text()


def test_the_settings_are_complete() -> None:
    """The table is generated; print it again after a change with runtime.settings.table(PlannerSettings, own_only=True)."""
    assert table(PlannerSettings, own_only=True) in README


def test_the_guards_are_listed_in_their_order() -> None:
    """The order matters: a later guard can only make the decision more cautious."""
    rows = README.split("| guard |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", rows, re.MULTILINE) == list(GUARDS)


def test_every_code_of_the_planner_is_listed() -> None:
    """Every code that a plan can carry is in the README."""
    root = FOLDER.parents[1]
    planner = "".join((root / name).read_text() for name in ("planners/rate/planner.py", "predictor/comparison.py"))
    replies = re.findall(r'TooLittle\("([a-z-]+)"|_reply\(situation, \w+, "([a-z-]+)"', planner)
    codes = {code for pair in replies for code in pair if code}
    assert len(codes) >= 7
    assert {code for code in codes if f"`{code}`" not in README} == set()
