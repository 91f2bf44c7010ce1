"""Ends the loops of each story."""

from collections.abc import Iterator

import pytest

from tests.loop.world import World


@pytest.fixture(autouse=True)
def closed_worlds() -> Iterator[None]:
    """Stop each loop that the test has started."""
    yield
    for loop in {id(world.loop): world.loop for world in World.opened}.values():
        loop.close()
    World.opened.clear()
