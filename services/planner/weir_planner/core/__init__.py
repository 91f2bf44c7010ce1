"""The planner's pure core: checks before a planner is called, the guards, the plan, candidates, and scores."""
