"""Adapters of the core: Spark and the brokers."""
