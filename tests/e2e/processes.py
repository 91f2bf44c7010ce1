"""The command, and what a trial of it has running."""

import sys
from pathlib import Path

import psutil

from testbed.register import MARK, living

WEIR = Path(sys.executable).parent / "weir"


def descendants(run: str) -> list[psutil.Process]:
    """Processes that carry the mark of a testbed whose run folder is `run`."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        environment = process.info["environ"] or {}
        command = " ".join(process.info["cmdline"] or [])
        if MARK in environment and run in f"{command} {environment.get('WEIR_ANALYZER_CHECKPOINT', '')}":
            found.append(process)
    return found


def left(folder: Path) -> list[object]:
    """Return processes that a trial in `folder` left running: its own by its register, their children by the mark."""
    return [*living(folder / "runs"), *descendants(str(folder))]
