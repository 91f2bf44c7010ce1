"""Planners that are called and scored on simulated applications, and never executed. Pure.

Each has a simulated application with its own parallelism, backlog, restarts and memory, fed with the real arrivals.
`begin` advances them to now and returns the calls to make; `finish` applies the replies to the simulated applications.
"""

from .cycle import Call, begin, finish, has_shadows

__all__ = ["Call", "begin", "finish", "has_shadows"]
