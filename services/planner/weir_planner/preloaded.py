"""Imported by the process from which candidates are forked: it imports every installed planner once."""

from weir_sdk.installed import installed

from . import alongside

__all__ = ["alongside"]

installed()
