"""Keys and values of the sample job's records: `<produced_at_ms>;<key>;<payload>`. Seeded, so repeatable."""

import random
import string
from itertools import accumulate

from weir_replay.trace import MAX_BYTES

DEFAULT_KEYS = 5000
_POOL_BYTES = 65_536


class Keys:
    """Draws keys, the k-th in proportion to 1/k^s. With s = `skew` = 1 the first of 5,000 keys has 11 % of the records."""

    def __init__(self, count: int, skew: float = 0.0, seed: int = 1) -> None:
        if count < 1:
            raise ValueError(f"count: must be at least 1, is {count}")
        if skew < 0:
            raise ValueError(f"skew: must not be negative, is {skew}")
        self.count = count
        self.skew = skew
        self._names = [f"customer-{number:06d}".encode() for number in range(count)]
        self._random = random.Random(seed)
        self._cumulative = list(accumulate((rank + 1) ** -skew for rank in range(count))) if skew else None

    def draw(self, count: int) -> list[bytes]:
        """Return the next `count` keys."""
        if self._cumulative is None:
            return self._random.choices(self._names, k=count)
        return self._random.choices(self._names, cum_weights=self._cumulative, k=count)


class Records:
    """Makes record values of a given size. Payloads are random text, almost incompressible, cut from one pool."""

    def __init__(self, seed: int = 1) -> None:
        letters = random.Random(seed).choices(string.ascii_letters + string.digits, k=_POOL_BYTES)
        self._pool = "".join(letters).encode() * (MAX_BYTES // _POOL_BYTES + 2)
        self._at = 0

    def value(self, produced_at_millis: int, key: bytes, size_bytes: int) -> bytes:
        """Return a record of `size_bytes`, or more if timestamp and key need them."""
        head = b"%d;%s;" % (produced_at_millis, key)
        payload = max(0, size_bytes - len(head))
        self._at = (self._at + payload + 1) % _POOL_BYTES
        return head + self._pool[self._at : self._at + payload]
