"""Options of a trial, checked before anything starts. Pure except for reading the policy file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir_contracts import InvalidPolicy, ScalingPolicy, parse_policy
from weir_runtime.documents import Unreadable, read_file


class TrialError(Exception):
    """A trial cannot start or continue: one line with the reason and the remedy."""


PEAK_RATES: Mapping[str, float] = {"flink": 2400.0, "kafka-streams": 900.0}
"""Records/s at the trace's highest point; a Streams instance is a process of its own, so a small machine runs fewer."""
MAX_PARALLELISMS: Mapping[str, int] = {"flink": 12, "kafka-streams": 6}
"""`bounds.max` of the trial's own policy: subtasks are threads of one process; twelve processes that start at the same time
would leave brokers and load no processor on a small machine."""
DEFAULT_PORT = 8080
"""Port of the API, the default of the other commands too."""
NAMESPACE = "trial"
APPLICATION = "orders"
INPUT_TOPIC = "orders"
OUTPUT_TOPIC = "orders-enriched"
PAYMENTS_TOPIC = "payments"
GROUP_ID = "orders"
PARTITIONS = 12
"""Partitions of the input topic: many divisors, so that many parallelisms are balanced."""

OUTPUT_PARTITIONS = 4
MAX_PARALLELISM = 120
METRICS_PORT = 9404


@dataclass(frozen=True)
class TrialOptions:
    """One trial. Times in seconds, rates in records/s."""

    duration_seconds: float | None = None
    """None: until Ctrl-C."""
    trace: str = "step"
    mode: str | None = None
    """None: as the policy file says, else act."""
    report: Path | None = None
    speedup: float | None = None
    peak_rate: float = PEAK_RATES["flink"]
    planner: str | None = None
    """None: as the policy file says, else rate."""
    policy_file: Path | None = None
    external_flink: str | None = None
    port: int = DEFAULT_PORT
    """Port of the knowledge API, the only address that a user needs."""
    interval_seconds: float = 2.0
    objective_seconds: float = 30.0
    runs_folder: Path = Path("runs")
    workload: str = "flink"

    @property
    def step_at_seconds(self) -> float:
        """When the trace `step` triples the load: after the first rescale, but never beyond half of the trial."""
        return 90.0 if self.duration_seconds is None else min(90.0, self.duration_seconds / 2)

    def check(self) -> None:
        """Raises `TrialError` naming the option that cannot be used."""
        if self.workload not in PEAK_RATES:
            raise TrialError(f"--workload: {self.workload!r} is neither {' nor '.join(PEAK_RATES)}")
        if self.duration_seconds is not None and not 10 <= self.duration_seconds < math.inf:
            raise TrialError("--duration: must be at least 10 seconds")
        if not 1 <= self.peak_rate <= 20_000:
            raise TrialError("--peak-rate: must lie between 1 and 20000 records/s; one machine carries no more")
        if self.speedup is not None and not 0 < self.speedup <= 100_000:
            raise TrialError("--speedup: must lie between 0 and 100000")
        if self.mode not in (None, "advise", "act"):
            raise TrialError(f"--mode: {self.mode!r} is neither advise nor act")
        if self.external_flink is not None and self.workload != "flink":
            raise TrialError("--external-flink: is for --workload flink only")
        if self.external_flink is not None and not self.external_flink.startswith(("http://", "https://")):
            raise TrialError("--external-flink: must be an http(s) address such as http://127.0.0.1:8081")


def trial_policy(options: TrialOptions, flink_url: str, bootstrap_servers: str) -> ScalingPolicy:
    """Return the user's policy, else the default, with the trial's addresses. Options for mode and planner override the
    file.

    Raises `TrialError` that names file and field.
    """
    application = {"flink": {"url": flink_url, "job": APPLICATION}}
    kafka = {"bootstrapServers": bootstrap_servers, "groupId": GROUP_ID}
    return _placed(options, application, {"flink": {}}, kafka)


def streams_policy(options: TrialOptions, endpoint_url: str, bootstrap_servers: str) -> ScalingPolicy:
    """Return the policy of a Kafka Streams trial, as `trial_policy` does."""
    # The port is that of instances without an endpoint; these have their addresses in its response.
    application = {"kafkaStreams": {"applicationId": GROUP_ID, "metrics": {"port": METRICS_PORT}}}
    kafka = {"bootstrapServers": bootstrap_servers}
    return _placed(options, application, {"endpoint": {"url": endpoint_url}}, kafka)


def _placed(
    options: TrialOptions, application: dict[str, Any], target: dict[str, Any], addresses: dict[str, Any]
) -> ScalingPolicy:
    document = _written(options.policy_file) if options.policy_file else _default(options)
    spec = document.setdefault("spec", {}) if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        raise TrialError(f"{options.policy_file}: is not a policy: it has no spec")
    # Addresses are known only now: cluster, supervisor and broker were given free ports.
    spec["application"], spec["target"] = application, target
    signals = spec.get("signals")
    kafka = signals.get("kafka") if isinstance(signals, dict) else None
    spec["signals"] = {"kafka": {**(kafka if isinstance(kafka, dict) else {}), **addresses}}
    if options.mode is not None or "mode" not in spec:
        spec["mode"] = options.mode or "act"
    if options.planner is not None:
        _choose_planner(spec, options.planner)
    document["metadata"] = {"namespace": NAMESPACE, "name": APPLICATION}
    try:
        return parse_policy(document)
    except InvalidPolicy as error:
        raise TrialError(f"{options.policy_file or 'policy'}: {error}") from None


def _choose_planner(spec: dict[str, Any], name: str) -> None:
    planner = spec.get("planner")
    before = planner if isinstance(planner, dict) else {}
    # Parameters belong to the planner they were written for.
    dropped = () if before.get("name", "rate") == name else ("parameters",)
    spec["planner"] = {**{key: value for key, value in before.items() if key not in dropped}, "name": name}


def _written(file: Path) -> Any:
    try:
        return read_file(file)
    except Unreadable as error:
        raise TrialError(f"--policy: {error}") from None


def short_behavior(stabilization_seconds: float, cooldown_seconds: float, hold_seconds: float = 0.0) -> dict[str, Any]:
    """A policy's times where minutes stand for hours: restarts take seconds, and the load goes up and down by design.
    `hold_seconds` is what a swing, or growth that brought nothing, holds further moves for; 10 min by default."""
    hold = f"{hold_seconds:.2f}s"
    return {
        "scaleUp": {"ineffectiveHold": hold},
        "scaleDown": {"stabilization": f"{stabilization_seconds:.2f}s", "reversalHold": hold},
        "cooldown": f"{cooldown_seconds:.2f}s",
    }


def _default(options: TrialOptions) -> dict[str, Any]:
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {},
        "spec": {
            "objective": {"maxLag": f"{options.objective_seconds:g}s"},
            "bounds": {"min": 1, "max": MAX_PARALLELISMS[options.workload]},
            "planner": {"name": "rate"},
            "behavior": short_behavior(40, 20),
            "interval": f"{options.interval_seconds:g}s",
        },
    }
