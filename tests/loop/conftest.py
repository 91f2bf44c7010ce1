"""Ends the loops of each story, and reads every sentence that it printed."""

from collections.abc import Iterator

import pytest

from tests.loop.world import World
from tests.sentences import assert_reads_well


@pytest.fixture(autouse=True)
def closed_worlds() -> Iterator[None]:
    """Stop each loop that the test has started. Numbers agree with their nouns in each plan and outcome."""
    yield
    worlds = list(World.opened)
    World.opened.clear()
    for loop in {id(world.loop): world.loop for world in worlds}.values():
        loop.close()
    printed = {message.sentence for world in worlds for message in (*world.plans, *world.outcomes)}
    printed |= {each.because for world in worlds for plan in world.plans for each in plan.amendments}
    for sentence in printed:
        assert_reads_well(sentence)
