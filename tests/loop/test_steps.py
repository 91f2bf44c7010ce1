"""A source of 12 partitions that is the bottleneck: 7 to 11 subtasks do what 6 do."""

import pytest

from tests.loop.world import SOURCE, World
from weir_replay.simulator import Application, Link, OperatorSpec, SourceSpec


def reading(parallelism: int) -> Application:
    """Return a job whose source takes 10 ms for a record: 6 subtasks do 600 records/s, 12 do 1,200."""
    return Application(
        operators=(
            OperatorSpec(
                name=SOURCE,
                service_seconds=10e-3,
                source=SourceSpec(topic="orders", partitions=12),
                parallelism=parallelism,
                max_parallelism=128,
            ),
            OperatorSpec(name="out", service_seconds=100e-6, parallelism=parallelism),
        ),
        links=(Link(source=SOURCE, target="out"),),
    ).on(slots=64)


def test_a_source_grows_over_the_step_before_lag_does() -> None:
    """480 records/s become 625, which is 4 % more than 6 subtasks do. 7 to 11 would do nothing for it, and 12 are there
    for the asking."""
    world = World(reading(6), lambda at: 480.0 if at < 60 else 625.0, bounds={"min": 1, "max": 200}).live(180)
    assert world.moves(SOURCE) == [(6, 12)]
    assert world.worst(since=60) < 10


@pytest.mark.thorough
@pytest.mark.parametrize("parallelism", [6, 8])
def test_a_steady_load_between_two_steps_is_not_followed_up_and_down(parallelism: int) -> None:
    """830 records/s need all 12: those are 69 % busy, and no smaller size does more than 6. It grows, and stays."""
    world = World(
        reading(parallelism),
        lambda at: 480.0 if at < 60 else 830.0,
        bounds={"min": 1, "max": 200},
        behavior={"scaleDown": {"stabilization": "30s"}, "cooldown": "10s"},
    ).live(400)
    assert world.moves(SOURCE)[-1][1] == 12
    assert len([move for move in world.moves(SOURCE) if move[0] != move[1]]) <= 2
    assert world.worst(since=60) < 20
