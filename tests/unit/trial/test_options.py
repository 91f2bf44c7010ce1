"""Precedence in a trial: the command line, then the policy file, then the trial's defaults."""

from pathlib import Path

import pytest

from testbed.trial.options import TrialError, TrialOptions, streams_policy, trial_policy

FILE = """
apiVersion: weir.dev/v1alpha1
kind: ScalingPolicy
metadata: {namespace: shop, name: orders}
spec:
  application: {flink: {url: "http://elsewhere:8081", job: other}}
  objective: {maxLag: 10s}
  mode: advise
  planner: {name: threshold, parameters: {highBusyness: 0.9}, timeout: 3s}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(FILE)
    return path


def _spec(options: TrialOptions) -> tuple[str, str, dict[str, object]]:
    spec = trial_policy(options, "http://127.0.0.1:1", "127.0.0.1:2").spec
    return spec.mode, spec.planner.name, spec.planner.parameters


def test_without_a_file_the_trial_acts_with_the_rate_planner() -> None:
    """And follows options instead."""
    assert _spec(TrialOptions()) == ("act", "rate", {})
    assert _spec(TrialOptions(mode="advise", planner="threshold")) == ("advise", "threshold", {})


def test_a_file_is_followed_without_options(file: Path) -> None:
    """Defaults of the command line do not override it; only its addresses are replaced."""
    assert _spec(TrialOptions(policy_file=file)) == ("advise", "threshold", {"highBusyness": 0.9})
    job = trial_policy(TrialOptions(policy_file=file), "http://127.0.0.1:1", "127.0.0.1:2").subject.flink
    assert (str(job.url), job.job) == ("http://127.0.0.1:1/", "orders")


def test_options_go_before_the_file(file: Path) -> None:
    """Another planner does not inherit parameters that were written for the file's; the same one keeps them."""
    assert _spec(TrialOptions(policy_file=file, mode="act")) == ("act", "threshold", {"highBusyness": 0.9})
    assert _spec(TrialOptions(policy_file=file, planner="rate")) == ("advise", "rate", {})
    assert _spec(TrialOptions(policy_file=file, planner="threshold"))[2] == {"highBusyness": 0.9}
    policy = trial_policy(TrialOptions(policy_file=file, planner="rate"), "http://127.0.0.1:1", "127.0.0.1:2")
    assert policy.spec.planner.timeout.total_seconds() == 3


def test_a_file_without_a_mode_acts(file: Path) -> None:
    """A trial demonstrates actions."""
    file.write_text(FILE.replace("  mode: advise\n", ""))
    assert _spec(TrialOptions(policy_file=file))[0] == "act"


def test_a_mode_that_is_none_is_named() -> None:
    with pytest.raises(TrialError, match="--mode: 'perhaps'"):
        TrialOptions(mode="perhaps").check()


@pytest.mark.parametrize("seconds", [1.0, float("nan"), float("inf")])
def test_a_length_that_is_none_is_named(seconds: float) -> None:
    """NaN is below no number: a trial of that length had no end."""
    with pytest.raises(TrialError, match="--duration: must be at least 10 seconds"):
        TrialOptions(duration_seconds=seconds).check()


def test_a_streams_trial_names_the_group_and_its_endpoint(file: Path) -> None:
    """Instead of what the file has; the group is the application's, so the signals need not name it."""
    url = "http://127.0.0.1:1/scale/orders"
    policy = streams_policy(TrialOptions(policy_file=file, workload="kafka-streams"), url, "127.0.0.1:2")
    spec = policy.spec
    assert (spec.target.endpoint and str(spec.target.endpoint.url)) == url
    assert spec.application is not None
    assert spec.application.kafka_streams is not None
    assert spec.application.kafka_streams.application_id == "orders"
    assert (spec.mode, policy.subject.application.group_id) == ("advise", "orders")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TrialOptions(workload="spark"), "--workload: 'spark' is neither flink nor kafka-streams"),
        (
            TrialOptions(workload="kafka-streams", external_flink="http://127.0.0.1:8081"),
            "--external-flink: is for --workload flink only",
        ),
    ],
)
def test_a_wrong_workload_is_named(options: TrialOptions, message: str) -> None:
    with pytest.raises(TrialError, match=message):
        options.check()
