"""The analyzer on machines that share nothing with Spark's driver but the place of its state.

Executors get the connector's jars and this code from the driver, so that they cannot run another version of it; they
have its packages (pydantic, pyarrow, pandas, PySpark) themselves, under the interpreter that `PYSPARK_PYTHON` names.
"""

import hashlib
import io
import platform
import tempfile
import zipfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import weir_contracts

import runtime
import services
from services.analyzer.settings import AnalyzerSettings

_MODULES = ((weir_contracts, ""), (runtime, ""), (services, "analyzer"))
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


class View(NamedTuple):
    """A task's view of the driver's files and versions."""

    host: str
    sees: bool
    """Whether the task sees the place of the state; True for a URL."""
    code: str
    """Path of the code it runs."""


def on_cluster(settings: AnalyzerSettings) -> bool:
    """Whether executors are other processes than the driver, perhaps elsewhere."""
    return not settings.spark_master.startswith("local")


def cluster_conf(settings: AnalyzerSettings, java_options: str) -> dict[str, str]:
    """Return Spark settings for clusters only."""
    return {
        "spark.executor.memory": f"{settings.executor_memory_megabytes}m",
        "spark.executor.cores": "" if settings.executor_cores is None else str(settings.executor_cores),
        "spark.executor.extraJavaOptions": java_options,
        # Sent files land in an executor's working directory. Spark's factory of Python workers finds the code only by
        # this: files sent as Python files reach the workers alone.
        "spark.executorEnv.PYTHONPATH": code_name(),
        # A part of the state goes back to the executor that has it in memory: elsewhere it is read from the checkpoint
        # first.
        "spark.locality.wait": "500ms",
        # Spark replaces an executor whose machine vanished after this long, not after 2 min.
        "spark.network.timeout": "40s",
        # Spark refuses its own default with a shorter timeout.
        "spark.network.timeoutInterval": "10s",
        "spark.executor.heartbeatInterval": "5s",
    }


@cache
def _code() -> bytes:
    """Our modules as a zip, the same bytes for the same code."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for module, only in _MODULES:
            root = Path(str(module.__file__)).parent
            files = sorted((root / only).rglob("*.py")) + ([root / "__init__.py"] if only else [])
            for path in files:
                name = Path(root.name) / path.relative_to(root)
                archive.writestr(zipfile.ZipInfo(str(name), _LONG_AGO), path.read_bytes())
    return packed.getvalue()


def code_name() -> str:
    """The zip's name: another code has another."""
    return f"weir-analyzer-{hashlib.sha256(_code()).hexdigest()[:12]}.zip"


def send_code(session: Any) -> None:
    """Hand the zip to all executors that are there or come later."""
    with tempfile.NamedTemporaryFile(prefix="weir-", suffix=".zip", delete=False) as written:
        written.write(_code())
    # the driver serves it from there as long as it lives; another user could own a predictable name
    path = Path(tempfile.gettempdir()) / code_name()
    Path(written.name).replace(path)
    session.sparkContext.addFile(str(path))


def unfit(session: Any, base: str) -> str | None:
    """Return which machine does not see the place of the state, or runs other code; None if all workers can work.

    It runs on the executors that are there: one that comes later is not checked.
    """
    context = session.sparkContext
    marker = None if "://" in base else Path(base) / f".seen-{uuid4().hex[:8]}"
    if marker is not None:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    try:
        tasks = 2 * max(1, int(context.defaultParallelism))
        views = set(
            context.parallelize(range(tasks), tasks).map(Look(None if marker is None else str(marker))).collect()
        )
    finally:
        if marker is not None:
            marker.unlink(missing_ok=True)
    return judged(views, base)


def judged(views: Collection[View], base: str) -> str | None:
    """Return why the workers cannot work; None if they can."""
    unsighted = sorted({view.host for view in views if not view.sees})
    if unsighted:
        return (
            f"{base} is not the same on all machines ({', '.join(unsighted)} cannot see what the driver wrote there): "
            "WEIR_ANALYZER_CHECKPOINT must be a folder or a URL that the driver and all workers share"
        )
    other = sorted({f"{view.host}: {view.code}" for view in views if code_name() not in view.code})
    if other:
        return (
            f"workers run code that the driver did not send ({', '.join(other)}): spark.executorEnv.PYTHONPATH must begin with "
            f"{code_name()}"
        )
    return None


class Look:
    """The task that returns a worker's view."""

    def __init__(self, marker: str | None) -> None:
        self._marker = marker

    def __call__(self, _: int) -> View:
        sees = self._marker is None or Path(self._marker).exists()
        return View(platform.node(), sees, str(services.__file__))
