"""A record as the sample job reads it: `<produced_at_ms>;<key>;<payload>`."""

import random
import string

LEAST_BYTES = 32
MOST_BYTES = 100_000
_POOL_BYTES = 65_536


class Records:
    """Makes record values of a wanted size. Payloads are text that hardly compresses, cut from one pool."""

    def __init__(self, seed: int = 1) -> None:
        letters = random.Random(seed).choices(string.ascii_letters + string.digits, k=_POOL_BYTES)
        self._pool = "".join(letters).encode() * (MOST_BYTES // _POOL_BYTES + 2)
        self._at = 0

    def value(self, produced_at_millis: int, key: bytes, size_bytes: int) -> bytes:
        """One record of `size_bytes`, or of as few as its timestamp and key need."""
        head = b"%d;%s;" % (produced_at_millis, key)
        payload = max(0, size_bytes - len(head))
        self._at = (self._at + payload + 1) % _POOL_BYTES
        return head + self._pool[self._at : self._at + payload]
