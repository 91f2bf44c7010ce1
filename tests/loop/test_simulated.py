"""Stories that need several operators: windows, hot keys, joins, moving bottlenecks, limits behind it. With noisy
readings."""

import random
from itertools import pairwise
from typing import Any

import pytest

from tests.effort import some, thorough
from tests.loop.world import CALMING, WORK, Load, World, job, without
from weir_replay.simulator import Application, Noise, chain, diamond, two_sources
from weir_replay.simulator.capacity import OfflineOptimum

NOISE = Noise(relative=0.02)


def story(application: Application, load: Load, **options: Any) -> World:
    """A loop around an application of several operators, its readings a little off."""
    return World(application, load, noise=NOISE, seed=7, **options)


def changed(application: Application, name: str, **update: Any) -> Application:
    """The application with one operator made differently."""
    operators = tuple(o.model_copy(update=update) if o.name == name else o for o in application.operators)
    return application.model_copy(update={"operators": operators})


def ups_after_downs(world: World, operator: str) -> int:
    """How often what was taken away had to be given again."""
    steps = [wanted - current for current, wanted in world.moves(operator) if wanted != current]
    return sum(before < 0 < after for before, after in pairwise(steps))


def bursting(sink_seconds: float) -> World:
    """Totals of ten seconds, some 6,000 of them, at once for the sink, and nothing in between."""
    windowed = changed(chain(2), "aggregate", window_seconds=10.0)
    return story(changed(windowed, "sink: Writer", service_seconds=sink_seconds), 900.0)


@pytest.mark.thorough
def test_a_window_that_gives_out_in_bursts_does_not_starve_its_sink() -> None:
    """An idle moment is no reason to take subtasks from a sink that a burst then keeps busy for most of ten seconds.
    Without the guards too few are left, and it goes up again."""
    world = bursting(3e-3).live(450)
    assert world.worst(since=100) < 10
    assert ups_after_downs(world, "sink: Writer") == 0
    assert world.p("sink: Writer") >= 3
    with without(*CALMING):
        assert ups_after_downs(bursting(3e-3).live(450), "sink: Writer") > 0


@pytest.mark.thorough
def test_a_light_sink_is_left_alone_between_bursts() -> None:
    """A burst that is done in half a second is not answered, and neither are the ten seconds without one."""
    world = bursting(1e-4).live(350)
    assert world.worst(since=200) < 30
    assert len(world.moves("sink: Writer")) <= 2, world.moves("sink: Writer")
    assert len(world.moves("enrich")) <= 4


@pytest.mark.thorough
def test_a_busy_vertex_is_never_scaled_down() -> None:
    """Windows of ten seconds make selectivities jump and the sink look idle for most of the time, while 900 of 1,000
    records/s keep `enrich` busy: whatever the others seem to need, it keeps what it has."""
    world = story(changed(chain(2), "aggregate", window_seconds=10.0), 900.0).live(120)
    world.load = lambda t: 900.0 + 60.0 * (t % 30 < 15)
    world.live(300)
    assert all(wanted >= current for current, wanted in world.moves("enrich"))
    assert world.lag < 30


@pytest.mark.thorough
def test_the_bottleneck_moves_and_is_followed() -> None:
    """First `fraud` is too slow; when it no longer is, `join` becomes it as its selectivity drifts: both are raised in
    the end."""
    drifting = changed(diamond(1), "fraud", selectivity_over_time=((0.0, 0.1), (300.0, 0.1), (450.0, 2.0)))
    world = story(drifting, 900.0).live(300)
    assert world.p("fraud") >= 2
    joined = world.p("join")
    world.live(400)
    assert world.p("join") > joined
    assert world.lag < 10


@pytest.mark.thorough
def test_a_join_of_two_sources_keeps_up_with_both() -> None:
    """Three clicks to an order; doubling both is answered."""
    world = story(two_sources(1), 1000.0).live(200)
    world.load = 2600.0
    world.live(200)
    assert world.p("join") >= 2
    assert world.lag < 10


@pytest.mark.thorough
def test_a_hot_key_is_reported_and_not_scaled_for_ever() -> None:
    """60 % of all records have one key: its subtask is full whatever the parallelism. It is reported, and growth ends
    where the measured skew says that more subtasks do no more."""
    world = story(changed(chain(1), "enrich", hot_key_share=0.6), 1200.0).live(250)
    assert world.analysis is not None
    assert world.analysis.has("skewed")
    requested = len(world.moves("enrich"))
    assert requested <= 2
    assert world.p("enrich") <= 8
    world.live(150)
    assert len(world.moves("enrich")) == requested
    assert world.plans[-1].kind == "hold"


@pytest.mark.thorough
def test_a_hot_key_is_allowed_for_before_it_limits() -> None:
    """A tenth of all records has one key, barely visible with 2 subtasks. When five times as much arrives, one restart brings
    what is needed, and nothing is late. What was too much is given back once the load has been steady for minutes: then it
    has what the offline optimum has, which knows the key."""
    application = changed(chain(2), "enrich", hot_key_share=0.1)
    world = story(application, 480.0, bounds={"max": 16}).live(200)
    world.load = 2300.0
    world.live(900)
    assert [wanted > current for current, wanted in world.moves("enrich")] == [True, False]
    assert world.p("enrich") == OfflineOptimum(application, 16).parallelism(2300.0)["enrich"]
    assert world.worst(since=200) < 30


@pytest.mark.thorough
def test_a_limit_downstream_is_not_scaled_against_for_ever() -> None:
    """The database behind the sink takes 600 records/s, however many subtasks write to it: that is measured and
    reported."""
    limited = changed(chain(1), "sink: Writer", limit_per_second=600.0)
    world = story(changed(limited, "aggregate", window_seconds=None, window_keys=None), 900.0).live(250)
    requested = len(world.moves("enrich"))
    world.live(150)
    assert len(world.moves("enrich")) == requested <= 3
    assert world.plans[-1].code in ("nothing-helps", "ineffective-growth")
    assert world.analysis is not None
    assert world.analysis.bottleneck == "sink: Writer"


@pytest.mark.parametrize("interval_seconds", some([60, 15], 1))
def test_a_level_load_with_noise_near_capacity_is_left_alone(interval_seconds: int) -> None:
    """98 % of one subtask, give or take 3 % from minute to minute: one slot, and no growing and shrinking with the noise."""
    chance = random.Random(4)
    levels = [490 * chance.uniform(0.97, 1.03) for _ in range(121)]
    found = story(job(2), lambda seconds: levels[int(seconds / 60)], interval=f"{interval_seconds}s")
    found.live(7200 if thorough() else 3600)
    assert found.p(WORK) == 1
    assert len(found.moves()) <= 3
    assert found.worst() < 30
