"""How often Python collects cycles: rarely in a service's process, as before in another one."""

import gc
import json
import subprocess
import sys

import pytest

from weir_runtime.garbage import seldom_collected

SERVICE = """
import gc, json
from weir_runtime.garbage import collect_seldom
class Cycle:
    def __init__(self): self.me = self
collect_seldom()
began = gc.get_stats()
kept = [{"message": [str(i)]} for i in range(40_000)]
quiet = gc.get_stats()[0]["collections"] - began[0]["collections"]
for _ in range(200_000): Cycle()
after = gc.get_stats()
alive = sum(isinstance(o, Cycle) for o in gc.get_objects())
collected = after[0]["collected"] - began[0]["collected"]
print(json.dumps({"frozen": gc.get_freeze_count(), "quiet": quiet, "collected": collected, "alive": alive}))
"""


def test_a_service_is_looked_through_seldom_and_not_never() -> None:
    """Messages that are kept cause no look; cycles are still found, so that they do not pile up."""
    done = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert found["frozen"] > 1000
    assert found["quiet"] == 0
    assert found["collected"] >= 100_000
    assert found["alive"] <= 100_000


def test_settings_of_the_host_process_are_restored() -> None:
    """Whatever happens within."""
    own = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        _left_as_it_was()
    finally:
        gc.set_threshold(*own)


def _left_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="odd"), seldom_collected():
        assert gc.get_threshold() > before
        raise ValueError("odd")
    assert gc.get_threshold() == before
