"""Adapters of the core: Spark, and its in-memory twin."""
