"""The compose stack in figures."""
