"""Prometheus gauges of every application, from its newest messages, and a count of all services' dead letters.

An application's series vanish when it ends, when its policy is deleted, and when its partition goes to another replica.
An unknown value has no series. The numbers of applications and of operators are bounded.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client import Counter, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from weir_contracts import Analysis, DeadLetter, Estimate, Observation, Outcome, Parallelism, Plan, ScalingPolicy
from weir_contracts.topics import DEAD_LETTERS
from weir_runtime.bus import Bus, Record
from weir_runtime.loop import CardinalityLimiter, Stop, run_forever
from weir_runtime.messages import Undecodable, decode

from .newest import Event

Sample = tuple[str, tuple[str, ...], float]
"""Metric, values of its labels without `application`, value."""

APPLICATION: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "weir_application_status": ("What the newest observation found: 1 for the status it is in", ("status",)),
    "weir_application_mode": ("The policy's mode: 1 for the one in force", ("mode",)),
    "weir_application_interval_seconds": ("Time between two observations, by the policy", ()),
    "weir_application_slots": ("Slots that the application takes now", ()),
    "weir_application_restarts": ("Restarts as the engine counts them, rescales included", ()),
    "weir_application_reading_problems": ("Readings that the newest observation could not get", ()),
    "weir_application_arrival_records_per_second": ("What arrives at the sources", ()),
    "weir_application_lag_records": ("Records appended and not yet processed", ()),
    "weir_application_lag_seconds": ("Age of the oldest unprocessed record", ()),
    "weir_application_lag_lower_bound_seconds": (
        "Age of the oldest unprocessed record known, while others are unknown",
        (),
    ),
    "weir_application_expected_latency_seconds": ("Until a record appended now will be done", ()),
    "weir_application_objective_seconds": ("What the policy bounds the lag or the latency by", ("bound",)),
    "weir_application_objective_utilization": ("Busy share of the busiest operator that the policy asks for", ()),
    "weir_application_symptom": ("1 for each symptom the analyzer sees", ("code",)),
    "weir_application_decision": ("1 for the newest decision's kind and reason", ("kind", "code")),
    "weir_application_last_message_timestamp_seconds": (
        "When a stage's newest message was observed (Unix)",
        ("stage",),
    ),
}
OPERATOR: Mapping[str, str] = {
    "weir_operator_parallelism_planned": "What the newest plan wants; of a hold, what it leaves",
    "weir_operator_parallelism_requested": "What the engine was asked for",
    "weir_operator_parallelism_observed": "What runs",
    "weir_operator_input_records_per_second": "What the operator takes in",
    "weir_operator_target_input_records_per_second": "What would arrive if nothing were held back",
    "weir_operator_capacity_records_per_second": "What it could take in if busy all the time, as it runs now",
    "weir_operator_utilization": "Busy share, mean over subtasks",
    "weir_operator_backpressure": "Share of time held back by what comes after it",
    "weir_operator_skew": "Busiest subtask's busy share over the mean: 1 is even",
    "weir_operator_bottleneck": "1 for the operator that limits the application",
}
SHOWN = "weir_knowledge_applications_shown"
LEFT_OUT = "weir_knowledge_applications_left_out"
_FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **{name: (text, ("application", *labels)) for name, (text, labels) in APPLICATION.items()},
    **{name: (text, ("application", "operator")) for name, text in OPERATOR.items()},
    SHOWN: ("Applications that have series here", ()),
    LEFT_OUT: ("Applications without series: there are too many", ()),
}
_DEAD_LETTERS = Counter(
    "weir_knowledge_dead_letters_total",
    "Dead letters of all services, as their topic has them",
    ["service", "topic", "code"],
)
_SUPPRESSED = Counter(
    "weir_knowledge_dead_letters_suppressed_total",
    "Unreadable messages without a dead letter, as the next dead letter of their process counts them",
    ["service"],
)
_service, _topic, _letter_code = CardinalityLimiter(20), CardinalityLimiter(50), CardinalityLimiter(20)
_code = CardinalityLimiter(200)


@dataclass(eq=False)
class ApplicationGauges(Collector):
    """Collects messages, and gives their series to Prometheus."""

    applications: int = 500
    operators: int = 50
    partition: Callable[[str], int] = lambda _: 0
    _shown: dict[str, dict[str, tuple[datetime, list[Sample]]]] = field(default_factory=dict, init=False)
    """By application and stage: time and series of the newest message."""
    _left_out: set[str] = field(default_factory=set, init=False)

    def saw(self, message: Event) -> None:
        """Add a message; the end of an application removes its series. Outcomes have no series."""
        if isinstance(message, Outcome):
            return
        name = message.application
        if isinstance(message, (Observation, Analysis)) and message.status == "ended":
            self.forget(name)
            return
        if name not in self._shown and len(self._shown) >= self.applications:
            self._left_out.add(name)
            return
        self._left_out.discard(name)
        stage, samples = _read(message, self.operators)
        samples.append(("weir_application_last_message_timestamp_seconds", (stage,), message.observed_at.timestamp()))
        self._shown.setdefault(name, {})[stage] = (message.observed_at, samples)

    def lost(self, partitions: Collection[int]) -> None:
        """Drop the applications of these partitions, which another replica owns."""
        for name in [n for n in (*self._shown, *self._left_out) if self.partition(n) in partitions]:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Drop an application, which has ended."""
        self._shown.pop(name, None)
        self._left_out.discard(name)

    def describe(self) -> Iterable[Metric]:
        """Return all families, without samples."""
        return self._families().values()

    def collect(self) -> Iterator[Metric]:
        """Yield the present values; called from a thread while messages are added."""
        families = self._families()
        for name, stages in list(self._shown.items()):
            for _, samples in list(stages.values()):
                for metric, labels, value in samples:
                    families[metric].add_metric((name, *labels), value)
        families[SHOWN].add_metric((), len(self._shown))
        families[LEFT_OUT].add_metric((), len(self._left_out))
        yield from families.values()

    @staticmethod
    def _families() -> dict[str, GaugeMetricFamily]:
        return {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _FAMILIES.items()}


def _read(message: Observation | Analysis | Plan, operators: int) -> tuple[str, list[Sample]]:
    if isinstance(message, Observation):
        return "monitor", [*_policy(message.policy), *_observed(message, operators)]
    if isinstance(message, Analysis):
        return "analyzer", _analysed(message, operators)
    return "planner", [
        ("weir_application_decision", (message.kind, _code(message.code)), 1.0),
        *_parallelism("planned", message.approved or message.current, operators),
    ]


def _policy(policy: ScalingPolicy) -> Iterator[Sample]:
    spec, objective = policy.spec, policy.spec.objective
    yield "weir_application_mode", (spec.mode,), 1.0
    yield "weir_application_interval_seconds", (), spec.interval.total_seconds()
    if objective.bound_seconds is not None:
        bound = "lag" if objective.max_lag is not None else "latency"
        yield "weir_application_objective_seconds", (bound,), objective.bound_seconds
    if objective.utilization is not None:
        yield "weir_application_objective_utilization", (), objective.utilization


def _observed(observation: Observation, operators: int) -> Iterator[Sample]:
    yield "weir_application_status", (observation.status,), 1.0
    yield "weir_application_reading_problems", (), len(observation.problems)
    deployment = observation.deployment
    if deployment is None:
        return
    if deployment.restarts is not None:
        yield "weir_application_restarts", (), deployment.restarts
    if observation.topology is not None and deployment.observed:
        yield "weir_application_slots", (), observation.topology.slots(deployment.observed)
    yield from _parallelism("observed", deployment.observed, operators)
    yield from _parallelism("requested", deployment.requested or {}, operators)


def _parallelism(fact: str, parallelism: Parallelism, operators: int) -> Iterator[Sample]:
    for name, subtasks in list(parallelism.items())[:operators]:
        yield f"weir_operator_parallelism_{fact}", (name,), subtasks


def _analysed(analysis: Analysis, operators: int) -> list[Sample]:
    application: tuple[tuple[str, Estimate], ...] = (
        ("weir_application_arrival_records_per_second", analysis.arrival_rate),
        ("weir_application_lag_records", analysis.lag_records),
        ("weir_application_lag_seconds", analysis.lag_seconds),
        ("weir_application_expected_latency_seconds", analysis.expected_latency_seconds),
    )
    samples: list[Sample] = [(name, (), current.value) for name, current in application if current.value is not None]
    if analysis.lag_seconds.lower_bound is not None:
        samples.append(("weir_application_lag_lower_bound_seconds", (), analysis.lag_seconds.lower_bound))
    for code in dict.fromkeys(symptom.code for symptom in analysis.symptoms):
        samples.append(("weir_application_symptom", (code,), 1.0))
    for one in analysis.operators[:operators]:
        numbers: tuple[tuple[str, Estimate], ...] = (
            ("input_records_per_second", one.input_rate),
            ("target_input_records_per_second", one.target_input_rate),
            ("capacity_records_per_second", one.true_processing_rate),
            ("utilization", one.utilization),
            ("backpressure", one.backpressure),
            ("skew", one.skew),
        )
        samples += [(f"weir_operator_{name}", (one.operator,), e.value) for name, e in numbers if e.value is not None]
        samples.append(("weir_operator_bottleneck", (one.operator,), float(one.operator == analysis.bottleneck)))
    return samples


async def count_dead_letters(bus: Bus, stop: Stop) -> None:
    """Count the dead letters of every service until stopped. The analyzer's are written in Spark workers, without a
    counter."""

    consumer = bus.consumer([DEAD_LETTERS.name], "weir-knowledge-dead-letters")

    async def cycle() -> None:
        for record in await stop.race(consumer.receive(timeout_seconds=0.5)) or []:
            count_dead_letter(record)
        await consumer.commit()

    try:
        await run_forever("dead-letters", cycle, stop)
    finally:
        await consumer.close()


def count_dead_letter(record: Record) -> None:
    """Count one. An undecodable record counts as `unknown`: its dead letter would be undecodable again."""
    if record.value is None:
        return
    try:
        letter = decode(record, DeadLetter).message
    except Undecodable:
        _DEAD_LETTERS.labels("unknown", record.topic, "unknown").inc()
        return
    _DEAD_LETTERS.labels(_service(letter.service), _topic(letter.topic), _letter_code(letter.code)).inc()
    _SUPPRESSED.labels(_service(letter.service)).inc(letter.suppressed)
