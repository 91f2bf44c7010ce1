"""Where the real parts' jars are, as `make setup` fetched them."""

import shutil
from pathlib import Path

from .bootstrap import CACHE
from .process import TestbedError


def java() -> str:
    """The Java to run them with; `TestbedError` that says what to install if there is none."""
    found = shutil.which("java")
    if found is None:
        raise TestbedError("java is not on the PATH: install Java 17")
    return found


def jars(part: str) -> list[Path]:
    """The jars of `kafka`, `flink`, `spark` or `job`; `TestbedError` that says what to do if there are none."""
    found = sorted((CACHE / "jars" / part).glob("*.jar"))
    if not found:
        raise TestbedError(f"no jars of {part} in {CACHE / 'jars' / part}: run `make setup`")
    return found


def class_path(part: str) -> str:
    """All jars of a part as Java's class path wildcard; the same error as `jars`."""
    jars(part)
    return str(CACHE / "jars" / part / "*")


def sample_job_jar() -> Path:
    """The sample job, built by `make setup`."""
    return jars("job")[0]


def spark_jars() -> list[Path]:
    """What connects PySpark to Kafka, for `spark.jars`."""
    return jars("spark")
