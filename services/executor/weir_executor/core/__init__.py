"""The executor's decisions as pure functions: no clock, network, thread or framework.

`table` holds the legal moves, `gate` admits or refuses a plan within its `limits`, `steps` moves an action on that is
`in_flight`, `history` records each transition as an outcome.
"""

from .observed import Accepted as Accepted
from .observed import Conflict as Conflict
from .observed import DepartedMember as DepartedMember
from .observed import PolicyReading as PolicyReading
from .observed import Refusal as Refusal
from .observed import Rejected as Rejected
from .observed import Snapshot as Snapshot
from .observed import Unanswered as Unanswered
from .observed import contested as contested
from .rules import Rules as Rules
