"""`weir replay`: the loop's five cores in one process on a simulated application."""
