"""Which key the next record has: n keys, the k-th most frequent in proportion to 1/k^s (Zipf). Seeded, so repeatable."""

import random
from itertools import accumulate

DEFAULT_KEYS = 5000


class Keys:
    """Draws keys. `skew` is Zipf's exponent s: 0 is uniform, 1 gives the first of 5,000 keys 11 % of all records."""

    def __init__(self, count: int, skew: float = 0.0, seed: int = 1) -> None:
        if count < 1:
            raise ValueError(f"count: there must be a key, not {count}")
        if skew < 0:
            raise ValueError(f"skew: must not be negative, is {skew}")
        self.count = count
        self.skew = skew
        self._names = [f"customer-{number:06d}".encode() for number in range(count)]
        self._random = random.Random(seed)
        self._cumulative = list(accumulate((rank + 1) ** -skew for rank in range(count))) if skew else None

    def draw(self, count: int) -> list[bytes]:
        """The next `count` keys."""
        if self._cumulative is None:
            return self._random.choices(self._names, k=count)
        return self._random.choices(self._names, cum_weights=self._cumulative, k=count)

    def share_of_first(self) -> float:
        """Of all records, the share that the most frequent key has."""
        return 1 / self.count if self._cumulative is None else self._cumulative[0] / self._cumulative[-1]
