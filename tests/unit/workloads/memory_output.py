"""An output of the load generator that keeps its records."""


class MemoryOutput:
    """Keeps records in a list of at most `room`: full, it looks like a broker that does not answer."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.records: list[tuple[bytes, bytes, int]] = []
        self.room = room
        self.delivered = 0
        self.failed = 0
        self.problem: str | None = None

    def send(self, key: bytes, value: bytes, produced_at_millis: int) -> bool:
        if len(self.records) >= self.room:
            return False
        self.records.append((key, value, produced_at_millis))
        return True

    def serve(self, timeout_seconds: float = 0.0) -> None:
        self.delivered = len(self.records)

    def close(self, timeout_seconds: float) -> None:
        self.serve()
