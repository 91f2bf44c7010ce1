"""The store in the SQLite file of one process, next to the log that it shows: a row for each field of a document, for each
past cycle and for each event of the feed, and one SQL transaction for `apply`."""

import asyncio
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from sqlite3 import Connection
from uuid import UUID

from weir_contracts import LoopResult
from weir_knowledge.core import End, with_ends
from weir_knowledge.store import (
    Batch,
    FeedEvent,
    Incomplete,
    Key,
    NotContinued,
    Position,
    StoreFull,
    StoreUnavailable,
)
from weir_runtime.sqlite_file import FileFull, FileUnavailable, Schema, SqliteFile, packed, unpacked

SCHEMA: Schema = (
    (
        "CREATE TABLE view_positions (partition INTEGER PRIMARY KEY, offsets TEXT NOT NULL, versions TEXT NOT NULL, "
        "written_ms INTEGER NOT NULL)",
        "CREATE TABLE view_documents (kind TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, text BLOB NOT NULL, "
        "PRIMARY KEY (kind, key, name))",
        "CREATE TABLE view_cycles (application TEXT NOT NULL, plan TEXT NOT NULL, at REAL NOT NULL, text BLOB NOT NULL, "
        "PRIMARY KEY (application, plan))",
        "CREATE TABLE view_ends (application TEXT NOT NULL, plan TEXT NOT NULL, phase TEXT NOT NULL, "
        "PRIMARY KEY (application, plan))",
        "CREATE TABLE view_events (at INTEGER NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, "
        "application TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (at, number))",
    ),
)
EVENT_BYTES = 100
"""Of an event, in addition to its data."""
SPARE_ENDS = 2
"""Ends per past cycle before ends without cycles are deleted. An end may come before its cycle."""
PACKED_AT_ONCE = 20
"""Texts: other tasks run in between."""
READ_AT_ONCE = 20
"""Documents, of which only some fields are read."""
EVENTS_REMOVED = 100
"""Oldest events that one batch may remove, besides as many as it adds."""


class SqliteStore:
    """The store in a file that this process alone has open."""

    def __init__(
        self,
        file: SqliteFile,
        events_kept: int = 20_000,
        *,
        events_bytes: int = 16_000_000,
        history_kept: int = 500,
        history_seconds: float = 86_400.0,
    ) -> None:
        self._file = file
        self._events_kept, self._events_bytes = events_kept, events_bytes
        self._history_kept, self._history_seconds = history_kept, history_seconds
        self._arrived = asyncio.Condition()
        file.prepare("knowledge", SCHEMA)
        with self._reading() as db:
            self._feed = _Feed(*db.execute("SELECT count(*), ifnull(sum(length(data)), 0) FROM view_events").fetchone())

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with _errors(), self._file.reading() as db:
            yield db

    async def ping(self) -> None:
        with self._reading() as db:
            db.execute("SELECT count(*) FROM view_positions").fetchone()

    async def check_room(self) -> None:
        with _errors():
            self._file.check_room()

    async def close(self) -> None:
        """Nothing: the file is its opener's."""

    async def applied(self, partitions: Collection[int]) -> dict[int, Position | None]:
        with self._reading() as db:
            return {partition: _position(db, partition) for partition in partitions}

    async def get(
        self, keys: Collection[Key], names: Collection[str] | None = None, *, complete: Collection[int] = ()
    ) -> dict[Key, dict[str, str]]:
        found, wanted = {}, list(keys)
        # A whole state is unpacked from up to some hundred kB: other tasks run in between.
        at_once = 1 if names is None else READ_AT_ONCE
        for begin in range(0, len(wanted), at_once):
            with self._reading() as db:
                _need(db, complete)
                for kind, key in wanted[begin : begin + at_once]:
                    document = _document(db, kind, key, names)
                    if document is not None:
                        found[kind, key] = document
            await asyncio.sleep(0)
        return found

    async def all(
        self, kind: str, names: Collection[str] | None = None, *, complete: Collection[int] = ()
    ) -> dict[str, dict[str, str]]:
        documents: dict[str, dict[str, str]] = {}
        # The texts of other fields are not read.
        text = "text" if names is None else f"CASE WHEN name IN ({_marks(names)}) THEN text END"
        fields = f"SELECT key, name, {text} FROM view_documents WHERE kind = ? ORDER BY key"  # noqa: S608 - only marks
        with self._reading() as db:
            _need(db, complete)
            for key, name, found in db.execute(fields, (*(names or ()), kind)).fetchall():
                document = documents.setdefault(key, {})
                if found is not None:
                    document[name] = _text(found)
        return documents

    async def keys(self, kind: str) -> list[str]:
        with self._reading() as db:
            found = db.execute(
                "SELECT DISTINCT key FROM view_documents WHERE kind = ? ORDER BY key", (kind,)
            ).fetchall()
        return [key for (key,) in found]

    async def apply(self, batch: Batch) -> None:
        fields = [(*key, name, text) for key, each in batch.changed.items() for name, text in each.items()]
        cycles = [(name, entry) for name, entry in batch.entries if not isinstance(entry, End)]
        texts = [entry.model_dump_json() for _, entry in cycles]
        # Most events are newest messages as well: no text is packed twice.
        stored = await _packed({*texts, *(row[-1] for row in fields), *(text for _, _, text in batch.events)})
        now = self._file.clock.now()
        feed = self._feed
        with _errors(), self._file.writing() as db:
            for partition, position in batch.continues.items():
                if _position(db, partition) != position:
                    raise NotContinued(partition)
            db.executemany("DELETE FROM view_documents WHERE kind = ? AND key = ?", batch.deleted)
            forgotten = [(application,) for application in batch.forgotten]
            db.executemany("DELETE FROM view_cycles WHERE application = ?", forgotten)
            db.executemany("DELETE FROM view_ends WHERE application = ?", forgotten)
            db.executemany(
                "DELETE FROM view_documents WHERE kind = ? AND key = ? AND name = ?",
                [(*key, name) for key, names in batch.removed.items() for name in names],
            )
            db.executemany(
                "INSERT INTO view_documents VALUES (?, ?, ?, ?) "
                "ON CONFLICT (kind, key, name) DO UPDATE SET text = excluded.text",
                [(*row[:3], stored[row[3]]) for row in fields],
            )
            rows = [
                (name, str(each.plan_id), each.at.timestamp(), stored[text])
                for (name, each), text in zip(cycles, texts, strict=True)
            ]
            self._add_history(db, rows, [(name, entry) for name, entry in batch.entries if isinstance(entry, End)])
            if batch.events:
                events = [(kind, application, stored[text]) for kind, application, text in batch.events]
                feed = self._add_events(db, events, int(now.timestamp() * 1000))
            db.executemany(
                "INSERT OR REPLACE INTO view_positions VALUES (?, ?, ?, ?)",
                [
                    (each, json.dumps(to.offsets), json.dumps(to.versions), to.written_ms)
                    for each, to in batch.positions.items()
                ],
            )
        self._feed = feed
        if batch.events:
            async with self._arrived:
                self._arrived.notify_all()

    def _add_history(
        self, db: Connection, cycles: Sequence[tuple[str, str, float, bytes]], ends: Sequence[tuple[str, End]]
    ) -> None:
        """Add past cycles and the ends of their plans; remove those beyond number and age, and ends of no cycle."""
        db.executemany(
            "INSERT INTO view_cycles VALUES (?, ?, ?, ?) "
            "ON CONFLICT (application, plan) DO UPDATE SET at = excluded.at, text = excluded.text",
            cycles,
        )
        for application in {row[0] for row in cycles}:
            db.execute(
                "DELETE FROM view_cycles WHERE application = ? AND at < "
                "(SELECT max(at) FROM view_cycles WHERE application = ?) - ?",
                (application, application, self._history_seconds),
            )
            db.execute(
                "DELETE FROM view_cycles WHERE rowid IN (SELECT rowid FROM view_cycles WHERE application = ? "
                "ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (application, self._history_kept),
            )
        db.executemany(
            "INSERT OR REPLACE INTO view_ends VALUES (?, ?, ?)",
            [(application, str(end.plan_id), end.phase) for application, end in ends],
        )
        for application in {application for application, _ in ends}:
            db.execute(
                "DELETE FROM view_ends WHERE rowid IN (SELECT rowid FROM view_ends WHERE application = ? "
                "ORDER BY rowid DESC LIMIT -1 OFFSET ?) "
                "AND plan NOT IN (SELECT plan FROM view_cycles WHERE application = ?)",
                (application, SPARE_ENDS * self._history_kept, application),
            )

    def _add_events(self, db: Connection, events: Sequence[tuple[str, str, bytes]], now: int) -> "_Feed":
        """Append events at a time in milliseconds, and remove the oldest beyond number and bytes."""
        newest = db.execute("SELECT at, number FROM view_events ORDER BY at DESC, number DESC LIMIT 1").fetchone() or (
            0,
            0,
        )
        # Ids grow, also when the clock is set back.
        at, number = (now, 0) if now > newest[0] else (newest[0], newest[1] + 1)
        db.executemany(
            "INSERT INTO view_events VALUES (?, ?, ?, ?, ?)",
            [(at, number + index, *event) for index, event in enumerate(events)],
        )
        count, size = self._feed.count + len(events), self._feed.bytes + sum(len(data) for _, _, data in events)
        removed = []
        oldest = "SELECT at, number, length(data) FROM view_events ORDER BY at, number LIMIT ?"
        for event_at, event_number, length in db.execute(oldest, (len(events) + EVENTS_REMOVED,)).fetchall():
            if count <= self._events_kept and size + EVENT_BYTES * count <= self._events_bytes:
                break
            removed.append((event_at, event_number))
            count, size = count - 1, size - length
        db.executemany("DELETE FROM view_events WHERE at = ? AND number = ?", removed)
        return _Feed(count, size)

    async def history(self, application: str) -> list[LoopResult]:
        with self._reading() as db:
            cycles = db.execute(
                "SELECT text FROM view_cycles WHERE application = ? ORDER BY at DESC, rowid DESC", (application,)
            ).fetchall()
            ends = db.execute("SELECT plan, phase FROM view_ends WHERE application = ?", (application,)).fetchall()
        return with_ends(
            (LoopResult.model_validate_json(unpacked(text)) for (text,) in cycles),
            {UUID(plan): phase for plan, phase in ends},
        )

    async def events(self, after: str, count: int = 100, wait_seconds: float = 0.0) -> list[FeedEvent]:
        milliseconds, _, number = after.partition("-")
        begin = int(milliseconds), int(number or 0)
        found = self._after(begin, count)
        if not found and wait_seconds > 0:
            try:
                async with asyncio.timeout(wait_seconds), self._arrived:
                    while not (found := self._after(begin, count)):
                        await self._arrived.wait()
            except TimeoutError:
                return []
        return found

    def _after(self, begin: tuple[int, int], count: int) -> list[FeedEvent]:
        after = (
            "SELECT at, number, kind, application, data FROM view_events "
            "WHERE (at, number) > (?, ?) ORDER BY at, number LIMIT ?"
        )
        with self._reading() as db:
            rows = db.execute(after, (*begin, count)).fetchall()
        return [FeedEvent(f"{at}-{number}", kind, name, _text(data)) for at, number, kind, name, data in rows]

    async def newest_event(self) -> str:
        with self._reading() as db:
            row = db.execute("SELECT at, number FROM view_events ORDER BY at DESC, number DESC LIMIT 1").fetchone()
        return f"{row[0]}-{row[1]}" if row else "0-0"


@dataclass(frozen=True)
class _Feed:
    """Number and bytes of the stored events."""

    count: int
    bytes: int


@contextmanager
def _errors() -> Iterator[None]:
    """Raise an error of the file as the store's."""
    try:
        yield
    except FileFull as error:
        raise StoreFull(str(error)) from error
    except FileUnavailable as error:
        raise StoreUnavailable(str(error)) from error


async def _packed(texts: Collection[str]) -> dict[str, bytes]:
    stored = {}
    for index, text in enumerate(texts):
        stored[text] = packed(text.encode())
        if index % PACKED_AT_ONCE == PACKED_AT_ONCE - 1:
            await asyncio.sleep(0)
    return stored


def _marks(names: Collection[str]) -> str:
    return ", ".join("?" for _ in names)


def _text(stored: bytes) -> str:
    return unpacked(stored).decode()


def _position(db: Connection, partition: int) -> Position | None:
    one = "SELECT offsets, versions, written_ms FROM view_positions WHERE partition = ?"
    row = db.execute(one, (partition,)).fetchone()
    return None if row is None else Position(json.loads(row[0]), json.loads(row[1]), row[2])


def _need(db: Connection, complete: Collection[int]) -> None:
    """`Incomplete` unless all of these partitions have a position."""
    for partition in complete:
        if _position(db, partition) is None:
            raise Incomplete


def _document(db: Connection, kind: str, key: str, names: Collection[str] | None) -> dict[str, str] | None:
    """Return these fields of a document (None: all); None if it does not exist."""
    fields, named = "SELECT name, text FROM view_documents WHERE kind = ? AND key = ?", ""
    if names is not None:
        named = f" AND name IN ({_marks(names)})"
    rows = db.execute(fields + named, (kind, key, *(names or ()))).fetchall()
    found = {name: _text(text) for name, text in rows}
    exists = found or db.execute(f"{fields} LIMIT 1", (kind, key)).fetchone()
    return found if exists else None
