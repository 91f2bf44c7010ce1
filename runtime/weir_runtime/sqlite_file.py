"""The file that holds log and store of one process: SQLite in WAL mode, with a lock, a format and sentences for its errors.

Statements run on the event loop, since each takes less than a millisecond: a commit only writes to the operating system's
cache. A thread copies what was committed into the database and syncs it to the disk, once a second. So a killed
process loses no write that it acknowledged; a power cut may cost the last second, of log and store alike.
"""

import fcntl
import os
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import structlog

from .clock import Clock

APPLICATION_ID = 0x57656972
"""`Weir`, in the header of the file."""
MIN_FREE_BYTES = 32_000_000
"""Of the disk. Below it nothing is written: a log and a database that are copied into one another need room for both."""
CHECKPOINT_SECONDS = 1.0
MAX_WAL_BYTES = 16_000_000
"""Of what was not copied into the database. Above it a checkpoint keeps writers waiting for some milliseconds."""
BUSY_SECONDS = 5.0
MIN_PACKED_BYTES = 200
LEVEL = 1
"""Of deflate: half the time of the default, for 5 % more bytes."""
_PLAIN, _PACKED = b"\0", b"\1"
Schema = Sequence[Sequence[str]]
"""Statements that lead from each version of a part of the file to the next, the first from nothing."""
_NEW_FILE = ("CREATE TABLE formats (part TEXT PRIMARY KEY, version INTEGER NOT NULL)",)
_log = structlog.get_logger("sqlite")


class FileUnusable(Exception):
    """The file cannot be opened; the sentence names it and the remedy."""


class FileUnavailable(Exception):
    """The file cannot be read or written now; a retry may succeed."""


class FileFull(FileUnavailable):
    """There is no room to write; reads continue."""


class SqliteFile:
    """The connection of this process to its file. It belongs to the thread that opened it."""

    def __init__(self, path: Path, clock: Clock, lock: IO[str], min_free_bytes: int) -> None:
        self.path, self.clock, self.min_free_bytes = path, clock, min_free_bytes
        self._lock = lock
        self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=256)
        self._written = 0
        """Transactions."""
        self._closing = threading.Event()
        self._checkpoints = threading.Thread(target=self._checkpoint, name="sqlite-checkpoints", daemon=True)

    @classmethod
    def open(cls, path: Path, clock: Clock, *, min_free_bytes: int = MIN_FREE_BYTES) -> "SqliteFile":
        """Open or make the file, and its folder; `FileUnusable` if it is another program's, or in use."""
        path = path.absolute()
        is_first = not os.path.lexists(_lock_of(path))  # in a closed folder Path raises
        lock = _locked(path)
        try:
            if not path.exists():
                path.touch(mode=0o600)  # policies name what belongs to their users
            file = cls(path, clock, lock, min_free_bytes)
            try:
                file._begin()
            except BaseException:
                file._db.close()
                raise
        except BaseException as error:
            if is_first:
                # Deleted while it is held: a process that waits for it notices that, and opens a new one.
                _lock_of(path).unlink(missing_ok=True)
            lock.close()
            if isinstance(error, OSError | sqlite3.Error):
                raise FileUnusable(f"{path} cannot be opened: {error}") from error
            raise
        return file

    def _begin(self) -> None:
        try:
            (application,) = self._db.execute("PRAGMA application_id").fetchone()
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != APPLICATION_ID and tables:
                raise FileUnusable(_foreign(self.path))
            (mode,) = self._db.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise FileUnusable(
                    f"{self.path} cannot have a write-ahead log on this file system: name another folder"
                )
            for setting in ("synchronous = NORMAL", "wal_autocheckpoint = 0", f"journal_size_limit = {MAX_WAL_BYTES}"):
                self._db.execute(f"PRAGMA {setting}")
            if not tables:
                with self.writing() as db:
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    for statement in _NEW_FILE:
                        db.execute(statement)
        except FileUnavailable as error:
            raise FileUnusable(str(error)) from error
        except sqlite3.DatabaseError as error:
            is_foreign = error.sqlite_errorcode == sqlite3.SQLITE_NOTADB
            raise FileUnusable(_foreign(self.path) if is_foreign else self._explain(error)) from error
        self._checkpoints.start()

    def prepare(self, part: str, schema: Schema) -> None:
        """Bring the tables of a part to their newest version; `FileUnusable` if a newer program wrote them."""
        with self.reading() as db:
            found = db.execute("SELECT version FROM formats WHERE part = ?", (part,)).fetchone()
        version = found[0] if found else 0
        if version > len(schema):
            raise FileUnusable(
                f"{self.path} was written by a newer Weir ({part} {version}, this one reads up to {len(schema)}): "
                "install that version, or name another folder"
            )
        for number, statements in enumerate(schema[version:], version + 1):
            with self.writing() as db:
                for statement in statements:
                    db.execute(statement)
                db.execute("INSERT OR REPLACE INTO formats VALUES (?, ?)", (part, number))

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection; `FileUnavailable` for an error of the file."""
        if self._closing.is_set():
            raise FileUnavailable(f"{self.path} is closed")
        try:
            yield self._db
        except sqlite3.Error as error:
            kind = FileFull if _code(error) == sqlite3.SQLITE_FULL else FileUnavailable
            raise kind(self._explain(error)) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for one transaction: all that is written in it, or nothing. Errors as `reading`."""
        with self.reading() as db:
            self.check_room()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            self._written += 1

    def check_room(self) -> None:
        """Return if the disk has room; `FileFull` otherwise."""
        free = shutil.disk_usage(self.path.parent).free
        if free < self.min_free_bytes:
            raise FileFull(self._full(free))

    def _full(self, free: int) -> str:
        return (
            f"the disk of {self.path.parent} is full ({free / 1e6:.0f} MB free): "
            f"Weir holds and writes nothing until {self.min_free_bytes / 1e6:.0f} MB are free"
        )

    def _explain(self, error: sqlite3.Error) -> str:
        code = _code(error)
        if code == sqlite3.SQLITE_FULL:
            return self._full(shutil.disk_usage(self.path.parent).free)
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return f"{self.path} cannot be written: {error}: give this user the right to write it and its folder"
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return f"{self.path} is damaged: {error}: restore a copy, or move it away and begin without history"
        return f"{self.path}: {error}"

    def _checkpoint(self) -> None:
        """Copy what was committed into the database, and sync it, until closed."""
        copied, problem = 0, ""
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as db:
            (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
            while not self._closing.wait(CHECKPOINT_SECONDS):
                written = self._written
                if written == copied:
                    continue
                try:
                    _, pages, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    if pages * page_bytes > MAX_WAL_BYTES:
                        # Writers that never pause would let it grow: the next one begins it again.
                        db.execute("PRAGMA wal_checkpoint(RESTART)")
                    copied, problem = written, ""
                except sqlite3.Error as error:
                    if problem != (problem := self._explain(error)):
                        _log.warning("not-synced", reason=problem, retry_in_seconds=CHECKPOINT_SECONDS)

    def close(self) -> None:
        """Copy the rest, and let another process have the file."""
        self._closing.set()
        if self._checkpoints.is_alive():
            self._checkpoints.join()
        self._db.close()
        self._lock.close()


def packed(content: bytes) -> bytes:
    """Return what is stored of a content: deflated if that is shorter. JSON shrinks to about a seventh."""
    if len(content) >= MIN_PACKED_BYTES:
        deflated = zlib.compress(content, LEVEL)
        if len(deflated) < len(content):
            return _PACKED + deflated
    return _PLAIN + content


def unpacked(stored: bytes) -> bytes:
    return zlib.decompress(stored[1:]) if stored.startswith(_PACKED) else stored[1:]


def _code(error: sqlite3.Error) -> int | None:
    """Return the primary code of an error; None for one of Python's module."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _foreign(path: Path) -> str:
    return f"{path} is a file of another program: name another folder, or move that file away"


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _locked(path: Path) -> IO[str]:
    """Return the open lock of a file. It ends with the process, however that ends; children do not inherit it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock_of(path).open("a+")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FileUnusable(
            f"{path.parent} is not writable ({reason}): give this user the right to write there, or name another folder"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        if not isinstance(error, BlockingIOError):
            raise FileUnusable(f"{path} cannot be locked ({error.strerror}): name another folder") from error
        raise FileUnusable(
            f"{path} is in use by another process{f' ({holder})' if holder else ''}: end it, or name another folder"
        ) from error
    try:
        is_in_place = os.path.samestat(os.fstat(lock.fileno()), _lock_of(path).stat())
    except FileNotFoundError:
        is_in_place = False
    if not is_in_place:
        lock.close()
        return _locked(path)  # a process that was refused has removed the one that it made
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
