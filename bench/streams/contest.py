"""Ten minutes of the 1998 World Cup's web site under Weir and common rules, each with a separate application and endpoint.

All applications read the same records at the same time. The replay, the rules' and Weir's times are those of
`make bench-compare`: as much shorter as the replay is faster. KEDA's trigger has its defaults (10 records a replica);
the autoscaler by lag has the records of half the objective as its target; the static size is for the peak.
All of them share the machine: where `machine_busy_share` is near 1, or the static size is late, lateness is the
machine's, whose instances start slowly and process less than `capacity_of_an_instance`.
"""

import contextlib
import math
import tempfile
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.compare.__main__ import Load, excerpt
from bench.compare.rules import STATIC_UTILIZATION
from bench.contest import Contestant, Controller, sample_all
from bench.results_file import log
from testbed.process import free_port
from testbed.trial.options import (
    GROUP_ID,
    INPUT_TOPIC,
    OUTPUT_PARTITIONS,
    PARTITIONS,
    PAYMENTS_TOPIC,
    TrialOptions,
    short_behavior,
)
from weir_planners.keda_kafka import KedaKafkaParameters
from workloads.probe import Probe

from .rules import GroupLag, LagRule, apply_rule
from .running import StreamsRunning, running

PEAK_RATE = 200.0
"""Records are few and slow: 20 instances share two cores, and a record costs processor time besides its service time."""
SERVICE_MICROS = 20_000
"""Of a paid order: an instance carries 50 a second."""
CAPACITY = 1e6 / SERVICE_MICROS
MAX_INSTANCES = 6
OBJECTIVE_SECONDS = 10.0
STATIC = math.ceil(PEAK_RATE / CAPACITY / STATIC_UTILIZATION)


def _rule(strategy: str, load: Load) -> LagRule:
    window = 300.0 / load.speedup
    if strategy == "keda-kafka":
        return LagRule(KedaKafkaParameters(), MAX_INSTANCES, window)
    target = round(OBJECTIVE_SECONDS / 2 * CAPACITY)
    return LagRule(KedaKafkaParameters(lag_threshold=target, allow_idle_consumers=True), MAX_INSTANCES, window)


def _enter(bench: StreamsRunning, strategy: str, load: Load) -> Contestant:
    """Run one more application on the same input, under a rule or with a static size."""
    stack, name = bench.stack, f"{GROUP_ID}-{strategy}"
    servers, output = stack.kafka.bootstrap_servers, f"output-{strategy}"
    stack.kafka.create_topic(output, OUTPUT_PARTITIONS)
    is_static = strategy == "static-peak"
    stack.run_supervisor(name, output, replicas=STATIC if is_static else 1)
    probe = Probe(servers, output, input_topic=INPUT_TOPIC).start()
    contestant = Contestant(strategy, probe, partial(_instances, bench, name))
    if not is_static:
        lag = GroupLag(servers, name, (INPUT_TOPIC, PAYMENTS_TOPIC), PARTITIONS)
        cycle = partial(apply_rule, stack.endpoint_url_of(name), lag, _rule(strategy, load))
        contestant.controller = Controller(strategy, cycle, max(1.0, 15.0 / load.speedup))
    return contestant


def _instances(bench: StreamsRunning, application_id: str) -> int | None:
    """Return the number of an application's processes, ready or not: that is what a user pays for."""
    with contextlib.suppress(httpx.HTTPError):
        return len(bench.endpoint(application_id).instances)
    return None


def _figures(contestant: Contestant) -> dict[str, Any]:
    found = contestant.figures(OBJECTIVE_SECONDS)
    return {
        "strategy": contestant.strategy,
        "violation_share": found.violation_share,
        "instance_seconds": found.size_seconds,
        "changes": found.changes,
        "max_lag_seconds": found.max_lag_seconds,
        "samples": found.samples,
        "samples_without_lag": found.samples_without_lag,
        "series": [asdict(sample) for sample in contestant.samples[::5]],
    }


def _cpu_times() -> tuple[float, float]:
    """Return the time that the machine's processors have worked and have passed since its start, in clock ticks; what
    yields (`nice`) does not count as work."""
    times = [float(part) for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    nice, _, idle, waits = times[1:5]
    return sum(times) - nice - idle - waits, sum(times)


def measure(seconds: float) -> dict[str, Any]:
    """Return each strategy's figures and series, and what Weir decided."""
    with tempfile.TemporaryDirectory(prefix="weir-contest-") as folder:
        load = excerpt(Path(folder), seconds)
        options = TrialOptions(
            workload="kafka-streams",
            trace=str(load.path),
            speedup=load.speedup,
            peak_rate=PEAK_RATE,
            objective_seconds=OBJECTIVE_SECONDS,
            port=free_port(),
        )
        behavior = short_behavior(120 / load.speedup, 60 / load.speedup, 600 / load.speedup)
        spec = {"bounds": {"min": 1, "max": MAX_INSTANCES}, "behavior": behavior}
        supervisor = {"service-time-us": SERVICE_MICROS}
        contestants: list[Contestant] = []
        with running(options, spec, supervisor=supervisor) as bench:
            try:
                if bench.stack.probe is None:
                    raise RuntimeError("the stack has no probe")
                contestants.append(Contestant("weir", bench.stack.probe, partial(_instances, bench, GROUP_ID)))
                for strategy in ("static-peak", "keda-kafka", "hpa-lag"):
                    contestants.append(_enter(bench, strategy, load))
                begin, until = load.lead_in_seconds, load.lead_in_seconds + seconds
                elapsed = bench.stack.elapsed_seconds()
                log(f"all run, {elapsed:.0f} s of {begin:.0f} s of lead-in are over")
                before = _cpu_times()
                sample_all(bench.stack, contestants, max(begin, elapsed + 1.0), until)
                worked, passed = (now - then for now, then in zip(_cpu_times(), before, strict=True))
                plans = Counter(plan.code for plan in bench.plans()).most_common()
                actions = [
                    {"to": a.wanted, "from": a.before, "phase": a.phase, "sentence": a.sentence}
                    for a in bench.actions()
                ]
            finally:
                for each in contestants:
                    each.stop()
    about = {"path": "worldcup98_minutes", "speedup": round(load.speedup, 2), "peak_rate": PEAK_RATE}
    return {
        "objective_seconds": OBJECTIVE_SECONDS,
        "load": {**about, "lead_in_seconds": load.lead_in_seconds, "seconds": seconds},
        "capacity_of_an_instance": CAPACITY,
        "max_instances": MAX_INSTANCES,
        "strategies": [_figures(each) for each in contestants],
        "machine_busy_share": round(worked / passed, 3),
        "plans": dict(plans),
        "actions": actions,
    }
