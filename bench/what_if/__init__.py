"""Predictions of `weir what-if`, compared with the real job."""
