"""Which of two records of one key is newer."""

import pytest

from weir_runtime import records
from weir_runtime.records import NewestVersions, Record, RecordVersion, version_of


def record(number: int | None, epoch: int = 1, key: str = "a", value: bytes | None = b"{}") -> Record:
    """A record of this version; None: of none."""
    headers = {} if number is None else RecordVersion(number, epoch).headers()
    return Record("weir.things.v1", 0, 0, key, value, headers)


def test_what_is_older_is_outdated_in_whatever_order_it_comes() -> None:
    """By its number, then by its epoch; the same version comes again after a repetition, or where a partition is read
    once more."""
    newest = NewestVersions()
    assert [newest.outdated(record(n, e)) for n, e in ((1, 5), (3, 6), (2, 9), (3, 6), (3, 5), (3, 7), (4, 1))] == [
        False,
        False,
        True,
        False,
        True,
        False,
        False,
    ]
    assert not newest.outdated(record(1, key="b"))


def test_a_deletion_is_remembered() -> None:
    """The policy that it deleted does not come back with a late record; a newer one does."""
    newest = NewestVersions()
    assert [newest.outdated(record(1)), newest.outdated(record(2, value=None))] == [False, False]
    assert [newest.outdated(record(1)), newest.outdated(record(2, value=None)), newest.outdated(record(3))] == [
        True,
        False,
        False,
    ]


def test_records_without_a_version_count_as_they_were_written() -> None:
    """And outdate none: what was behind the newest version stays behind it."""
    newest = NewestVersions()
    assert [newest.outdated(record(n)) for n in (7, None, 3, 8)] == [False, False, True, False]
    assert version_of({"weir_version": "7"}) is None
    assert version_of({"weir_version": "seven", "weir_epoch": "1"}) is None


def test_deleted_keys_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ones deleted first are forgotten; one that is there again counts no more."""
    monkeypatch.setattr(records, "MAX_DELETED", 2)
    newest = NewestVersions()
    for key in ("a", "b", "c"):
        newest.outdated(record(5, key=key, value=None))
    assert [newest.outdated(record(4, key=key)) for key in ("a", "b", "c")] == [False, True, True]
    newest.outdated(record(6, key="b"))
    newest.outdated(record(5, key="d", value=None))
    assert newest.outdated(record(4, key="c"))
