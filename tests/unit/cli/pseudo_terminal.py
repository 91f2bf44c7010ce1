"""The command on a pseudo-terminal, as a user's screen would show it."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass

import typer.main

from weir_cli.__main__ import app, main

UNEXPECTED = 70
"""Exit code of a process that ended with an exception."""
_STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Shown:
    """Lines as the command wrote them, without colours, and its exit code."""

    code: int
    raw: str
    is_restored: bool = True
    """Whether the terminal has its usual modes: it reads whole lines, echoes them, and Return ends one."""

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in _STYLES.sub("", self.raw).replace("\r\n", "\n").splitlines()]


def on_terminal(columns: int, *arguments: str, seconds: float = 30.0) -> Shown:
    """Run the command on a terminal of this width. A fork, since a new process would import for a second."""
    typer.main.get_command(app)  # built once, before the forks

    def command() -> None:
        sys.argv = ["weir", *arguments]
        main()

    return in_terminal(columns, command, seconds=seconds)


def in_terminal(
    columns: int,
    run: Callable[[], None],
    reacts: Callable[[int, int, str], object] = lambda *_: None,
    seconds: float = 30.0,
) -> Shown:
    """Run a function on a terminal of this width, in a fork. `reacts` gets the process, the terminal, and what was shown so
    far, after each write."""
    pid, terminal = pty.fork()
    if pid == 0:
        _child(columns, run)
    written, until = b"", time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            read = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        written += read
        reacts(pid, terminal, written.decode(errors="ignore"))
    modes = termios.tcgetattr(terminal)
    is_restored = all((modes[3] & termios.ICANON, modes[3] & termios.ECHO, modes[0] & termios.ICRNL))
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return Shown(os.waitstatus_to_exitcode(status), written.decode(), is_restored)


def _child(columns: int, run: Callable[[], None]) -> None:
    """Be the process on the terminal, and end as it does."""
    code = UNEXPECTED
    try:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.environ.pop("COLUMNS", None)
        os.environ["TERM"] = "xterm-256color"
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        os._exit(code)
