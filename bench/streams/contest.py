"""Ten minutes of the 1998 World Cup's web site beside common rules, each with an application and an endpoint of its own.

All applications read the same records at the same time. The replay, the rules' and Weir's times are those of
`make bench-compare`: as much shorter as the replay is faster. KEDA's trigger has its defaults (10 records a replica);
the autoscaler by lag has the records of half the objective as its target; the static size is for the peak.
"""

import contextlib
import itertools
import math
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.compare.__main__ import Load, excerpt
from bench.compare.rules import STATIC_UTILIZATION
from bench.results_file import log
from planners.keda_kafka import KedaKafkaParameters
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
from workloads.probe import Probe

from .rules import Controller, GroupLag, LagRule
from .running import Running, running

PEAK_RATE = 500.0
SERVICE_MICROS = 8000
"""Of a paid order: an instance carries 125 a second."""
CAPACITY = 1e6 / SERVICE_MICROS
MAX_INSTANCES = 6
OBJECTIVE_SECONDS = 10.0
SAMPLE_SECONDS = 1.0
STATIC = math.ceil(PEAK_RATE / CAPACITY / STATIC_UTILIZATION)


@dataclass(frozen=True)
class Sample:
    """An application at `t` seconds after the load began. None is unknown."""

    t: float
    lag_seconds: float | None
    instances: int | None
    """Processes, ready or not: that is what a user pays for."""


@dataclass
class Contestant:
    """A strategy and its application."""

    strategy: str
    application_id: str
    probe: Probe
    controller: Controller | None
    samples: list[Sample] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the figures. While the number of instances is unknown, the last one counts."""
        known, held = [], 0
        for sample in self.samples:
            held = held if sample.instances is None else sample.instances
            known.append(held)
        lags = [s.lag_seconds for s in self.samples if s.lag_seconds is not None]
        spans = [b.t - a.t for a, b in itertools.pairwise(self.samples)]
        return {
            "strategy": self.strategy,
            "violation_share": round(sum(lag > OBJECTIVE_SECONDS for lag in lags) / len(lags), 4) if lags else None,
            "instance_seconds": round(sum(n * s for n, s in zip(known, spans, strict=False)), 1),
            "changes": sum(a != b for a, b in itertools.pairwise(known)),
            "max_lag_seconds": round(max(lags), 1) if lags else None,
            "samples": len(self.samples),
            "samples_without_lag": len(self.samples) - len(lags),
            "series": [asdict(sample) for sample in self.samples[::5]],
        }


def _rule(strategy: str, load: Load) -> LagRule:
    window = 300.0 / load.speedup
    if strategy == "keda-kafka":
        return LagRule(KedaKafkaParameters(), MAX_INSTANCES, window)
    target = round(OBJECTIVE_SECONDS / 2 * CAPACITY)
    return LagRule(KedaKafkaParameters(lag_threshold=target, allow_idle_consumers=True), MAX_INSTANCES, window)


def _enter(bench: Running, strategy: str, load: Load) -> Contestant:
    """Run one more application on the same input, under a rule or with a static size."""
    stack, name = bench.stack, f"{GROUP_ID}-{strategy}"
    servers, output = stack.kafka.bootstrap_servers, f"output-{strategy}"
    stack.kafka.create_topic(output, OUTPUT_PARTITIONS)
    is_static = strategy == "static-peak"
    stack.run_supervisor(name, output, replicas=STATIC if is_static else 1)
    probe = Probe(servers, output, input_topic=INPUT_TOPIC).start()
    if is_static:
        return Contestant(strategy, name, probe, None)
    lag = GroupLag(servers, name, (INPUT_TOPIC, PAYMENTS_TOPIC), PARTITIONS)
    rule = _rule(strategy, load)
    controller = Controller(stack.endpoint_url_of(name), lag, rule.decide, max(1.0, 15.0 / load.speedup))
    controller.start()
    return Contestant(strategy, name, probe, controller)


def _run(bench: Running, contestants: Sequence[Contestant], load: Load, seconds: float) -> None:
    stack, began = bench.stack, bench.stack.began_at or time.monotonic()
    due, until = max(load.lead_in_seconds, stack.elapsed_seconds()), load.lead_in_seconds + seconds
    while due <= until:
        time.sleep(max(0.0, began + due - time.monotonic()))
        stack.check()
        for each in contestants:
            if each.controller is not None:
                each.controller.check()
            instances: int | None = None
            with contextlib.suppress(httpx.HTTPError):
                instances = len(bench.endpoint(each.application_id).instances)
            each.samples.append(Sample(round(stack.elapsed_seconds(), 2), each.probe.lag_seconds(), instances))
        due += SAMPLE_SECONDS


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
                contestants.append(Contestant("weir", GROUP_ID, bench.stack.probe, None))
                for strategy in ("static-peak", "keda-kafka", "hpa-lag"):
                    contestants.append(_enter(bench, strategy, load))
                elapsed = bench.stack.elapsed_seconds()
                log(f"all run, {elapsed:.0f} s of {load.lead_in_seconds:.0f} s of lead-in are over")
                _run(bench, contestants, load, seconds)
                plans = Counter(plan.code for plan in bench.plans()).most_common()
                actions = [
                    {"to": a.wanted, "from": a.before, "phase": a.phase, "sentence": a.sentence}
                    for a in bench.actions()
                ]
            finally:
                for each in contestants:
                    if each.controller is not None:
                        each.controller.stop()
                    each.probe.stop()
    about = {"path": "worldcup98_minutes", "speedup": round(load.speedup, 2), "peak_rate": PEAK_RATE}
    return {
        "objective_seconds": OBJECTIVE_SECONDS,
        "load": {**about, "lead_in_seconds": load.lead_in_seconds, "seconds": seconds},
        "capacity_of_an_instance": CAPACITY,
        "max_instances": MAX_INSTANCES,
        "strategies": [each.figures() for each in contestants],
        "plans": dict(plans),
        "actions": actions,
    }
