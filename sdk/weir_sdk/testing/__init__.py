"""For a planner's tests: realistic requests, a server for the length of a test, and a replay on a simulated
application.

def test_it_answers_for_the_whole_topology():
    for request in requests():
        checked(my_planner, request)

def test_it_holds_a_spike():
    score = replay(my_planner, trace="spike")     # needs weir-sdk[testing]
    assert score.violation_share < 0.05
"""

from .replays import Score, replay
from .requests import NAMES, checked, request, requests, running

__all__ = ["NAMES", "Score", "checked", "replay", "request", "requests", "running"]
