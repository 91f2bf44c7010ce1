"""The planner's pure core: the built-in planners on the predictor, the guards, and the plan made of them."""
