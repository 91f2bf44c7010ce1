"""Weir beside what people do without it, on the same real job under the same recorded load."""
