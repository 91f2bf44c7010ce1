"""The executor's decisions as pure functions: no clock, network, thread or framework.

`table` holds the legal moves, `gate` admits or refuses a plan within its `limits`, `steps` moves an action on that is
`in_flight`, `history` records each transition as an outcome.
"""

from weir_engines.driver import Accepted as Accepted
from weir_engines.driver import DepartedMember as DepartedMember
from weir_engines.driver import Refusal as Refusal
from weir_engines.driver import Rejected as Rejected
from weir_engines.driver import Snapshot as Snapshot
from weir_engines.driver import Unanswered as Unanswered
from weir_engines.driver import contested as contested

from .observed import Conflict as Conflict
from .observed import PolicyReading as PolicyReading
from .rules import Rules as Rules
