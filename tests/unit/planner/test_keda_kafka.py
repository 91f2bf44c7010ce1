"""The planner `keda-kafka`: the trigger's table, bound and traps, activation, and readings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, after, analysis, policy, request
from tests.unit.planner.requests import is_whole, requests
from weir_contracts import Observation, PlanReply, Problem
from weir_contracts.observation import PartitionReading
from weir_planners.keda_kafka import KedaKafkaParameters, Partition, lag_of, total_of
from weir_sdk import InvalidParameters
from weir_sdk.installed import ask, parse_parameters

TOPIC = {"topic": "orders"}
KAFKA = {"kafka": {"bootstrapServers": "127.0.0.1:9092", "groupId": "shop"}}


def settings(**given: Any) -> KedaKafkaParameters:
    return KedaKafkaParameters.model_validate(given)


@pytest.mark.parametrize(
    ("partition", "parameters", "lag"),
    [
        (Partition(None, 500), {}, (1, 1)),
        (Partition(None, 500), {"scaleToZeroOnInvalidOffset": True}, (0, 0)),
        (Partition(None, 500), {"offsetResetPolicy": "earliest"}, (500, 500)),
        (Partition(None, 500), {"offsetResetPolicy": "earliest", "scaleToZeroOnInvalidOffset": True}, (0, 0)),
        (Partition(None, None), {"offsetResetPolicy": "earliest"}, (0, 0)),
        (Partition(400, None), {}, (0, 0)),
        (Partition(400, 500), {}, (100, 100)),
        (Partition(400, 500, before=400), {}, (100, 100)),
        (Partition(400, 500, before=400), {"excludePersistentLag": True}, (0, 100)),
        (Partition(401, 500, before=400), {"excludePersistentLag": True}, (99, 99)),
        (Partition(500, 500, before=500), {"excludePersistentLag": True}, (0, 0)),
        (Partition(510, 500), {}, (-10, -10)),  # not clamped: a reader ahead of a stale end
    ],
)
def test_lag_of_one_partition(partition: Partition, parameters: dict[str, Any], lag: tuple[int, int]) -> None:
    """Every line of the trigger's table, for scaling and for activation."""
    assert lag_of(partition, settings(**parameters)) == lag


def total(lags: Sequence[int], **parameters: Any) -> int:
    return total_of([(lag, lag) for lag in lags], settings(**parameters))[0]


def test_the_bound_lets_one_more_pass() -> None:
    """10 partitions, 10 records each: 105 waiting give 105, so 11 replicas; 110 give 100, so 10."""
    assert total([105] + [0] * 9) == 105
    assert total([110] + [0] * 9) == 100
    assert total([110] + [0] * 9, allowIdleConsumers=True) == 110


def test_only_partitions_with_lag_count() -> None:
    """Two of ten have some: at most two replicas, or nearly three."""
    lags = [500, 700] + [0] * 8
    assert total(lags, limitToPartitionsWithLag=True, **TOPIC) == 20
    assert total([14, 15] + [0] * 8, limitToPartitionsWithLag=True, **TOPIC) == 29
    assert total([0] * 10, limitToPartitionsWithLag=True, **TOPIC) == 0


@pytest.mark.parametrize(("lag", "wanted"), [(0, 10), (5, 10), (15, 20), (25, 50), (51, 100), (100_000, 100)])
def test_even_distribution_takes_divisors(lag: int, wanted: int) -> None:
    """10 partitions make 1, 2, 5 or 10 replicas, and one threshold even where nothing waits."""
    assert total([lag] + [0] * 9, ensureEvenDistributionOfPartitions=True, **TOPIC) == wanted


def test_negative_totals_are_none() -> None:
    """Never below 0, and nothing is active."""
    assert total_of([(-10, -10), (3, 3)], settings()) == (0, -7)


@given(st.lists(st.integers(-5, 10_000), min_size=1, max_size=40), st.integers(1, 500))
def test_never_much_more_than_a_replica_each(lags: list[int], threshold: int) -> None:
    """Less than one threshold above the partitions, and all of it where that is not reached."""
    found = total(lags, lagThreshold=threshold)
    assert 0 <= found < (len(lags) + 1) * threshold
    if sum(lags) < len(lags) * threshold:
        assert found == max(0, sum(lags))


def reading(partition: int, committed: int | None, end: int | None, topic: str = "orders") -> PartitionReading:
    return PartitionReading(
        operator=SOURCE, topic=topic, partition=partition, committed_offset=committed, log_end_offset=end
    )


def observation_at(seconds: float, *partitions: PartitionReading, problems: Sequence[Problem] = ()) -> Observation:
    """Return the monitor's observation `seconds` after noon."""
    found = analysis()
    return Observation(
        id=found.observation_id,
        application=found.application,
        observed_at=after(seconds),
        policy=found.policy,
        status="running",
        partitions=list(partitions),
        problems=list(problems),
    )


def answer(
    *observations: Observation,
    parameters: Mapping[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
    seconds: float = 0.0,
    signals: Any = KAFKA,
    bounds: Any = None,
    work: int = 2,
) -> PlanReply:
    spec = {"planner": {"name": "keda-kafka", "parameters": dict(parameters or {})}, "signals": signals}
    chosen = policy(**spec, bounds=bounds or {"min": 1, "max": 12})
    plan_request = request(
        analysis(the_policy=chosen, work=work), now=after(seconds), observations=list(observations), memory=memory or {}
    )
    return ask(plan_request, "keda-kafka")


def test_lag_becomes_replicas_of_the_application() -> None:
    """35 records wait at 10 a replica: 4 for every operator."""
    reply = answer(
        observation_at(0, reading(0, 80, 100), reading(1, 85, 100), *(reading(i, 0, 0) for i in range(2, 12)))
    )
    assert (reply.kind, reply.code) == ("scale", "above-target")
    assert reply.parallelism == {SOURCE: 4, WORK: 4}
    assert reply.evidence["lag_records"] == 35


def test_each_source_for_itself() -> None:
    """Operators that are no sources stay as they are."""
    reply = answer(observation_at(0, *(reading(i, 90, 100) for i in range(4))), parameters={"scope": "sources"})
    assert reply.parallelism == {SOURCE: 4, WORK: 2}


def test_a_topic_and_some_of_its_partitions() -> None:
    """Lag is 60 over all topics, 40 of `orders`, 20 of its partitions 1 to 2."""
    readings = [*(reading(i, 90, 100) for i in range(4)), *(reading(i, 90, 100, "other") for i in range(2))]
    assert answer(observation_at(0, *readings)).evidence["lag_records"] == 60
    assert answer(observation_at(0, *readings), parameters=TOPIC).evidence["lag_records"] == 40
    some = {"partitionLimitation": "1-2"}
    assert answer(observation_at(0, *readings), parameters={**TOPIC, **some}).evidence["lag_records"] == 20
    assert answer(observation_at(0, *readings), parameters=some).evidence["lag_records"] == 60


def test_persistent_lag_is_left_out_after_a_query() -> None:
    """The partition that has not moved for 15 s does not count, the one that moved does; five seconds are no query."""
    before, now = (
        observation_at(-15, reading(0, 50, 90), reading(1, 40, 90)),
        observation_at(0, reading(0, 50, 100), reading(1, 70, 100)),
    )
    excluding = {"excludePersistentLag": True, "lagThreshold": 100}
    assert answer(before, now, parameters=excluding).evidence["lag_records"] == 30
    assert answer(before, now, parameters={"lagThreshold": 100}).evidence["lag_records"] == 80
    assert answer(observation_at(-5, reading(0, 50, 90)), now, parameters=excluding).evidence["lag_records"] == 80


@pytest.mark.parametrize(
    ("observations", "signals", "message"),
    [
        ([], KAFKA, "there is no observation yet"),
        ([observation_at(0, reading(0, 1, 2))], {}, "the policy has no signals.kafka.groupId"),
        ([observation_at(0)], KAFKA, "no partitions of any source were observed"),
        ([observation_at(0, reading(0, 1, None))], KAFKA, "the end of orders/0 is unknown"),
        (
            [
                observation_at(
                    0,
                    reading(0, None, 2),
                    problems=[Problem(where="commit of shop at orders/0", what="not coordinator")],
                )
            ],
            KAFKA,
            "not coordinator",
        ),
    ],
)
def test_a_failed_query_holds_and_is_named(observations: list[Observation], signals: Any, message: str) -> None:
    """Unknown is not 0: nothing is stopped because its lag could not be read."""
    reply = answer(*observations, signals=signals, work=8)
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert message in reply.sentence


def quiet(*cycles: tuple[float, int], parameters: Mapping[str, Any]) -> list[PlanReply]:
    """Turns at which so many records wait, 2 subtasks run; memory goes round as JSON."""
    replies: list[PlanReply] = []
    for seconds, waiting in cycles:
        memory = json.loads(json.dumps(replies[-1].memory)) if replies else {}
        observation = observation_at(seconds, reading(0, 0, waiting), reading(1, 0, 0), reading(2, 0, 0))
        replies.append(answer(observation, parameters=parameters, memory=memory, seconds=seconds))
    return replies


def test_scaling_to_zero_is_infeasible() -> None:
    """Five minutes after the last record: the minimum is one subtask, and the plan reports that."""
    replies = quiet((0, 20), (100, 0), (300, 0), (301, 0), parameters={"minReplicaCount": 0})
    assert [len(r.infeasible) for r in replies] == [0, 0, 0, 1]
    assert replies[-1].parallelism == {SOURCE: 1, WORK: 1}
    assert (replies[-1].infeasible[0].code, replies[-1].infeasible[0].wanted) == ("scale-to-zero", 0)


def test_the_activation_threshold_decides_what_is_active() -> None:
    """20 wait, and only more than 20 are activity; it never was active, so the initial cooldown counts."""
    parameters = {"minReplicaCount": 0, "activationLagThreshold": 20, "initialCooldownPeriod": 60}
    assert [
        len(r.infeasible) for r in quiet((0, 20), (60, 20), (61, 20), (62, 21), (63, 20), parameters=parameters)
    ] == [0, 0, 1, 0, 0]


def test_without_zero_the_autoscaler_goes_to_the_min() -> None:
    """Nothing waits: to the policy's least, after the autoscaler's five minutes."""
    replies = quiet((0, 20), (100, 0), (299, 0), (301, 0), parameters={})
    assert [r.kind for r in replies] == ["hold", "hold", "hold", "scale"]
    assert replies[-1].parallelism == {SOURCE: 1, WORK: 1}
    assert replies[1].code == "scale-down-stabilized"
    assert replies[-1].infeasible == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lagThreshold": 0}, "lagThreshold: .*greater than 0"),
        ({"lagTreshold": 5}, "lagTreshold: is not a parameter"),
        ({"limitToPartitionsWithLag": True}, "limitToPartitionsWithLag: needs topic"),
        ({**TOPIC, "limitToPartitionsWithLag": True, "allowIdleConsumers": True}, "excludes allowIdleConsumers"),
        ({"ensureEvenDistributionOfPartitions": True}, "ensureEvenDistributionOfPartitions: needs topic"),
        ({"partitionLimitation": "1,a-3"}, "'a-3' is neither a number nor a range"),
        ({"partitionLimitation": "7-3"}, "'7-3' is neither a number nor a range"),
        ({"minReplicaCount": 4, "maxReplicaCount": 3}, "minReplicaCount: is above maxReplicaCount"),
        ({"offsetResetPolicy": "none"}, "offsetResetPolicy: .*'latest' or 'earliest'"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    """The field, and what it should be."""
    with pytest.raises(InvalidParameters, match=message):
        parse_parameters("keda-kafka", parameters)


OFFSETS = st.one_of(st.none(), st.integers(0, 2**62))


@given(requests("keda-kafka"), st.booleans(), st.lists(st.tuples(OFFSETS, OFFSETS), max_size=5), st.integers(0, 40))
@examples(20)
def test_every_request_is_answered(plan_request: Any, whole: bool, offsets: list[tuple[Any, Any]], age: int) -> None:
    """For any offsets: a complete vector or a hold, with its reason."""
    parameters = {"scope": "application" if whole else "sources", "minReplicaCount": 0, "excludePersistentLag": True}
    spec = {"planner": {"name": "keda-kafka", "parameters": parameters}, "signals": KAFKA}
    readings = [reading(i, *pair).model_copy(update={"operator": "o0"}) for i, pair in enumerate(offsets)]
    plan_request = plan_request.model_copy(
        update={
            "policy": policy(**spec),
            "observations": [observation_at(-age, *readings), observation_at(0, *readings)],
        }
    )
    assert is_whole(ask(plan_request, "keda-kafka"), plan_request)
