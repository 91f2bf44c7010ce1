"""Mistakes that no sentence for a user may contain, wherever a suite prints one."""

import re

NOUNS = (
    "actions|applications|bytes|documents|hours|instances|members|messages|minutes|observations|operators|partitions|pods|replicas|rescales|"
    "restarts|samples|slots|subtasks|tasks|times"
)
_WRONG = {
    rf"(?<![\d.,])1 ({NOUNS})\b": "number and noun disagree",
    r"(?<![\d.,])1 (subtask|slot|pod|instance|member|action|application) (are|have|exceed)\b": "number and verb disagree",
    r"(?<![\d.,])-?0% (less|more)": "a difference of nothing",
    r"\([^()]*\([^()]*\)": "parentheses within parentheses",
    r"\b(\w+) \1s? (are|is|have|has)\b": "a word comes twice",
    r"\bNone\b|\bnan\b|\binf\b": "a value of the program",
}


def faults(sentence: str) -> list[str]:
    """Return what reads wrong in a sentence; empty if nothing does."""
    return [f"{why}: {found[0]!r}" for pattern, why in _WRONG.items() if (found := re.search(pattern, sentence))]


def assert_reads_well(sentence: str) -> None:
    """Fail with the sentence and what is wrong in it."""
    assert not faults(sentence), (faults(sentence), sentence)
