"""The built-in planners, as one explicit table."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from weir_contracts import PlanReply, PlanRequest, PlanState

from .daedalus import DaedalusParameters, plan_by_daedalus
from .dhalion import DhalionParameters, plan_by_dhalion
from .ds2 import Ds2Parameters, plan_by_ds2
from .entry import LARGE, Entry
from .flink_autoscaler import FlinkAutoscalerParameters, plan_flink_autoscaler
from .hpa import HpaParameters, plan_by_hpa
from .keda_kafka import KedaKafkaParameters, plan_by_keda_kafka
from .rate import RateParameters, plan_by_rate
from .responsive import ResponsiveParameters, plan_by_responsive
from .schedule import ScheduleParameters, plan_by_schedule
from .static import StaticParameters, plan_static
from .threshold import ThresholdParameters, plan_by_threshold

PLANNERS: Mapping[str, Entry] = {
    "rate": Entry(
        plan_by_rate,
        RateParameters,
        "compares holding with each useful parallelism on a fluid model and takes the cheapest that meets the objective",
    ),
    "daedalus": Entry(
        plan_by_daedalus,
        DaedalusParameters,
        "one parallelism for all operators: the smallest whose learnt capacity carries the forecast and recovers in time (after ICPE 2024)",
    ),
    "dhalion": Entry(
        plan_by_dhalion,
        DhalionParameters,
        "symptom, diagnosis, resolution: grows the operator behind a backpressured one, shrinks what idles (after VLDB 2017)",
    ),
    "responsive": Entry(
        plan_by_responsive,
        ResponsiveParameters,
        "ordered diagnosers of rates, lag, expected latency and thread saturation; the first that wants anything wins",
    ),
    "ds2": Entry(
        plan_by_ds2,
        Ds2Parameters,
        "the optimal parallelism of each operator by true rates, in one pass from the sources (OSDI 2018)",
    ),
    "flink-autoscaler": Entry(
        plan_flink_autoscaler,
        FlinkAutoscalerParameters,
        "the Flink Kubernetes Operator's autoscaler, number by number: windows, thresholds, catch-up, delayed scale-down, alignment",
    ),
    "hpa": Entry(
        plan_by_hpa,
        HpaParameters,
        "the HorizontalPodAutoscaler's rule, autoscaling/v2, for each operator or the application, with the original's numbers",
    ),
    "keda-kafka": Entry(
        plan_by_keda_kafka,
        KedaKafkaParameters,
        "KEDA's trigger kafka: committed lag over lagThreshold, at most a replica a partition, through the HorizontalPodAutoscaler",
        reads=frozenset({"observations"}),
    ),
    "schedule": Entry(
        plan_by_schedule,
        ScheduleParameters,
        "parallelism by the clock: cron expressions in a time zone, and what else holds",
    ),
    "static": Entry(plan_static, StaticParameters, "a fixed parallelism"),
    "threshold": Entry(
        plan_by_threshold,
        ThresholdParameters,
        "a step up above a threshold, a step down below another; of utilisation, lag, latency or backlog",
    ),
}


class UnknownPlanner(ValueError):
    """There is no planner of that name; the sentence lists those there are."""


class InvalidParameters(ValueError):
    """A planner's parameters are wrong; the sentence names each, `problems` has them as field and sentence."""

    def __init__(self, sentence: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        self.problems = list(problems)
        super().__init__(sentence)


def entry_of(name: str) -> Entry:
    """The planner called `name`; `UnknownPlanner` if there is none."""
    entry = PLANNERS.get(name)
    if entry is None:
        raise UnknownPlanner(f"there is no planner {name!r}; there are: {', '.join(sorted(PLANNERS))}")
    return entry


_IN_DOCUMENTS = {
    "extra_forbidden": "is not a parameter of this planner",
    "tuple_type": "Input should be a list",
    "dict_type": "Input should be a mapping",
}
"""What is wrong, in the words of who writes a policy."""


def parse_parameters(name: str, values: Mapping[str, Any]) -> BaseModel:
    """A planner's parameters, checked; `InvalidParameters` names every wrong or unknown one."""
    entry = entry_of(name)
    try:
        # As documents are read that come over the wire: no text or truth value for a number, and a file's date as its text.
        text = json.dumps(dict(values), default=str)
        return entry.parameters.model_validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        known = ", ".join(field.alias or name for name, field in entry.parameters.model_fields.items())
        wrong = [
            (
                ".".join(str(p) for p in e["loc"]),
                _IN_DOCUMENTS.get(e["type"], e["msg"]),
            )
            for e in error.errors(include_url=False)
        ]
        sentence = f"planner {name}: {'; '.join(f'{field}: {what}' for field, what in wrong)} (it has: {known})"
        raise InvalidParameters(sentence, [(field, f"{what} (it has: {known})") for field, what in wrong]) from None


def reads(name: str) -> frozenset[str]:
    """Which of the `LARGE` fields of a request the planner called `name` looks at; one that is not built in may look at all of them."""
    entry = PLANNERS.get(name)
    return frozenset(LARGE) if entry is None else entry.reads


def needed(request: PlanRequest, name: str) -> PlanRequest:
    """The request without what the planner called `name` never looks at: on its way to another process that is nine tenths of the work."""
    if name not in PLANNERS:
        return request
    unread: dict[str, Any] = {field: [] for field in set(LARGE) - reads(name)}
    # What the guards carry from turn to turn is theirs alone; a planner's own memory stands beside it.
    return request.model_copy(update={**unread, "state": PlanState()})


def ask(request: PlanRequest, name: str) -> PlanReply:
    """Let the planner called `name` answer the request with the policy's parameters."""
    parameters = parse_parameters(name, request.policy.spec.planner.parameters)
    return entry_of(name).plan(request, parameters)
