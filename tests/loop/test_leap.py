"""An operator whose capacity is known at one size only, with a maximum far above what is needed."""

import pytest

from tests.loop.world import SOURCE, World
from weir_replay.simulator import Application, Link, OperatorSpec, SourceSpec
from weir_replay.simulator.spec import Cluster


@pytest.mark.thorough
def test_half_as_much_load_again_does_not_lead_to_the_policys_maximum() -> None:
    """30 subtasks run, 39 are needed for the higher load, and 200 are allowed. It is not late, and every step stays far
    below the maximum."""
    app = Application(
        operators=(
            OperatorSpec(
                name=SOURCE,
                service_seconds=20e-6,
                source=SourceSpec(topic="orders", partitions=96),
                max_parallelism=128,
            ),
            OperatorSpec(name="work", service_seconds=0.01, contention=0.002, max_parallelism=1024, parallelism=30),
        ),
        links=(Link(source=SOURCE, target="work"),),
        cluster=Cluster(slots=400),
    )
    world = World(app, lambda at: 2400.0 if at < 180 else 3600.0, bounds={"min": 1, "max": 200}).live(900)
    assert max(size for _, size in world.moves("work")) <= 80
    assert world.moves("work")[-1][1] >= 39
    assert world.worst(since=0) < 30
