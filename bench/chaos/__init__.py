"""Kills each part of the loop in each phase of an action, on the real parts, and accounts for everything afterwards."""
