"""Why a plan is not acted on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """A code for programs and a sentence for people."""

    code: str
    sentence: str


def contested(there: str) -> Refusal:
    """Refusal because the requirements are not what the action expects; `there` says what they are."""
    return Refusal("contested", f"somebody else set the requirements meanwhile: {there}")
