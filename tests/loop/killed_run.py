"""`weir run` that is killed at a write of its file: `python killed_run.py SIDE NUMBER ARGUMENTS…`.

Writes count from the first plan that rescales on. SIDE is `before` or `after` the commit; NUMBER 0: it is not killed.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from sqlite3 import Connection

from weir_cli import main
from weir_contracts.topics import PLANS
from weir_runtime.bus import Committed, Outgoing, Place
from weir_runtime.sqlite_bus import SqliteBus
from weir_runtime.sqlite_file import SqliteFile


class Kill:
    """Counts the writes, and kills this process at one."""

    def __init__(self, side: str, number: int) -> None:
        self._side, self._number = side, number
        self._writes = 0
        self._counts = False

    def install(self) -> None:
        """See all writes from now on."""
        original_store, original_writing = SqliteBus.store, SqliteFile.writing

        def store(
            bus: SqliteBus, records: Sequence[Outgoing], group: str, positions: Mapping[Place, Committed]
        ) -> set[Place]:
            plans = (each.value or b"" for each in records if each.topic == PLANS.name)
            self._counts = self._counts or any(b'"kind":"scale"' in plan for plan in plans)
            return original_store(bus, records, group, positions)

        @contextmanager
        def writing(file: SqliteFile) -> Iterator[Connection]:
            self._writes += self._counts
            is_last = self._counts and self._writes == self._number
            with original_writing(file) as db:
                yield db
                if is_last and self._side == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)

        SqliteBus.store, SqliteFile.writing = store, writing  # type: ignore[method-assign, assignment]


if __name__ == "__main__":  # the processes of planners import this file
    Kill(sys.argv[1], int(sys.argv[2])).install()
    sys.argv = ["weir", *sys.argv[3:]]
    main()
