"""Engines: one folder for each, with its API, graph, metrics and health. README.md says how to add one."""
