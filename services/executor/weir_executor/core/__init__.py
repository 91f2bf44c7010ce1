"""The executor's decisions as pure functions: no clock, network, thread or framework.

`table` holds the legal moves, `gate` admits or refuses a plan within its `limits`, `steps` moves an action on that is
`in_flight`, `history` records each transition as an outcome.
"""

from .observed import Conflict as Conflict
from .observed import PolicyReading as PolicyReading
from .parameters import Rules as Rules
