"""Adapters of the core: Spark, and an in-memory one."""
