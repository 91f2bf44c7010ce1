"""The newest analysis of each owned application, stored as received and decoded on demand.

Analyses are large and arrive at every scrape; the executor needs one when an action begins and while it is verified.
"""

from collections.abc import Iterable

import structlog

from weir_contracts import Analysis
from weir_runtime.bus import Record
from weir_runtime.messages import Undecodable, decode


class LatestAnalyses:
    """Analyses by application id; an undecodable one counts as absent."""

    def __init__(self) -> None:
        self._latest: dict[str, Record | Analysis | None] = {}
        self._log = structlog.get_logger("executor")

    def note(self, records: Iterable[Record]) -> None:
        """Store the last record of each application."""
        for record in records:
            if record.key is not None:
                self._latest[record.key] = None if record.value is None else record

    def forget(self, application: str) -> None:
        """Drop an application whose partition another replica owns."""
        self._latest.pop(application, None)

    def get(self, application: str) -> Analysis | None:
        found = self._latest.get(application)
        if isinstance(found, Record):
            found = self._latest[application] = self._decoded(found)
        return found

    def _decoded(self, record: Record) -> Analysis | None:
        try:
            return decode(record, Analysis).message
        except Undecodable as error:
            self._log.warning("analysis-skipped", place=record.place, reason=error.reason, field=error.field)
            return None
