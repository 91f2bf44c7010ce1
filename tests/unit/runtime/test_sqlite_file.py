"""The file of one process: whose it is, its format, its room, and what it says when it cannot be used."""

import fcntl
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from weir_runtime.clock import SystemClock
from weir_runtime.sqlite_file import FileFull, FileUnavailable, FileUnusable, SqliteFile, packed, unpacked

HOLDER = """
import fcntl, os, sys
lock = open(sys.argv[1], "a+")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(str(os.getpid()))
lock.flush()
print("locked", flush=True)
sys.stdin.read()
"""
"""Another process that has the file open."""


def opened(path: Path) -> SqliteFile:
    return SqliteFile.open(path, SystemClock())


def refused(path: Path) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(FileUnusable) as error:
        opened(path)
    return str(error.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """In a folder that does not exist yet."""
    return tmp_path / "data" / "weir.db"


def make(path: Path, *statements: str) -> None:
    """Make a database as another program does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def test_a_file_is_made_with_its_folder_and_opened_again(path: Path) -> None:
    """With what was written; only its user may read it."""
    file = opened(path)
    file.prepare("log", [["CREATE TABLE numbers (number INTEGER)"]])
    with file.writing() as db:
        db.execute("INSERT INTO numbers VALUES (7)")
    file.close()
    assert path.stat().st_mode & 0o777 == 0o600
    file = opened(path)
    file.prepare("log", [["CREATE TABLE numbers (number INTEGER)"]])
    with file.reading() as db:
        assert db.execute("SELECT number FROM numbers").fetchall() == [(7,)]
    file.close()


def test_a_second_process_is_refused(path: Path) -> None:
    """It would decide and act next to the first. The sentence names the file, the process and what to do; once that one
    has ended, however it ended, the file is free."""
    path.parent.mkdir()
    lock = path.with_name("weir.db.lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        assert refused(path) == f"{path} is in use by another process ({holder.pid}): end it, or name another folder"
        assert not path.exists()
        holder.kill()
    opened(path).close()


def test_a_file_of_another_program_is_refused_and_left_as_it_was(path: Path) -> None:
    """Another SQLite database, one of a text, and one that is empty inside: only the last may be made Weir's. No lock
    stays next to the others, unless it was there."""
    foreign = f"{path} is a file of another program: name another folder, or move that file away"
    make(path, "CREATE TABLE songs (title TEXT)", "PRAGMA user_version = 3")
    before = path.read_bytes()
    assert refused(path) == foreign
    assert path.read_bytes() == before
    lock = path.with_name("weir.db.lock")
    assert not lock.exists()
    lock.touch()
    path.write_text("a letter of more than a hundred characters, " * 40)
    assert refused(path) == foreign
    assert lock.exists()
    path.write_bytes(b"")
    opened(path).close()
    assert path.read_bytes().startswith(b"SQLite format 3")


def test_a_lock_that_was_removed_meanwhile_holds_no_other_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process opened the lock, and the one that had made it was refused and removed it: the file is locked by its new lock."""
    path.parent.mkdir()
    lock, real = path.with_name("weir.db.lock"), fcntl.flock
    removals = iter([lock.unlink])

    def raced(file: IO[str], operation: int) -> None:
        next(removals, lambda: None)()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", raced)
    file = opened(path)
    assert lock.read_text() == str(os.getpid())
    assert "in use by another process" in refused(path)
    file.close()


def test_a_newer_file_is_refused(path: Path) -> None:
    """An older program would not understand what it reads; the sentence names both versions."""
    file = opened(path)
    file.prepare("log", [["CREATE TABLE a (x)"], ["CREATE TABLE b (x)"]])
    with pytest.raises(FileUnusable) as error:
        file.prepare("log", [["CREATE TABLE a (x)"]])
    file.close()
    assert str(error.value) == (
        f"{path} was written by a newer Weir (log 2, this one reads up to 1): install that version, or name another folder"
    )


def test_an_older_file_is_migrated_step_by_step(path: Path) -> None:
    """Each part of the file by itself; a step that fails leaves the version before it, complete."""
    first = ["CREATE TABLE names (name TEXT)", "INSERT INTO names VALUES ('orders')"]
    file = opened(path)
    file.prepare("log", [first])
    file.prepare("knowledge", [["CREATE TABLE other (x)"]])
    file.close()
    file = opened(path)
    second = ["ALTER TABLE names ADD COLUMN size INTEGER DEFAULT 1"]
    with pytest.raises(FileUnavailable, match="near"):
        file.prepare("log", [first, [*second, "CREATE NONSENSE"]])
    file.prepare("log", [first, second, ["UPDATE names SET size = size + 1"]])
    file.prepare("log", [first, second, ["UPDATE names SET size = size + 1"]])
    with file.reading() as db:
        assert db.execute("SELECT * FROM names").fetchall() == [("orders", 2)]
        assert dict(db.execute("SELECT * FROM formats").fetchall()) == {"log": 3, "knowledge": 1}
    file.close()


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Without root's rights, which no folder refuses."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


def test_a_folder_that_is_not_writable_is_named(tmp_path: Path, as_nobody: None) -> None:
    """With what to do. A folder in place of which there is a file is as good as none."""
    tmp_path.chmod(0o500) if os.geteuid() != 65534 else None
    right = "give this user the right to write there, or name another folder"
    assert refused(tmp_path / "weir.db") == f"{tmp_path} is not writable (Permission denied): {right}"
    assert refused(Path("/dev/null/weir.db")) == f"/dev/null is not writable (File exists): {right}"


def test_a_damaged_file_is_reported(path: Path) -> None:
    """Its pages were overwritten: the sentence names the file and the way on."""
    file = opened(path)
    file.prepare("log", [["CREATE TABLE numbers (number BLOB)"]])
    with file.writing() as db:
        db.execute("INSERT INTO numbers VALUES (zeroblob(100000))")
    file.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    file = opened(path)
    with pytest.raises(FileUnavailable) as error:
        file.prepare("log", [["CREATE TABLE numbers (number BLOB)"]])
    file.close()
    assert str(error.value).startswith(f"{path} is damaged: ")
    assert str(error.value).endswith("restore a copy, or move it away and begin without history")


def test_a_full_disk_holds_every_write_and_loses_nothing(path: Path) -> None:
    """Before the disk is full to its last byte, and also where SQLite itself finds no page: the transaction is undone, the
    sentence says what is held and until when, reads succeed, and with room the same write does."""
    file = opened(path)
    file.prepare("log", [["CREATE TABLE numbers (number BLOB)"]])

    def write() -> None:
        with file.writing() as db:
            db.executemany("INSERT INTO numbers VALUES (zeroblob(1000))", [()] * 100)

    def count() -> int:
        with file.reading() as db:
            return int(db.execute("SELECT count(*) FROM numbers").fetchone()[0])

    sentence = (
        rf"the disk of {path.parent} is full \(\d+ MB free\): "
        r"Weir holds and writes nothing until \d+ MB are free"
    )
    kept, file.min_free_bytes = file.min_free_bytes, 2**60
    with pytest.raises(FileFull, match=sentence):
        write()
    assert count() == 0
    file.min_free_bytes = kept
    with file.reading() as db:
        db.execute("PRAGMA max_page_count = 20")
    with pytest.raises(FileFull, match=sentence):
        write()
    assert count() == 0
    with file.reading() as db:
        db.execute("PRAGMA max_page_count = 1000000")
    write()
    assert count() == 100
    file.close()


def test_a_closed_file_is_unavailable(path: Path) -> None:
    """A task that still runs gets a sentence, not an error of the library; closing twice is no error."""
    file = opened(path)
    file.close()
    file.close()
    with pytest.raises(FileUnavailable, match=r"weir\.db is closed"), file.reading():
        pass


@pytest.mark.parametrize("content", [b"", b"\0", b"\1", b"{}", b"long " * 100, os.urandom(1000), b"\1" * 500])
def test_what_is_packed_comes_back(content: bytes) -> None:
    """Whatever it is; and long JSON takes less room."""
    assert unpacked(packed(content)) == content
    assert len(packed(content)) <= len(content) + 1
