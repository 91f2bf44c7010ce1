"""The checkpoint of the stream: its place, its offsets, and its damage."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weir_analyzer.core import STATE_VERSION
from weir_analyzer.settings import AnalyzerSettings
from weir_contracts.topics import OBSERVATIONS

from .processing import Lost


def base_of(settings: AnalyzerSettings) -> str:
    """The folder or URL that holds all of them."""
    base = settings.checkpoint.rstrip("/")
    return base if "://" in base else str(Path(base).resolve())


def checkpoint_of(settings: AnalyzerSettings, cluster_id: str) -> str:
    """Where the state is kept: another cluster, partition count, split of the state or version is another place."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", cluster_id) or "unknown"
    parts = f"{name}-p{settings.partitions}-s{settings.shuffle_partitions}-v{STATE_VERSION}"
    return f"{base_of(settings)}/{parts}"


def located(session: Any, place: str) -> tuple[Any, Any]:
    """Return Hadoop's path of a folder or URL, and its file system."""
    path = session.sparkContext._jvm.org.apache.hadoop.fs.Path(place)
    return path, path.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())


def offsets_in(session: Any, checkpoint: str) -> dict[int, int] | None:
    """The next offset of each partition of the observations in the checkpoint; None if it is new."""
    folder, files = located(session, f"{checkpoint}/offsets")
    if not files.exists(folder):
        return None
    batches = [status.getPath() for status in files.listStatus(folder) if status.getPath().getName().isdigit()]
    if not batches:
        return None
    stream = files.open(max(batches, key=lambda path: int(path.getName())))
    try:
        text = str(session.sparkContext._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()
    return parse_offsets(text)


_DAMAGED = re.compile(
    r"\[(CANNOT_LOAD_STATE_STORE\.(CANNOT_(FIND|READ)|INVALID_|KEY_ROW|VALUE_ROW|SNAPSHOT_|UNEXPECTED_|AUTO_SNAPSHOT)"
    r"|STATE_STORE_(BASE_CHECKPOINT|CHECKPOINT_LOCATION|COLUMN_FAMILY_SCHEMA|INVALID_CONFIG|INVALID_VALUE_SCHEMA|INVALID_VARIABLE)"
    r"|STATE_STORE_((KEY|VALUE)_(ROW|SCHEMA)|ROW_CHECKSUM|STATE_SCHEMA)|STREAMING_CHECKPOINT_MISSING|STREAMING_STATEFUL_OPERATOR"
    r"|MALFORMED_LOG_FILE|INVALID_LOG_VERSION|BATCH_METADATA_NOT_FOUND|CHECKPOINT_FILE_CHECKSUM)"
    r"|Incomplete log file|batch \d+ doesn't exist|Corruption: "
    r"|\.(OffsetSeqLog|CommitLog|HDFSMetadataLog|StateSchema\w*|OperatorStateMetadata\w*)\$?\.(deserialize|fromJson)|\.StreamMetadata\$?\.read"
)
"""Spark's error conditions, and messages of it and RocksDB without one, of logs and state that are damaged or of
another form; and the place in Spark's code that reads a truncated log, which has no message."""
_UNREADABLE = re.compile(
    r"ChecksumException|EOFException|FileNotFoundException|NoSuchFileException|ZipException|JsonParseException|MismatchedInputException"
)
"""Of any file: they count where the causes name the checkpoint or the loading of state."""
_AROUND_IT = re.compile(
    r"No space left|Disk quota|Read-only file system|Input/output error|Too many open files|Permission denied|AccessControlException"
    r"|OutOfMemory|OUT_OF_MEMORY|ClassNotFoundException|NoClassDefFoundError|Python worker|KafkaException"
    r"|ConnectException|SocketException|UnknownHostException|TimeoutException|timed out|InterruptedException|ClosedByInterrupt"
)


def is_damaged(causes: Sequence[str], checkpoint: str) -> bool:
    """Return whether the causes of a death, with their stack traces, name damage of the checkpoint and nothing around
    it.

    A full disk also shows as a file that cannot be read: in doubt the checkpoint is kept.
    """
    text = "\n".join(causes)
    if _AROUND_IT.search(text):
        return False
    named = checkpoint in text or "CANNOT_LOAD_STATE_STORE" in text
    return bool(_DAMAGED.search(text) or (named and _UNREADABLE.search(text)))


def parse_offsets(text: str) -> dict[int, int] | None:
    """Read a file of Spark's offset log: version, metadata, then one line for each source; None if it is another kind."""
    for line in text.splitlines()[2:]:
        try:
            topics = json.loads(line)
            return {int(partition): int(offset) for partition, offset in topics[OBSERVATIONS.name].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return None


def lost_between(next_offsets: Mapping[int, int] | None, log_starts: Mapping[int, int]) -> dict[int, Lost]:
    """Return the records that retention deleted between the checkpoint and now, by partition."""
    if next_offsets is None:
        return {}
    return {
        partition: Lost(offset, log_starts[partition])
        for partition, offset in next_offsets.items()
        if log_starts.get(partition, 0) > offset
    }


def why_new(session: Any, checkpoint: str, *, seeded: bool) -> str:
    """Describe how a new state begins, and name the same cluster's older states that are not used any more."""
    begins = "new, seeded from the latest analyses" if seeded else "new"
    path, files = located(session, checkpoint)
    pattern, _ = located(session, f"{checkpoint.rsplit('-p', 1)[0]}-p*")
    names = [status.getPath().getName() for status in files.globStatus(pattern)]
    others = sorted(name for name in names if name != path.getName())
    return f"{begins}; not used, as partitions, split or version differ: {', '.join(others)}" if others else begins
