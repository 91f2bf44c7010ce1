"""The guards, in order. Each may only amend what the planner proposed, and says so."""

from .chain import GUARDS, amend
from .draft import Context, Draft

__all__ = ["GUARDS", "Context", "Draft", "amend"]
