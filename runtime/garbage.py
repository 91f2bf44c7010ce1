"""Python's cycle collector, made to look seldom: what the services make the most of, messages, holds no cycles.

By default it looks at what is young after every few hundred new objects, which one observation has, and at all there is whenever that
has grown by a quarter. A service that keeps the last messages of hundreds of applications spent two fifths of its time on that and
found next to nothing.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 100_000
"""Between two looks at the youngest: some ten megabytes, if all of them were garbage."""
LOOKS = 5
"""Of one generation, between two looks at the next older one. What lives through a look at the youngest waits for so many more."""


def collect_seldom() -> None:
    """From now on, in this process; what it has by now, which is what it imported, is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, LOOKS, LOOKS)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """The same for a while, in a process that is not one's own."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, LOOKS, LOOKS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
