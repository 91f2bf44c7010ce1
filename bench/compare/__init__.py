"""Weir and common alternatives, on the same real job under the same recorded load."""
