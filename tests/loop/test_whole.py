"""The loop around a job in reactive mode, which is scaled by the pods of its TaskManagers."""

from tests.loop.world import SOURCE, WORK, World, job, policy

QUICK = {"scaleDown": {"stabilization": "15s"}, "cooldown": "10s"}


def test_load_comes_and_goes_and_all_operators_move_as_one() -> None:
    """A job that takes every slot is planned in pods of two slots: up for the load, down after it, never uneven."""
    pods = policy(
        application={"flink": {"url": "http://orders.test:8081", "job": "orders"}},
        target={"kubernetes": {"kind": "Deployment", "name": "taskmanager", "slots": 2}},
        behavior=QUICK,
    )
    world = World(job(2, source=2), 400.0, policy=pods).live(70)
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
