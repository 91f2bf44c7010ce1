"""`make bench-planners`: every built-in planner on the simulator, and what a plan costs."""
