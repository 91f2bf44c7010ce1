"""The loop around a job that is scaled by the containers of a compose service."""

from tests.loop.world import SOURCE, WORK, World, job

QUICK = {"scaleDown": {"stabilization": "15s"}, "cooldown": "10s"}


def test_load_comes_and_goes_and_all_operators_move_as_one() -> None:
    """A job that takes every slot is planned in containers of two slots: up for the load, down after it, never uneven."""
    docker = {
        "url": "http://orders.test:8081",
        "job": "orders",
        "project": "shop",
        "service": "taskmanager",
        "slots": 2,
    }
    world = World(job(2, source=2), 400.0, target={"docker": docker}, behavior=QUICK).live(70)
    world.load = 1800.0
    world.live(50)
    up = world.p()
    assert up > 2 and up % 2 == 0
    assert world.codes[-1] == "verified"
    world.load = 700.0
    world.live(120)
    assert 2 <= world.p() < up
    assert world.moves(SOURCE) == world.moves(WORK)
    assert {p % 2 for move in world.moves() for p in move} == {0}
    assert all(plan.deployment is None or plan.deployment.requested is None for plan in world.plans)
