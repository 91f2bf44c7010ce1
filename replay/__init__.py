"""The whole loop on a simulated application, in one process and in simulated time: its scores and its figures."""
