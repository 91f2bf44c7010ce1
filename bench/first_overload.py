"""Measures how soon a job that was never seen before grows: a part of `make bench-loop`.

Each start is a job with a new name, consumer group and policy. Its load is three times what one subtask of the
slowest operator is at 60 % with, from the moment it runs.
"""

from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.results_file import distribution, log
from bench.running import Running, run_folder, started
from testbed.trial.options import INPUT_TOPIC, OUTPUT_TOPIC, PARTITIONS, TrialOptions
from testbed.trial.stack import TrialStack
from weir_contracts import ScalingPolicy, parse_policy
from weir_runtime.http_client import client

TIMEOUT_SECONDS = 90.0
QUIET_RATE = 1.0


def measure_first_overloads(count: int, *, rate: float, objective_seconds: float) -> dict[str, Any]:
    """Return the seconds from each job's first overload until Flink accepted its first rescale."""
    options = TrialOptions(interval_seconds=2.0, peak_rate=rate, objective_seconds=objective_seconds)
    found: list[float | None] = []
    with run_folder() as folder, started(Running(stack := TrialStack(options, folder))) as bench:
        stack.set_load(rate=QUIET_RATE)
        _remove(stack, stack.policy, stack.job_id)
        for i in range(count):
            found.append(_first_rescale(stack, bench, f"first-{i}", rate))
            log(f"start {i + 1} of {count}: {found[-1]}")
    seconds = [each for each in found if each is not None]
    return {
        "first_overload_to_accepted_seconds": distribution(seconds),
        "first_overloads_unanswered": len(found) - len(seconds),
    }


def _first_rescale(stack: TrialStack, bench: Running, name: str, rate: float) -> float | None:
    """Return the seconds from the load on a new job until its first rescale was accepted; None: not in time."""
    _commit_end(stack, name)
    job = stack.start_job(name, name, OUTPUT_TOPIC)
    policy = _policy(stack, name)

    def accepted() -> list[float]:
        actions = [action for action in bench.actions() if action.application == policy.application]
        return [action.requested_at.timestamp() for action in actions if action.requested_at is not None]

    try:
        stack.flink.wait_running(job)
        stack.put_policy(policy)
        began = stack.set_load(rate=rate)
        if not bench.wait(lambda: bool(accepted()), TIMEOUT_SECONDS, f"{name} grows", poll_seconds=0.5):
            return None
        return round(min(accepted()) - began, 3)
    finally:
        stack.set_load(rate=QUIET_RATE)
        _remove(stack, policy, job)


def _commit_end(stack: TrialStack, group_id: str) -> None:
    """Let a new group begin at the end of the topic: what other jobs processed is no backlog of this one."""
    settings = {"bootstrap.servers": stack.kafka.bootstrap_servers, "group.id": group_id, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        partitions = [TopicPartition(INPUT_TOPIC, i) for i in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(each, timeout=10)[1] for each in partitions]
        offsets = [TopicPartition(INPUT_TOPIC, i, end) for i, end in enumerate(ends)]
        consumer.commit(offsets=offsets, asynchronous=False)
    finally:
        consumer.close()


def _policy(stack: TrialStack, name: str) -> ScalingPolicy:
    document = stack.policy.to_document()
    document["metadata"] = {"namespace": document["metadata"]["namespace"], "name": name}
    document["spec"]["application"]["flink"]["job"] = name
    document["spec"]["signals"]["kafka"]["groupId"] = name
    return parse_policy(document)


def _remove(stack: TrialStack, policy: ScalingPolicy, job_id: str | None) -> None:
    with client() as http:
        http.delete(f"{stack.api_url}/v1/policies/{policy.application}").raise_for_status()
    if job_id is not None:
        stack.flink.cancel(job_id)
        stack.flink.wait_ended(job_id)
