"""Labels of metrics stay few, whatever comes from outside."""

OTHER = "other"


class FewLabels:
    """The first `limit` values as they are; each further one is `other`. For labels that somebody else chooses: a planner that makes
    its codes up must not fill the memory of whoever keeps the series."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        """The label to use for `value`."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value
