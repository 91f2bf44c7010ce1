"""How anything reaches the user's terminal: texts from outside without control characters, in any encoding, and tables
for any width; and the keys that the user presses."""

import codecs
import contextlib
import copy
import io
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

try:
    import termios
    import tty
except ImportError:  # Windows
    HAS_KEYS = False
else:
    HAS_KEYS = True

MAX_COLUMNS = 10_000
MIN_CELL_COLUMNS = 10
"""A cell that may be cut or wrapped is at least this wide, if its text is. A line that is wider for it is wrapped by the
terminal."""
FIRST_PROGRESS_SECONDS = 2.0
_SPELLED = {
    "→": "->", "–": "-", "—": "-", "…": "...", "×": "x", "÷": "/", "·": "-", "━": "=", "─": "-", "│": "|", "ß": "ss",
    "≥": ">=", "≤": "<=", "±": "+-",
}  # fmt: skip
"""Spelling of characters in an encoding that lacks them; others become a question mark."""


def _spelled(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)  # noqa: S101 - it is registered for encoders only
    lacking = error.object[error.start : error.end]
    return "".join(_SPELLED.get(each, "#" if 0x2800 <= ord(each) < 0x2900 else "?") for each in lacking), error.end


codecs.register_error("weir-spelled", _spelled)


def prepare_output() -> None:
    """Let standard output and standard error accept every character: what their encoding lacks is spelled otherwise."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before the command started
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="weir-spelled")


def discard_output() -> None:
    """Send what is still buffered nowhere: Python would fail again when it flushes at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # no file
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def visible(text: str) -> str:
    """Return the text with control characters and marks of direction escaped, line by line: names and messages come from
    outside, and a terminal would follow what they contain."""
    lines = text.split("\n")
    if all(line.isprintable() for line in lines):
        return text
    # Contracts are half a second of imports.
    from weir_contracts import printable

    return "\n".join(printable(line, len(line)) for line in lines)


def say(text: str, *, error: bool = False) -> None:
    """Print a sentence as a line, at once."""
    stream = sys.stderr if error else sys.stdout
    # There is no other place to report that standard error cannot be written.
    with contextlib.suppress(OSError) if error else contextlib.nullcontext():
        stream.write(f"{visible(text)}\n")
        stream.flush()


class _Terminal(Console):
    """Prints texts as they are, without markup, but for control characters; never cuts a line."""

    def _shown(self, text: str) -> str:
        # Spelled before the layout, so that boxes and columns stay straight.
        return visible(text).encode(self.encoding, "weir-spelled").decode(self.encoding)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(self._shown(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Any:
        if isinstance(renderable, Text) and (shown := self._shown(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = shown
        return super().render(renderable, options)

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        super().print(*objects, crop=crop, **options)


def terminal(**options: Any) -> Console:
    """Return the screen that commands print to."""
    return _Terminal(markup=False, emoji=False, **options)


class Listing(Table):
    """Table without lines. Columns with `no_wrap` and numbers (`justify="right"`) keep their width, whatever the
    terminal's; others are cut or wrapped, as their cells are."""

    def __init__(self, *headings: str, optional: Sequence[str] = (), **options: Any) -> None:
        """Begin with a column that keeps its width for each heading; those in `optional` are left out, last first, where
        the terminal is too narrow. A program that reads the output gets all, and no cell is cut."""
        super().__init__(box=None, header_style="bold", pad_edge=False, **options)
        self._optional = tuple(optional)
        for heading in headings:
            self.add_column(heading, no_wrap=True)

    def add_column(self, header: RenderableType = "", *arguments: Any, **options: Any) -> None:
        options.setdefault("no_wrap", options.get("justify") == "right")
        header = Text(header, no_wrap=True, overflow="ellipsis") if isinstance(header, str) else header
        super().add_column(header, *arguments, **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept, most = list(self.columns), options.max_width
        if console.is_terminal:
            for column in reversed(self.columns):
                if _width(console, kept) > most and str(column.header) in self._optional:
                    kept.remove(column)
        shown = copy.copy(self)
        shown.columns = [replace(column, _index=i) for i, column in enumerate(kept)]
        width = max(most, _width(console, kept, whole=not console.is_terminal))
        yield from Table.__rich_console__(shown, console, options.update(max_width=width))


def _width(console: Console, columns: Sequence[Column], *, whole: bool = False) -> int:
    """Return the minimum width of a line: a column is as wide as its widest cell, or less where cells may be cut or
    wrapped, unless `whole`."""
    unlimited, width = console.options.update(width=MAX_COLUMNS), 2 * (len(columns) - 1)
    for column in columns:
        widest = max(Measurement.get(console, unlimited, cell).maximum for cell in (column.header, *column.cells))
        width += widest if whole or column.no_wrap else min(widest, MIN_CELL_COLUMNS)
    return width


def show_table(table: Table, *, wide: bool) -> None:
    """Print a table; `wide`: with all columns, as wide as its longest cells."""
    console = terminal()
    if wide:
        unlimited = console.options.update(width=MAX_COLUMNS)
        console.width = max(console.width, Measurement.get(console, unlimited, table).maximum)
    console.print(table)


class Progress:
    """How far a long work is, as a line on standard error that is written over and removed at its end. Without a
    terminal, and for a short work, nothing is printed."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, False
        self._due = time.monotonic() + FIRST_PROGRESS_SECONDS

    def show(self, done: str) -> None:
        """Say what is done, at most twice a second."""
        if time.monotonic() < self._due or not sys.stderr.isatty():
            return
        self._due, self._shown = time.monotonic() + 0.5, True
        with contextlib.suppress(OSError):
            sys.stderr.write(f"\r\x1b[K{visible(self._what)}: {done}")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._shown:
            with contextlib.suppress(OSError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


@dataclass(frozen=True)
class Keyboard:
    """The keys of a terminal, each at once and without an echo."""

    descriptor: int

    def pressed(self) -> str:
        """Return the characters typed since the last call; empty while another process has the terminal."""
        # A process in the background would be stopped by a read, and by a change of the terminal.
        if not _is_in_foreground(self.descriptor):
            return ""
        if termios.tcgetattr(self.descriptor)[3] & termios.ICANON:  # a shell set it meanwhile
            tty.setcbreak(self.descriptor, termios.TCSANOW)
        if not select.select([self.descriptor], [], [], 0)[0]:
            return ""
        return os.read(self.descriptor, 1024).decode(errors="ignore")


@contextmanager
def keyboard() -> Iterator[Keyboard | None]:
    """Return the keys of standard input until the end of the block, which restores the terminal; None where there is
    none."""
    try:
        descriptor = sys.stdin.fileno()
        found = HAS_KEYS and os.isatty(descriptor) and _is_in_foreground(descriptor)
    except (AttributeError, OSError, ValueError):  # it is closed, or no file
        found = False
    if not found:
        yield None
        return
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSANOW)
    try:
        yield Keyboard(descriptor)
    finally:
        with contextlib.suppress(OSError, termios.error):  # the terminal was closed
            if _is_in_foreground(descriptor):
                termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _is_in_foreground(descriptor: int) -> bool:
    return os.tcgetpgrp(descriptor) == os.getpgrp()
