"""Rare runs of Python's cycle collector: messages, most objects of a service, have no cycles.

By default it runs after a few hundred new objects, fewer than one observation has. A service with the last messages of
hundreds of applications spends two fifths of its time on it.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 100_000
"""Between two collections of the youngest generation: about 10 MB, if all were garbage."""
COLLECTIONS = 5
"""Of one generation, between two collections of the next older one."""


def collect_seldom() -> None:
    """Collect rarely from now on, and never the objects that exist now (the imports)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, COLLECTIONS, COLLECTIONS)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect rarely for a while, in a process of another owner."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, COLLECTIONS, COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
