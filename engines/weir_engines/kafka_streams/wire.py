"""Reader of Kafka's big-endian binary formats, bounded by the bytes that are there."""

import struct
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_BYTES = 4_000_000
"""Largest user data of a member that is decoded: about 100,000 tasks."""


class Undecodable(ValueError):
    """Bytes of another format or version, cut off, or too many; the sentence says which."""


class Reader:
    """Position in a byte string. Each method reads one value and raises `Undecodable` beyond the end."""

    def __init__(self, data: bytes, name: str) -> None:
        if len(data) > MAX_BYTES:
            raise Undecodable(f"{name}: {len(data):,} bytes are more than {MAX_BYTES:,}")
        self._data, self._at, self._name = data, 0, name

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if not 0 <= count <= len(self._data) - self._at:
            raise Undecodable(f"{self._name}: {count} bytes are wanted at {self._at}, {self.left} are left")
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    @property
    def left(self) -> int:
        """Number of bytes that were not read yet."""
        return len(self._data) - self._at

    def i16(self) -> int:
        """Return a signed number of two bytes."""
        return int(struct.unpack(">h", self.take(2))[0])

    def i32(self) -> int:
        """Return a signed number of four bytes."""
        return int(struct.unpack(">i", self.take(4))[0])

    def i64(self) -> int:
        """Return a signed number of eight bytes."""
        return int(struct.unpack(">q", self.take(8))[0])

    def text(self) -> str:
        """Return a text with its length in two bytes."""
        return self._decoded(self.take(self.i16()), "utf-8")

    def wide_text(self) -> str:
        """Return a UTF-16 text with its length, in characters, in four bytes."""
        return self._decoded(self.take(2 * self.i32()), "utf-16-be")

    def data(self) -> bytes | None:
        """Return bytes with their length in four bytes; None if it is -1."""
        count = self.i32()
        return None if count == -1 else self.take(count)

    def items(self, read: Callable[[], T], item_bytes: int = 1) -> list[T]:
        """Return a list with its number in four bytes, of items of at least `item_bytes`."""
        count = self.i32()
        if not 0 <= count * item_bytes <= self.left:
            raise Undecodable(f"{self._name}: a list of {count} does not fit in the {self.left} bytes that are left")
        return [read() for _ in range(count)]

    def end(self) -> None:
        """`Undecodable` unless everything was read."""
        if self.left:
            raise Undecodable(f"{self._name}: {self.left} bytes are left after its end")

    def _decoded(self, data: bytes, encoding: str) -> str:
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            raise Undecodable(f"{self._name}: a text is not {encoding.upper()}") from None
