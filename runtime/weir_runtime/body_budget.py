"""Memory that bodies of callers and of users' addresses may take: bytes and elements of each body, and the sum over all that are open.

A JSON document of `[],` takes 30 times its bytes when it is parsed. So each body is charged for its elements as well,
counted in its bytes as they arrive: the brackets and commas, of which those inside a text count too. All open bodies of
a process share one budget, since a limit for each alone says nothing about many at once.
"""

from typing import Self

MAX_ELEMENTS = 200_000
"""Elements of one body: a job of 1,000 operators has 60,000."""
ELEMENT_BYTES = 100
"""Memory of a parsed element: an empty object in a list takes 72 bytes."""
MAX_OPEN_BYTES = 64_000_000
"""Charge of all open bodies of a process, whose container has 256 MiB and more."""


class TooLarge(Exception):
    """A body above its own limit."""


class TooMany(Exception):
    """A body for which the other open bodies leave no room."""


class Budget:
    """The charge of all open bodies, at most `limit_bytes`."""

    def __init__(self, limit_bytes: int = MAX_OPEN_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._open_bytes = 0

    @property
    def open_bytes(self) -> int:
        return self._open_bytes

    def body(self, max_bytes: int | None, max_elements: int = MAX_ELEMENTS) -> "Body":
        """Return the account of a new body; `max_bytes` None: a stream that is not kept, and is not charged."""
        return Body(self, max_bytes, max_elements)

    def charge(self, charge_bytes: int) -> None:
        if self._open_bytes + charge_bytes > self._limit_bytes:
            raise TooMany("too many large bodies are open at once")
        self._open_bytes += charge_bytes

    def release(self, charge_bytes: int) -> None:
        self._open_bytes -= charge_bytes


class Body:
    """The account of one body. Leave it as a context, or call `close`: its charge is released."""

    def __init__(self, budget: Budget, max_bytes: int | None, max_elements: int) -> None:
        self._budget = budget
        self._max_bytes = max_bytes
        self._max_elements = max_elements
        self._charged = 0
        self._elements = 0
        self.received_bytes = 0

    def add(self, part: bytes) -> None:
        """Count a part that arrived. `TooLarge` or `TooMany`, after which nothing more may be read."""
        if self._max_bytes is None:
            return
        self.received_bytes += len(part)
        elements = part.count(b",") + part.count(b"[") + part.count(b"{")
        self._elements += elements
        if self.received_bytes > self._max_bytes:
            raise TooLarge(f"more than {self._max_bytes} bytes")
        if self._elements > self._max_elements:
            raise TooLarge(f"more than {self._max_elements} elements")
        charge_bytes = len(part) + ELEMENT_BYTES * elements
        self._budget.charge(charge_bytes)
        self._charged += charge_bytes

    def close(self) -> None:
        self._budget.release(self._charged)
        self._charged = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
