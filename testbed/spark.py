"""Spark needs no launcher of its own: the analyzer starts it. What it needs from here is the jars that connect it to Kafka."""

from .jars import spark_jars

__all__ = ["spark_jars"]
