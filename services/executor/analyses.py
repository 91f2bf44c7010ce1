"""The newest analysis of each owned application, kept as it came and read only when somebody asks.

Analyses are large and come at every scrape; the executor needs one when an action begins and while it is watched.
"""

from collections.abc import Iterable, Iterator, Mapping

import structlog
from weir_contracts import Analysis

from runtime.envelope import Undecodable, decode
from runtime.records import Record


class LatestAnalyses(Mapping[str, Analysis]):
    """A view by application id. What cannot be read counts as absent: unknown is no verdict."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._read: dict[str, tuple[Record, Analysis | None]] = {}
        self._log = structlog.get_logger("executor")

    def note(self, records: Iterable[Record]) -> None:
        """Keep what came; within a partition a later offset is newer."""
        for record in records:
            if record.key is None:
                continue
            last = self._records.get(record.key)
            if record.value is None:
                self.forget(record.key)
            elif last is None or (record.partition, record.offset) != (last.partition, last.offset):
                self._records[record.key] = record

    def forget(self, application: str) -> None:
        """Its partition belongs to somebody else now."""
        self._records.pop(application, None)
        self._read.pop(application, None)

    def __getitem__(self, application: str) -> Analysis:
        record = self._records[application]
        known = self._read.get(application)
        if known is None or known[0] is not record:
            known = (record, self._decoded(record))
            self._read[application] = known
        if known[1] is None:
            raise KeyError(application)
        return known[1]

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
