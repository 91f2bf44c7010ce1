"""How well the predictor's capacity curves extrapolate measured ones."""
