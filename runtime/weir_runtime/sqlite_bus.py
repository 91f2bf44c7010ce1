"""The bus in a SQLite file: the log of one process.

Records are removed when others are written: each write removes what its places no longer keep, so that no task has to. A
compacted topic keeps the newest record of a key, and all that are younger than `segment.ms`, as Kafka does; a topic with
retention keeps an age and a number of bytes.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from sqlite3 import Connection

import structlog

from weir_contracts import counted

from .bus import BusError, Committed, Outgoing, Place, Record, Refused, TopicSpec, partition_of
from .local_bus import NOTHING_COMMITTED, LocalBus
from .sqlite_file import FileUnavailable, Schema, SqliteFile, packed, unpacked

SCHEMA: Schema = (
    (
        "CREATE TABLE log_places (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
        "next_offset INTEGER NOT NULL, bytes INTEGER NOT NULL, UNIQUE (topic, partition))",
        "CREATE TABLE log_records (place INTEGER NOT NULL, offset INTEGER NOT NULL, key TEXT NOT NULL, at INTEGER NOT NULL, "
        "headers TEXT NOT NULL, value BLOB, PRIMARY KEY (place, offset))",
        "CREATE INDEX log_keys ON log_records (place, key, offset)",
        "CREATE INDEX log_tombstones ON log_records (place, at) WHERE value IS NULL",
        "CREATE TABLE log_positions (consumers TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
        "next_offset INTEGER, note TEXT NOT NULL, PRIMARY KEY (consumers, topic, partition))",
    ),
)
"""Times are microseconds since 1970, by the log's clock."""
MAX_READ_BYTES = 1_000_000
"""Of the records that are read at once: other tasks run in between."""
RECORD_BYTES = 200
"""Of a record, in addition to its value."""
REMOVED_EACH = 2
"""Oldest records that one written record may remove, so that a topic shrinks to a new limit without a pause."""
MAX_TOMBSTONES_REMOVED = 20
"""At once."""
SET_BACK_SECONDS = 60.0
"""By which a clock differs from the newest record before it is reported."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = structlog.get_logger("log")


@dataclass(frozen=True)
class _Kept:
    """Limits of a topic's records, by its settings; None: no limit. Ages are microseconds."""

    is_compacted: bool
    compacted_age: int
    tombstone_age: int | None
    age: int | None
    bytes: int | None
    record_bytes: int | None

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> "_Kept":
        def limit(name: str, scale: int = 1) -> int | None:
            number = int(configs.get(name, -1))
            return None if number < 0 else number * scale

        policy = configs.get("cleanup.policy", "delete").split(",")
        return cls(
            is_compacted="compact" in policy,
            compacted_age=limit("segment.ms", 1000) or 0,
            tombstone_age=limit("delete.retention.ms", 1000) if "compact" in policy else None,
            age=limit("retention.ms", 1000) if "delete" in policy else None,
            bytes=limit("retention.bytes") if "delete" in policy else None,
            record_bytes=limit("max.message.bytes"),
        )


@dataclass
class _Partition:
    """A partition, as it is in the file."""

    id: int
    end: int
    bytes: int


_Row = tuple[int, int, str, int, str, bytes | None]
"""Of a record: partition, offset, key, time, headers as JSON, value."""


class SqliteBus(LocalBus):
    """The topics in a file that this process alone has open."""

    def __init__(self, file: SqliteFile) -> None:
        super().__init__(file.clock)
        self._file = file
        file.prepare("log", SCHEMA)
        self._kept: dict[str, _Kept] = defaultdict(lambda: _Kept.of({}))
        with _errors(), self._file.reading() as db:
            self._partitions = {
                (topic, partition): _Partition(id, end, size)
                for id, topic, partition, end, size in db.execute("SELECT * FROM log_places")
            }
            self._positions = {
                (group, (topic, partition)): Committed(offset, note)
                for group, topic, partition, offset, note in db.execute("SELECT * FROM log_positions")
            }
            last = "SELECT at FROM log_records WHERE place = ? ORDER BY offset DESC LIMIT 1"
            newest = [db.execute(last, (each.id,)).fetchone() for each in self._partitions.values()]
        self._newest_at = max((row[0] for row in newest if row), default=0)
        """Time of the newest record."""
        self._now()

    def _now(self) -> int:
        """Return the present time. A clock that was set back is reported, once."""
        now = (self.clock.now() - _EPOCH) // timedelta(microseconds=1)
        ahead_seconds = (self._newest_at - now) / 1e6
        if ahead_seconds > SET_BACK_SECONDS:
            until = _EPOCH + timedelta(microseconds=self._newest_at)
            reason = (
                f"the newest record of {self._file.path} is {ahead_seconds:.0f} s ahead of this machine's clock: correct the clock, "
                f"or name another folder; until {until:%Y-%m-%d %H:%M} UTC what is read counts as old"
            )
            _log.warning("clock-set-back", reason=reason)
        if not 0 < ahead_seconds <= SET_BACK_SECONDS:
            self._newest_at = now
        return now

    async def ping(self) -> None:
        await super().ping()
        with _errors():
            self._file.check_room()

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        self.check()
        for spec in specs:
            count = self.count(spec.name)
            if count not in (0, spec.partitions):
                raise BusError(f"topic {spec.name} has {counted(count, 'partition')} and must have {spec.partitions}")
        missing = [spec for spec in specs if self.count(spec.name) == 0]
        if missing:
            made: dict[Place, _Partition] = {}
            with _errors(), self._file.writing() as db:
                for place in [(spec.name, partition) for spec in missing for partition in range(spec.partitions)]:
                    row = db.execute("INSERT INTO log_places VALUES (NULL, ?, ?, 0, 0)", place)
                    made[place] = _Partition(row.lastrowid or 0, 0, 0)
            self._partitions |= made
        self._kept |= {spec.name: _Kept.of(spec.configs) for spec in specs}
        for group in self.groups.values() if missing else ():
            group.rebalance()
        return []

    def count(self, topic: str) -> int:
        return sum(name == topic for name, _ in self._partitions)

    def end(self, place: Place) -> int:
        return self._partitions[place].end if place in self._partitions else 0

    def read(self, place: Place, offset: int, max_records: int) -> tuple[list[Record], int]:
        found: list[Record] = []
        size = 0
        with (
            _errors(),
            self._file.reading() as db,
            closing(
                db.execute(
                    "SELECT offset, key, at, headers, value FROM log_records WHERE place = ? AND offset >= ? ORDER BY offset LIMIT ?",
                    (self._partitions[place].id, offset, max_records),
                )
            ) as rows,
        ):
            for number, key, at, headers, stored in rows:
                value = None if stored is None else unpacked(stored)
                found.append(
                    Record(*place, number, key, value, json.loads(headers), _EPOCH + timedelta(microseconds=at))
                )
                size += len(value or b"")
                if size >= MAX_READ_BYTES or len(found) == max_records:
                    return found, number + 1
        return found, self.end(place)

    def offset_at(self, place: Place, oldest: datetime) -> int:
        with _errors(), self._file.reading() as db:
            row = db.execute(
                "SELECT offset FROM log_records WHERE place = ? AND at >= ? ORDER BY offset LIMIT 1",
                (self._partitions[place].id, (oldest - _EPOCH) // timedelta(microseconds=1)),
            ).fetchone()
        return self.end(place) if row is None else int(row[0])

    def committed_by(self, group: str, place: Place) -> Committed:
        return self._positions.get((group, place), NOTHING_COMMITTED)

    def store(self, records: Sequence[Outgoing], group: str, positions: Mapping[Place, Committed]) -> set[Place]:
        moved = {(group, each): to for each, to in positions.items() if self._positions.get((group, each)) != to}
        if not records and not moved:
            return set()
        now = self._now()
        written: dict[Place, _Partition] = {}
        rows: list[_Row] = []
        for record in records:
            place = self._place(record)
            partition = written.setdefault(place, replace(self._partitions[place]))
            value = None if record.value is None else packed(record.value)
            rows.append((partition.id, partition.end, record.key, now, json.dumps(dict(record.headers)), value))
            partition.end += 1
            partition.bytes += RECORD_BYTES + len(value or b"")
        with _errors(), self._file.writing() as db:
            db.executemany("INSERT INTO log_records VALUES (?, ?, ?, ?, ?, ?)", rows)
            for place, partition in written.items():
                new = [row for row in rows if row[0] == partition.id]
                _remove(db, partition, self._kept[place[0]], new)
                db.execute(
                    "UPDATE log_places SET next_offset = ?, bytes = ? WHERE id = ?",
                    (partition.end, partition.bytes, partition.id),
                )
            db.executemany(
                "INSERT OR REPLACE INTO log_positions VALUES (?, ?, ?, ?, ?)",
                [(name, *each, to.offset, to.note) for (name, each), to in moved.items()],
            )
        self._partitions |= written
        self._positions |= moved
        return set(written)

    def _place(self, record: Outgoing) -> Place:
        """Return where a record belongs; `Refused` if it is too large for its topic."""
        count, limit = self.count(record.topic), self._kept[record.topic].record_bytes
        if count == 0:
            raise BusError(f"topic {record.topic} does not exist")
        if limit is not None and len(record.value or b"") > limit:
            raise Refused(
                f"log: {record.topic} {record.key}: its size of {len(record.value or b''):,} bytes is above {limit:,}"
            )
        return record.topic, partition_of(record.key, count)


@contextmanager
def _errors() -> Iterator[None]:
    """Raise an error of the file as the bus's."""
    try:
        yield
    except FileUnavailable as error:
        raise BusError(f"log: {error}") from error


def _remove(db: Connection, partition: _Partition, kept: _Kept, new: Sequence[_Row]) -> None:
    """Remove what the topic does not keep, now that it has new records."""
    first, now = new[0][1], new[0][3]
    columns = "SELECT offset, ifnull(length(value), 0)"
    removed: dict[int, int] = {}
    if kept.is_compacted:
        older = f"{columns} FROM log_records WHERE place = ? AND key = ? AND offset < ? AND (at <= ? OR at > ?)"
        for key, offset in {row[2]: row[1] for row in new}.items():
            # A record of the future is one from before the clock was set back.
            removed.update(db.execute(older, (partition.id, key, offset, now - kept.compacted_age, now)).fetchall())
    if kept.tombstone_age is not None:
        tombstones = "SELECT key, offset FROM log_records WHERE place = ? AND value IS NULL AND at <= ? LIMIT ?"
        until = f"{columns} FROM log_records WHERE place = ? AND key = ? AND offset <= ?"
        oldest = now - kept.tombstone_age
        for key, offset in db.execute(tombstones, (partition.id, oldest, MAX_TOMBSTONES_REMOVED)).fetchall():
            removed.update(db.execute(until, (partition.id, key, offset)).fetchall())
    if kept.age is not None or kept.bytes is not None:
        oldest_first = f"{columns}, at FROM log_records WHERE place = ? AND offset < ? ORDER BY offset LIMIT ?"
        excess = 0 if kept.bytes is None else partition.bytes - sum(removed.values()) - kept.bytes
        for offset, size, at in db.execute(oldest_first, (partition.id, first, REMOVED_EACH * len(new))).fetchall():
            if excess > 0 or (kept.age is not None and at <= now - kept.age):
                removed[offset] = size
                excess -= size + RECORD_BYTES
    db.executemany("DELETE FROM log_records WHERE place = ? AND offset = ?", [(partition.id, each) for each in removed])
    partition.bytes -= sum(removed.values()) + RECORD_BYTES * len(removed)
