"""Engines: one folder for each, with its client, readings, collector and driver. README.md says how to add one."""
