"""Stories of one group under Weir, under an HPA on its lag, and under KEDA's trigger: the same load, each rule alone.

KEDA has its defaults, 10 records a replica; the HPA 5,000, in ten minutes of the World Cup as many as arrive in half the
objective. Policies have their default behavior, there as much shorter as the recording is faster.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench.compare import excerpt
from testbed.trial.options import short_behavior
from tests.loop.streams_world import Score, StreamsWorld, lag_rule, no_guards, scored
from tests.loop.world import Load
from weir_replay.simulator import StreamsApplication, stateful, streams
from weir_replay.trace import LoadTrace, named

pytestmark = pytest.mark.thorough
SHAPE_SECONDS, WORLD_CUP_SECONDS = 1200.0, 600.0
KAFKA: dict[str, Any] = {"bootstrapServers": "kafka.test:9092", "groupId": "orders"}


def live(
    application: StreamsApplication, load: Load, since: float, seconds: float, objective: float, **options: Any
) -> Score:
    """Return the score of one strategy; a rule runs without Weir's guards."""
    with no_guards() if "planner" in options else nullcontext():
        world = StreamsWorld(application, load, objective={"maxLag": f"{objective:g}s"}, **options)
        score = scored(world, objective, since)
        world.live(since + seconds)
    return score


def rules(lag: float, window_seconds: int, polling_seconds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the planners of the HPA and of KEDA's trigger."""
    behavior = {"scaleDown": {"stabilizationWindowSeconds": window_seconds}}
    hpa = lag_rule(target=lag)
    hpa["parameters"]["behavior"] = behavior
    times = {"polling_interval": polling_seconds, "cooldown_period": window_seconds}
    return hpa, {"name": "keda-kafka", "parameters": {**times, "behavior": behavior}}


def on_shape(application: StreamsApplication, shape: str) -> tuple[Score, Score, Score]:
    """Return the scores of Weir, the HPA and KEDA on a load of up to 2,400 records/s, observed each 10 s; Kafka's default
    of 30 s between commits."""
    load = LoadTrace(named(shape), 2400.0, 1.0).rate_at
    given: dict[str, Any] = {"behavior": {}, "interval": "10s", "signals": {"kafka": KAFKA}}
    hpa, keda = rules(5_000, 300, 15)
    run = (application, load, 0.0, SHAPE_SECONDS, 30.0)
    return live(*run, **given), live(*run, **given, planner=hpa), live(*run, **given, planner=keda)


def on_world_cup(folder: Path, *, with_metrics: bool, state_bytes: float = 0.0) -> tuple[Score, Score, Score]:
    """Return the scores of Weir, the HPA and KEDA on ten minutes of the World Cup: 125 records/s an instance, at most
    six of them, which take 8 s to start."""
    cut = excerpt(folder, WORLD_CUP_SECONDS)
    load = LoadTrace(named(str(cut.path)), 500.0, cut.speedup).rate_at
    part = {"topic": "orders", "service_seconds": 8e-3, "state_bytes": state_bytes}
    application = streams(
        1, subtopologies=(part,), commit_interval_seconds=1.0, start_seconds=8.0, acceptable_recovery_lag=1e7
    )
    given: dict[str, Any] = {
        "behavior": short_behavior(120 / cut.speedup, 60 / cut.speedup, 600 / cut.speedup),
        "interval": "2s",
        "bounds": {"min": 1, "max": 6},
        "signals": {"kafka": KAFKA},
    }
    hpa, keda = rules(625, round(300 / cut.speedup), 1)
    run = (application, load, cut.lead_in_seconds, WORLD_CUP_SECONDS, 10.0)
    weir = live(*run, **given, with_metrics=with_metrics)
    return weir, live(*run, **given, planner=hpa), live(*run, **given, planner=keda)


def test_a_step_is_answered_in_time_with_fewer_instances_than_either_rule() -> None:
    """800 become 2,400 records/s. KEDA holds all twelve instances, as commits of 30 s look like lag to it; the HPA swings
    between one and twelve."""
    weir, hpa, keda = on_shape(streams(2), "step")
    assert weir.late_seconds == 0
    assert weir.instance_seconds < min(hpa.instance_seconds, keda.instance_seconds)


def test_a_wave_is_ridden_out_on_half_of_what_keda_holds() -> None:
    """None is late. The HPA needs as much as Weir within a tenth, and three times as many changes of it."""
    weir, hpa, keda = on_shape(streams(2), "sine")
    assert weir.late_seconds == 0
    assert weir.instance_seconds < 0.5 * keda.instance_seconds
    assert weir.instance_seconds < 1.1 * hpa.instance_seconds
    assert weir.max_lag_seconds < hpa.max_lag_seconds


def test_state_that_has_to_be_warmed_up_makes_all_late_and_weir_on_the_fewest_instances() -> None:
    """200 MB a task, two warm-ups each ten minutes: the step of x3 comes before any of them can have moved."""
    weir, hpa, keda = on_shape(stateful(2), "step")
    assert weir.late_seconds == pytest.approx(min(hpa.late_seconds, keda.late_seconds), rel=0.01)
    assert weir.instance_seconds < min(hpa.instance_seconds, keda.instance_seconds)


def test_instances_that_join_while_state_is_warmed_up_keep_lag_down() -> None:
    """Weir adds one at a time, each of which moves what is warmed up; the rules add all at once and wait ten minutes."""
    weir, hpa, keda = on_shape(stateful(2), "sine")
    assert weir.late_seconds < 0.7 * min(hpa.late_seconds, keda.late_seconds)
    assert weir.max_lag_seconds < 0.5 * min(hpa.max_lag_seconds, keda.max_lag_seconds)
    assert weir.instance_seconds < min(hpa.instance_seconds, keda.instance_seconds)


@pytest.mark.parametrize(("with_metrics", "state_bytes"), [(False, 0.0), (True, 5e6)])
def test_the_world_cup_is_held_for_less_than_the_better_rule_needs(
    tmp_path: Path, with_metrics: bool, state_bytes: float
) -> None:
    """By its brokers alone without state, and with a metrics endpoint and state that moves at once."""
    weir, hpa, keda = on_world_cup(tmp_path, with_metrics=with_metrics, state_bytes=state_bytes)
    better = min((hpa, keda), key=lambda rule: rule.late_seconds)
    assert weir.late_seconds <= better.late_seconds / 3
    assert weir.instance_seconds <= better.instance_seconds
