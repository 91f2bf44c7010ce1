"""Sentences of the symptoms: subject, verb, number, reason."""

from datetime import UTC, datetime

from weir_contracts import bounded, short_name

_YEAR_3000_MS = 32_503_680_000_000


def unreachable(message: str) -> str:
    return f"The application cannot be reached{_reason(message)}."


def not_found(message: str) -> str:
    return f"The cluster has no such job{_reason(message)}."


def not_running(state: str, message: str) -> str:
    return f"The job is in state {state}, not all of its tasks run{_reason(message)}."


def ended() -> str:
    return "The policy was deleted; the analyzer drops the application's state."


def returning(state: str) -> str:
    return f"The job is starting again (state {state})."


def new_run(age_seconds: float) -> str:
    return f"A new run began {age_seconds:.0f} s ago."


def gap(seconds: float, interval_seconds: float) -> str:
    return f"No observation came for {seconds:.0f} s; the interval is {interval_seconds:.0f} s."


def retention_gap(observations: int) -> str:
    return f"Retention deleted {observations} observations of this application's partition before they could be read."


def warming_up(age_seconds: float, warm_up_seconds: float) -> str:
    return f"The run is {age_seconds:.0f} s old; its readings count from {warm_up_seconds:.0f} s on."


def window_not_full(window_seconds: float) -> str:
    return f"The window is not full: it needs {window_seconds:.0f} s of samples since the warm-up and the brokers' last absence."


def stalled(source: str, seconds: float, lag: float) -> str:
    return f"{source} took nothing in for {seconds:.0f} s while {formatted(lag)} records wait."


def catching_up(source: str, lag: float, per_second: float) -> str:
    rate = f"{formatted(per_second)} records/s"
    return f"The lag of {formatted(lag)} records at {source} shrinks by {rate}: cleared in {lag / per_second:.0f} s."


def source_bound(source: str, lag: float | None, taken: float | None, busy: float | None) -> str:
    share = "unknown" if busy is None else f"{busy:.0%}"
    return (
        f"{source} lags by {formatted(lag)} records and nothing behind it holds it back: reading is the limit, "
        f"at {formatted(taken)} records/s, {share} busy."
    )


def skewed(operator: str, busiest: float, ratio: float) -> str:
    return f"The busiest subtask of {operator} is {busiest:.0%} busy, {ratio:.1f} times the mean: more subtasks help little."


def waits_outside(operator: str, busy: float) -> str:
    return f"{operator} holds its inputs back while only {busy:.0%} busy: it waits for something outside."


def no_faster(operator: str, rate: float, parallelism: int, earlier_rate: float, earlier_parallelism: int) -> str:
    return (
        f"{operator} takes in {formatted(rate)} records/s with {parallelism} subtasks and took {formatted(earlier_rate)} "
        f"with {earlier_parallelism}: the system it writes to or waits for is the limit."
    )


def readings_missing(operator: str, readings: list[str]) -> str:
    return f"{operator}: {' and '.join(readings)} unknown."


def counted_otherwise(source: str, counter: float, offsets: float) -> str:
    why = "not all of its partitions are known" if counter > offsets else "it drops records"
    taken = f"{formatted(counter)} records/s by its counter and {formatted(offsets)} by its offsets"
    return f"{short_name(source)} takes in {taken}: perhaps {why}."


def commits_of_another_job(source: str, positions: int, commits: int) -> str:
    ahead = f"the group's commits ({commits:,}) are ahead of its moving positions ({positions:,})"
    return f"{short_name(source)}: {ahead}, so that another job commits: check signals.kafka.groupId."


def estimate_missing(source: str, name: str, lower_bound: float | None, unit: str, reason: str) -> str:
    known = "unknown" if lower_bound is None else f"at least {formatted(lower_bound)} {unit}"
    return f"{source}: {name} {known}, {reason}."


def pods_pending(workload: str, missing: int, wanted: int, reason: str) -> str:
    verb = "is" if missing == 1 else "are"
    return f"{workload}: {missing} of {wanted} replicas {verb} not running{_reason(reason)}."


def pods_crashing(workload: str, pods: int, restarts: int | None, reason: str) -> str:
    subject, verb = ("1 pod", "crashes") if pods == 1 else (f"{pods} pods", "crash")
    times = "" if restarts is None else f", {restarts} restarts so far"
    return f"{workload}: {subject} {verb} again and again{times}{_reason(reason)}."


def out_of_memory(workload: str, pods: int, limit_bytes: int | None) -> str:
    subject, verb = ("1 pod", "was") if pods == 1 else (f"{pods} pods", "were")
    limit = "its memory limit" if limit_bytes is None else f"the memory limit of {limit_bytes / 2**20:,.0f} MiB"
    return f"{workload}: {subject} {verb} ended and restarted for exceeding {limit}."


def rollout(workload: str, updated: int | None, wanted: int) -> str:
    done = "an unknown number" if updated is None else str(updated)
    return f"{workload}: a rollout runs; {done} of {wanted} replicas have the new version."


def paused(workload: str) -> str:
    return f"{workload}: its rollout is paused (spec.paused): new replicas may run the earlier version."


def rebalancing(group: str, state: str, members: int) -> str:
    cause = "tasks move between instances"
    if state == "PreparingRebalance":
        cause = "the broker waits for members that still process what they polled"
    return f"{short_name(group)} rebalances (state {state}, {members} members): {cause}."


def migrating(group: str, tasks: int, at: datetime) -> str:
    noun = "standby task warms" if tasks == 1 else "standby tasks warm"
    return f"{short_name(group)} migrates: {tasks} {noun} up until the probing rebalance at {at:%H:%M:%S} UTC."


def restoring(group: str, instances: int, records: int) -> str:
    subject, verb = ("1 instance", "restores") if instances == 1 else (f"{instances} instances", "restore")
    return (
        f"{short_name(group)}: {subject} {verb} state, {records:,} changelog records are left; their threads look idle."
    )


def offsets_reset(source: str, topic: str, partition: int, partitions: int) -> str:
    others = f" and {partitions - 1} more" if partitions > 1 else ""
    return f"{short_name(source)}: offsets of {short_name(topic)}/{partition}{others} went back: a reset, or a topic created again."


def records_expired(source: str, topic: str, partitions: int, records: int) -> str:
    noun = "partition" if partitions == 1 else "partitions"
    return f"{short_name(source)}: {records:,} records of {short_name(topic)} expired unread in {partitions} {noun}."


def position_beyond(source: str, topic: str, partition: int, position: int, end: int) -> str:
    return (
        f"{short_name(source)} is at {position:,} of {short_name(topic)}/{partition}, after the log's end {end:,}: cut off, created "
        "again, or of another cluster."
    )


def reads_uncommitted(source: str, topic: str, partition: int, position: int, end: int) -> str:
    return (
        f"{short_name(source)} is at {position:,} of {short_name(topic)}/{partition}; committed are {end:,}: "
        "set signals.kafka.isolation to read_uncommitted."
    )


def timestamp_refused(source: str, record: str, stamped_ms: int, earliest: float | None, latest: float | None) -> str:
    """`earliest` and `latest`: times between which the record was appended, in s."""
    stamped = _minute(stamped_ms / 1000) if 0 <= stamped_ms < _YEAR_3000_MS else f"{stamped_ms:,} ms"
    appended = "this is no append time"
    if earliest is not None:
        appended = f"it was appended after {_minute(earliest)}"
    elif latest is not None:
        appended = f"it was in the log at {_minute(latest)}"
    return f"{short_name(source)}: {record} is stamped {stamped}, but {appended}."


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def brokers_bound(source: str, blocked: float, growth: float) -> str:
    return (
        f"{short_name(source)} waits for its brokers {blocked:.0%} of the time while its lag grows by {formatted(growth)} records/s: "
        "more threads would wait, too."
    )


def hot_partition(source: str, topic: str, partition: int, rate: float, thread_rate: float) -> str:
    return (
        f"{short_name(topic)}/{partition} gets {formatted(rate)} records/s and a thread of {short_name(source)} processes "
        f"{formatted(thread_rate)}: more threads do not help."
    )


def instance_stuck(instance: str, seconds: float, records: int, forward: int, state: str) -> str:
    others = "1 other instance goes" if forward == 1 else f"{forward} other instances go"
    reported = f" (client {state})" if state else ""
    return (
        f"{bounded(instance, 30)}{reported} has committed nothing for {seconds:.0f} s while {records} records wait for it, and "
        f"{others} forward"
    )


def partitions_stalled(source: str, topic: str, partition: int, partitions: int, seconds: float) -> str:
    others = f" and {partitions - 1} more" if partitions > 1 else ""
    return f"{short_name(source)} committed nothing of {short_name(topic)}/{partition}{others} for {seconds:.0f} s while records wait."


def busy_unknown_without_metrics(group: str, field: str) -> str:
    return f"{short_name(group)}: busy time is unknown without {field}, so capacity is known only while records wait."


def formatted(value: float | None) -> str:
    """Format a number for a sentence: `1,234`, `12.3`, `0.034`."""
    if value is None:
        return "unknown"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.3g}"


def _reason(message: str) -> str:
    return f": {message}" if message else ""
