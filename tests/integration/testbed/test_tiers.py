"""A tier whose means are missing is skipped with one line, and fails where it must not be skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
ONE_TEST = "tests/integration/testbed/test_redis.py::test_the_shared_server_answers"
ONE_OF_KUBERNETES = "tests/kubernetes/test_api_server.py::test_it_is_the_version_that_it_is_meant_to_be"


def _pytest_without_means(
    cache: Path, required: str, test: str = ONE_TEST, path: str = os.environ["PATH"]
) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=PROJECT,
        env={
            **os.environ,
            "WEIR_CACHE": str(cache),
            "WEIR_REQUIRE": required,
            "PATH": path,
            "KUBEBUILDER_ASSETS": "",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("required", "code", "message"),
    [
        ("", 0, "integration: no jars of kafka: run `make setup`"),
        ("e2e", 0, "1 skipped"),
        ("integration,e2e", 1, "the integration tier is required (WEIR_REQUIRE), and this was skipped: "),
        (
            "integraton",
            4,
            "WEIR_REQUIRE: no such tier: integraton; there are integration, e2e, containers, kubernetes, node",
        ),
    ],
)
def test_a_tier_without_its_means(tmp_path: Path, required: str, code: int, message: str) -> None:
    """The line has the remedy, for a skip, a failure and a misspelt setting."""
    returned, output = _pytest_without_means(tmp_path, required)
    assert message in output
    assert returned == code


@pytest.mark.parametrize(("required", "code"), [("", 0), ("kubernetes", 1)])
def test_the_kubernetes_tier_without_go_and_programs(tmp_path: Path, required: str, code: int) -> None:
    """It needs no Java, and its line says what to install first."""
    returned, output = _pytest_without_means(tmp_path, required, ONE_OF_KUBERNETES, path=str(tmp_path))
    assert "kubernetes: etcd is needed by the Kubernetes API server: install it" in output
    assert returned == code
