"""The newest analysis of each owned application, stored as received and decoded on demand.

Analyses are large and arrive at every scrape; the executor needs one when an action begins and while it is verified.
"""

from collections.abc import Iterable, Iterator, Mapping

import structlog
from weir_contracts import Analysis

from runtime.envelope import Undecodable, decode
from runtime.records import Record


class LatestAnalyses(Mapping[str, Analysis]):
    """View by application id; an undecodable analysis counts as absent."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._read: dict[str, tuple[Record, Analysis | None]] = {}
        self._log = structlog.get_logger("executor")

    def note(self, records: Iterable[Record]) -> None:
        """Store the newest record of each application; within a partition a later offset is newer."""
        for record in records:
            if record.key is None:
                continue
            last = self._records.get(record.key)
            if record.value is None:
                self.forget(record.key)
            elif last is None or (record.partition, record.offset) != (last.partition, last.offset):
                self._records[record.key] = record

    def forget(self, application: str) -> None:
        """Drop an application whose partition another replica owns."""
        self._records.pop(application, None)
        self._read.pop(application, None)

    def __getitem__(self, application: str) -> Analysis:
        record = self._records[application]
        cached = self._read.get(application)
        if cached is None or cached[0] is not record:
            cached = (record, self._decoded(record))
            self._read[application] = cached
        if cached[1] is None:
            raise KeyError(application)
        return cached[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def _decoded(self, record: Record) -> Analysis | None:
        try:
            return decode(record, Analysis).message
        except Undecodable as error:
            self._log.warning("analysis-skipped", place=record.place, reason=error.reason, field=error.field)
            return None
