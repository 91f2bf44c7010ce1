"""Spark needs no launcher of its own: the analyzer starts it. This names the jars that connect it to Kafka."""

from pathlib import Path

from .jars import jars


def spark_jars() -> list[Path]:
    """The Kafka connector and what it needs; `TestbedError` if they were not fetched."""
    return jars("spark")
