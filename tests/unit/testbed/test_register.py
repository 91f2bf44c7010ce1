"""The register finds what a crash left, and nothing else: ids are used again, and other trials may be at work."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from testbed import register
from testbed.process import ManagedProcess, wait_until
from testbed.register import Started, reap_leftovers

DEAD_OWNER = 4_194_303
"""Above the highest id that Linux gives by default, so nobody's."""


@pytest.fixture
def stray() -> Iterator[subprocess.Popen[bytes]]:
    """A process that some crashed run left behind."""
    mark = Started("stray", 0, 0.0, DEAD_OWNER, 1.0).mark
    process = subprocess.Popen(["sleep", "60"], start_new_session=True, env={**os.environ, register.MARK: mark})
    yield process
    process.kill()
    process.wait(timeout=10)


def _write(runs: Path, *entries: Started, folder: str = "run-1") -> None:
    (runs / folder).mkdir(parents=True, exist_ok=True)
    with (runs / folder / register.FILE).open("a") as out:
        out.writelines(json.dumps(asdict(entry)) + "\n" for entry in entries)


def _entry(process: subprocess.Popen[bytes], *, late_seconds: float = 0.0) -> Started:
    started = psutil.Process(process.pid).create_time() + late_seconds
    return Started("stray", process.pid, started, DEAD_OWNER, 1.0)


@pytest.mark.parametrize("folder", [".", "run-1", "run-1/kafka"])
def test_a_leftover_of_a_crashed_run_is_ended(tmp_path: Path, stray: subprocess.Popen[bytes], folder: str) -> None:
    """Wherever in the run folder its part keeps its register. The second time there is nothing left to do."""
    _write(tmp_path, _entry(stray), folder=folder)
    assert reap_leftovers(tmp_path) == ["stray"]
    assert stray.wait(timeout=10) == -9
    assert reap_leftovers(tmp_path) == []


def test_a_later_process_of_the_same_id_is_left_alone(tmp_path: Path) -> None:
    """The id alone proves nothing: the start time differs, and it carries no mark."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as innocent:
        _write(tmp_path, _entry(innocent, late_seconds=-100.0))
        assert reap_leftovers(tmp_path) == []
        assert innocent.poll() is None
        innocent.kill()


def test_children_of_a_leftover_that_has_ended_are_found_by_session_and_mark(tmp_path: Path) -> None:
    """The registered process crashed too, and what it had started lives on."""
    mark = Started("", 0, 0.0, DEAD_OWNER, 1.0).mark
    pid_file = tmp_path / "pid"
    script = f"import subprocess; open({str(pid_file)!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid))"
    leader = subprocess.Popen(
        [sys.executable, "-c", script], start_new_session=True, env={**os.environ, register.MARK: mark}
    )
    entry = _entry(leader)
    leader.wait(timeout=10)
    orphan = psutil.Process(int(pid_file.read_text()))
    _write(tmp_path, entry)
    assert reap_leftovers(tmp_path) == ["stray"]
    wait_until(
        lambda: not psutil.pid_exists(orphan.pid) or orphan.status() == psutil.STATUS_ZOMBIE,
        timeout_seconds=10,
        what="end of the orphan",
    )


def test_a_trial_at_work_is_left_alone(tmp_path: Path) -> None:
    """Two trials may run side by side: the owner of these processes lives."""
    with ManagedProcess("busy", ["sleep", "60"], tmp_path / "run-1") as process:
        assert reap_leftovers(tmp_path) == []
        assert process.running


def test_a_register_cut_off_in_the_middle_is_read_as_far_as_it_goes(
    tmp_path: Path, stray: subprocess.Popen[bytes]
) -> None:
    """A crash may come while a line is written; the others still count."""
    _write(tmp_path, _entry(stray))
    with (tmp_path / "run-1" / register.FILE).open("a") as out:
        out.write('[]\n{"name": "x"}\n\n{"name": "kafka", "pid": 12')
    assert reap_leftovers(tmp_path) == ["stray"]


def test_no_runs_yet_means_nothing_to_reap(tmp_path: Path) -> None:
    """The first start of all."""
    assert reap_leftovers(tmp_path / "runs") == []
