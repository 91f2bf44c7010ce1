"""How much is tried: a few examples in `make check`, which a developer waits for; all of them in `make test` (`pytest
--thorough`), the same in each run; many times as many, others in each run, in `make explore` (`pytest --explore=TIMES`).

Every test that generates examples takes their number from here. The marker `thorough` keeps a test out of a quick run.
"""

from collections.abc import Iterable
from typing import TypeVar

from hypothesis import HealthCheck, settings

FEW = 8
"""Generated examples of a test in a quick run."""
_USUAL = 100
"""Examples of a test that names no number."""
T = TypeVar("T")

# No test is timed: on a busy machine an example may take its time.
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _untimed, max_examples=FEW)
# The outcome depends on the tree alone: a contradiction that chance finds elsewhere fails no run.
settings.register_profile("thorough", _untimed, max_examples=_USUAL, derandomize=True)


def choose(*, thorough: bool, explore: int = 0) -> None:
    """Set the number of examples; call it before collection, as hypothesis reads it where a test is defined.

    `explore` is how many times as many as a thorough run has; 0: no more than that.
    """
    if explore:
        settings.register_profile("explore", _untimed, max_examples=_USUAL * explore)
    settings.load_profile("explore" if explore else "thorough" if thorough else "quick")


def thorough() -> bool:
    """Return whether all examples are tried."""
    return settings.get_current_profile_name() != "quick"


def exploring() -> bool:
    """Return whether more is tried than in a thorough run."""
    return settings.get_current_profile_name() == "explore"


def examples(count: int) -> settings:
    """Try `count` generated examples, or a few in a quick run."""
    return settings(max_examples=count * settings().max_examples // _USUAL if thorough() else min(count, FEW))


def some(things: Iterable[T], one_in: int) -> list[T]:
    """Return all of them, or every `one_in`th in a quick run, the first included."""
    return list(things)[:: 1 if thorough() else one_in]
