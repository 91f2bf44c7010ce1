"""Flink jobs that are stopped with a savepoint and run again from it."""
