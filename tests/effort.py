"""How much is tried of what could be tried for ever: a little in `make check`, where somebody waits for it, all of it in `make test`.

`pytest --thorough` is all of it. Every test that thinks of examples takes their number from here.
"""

from collections.abc import Iterable
from typing import TypeVar

from hypothesis import HealthCheck, settings

FEW = 8
"""Examples of a test that thinks of them, where it is not thorough."""
T = TypeVar("T")

# No test is timed: on a busy machine an example may take its time.
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _untimed, max_examples=FEW)
settings.register_profile("thorough", _untimed)


def choose(*, thorough: bool) -> None:
    """Before any test is read: hypothesis wants to know the number of examples when a test is made."""
    settings.load_profile("thorough" if thorough else "quick")


def thorough() -> bool:
    """Whether all of it is tried."""
    return settings.get_current_profile_name() == "thorough"


def examples(most: int) -> settings:
    """So many examples of a test, or the few."""
    return settings(max_examples=most if thorough() else min(most, FEW))


def some(things: Iterable[T], one_in: int) -> list[T]:
    """All of them, or one in so many, the first among them."""
    return list(things)[:: 1 if thorough() else one_in]
