"""The stateful processor in Spark's Python workers. Imports little: every worker pays for it in memory and start-up
time."""

# ruff: noqa: N802, N803 - the names are PySpark's

import gc
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from weir_analyzer.core import AnalysisSettings
from weir_contracts.topics import OBSERVATIONS
from weir_runtime.bus import Outgoing, Record
from weir_runtime.clock import SystemClock
from weir_runtime.reading import LetterRate

from .processing import Lost, StoredState, process, seeded

STATE_SCHEMA = "memory BINARY, partition INT, offset BIGINT"
OUTPUT_SCHEMA = "topic STRING, key STRING, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


_RATE = LetterRate(SystemClock())
"""Of this process: a worker outlives its tasks."""


@cache
def _freeze_imports(process_id: int) -> None:
    """Exempt the imports from garbage collection, once in each process: PySpark collects after each task."""
    del process_id
    gc.freeze()


class ApplicationProcessor(StatefulProcessor):  # type: ignore[misc]
    """The state and records of one application at a time, handed to the pure core."""

    def __init__(self, settings: AnalysisSettings, lost: Mapping[int, Lost]) -> None:
        self._settings = settings
        self._lost = dict(lost)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called once for each task."""
        _freeze_imports(os.getpid())
        self._state = handle.getValueState("application", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """All new records of one application in this batch."""
        del timerValues
        stored = self._state.get()
        before = None if stored is None else StoredState(bytes(stored[0]), stored[1], stored[2])
        after, out = process(
            str(key[0]), before, [_record(row) for row in rows], self._settings, self._lost, rate=_RATE
        )
        if after is not None:
            self._state.update((after.state, after.partition, after.offset))
        elif before is not None:
            self._state.clear()
        for record in out:
            yield _row(record)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """The latest analysis of an application, when the checkpoint is new."""
        del key, timerValues
        state = seeded(None if initialState.value is None else bytes(initialState.value))
        if state is not None:
            self._state.update((state.state, state.partition, state.offset))

    def close(self) -> None:
        """Nothing is held beyond a call."""


def _record(row: Row) -> Record:
    return Record(
        topic=OBSERVATIONS.name,
        partition=row.partition,
        offset=row.offset,
        key=row.application,
        value=None if row.value is None else bytes(row.value),
        headers={
            name: value
            for name, value in (("traceparent", row.traceparent), ("ce_type", row.type))
            if value is not None
        },
        timestamp=row.timestamp.astimezone() if row.timestamp is not None else None,
    )


def _row(record: Outgoing) -> Row:
    headers = [Row(key=name, value=value.encode()) for name, value in record.headers.items()]
    return Row(topic=record.topic, key=record.key, value=record.value, headers=headers)
