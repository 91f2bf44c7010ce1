"""Where the stream's state is kept, and what can be read of it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir_contracts.topics import OBSERVATIONS

from services.analyzer.core import MEMORY_VERSION
from services.analyzer.settings import AnalyzerSettings

from .processing import Lost


def base_of(settings: AnalyzerSettings) -> str:
    """The folder or URL that holds all of them."""
    base = settings.checkpoint.rstrip("/")
    return base if "://" in base else str(Path(base).resolve())


def checkpoint_of(settings: AnalyzerSettings, cluster_id: str) -> str:
    """Where the state is kept: another cluster, partition count, split of the state or version is another place."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", cluster_id) or "unknown"
    parts = f"{name}-p{settings.partitions}-s{settings.shuffle_partitions}-v{MEMORY_VERSION}"
    return f"{base_of(settings)}/{parts}"


def offsets_in(session: Any, checkpoint: str) -> dict[int, int] | None:
    """The next offset of each partition of the observations, as the checkpoint knows them; None if it is new."""
    jvm = session.sparkContext._jvm
    folder = jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets")
    files = folder.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(folder):
        return None
    batches = [status.getPath() for status in files.listStatus(folder) if status.getPath().getName().isdigit()]
    if not batches:
        return None
    stream = files.open(max(batches, key=lambda path: int(path.getName())))
    try:
        text = str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()
    return parse_offsets(text)


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
    jvm = session.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = path.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    cluster = path.getName().rsplit("-p", 1)[0]
    names = [
        s.getPath().getName()
        for s in files.globStatus(jvm.org.apache.hadoop.fs.Path(path.getParent(), f"{cluster}-p*"))
    ]
    others = sorted(name for name in names if name != path.getName())
    return f"{begins}; not used, as partitions, split or version differ: {', '.join(others)}" if others else begins
