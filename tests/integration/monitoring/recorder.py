"""A loop on the simulator as Prometheus would have scraped it: the services' own metrics, at simulated times.

Planner and executor count and time what they do. The metrics of the others, and those of a process (memory, its
target), are set here.
"""

import asyncio
from contextlib import closing
from datetime import datetime
from typing import Any
from uuid import UUID

from prometheus_client import REGISTRY, Gauge, Metric

from tests.loop.world import policy
from weir_analyzer import service as _analyzer  # noqa: F401 - declares its metrics
from weir_contracts import Analysis, DeadLetter, Observation, Outcome
from weir_contracts.topics import DEAD_LETTERS
from weir_knowledge import decider as _decider  # noqa: F401 - the same
from weir_knowledge.gauges import ApplicationGauges, count_dead_letter
from weir_monitor import service as _monitor  # noqa: F401 - the same
from weir_planner import remote as _remote  # noqa: F401 - the same
from weir_planner.telemetry import no_reply
from weir_replay.loop import Loop
from weir_replay.simulator import Noise, Simulation, chain
from weir_runtime.bus import Record
from weir_runtime.clock import FakeClock
from weir_runtime.messages import encode
from weir_runtime.service import Health

SERVICES = ("monitor", "analyzer", "planner", "executor", "knowledge")
SCRAPE_SECONDS = 10.0
MINUTES = 30
APPLICATION = "shop/orders"


def _load(seconds: float) -> float:
    """A morning: it doubles twice within minutes, and falls again."""
    return 600.0 if seconds < 480 else 1500.0 if seconds < 780 else 2400.0 if seconds < 1260 else 900.0


class Recorder:
    """Counts what the loop says, and writes down what there is to scrape."""

    def __init__(self) -> None:
        self.gauges = ApplicationGauges()
        self.lines: list[str] = []
        self.began: datetime | None = None
        self.ended: datetime | None = None

    def carry(self, message: Any) -> Any:
        """Count a message on its way between two services."""
        if not isinstance(message, Outcome):
            self.gauges.saw(message)
        if isinstance(message, Observation):
            _metric("weir_monitor_scrapes_total").labels(message.status).inc()
            _metric("weir_monitor_scrape_seconds").observe(message.scrape_seconds or 0.1)
        elif isinstance(message, Analysis):
            _metric("weir_analyzer_batches_total").inc()
            _metric("weir_analyzer_observations_total").inc()
            _metric("weir_analyzer_batch_seconds").observe(0.4)
        return message

    def scrape(self, now: datetime) -> None:
        """Return the metrics that Prometheus would scrape from each service now."""
        self.began, self.ended = self.began or now, now
        for family in (*REGISTRY.collect(), *self.gauges.collect()):
            for job in _jobs(family):
                self._write(family, job, now)
        self.lines += [_line("up", {"job": f"weir-{name}", "instance": name}, 1.0, now) for name in SERVICES]

    def _write(self, family: Metric, job: str, now: datetime) -> None:
        for sample in family.samples:
            labels = {**sample.labels, "job": f"weir-{job}", "instance": job}
            self.lines.append(_line(sample.name, labels, sample.value, now))

    @property
    def text(self) -> str:
        """All of it, as OpenMetrics."""
        return "\n".join([*self.lines, "# EOF", ""])


def _metric(name: str) -> Any:
    return REGISTRY._names_to_collectors[name]


def _jobs(family: Metric) -> tuple[str, ...]:
    """Whose a metric is, by its name."""
    if family.name.startswith(("weir_application_", "weir_operator_")):
        return ("knowledge",)
    own = tuple(name for name in SERVICES if family.name.startswith(f"weir_{name}_"))
    everybodys = family.name.startswith(("process_", "weir_cycles", "weir_dead", "weir_dependency"))
    return own or (SERVICES if everybodys else ())


def _line(name: str, labels: dict[str, str], value: float, now: datetime) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
    return f"{name}{{{inside}}} {value} {now.timestamp()}"


def record() -> Recorder:
    """Half an hour of a loop, with a dead letter and a planner that gives no answer on the way."""
    recorder = Recorder()
    for metric in set(REGISTRY._names_to_collectors.values()):
        if isinstance(metric, Gauge) and metric._labelnames:
            metric.clear()  # what other tests of this process set is not this loop's
    health = Health(FakeClock())
    health.register("kafka", _fine)
    asyncio.run(health.check())
    _metric("weir_analyzer_lease_held").set(1)
    _metric("weir_knowledge_decides").set(1)
    _metric("weir_planner_circuit_open").labels("mine").set(0)
    with closing(Loop(carry=recorder.carry)) as loop:
        spec = policy(objective={"maxLag": "15s"})
        loop.add(Simulation(chain(1), _load), spec, noise=Noise(relative=0.02), seed=7)
        for cycle in range(int(MINUTES * 60 / SCRAPE_SECONDS)):
            loop.run(SCRAPE_SECONDS)
            if cycle == 90:
                count_dead_letter(_dead_letter(loop.now))
                no_reply("mine", "planner-timeout", "planner mine gave no answer within 2 s")
            recorder.scrape(loop.now)
    return recorder


async def _fine() -> None:
    return


def _dead_letter(now: datetime) -> Record:
    topic = "weir.observations.v1alpha1"
    letter = DeadLetter(
        id=UUID(int=1),
        at=now,
        service="analyzer",
        topic=topic,
        partition=0,
        offset=7,
        code="invalid",
        reason="not JSON",
    )
    body, headers = encode(letter, type=DEAD_LETTERS.type, source="analyzer", id=letter.id, time=now)
    return Record(DEAD_LETTERS.name, 0, 0, APPLICATION, body, headers)
