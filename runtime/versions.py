"""Versions of a compacted topic's records: which of two records of one key is newer, independent of their order.

Headers carry the version, so that tombstones have one as well. Records without a version count in their order.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .records import Record

VERSION_HEADER = "weir_version"
EPOCH_HEADER = "weir_epoch"
MAX_DELETED = 10_000
"""Deleted keys that are kept; the oldest deletions are dropped first."""


class RecordVersion(NamedTuple):
    """Compared by number, which the store assigns, then by epoch, which the publisher adds."""

    number: int
    """Grows with each change of a key, its deletion included."""
    epoch: int
    """Of the lease that the record's publisher held."""

    def headers(self) -> dict[str, str]:
        """Return the headers that carry it."""
        return {VERSION_HEADER: str(self.number), EPOCH_HEADER: str(self.epoch)}


def version_of(headers: Mapping[str, str]) -> RecordVersion | None:
    """Return the version that a record's headers carry; None where they carry none that can be read."""
    try:
        return RecordVersion(int(headers[VERSION_HEADER]), int(headers[EPOCH_HEADER]))
    except (KeyError, ValueError):
        return None


class NewestVersions:
    """The newest version of each key that was read."""

    def __init__(self) -> None:
        self._newest: dict[str, RecordVersion] = {}
        self._deleted: dict[str, None] = {}
        """In the order of their deletion."""

    def outdated(self, record: Record) -> bool:
        """Return whether a newer version of the record's key was read before it. If not, the record's is the newest now."""
        if record.key is None:
            return False
        version, newest = version_of(record.headers), self._newest.get(record.key)
        if version is not None and newest is not None and version < newest:
            return True
        self._forget(record.key)
        if version is not None:
            self._newest[record.key] = version
            if record.value is None:
                self._deleted[record.key] = None
                if len(self._deleted) > MAX_DELETED:
                    self._forget(next(iter(self._deleted)))
        return False

    def _forget(self, key: str) -> None:
        self._newest.pop(key, None)
        self._deleted.pop(key, None)
