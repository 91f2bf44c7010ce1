"""Precedence in a trial: the command line, then the policy file, then the trial's defaults."""

from pathlib import Path

import pytest

from testbed.trial.options import TrialError, TrialOptions, trial_policy

FILE = """
apiVersion: weir.dev/v1alpha1
kind: ScalingPolicy
metadata: {namespace: shop, name: orders}
spec:
  target: {flink: {url: "http://elsewhere:8081", job: other}}
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
