"""The guards, in order. A guard may only amend the planner's proposal, and each amendment has a reason."""

from .chain import GUARDS, amend
from .proposal import Context, Proposal

__all__ = ["GUARDS", "Context", "Proposal", "amend"]
