"""The planner's pure core: capacity curves, the predictor, the built-in planners, the guards, and the plan made of them."""
