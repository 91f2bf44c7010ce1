"""The planner `rate`. Start with `planner.py`, the rule; each of its steps is a module: `ride_out`, `grow`, `grow_ahead`,
`shrink`, and `first_step` before any capacity is known. `sizing.py` sizes each operator by its demand, `memory.py` has
the course of the load, `steady.py` the room that a steady one needs, and `tuning.py` the tuned numbers."""

from .planner import plan_by_rate as plan_by_rate
