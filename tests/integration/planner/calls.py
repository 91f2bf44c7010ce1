"""Calls for a pool, in a module that a new process imports at once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from weir_contracts import Analysis, Parallelism
from weir_planner import workers
from weir_planner.pool import Answer

_answer, _judged = workers._answer, workers._judged


def noted(path: str, what: str, seconds: str = "0") -> Answer:
    """Note the call and its process, then sleep."""
    with Path(path).open("a") as notes:
        notes.write(f"{what} {os.getpid()}\n")
    time.sleep(float(seconds))
    return None, what


def exits(path: str, what: str) -> Answer:
    noted(path, what)
    os._exit(3)


def is_killed(path: str, what: str) -> Answer:
    """As by the kernel when memory runs out."""
    noted(path, what)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def ignores_termination(path: str, what: str) -> Answer:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return noted(path, what, "600")


def leaves_a_thread(path: str, what: str) -> Answer:
    threading.Thread(target=time.sleep, args=[600]).start()
    return noted(path, what)


def leaves_a_child(path: str, what: str) -> Answer:
    with Path(path).open("a") as notes:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        notes.write(f"child {child.pid}\n")
    return noted(path, what)


def ends_well(path: str, what: str) -> Answer:
    noted(path, what)
    os._exit(0)


def hangs_by_memory(planner: str, question: str, own: str) -> Answer:
    """As a candidate whose memory makes it hang."""
    if json.loads(own)["memory"].get("hangs"):
        time.sleep(600)
    return _answer(planner, question, own)


def hangs_while_judging(analysis: Analysis, parallelism: Parallelism, *rest: Any) -> Answer:
    """As the work of a judgement, but hangs at a parallelism of 99."""
    if 99 in parallelism.values():
        time.sleep(600)
    return _judged(analysis, parallelism, *rest)
