"""Planners that are asked and scored beside the chosen one, and never obeyed. Pure.

Each runs closed-loop: a simulated copy of the application with a parallelism, backlog, restarts and memory of its own, against the
arrivals that really came. `begin` lets all copies run until now and says what to ask; `finish` carries the answers out, on the copies.
"""

from .turn import Ask, begin, finish, wants

__all__ = ["Ask", "begin", "finish", "wants"]
