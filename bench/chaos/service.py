"""`python -m bench.chaos.service weir_NAME`: a service whose clock is wrong by the seconds in a file, and whose
clients at the brokers have its name.

The campaign's way to set one process's clock: services read it in one place, and their HTTP servers in `time.time`.
"""

import os
import runpy
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from weir_runtime import kafka_consumer
from weir_runtime.clock import SystemClock

FOLDER, NAME = "CHAOS_FOLDER", "CHAOS_NAME"
"""Environment: where the files of clocks are, and the service's name in the campaign, by default its own."""


def clock_file(folder: Path, name: str) -> Path:
    """Return the file with the seconds by which a service's clock is ahead."""
    return folder / f"{name}.clock"


def main() -> None:
    """Replace the clock and the random part of client ids, and run the module that the command line names."""
    name = os.environ.get(NAME, sys.argv[1].removeprefix("weir_"))
    clock, right_time = clock_file(Path(os.environ[FOLDER]), name), time.time

    def ahead_seconds() -> float:
        try:
            return float(clock.read_text() or 0.0)
        except FileNotFoundError:
            return 0.0

    def now(_: SystemClock) -> datetime:
        return datetime.fromtimestamp(right_time(), UTC) + timedelta(seconds=ahead_seconds())

    SystemClock.now = now  # type: ignore[method-assign, assignment]
    time.time = lambda: right_time() + ahead_seconds()
    kafka_consumer.uuid4 = lambda: SimpleNamespace(hex=name)  # type: ignore[assignment, attr-defined, return-value]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
