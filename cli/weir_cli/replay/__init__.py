"""`weir replay`: the loop on a simulated application, in simulated time."""
