"""Stories that need a whole application: waves, windows, hot keys, joins, moving bottlenecks. On the simulator, with noisy readings."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from weir_contracts import ScalingPolicy, parse_policy

from cli.replay.loop import Loop
from simulator import Application, Noise, Simulation, chain, diamond, two_sources

NOISE = Noise(relative=0.02)
INTERVAL_SECONDS = 5.0


def policy(**spec: Any) -> ScalingPolicy:
    """Act; 30 s of lag; a minute of stabilisation down, half a minute of cooldown."""
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "shop", "name": "orders", "resourceVersion": 1},
            "spec": {
                "target": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}},
                "objective": {"maxLag": "30s"},
                "bounds": {"min": 1, "max": 16},
                "behavior": {"scaleDown": {"stabilization": "60s"}, "cooldown": "30s"},
                "interval": f"{INTERVAL_SECONDS:g}s",
                "mode": "act",
                **spec,
            },
        }
    )


class Story:
    """A loop around a simulated application, and the lags that were."""

    def __init__(self, application: Application, arrivals: Callable[[float], float], **spec: Any) -> None:
        self.load = arrivals
        self.simulation = Simulation(application, self._now_arriving)
        self.loop = Loop(self.simulation, policy(**spec), noise=NOISE, seed=7)
        self.lags: list[float] = []

    def _now_arriving(self, seconds: float) -> float:
        return self.load(seconds)

    def run(self, seconds: float) -> "Story":
        def watch() -> None:
            self.lags.append(self.simulation.lag_seconds)

        asyncio.run(self.loop.run(seconds, watch))
        return self

    def p(self, name: str) -> int:
        """What runs of an operator."""
        return self.simulation.observed[name]

    @property
    def rescales(self) -> int:
        return self.loop.said.rescales


def steady(rate: float) -> Callable[[float], float]:
    return lambda _seconds: rate


def changed(application: Application, name: str, **update: Any) -> Application:
    """The application with one operator made differently."""
    operators = tuple(o.model_copy(update=update) if o.name == name else o for o in application.operators)
    return application.model_copy(update={"operators": operators})


def test_a_slow_wave_is_followed_without_a_violation() -> None:
    """Between 400 and 2,000 records/s within half an hour: never late but at the unknown start, and not one rescale a scrape."""
    story = Story(chain(2), lambda t: 1200 - 800 * math.cos(2 * math.pi * t / 1800)).run(1800)
    settled = story.lags[len(story.lags) // 10 :]
    assert max(settled) < 30
    assert 3 <= story.rescales <= 16
    assert story.p("enrich") < 4


def test_a_window_that_gives_out_in_bursts_does_not_starve_its_sink() -> None:
    """The sink gets ten seconds' totals at once and is idle in between; neither is a reason to change it for long."""
    windowed = changed(chain(2), "aggregate", window_seconds=10.0)
    story = Story(windowed, steady(900)).run(900)
    assert max(story.lags[len(story.lags) // 2 :]) < 30
    assert story.p("sink: Writer") >= 1
    assert story.rescales <= 4


def test_the_bottleneck_moves_and_is_followed() -> None:
    """First `fraud` is too slow; when it no longer is, `join` becomes it as its selectivity drifts: both are raised in the end."""
    drifting = changed(diamond(1), "fraud", selectivity_over_time=((0.0, 0.1), (600.0, 0.1), (900.0, 2.0)))
    story = Story(drifting, steady(900)).run(600)
    assert story.p("fraud") >= 2
    joined = story.p("join")
    story.run(900)
    assert story.p("join") > joined
    assert story.simulation.lag_seconds < 10


def test_a_join_of_two_sources_keeps_up_with_both() -> None:
    """Three clicks to an order; doubling both is answered."""
    story = Story(two_sources(1), steady(1000)).run(300)
    story.load = steady(2600)
    story.run(600)
    assert story.p("join") >= 2
    assert story.simulation.lag_seconds < 10


def test_a_hot_key_is_reported_and_not_scaled_for_ever() -> None:
    """60 % of all records have one key: its subtask is full whatever the parallelism. It is said, and the slots are not all taken."""
    hot = changed(chain(1), "enrich", hot_key_share=0.6)
    story = Story(hot, steady(1200)).run(900)
    assert story.loop.analysis is not None
    assert story.loop.analysis.has("skewed")
    assert story.rescales <= 8


def test_a_limit_downstream_is_not_scaled_against_for_ever() -> None:
    """The database behind the sink takes 600 records/s, however many subtasks write to it."""
    limited = changed(chain(1), "sink: Writer", limit_per_second=600.0)
    straight = changed(limited, "aggregate", window_seconds=None, window_keys=None)
    story = Story(straight, steady(900)).run(400)
    asked = story.rescales
    story.run(300)
    assert story.rescales - asked <= 2


def test_key_groups_bind() -> None:
    """Eight key groups: 8 subtasks are the most that do something, and 5, 6 and 7 are no better than 4."""
    few = changed(chain(1), "enrich", max_parallelism=8)
    story = Story(few, steady(2300)).run(600)
    assert story.p("enrich") in (4, 8)


def test_slots_run_out() -> None:
    """The cluster has four: they are used, and what is missing is said."""
    story = Story(chain(1), steady(3000))
    story.simulation.conditions.slots = 4
    story.run(200)
    assert story.p("enrich") == 4
    assert any(i.code in ("slots", "bounds") for plan in story.loop.said.plans for i in plan.infeasible)


def test_a_crash_loop_from_overload_is_ended_by_scaling() -> None:
    """It fails whenever it is a minute behind, and so gets further behind: more subtasks are the way out."""
    story = Story(chain(1), steady(1200))
    story.simulation.conditions.crash_lag_seconds = 60.0
    story.run(900)
    assert story.p("enrich") >= 3
    assert story.simulation.lag_seconds < 30


@pytest.mark.parametrize("interval", [60.0, 600.0])
def test_rare_checkpoints_are_not_misread_as_lag(interval: float) -> None:
    """Offsets are committed with each checkpoint only; positions tell the lag, and a rescale does not wait ten minutes."""
    rare = chain(3)
    rare = rare.model_copy(
        update={"cluster": rare.cluster.model_copy(update={"checkpoint_interval_seconds": interval})}
    )
    story = Story(rare, steady(1000)).run(300)
    assert story.loop.analysis is not None
    assert (story.loop.analysis.lag_seconds.value or 0.0) < 5
    before = story.rescales
    story.load = steady(2200)
    story.run(240)
    assert story.rescales > before
    assert story.simulation.lag_seconds < 30


def test_a_machine_that_becomes_slower_is_answered() -> None:
    """A noisy neighbour takes a third of every operator's capacity: what was learnt does not stand in the way."""
    story = Story(chain(2), steady(850)).run(400)
    story.simulation.conditions.capacity_factor = 0.66
    story.run(500)
    assert story.p("enrich") >= 3
    assert story.simulation.lag_seconds < 10
