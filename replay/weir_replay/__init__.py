"""The loop on simulated applications, in one process and in simulated time; its scores and figures."""
