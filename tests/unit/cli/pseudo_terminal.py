"""The command on a pseudo-terminal, as a user's screen would show it."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from dataclasses import dataclass

import typer.main

from weir_cli.__main__ import app, main

_STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Shown:
    """Lines as the command wrote them, without colours, and its exit code."""

    code: int
    raw: str

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in _STYLES.sub("", self.raw).replace("\r\n", "\n").splitlines()]


def on_terminal(columns: int, *arguments: str, seconds: float = 30.0) -> Shown:
    """Run the command on a terminal of this width. A fork, since a new process would import for a second."""
    typer.main.get_command(app)  # built once, before the forks
    pid, terminal = pty.fork()
    if pid == 0:
        _command(columns, arguments)
    written, until = b"", time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            read = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        written += read
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return Shown(os.waitstatus_to_exitcode(status), written.decode())


def _command(columns: int, arguments: tuple[str, ...]) -> None:
    """Be the command, and end as it does."""
    code = 70
    try:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.environ.pop("COLUMNS", None)
        os.environ["TERM"] = "xterm-256color"
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["weir", *arguments]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        os._exit(code)
