"""Observations: as the monitor makes them, and as they go wrong."""

from weir_contracts import Observation, ScalingPolicy, parse_policy
from weir_replay.simulator import Fault, Noise, Observer, Simulation, chain, diamond
from weir_replay.simulator.world import START

POLICY: ScalingPolicy = parse_policy(
    {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": "orders", "version": 1},
        "spec": {
            "application": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}},
            "objective": {"maxLag": "30s"},
        },
    }
)


def scrapes(simulation: Simulation, observer: Observer, seconds: float, every: float = 5.0) -> list[Observation]:
    found = []
    while simulation.now < seconds - 1e-6:
        simulation.advance(simulation.now + every)
        found += observer.scrape(POLICY)
    return found


def test_a_running_job_is_reported_completely() -> None:
    """Counters from 0 with the run, times that add up, offsets of every partition, and it is a valid message."""
    simulation = Simulation(chain(2), lambda _: 600.0)
    observation = scrapes(simulation, Observer(simulation), 60)[-1]
    assert Observation.model_validate_json(observation.model_dump_json()) == observation
    assert observation.status == "running"
    assert observation.run is not None and observation.run.attempt == 0
    assert observation.deployment is not None and observation.deployment.observed == observation.deployment.requested
    assert observation.deployment.slots is not None and observation.deployment.slots.available == 14
    enrich = observation.operators[2]
    assert (enrich.operator, enrich.records_in) == ("enrich", 36_000)
    assert enrich.busy_ms is not None and enrich.idle_ms is not None and enrich.backpressured_ms is not None
    assert abs(enrich.busy_ms + enrich.idle_ms + enrich.backpressured_ms - 2 * 60_000) < 1
    assert enrich.busy_share_mean is not None and abs(enrich.busy_share_mean - 0.612) < 0.06
    assert len(observation.partitions) == 12
    assert all(p.log_end_offset == p.current_offset == 3000 for p in observation.partitions)


def test_a_restarting_job_has_offsets_and_no_counters() -> None:
    """Its log goes on growing; the next run's counters begin again."""
    simulation = Simulation(chain(2), lambda _: 600.0)
    observer = Observer(simulation)
    before = scrapes(simulation, observer, 60)[-1]
    simulation.fail()
    simulation.advance(61)
    (down,) = observer.scrape(POLICY)
    assert (down.status, down.run) == ("not_running", None)
    assert all(not reading.complete and reading.records_in is None for reading in down.operators)
    assert down.partitions[0].current_offset is None and down.partitions[0].log_end_offset == 3050
    after = scrapes(simulation, observer, 70)[-1]
    assert after.run is not None and before.run is not None and after.run.attempt == 1
    assert after.run.running_since > before.run.running_since
    assert (after.operators[2].records_in or 0) < (before.operators[2].records_in or 0)


def test_the_same_seed_gives_the_same_run() -> None:
    """Noise, losses and delays included; another seed gives another."""

    def messages(seed: int) -> list[str]:
        simulation = Simulation(diamond(2), lambda t: 300 + 5 * t)
        noise = Noise(relative=0.05, lost_share=0.1, delayed_share=0.2, delay_seconds=7)
        return [o.model_dump_json() for o in scrapes(simulation, Observer(simulation, noise=noise, seed=seed), 200)]

    assert messages(4) == messages(4)
    assert messages(4) != messages(5)


def test_noise_never_lets_a_record_counter_fall() -> None:
    """It blurs the moment of a reading; it does not make records."""
    simulation = Simulation(chain(2), lambda _: 700.0)
    observation = scrapes(simulation, Observer(simulation, noise=Noise(relative=0.5), seed=1), 300)
    counts = [o.operators[2].records_in or 0 for o in observation]
    assert counts == sorted(counts)
    assert all(
        700 * (o.observed_at - observation[0].observed_at).total_seconds() + 3500 >= c
        for o, c in zip(observation, counts, strict=True)
    )


def test_faults_hold_for_their_time() -> None:
    """Missing is None, frozen stands still, lost is not there, delayed comes later, away is unreachable."""
    simulation = Simulation(chain(2), lambda _: 600.0)
    faults = [
        Fault("missing", 10, 15, operator="enrich", field="busy_ms"),
        Fault("frozen", 20, 30),
        Fault("lost", 35, 40),
        Fault("delayed", 45, 50, delay_seconds=12),
        Fault("unreachable", 60, 65),
        Fault("not-found", 65, 70),
        Fault("brokers-away", 70, 75),
    ]
    observer = Observer(simulation, faults=faults)
    observation = scrapes(simulation, observer, 80)
    at = {round((o.observed_at - START).total_seconds()): o for o in observation}
    assert [at[10].operators[i].busy_ms is None for i in range(5)] == [False, False, True, False, False]
    assert at[15].operators == at[20].operators == at[25].operators != at[30].operators
    assert at[25].partitions[0].log_end_offset != at[20].partitions[0].log_end_offset
    assert 35 not in at
    assert [round((o.observed_at - START).total_seconds()) for o in observation][7:10] == [50, 55, 45]
    assert (at[60].status, at[65].status) == ("unreachable", "not_found")
    assert at[70].partitions == [] and at[70].problems
