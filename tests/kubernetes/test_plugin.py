"""`kubectl weir …` with the real kubectl, which finds the programs of the installed package by their names."""

import os
import subprocess
import sys
from pathlib import Path

from testbed.kubernetes import binary


def kubectl(*arguments: str) -> list[str]:
    """Run kubectl with this environment's programs on the PATH; return its lines."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [binary("kubectl"), *arguments],
        env={**os.environ, "PATH": path, "WEIR_SERVER": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 5), done.stderr
    return [*done.stdout.splitlines(), *(done.stderr.splitlines() if done.returncode else [])]


def test_kubectl_runs_the_command() -> None:
    """With its own sentences, and its exit codes."""
    assert kubectl("weir", "--version")[0].startswith("weir ")
    assert any("Usage: kubectl weir get" in line for line in kubectl("weir", "get", "--help"))
    (sentence,) = kubectl("weir", "get", "shop/orders")
    assert sentence.startswith("weir: http://127.0.0.1:1 does not answer")


def test_kubectl_completes_it() -> None:
    """As the script of `kubectl completion bash` asks: a line each, and an instruction."""
    assert kubectl("__complete", "weir", "replay", "--planner", "r") == ["rate", "responsive", ":4"]
    assert kubectl("__complete", "weir", "get", "shop") == [":0"]
