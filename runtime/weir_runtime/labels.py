"""Bounded labels of metrics."""

OTHER = "other"


class CardinalityLimiter:
    """Passes the first `limit` different label values; each further one becomes `other`.

    For labels from outside: a planner that invents codes must not fill the memory of this process or of Prometheus.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._values:
            if len(self._values) >= self._limit:
                return OTHER
            self._values.add(value)
        return value
