"""Stories of loads that are foreseen, with slots that come after 5, 60 and 180 s.

The forecasts are those of a perfect analyzer, or of a wrong one; that of the real one is tried in the last stories. Each
story is also lived without forecasts, for a forecast has to be better than none.
"""
