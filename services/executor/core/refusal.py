"""Why a plan is not acted on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """A code for programs and a sentence for people."""

    code: str
    sentence: str
