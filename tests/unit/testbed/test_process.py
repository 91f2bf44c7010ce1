"""Processes of a testbed end with their owner, whatever happens to it, and are never mistaken for others."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from testbed.process import (
    ManagedProcess,
    NotInTime,
    TestbedError,
    claim_port,
    free_port,
    port_is_free,
    stop_all,
    wait_until,
)

pytestmark = pytest.mark.thorough

SLEEP = ["sleep", "60"]
PROJECT = Path(__file__).resolve().parents[3]


def _python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def _ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait_gone(*pids: int) -> None:
    wait_until(lambda: all(_ended(pid) for pid in pids), timeout_seconds=10, what=f"end of {pids}")


def _wait_number(path: Path) -> int:
    text = wait_until(
        lambda: path.exists() and path.read_text().strip(), timeout_seconds=10, what=f"a number in {path}"
    )
    return int(str(text))


def test_output_goes_to_a_log_and_the_environment_is_passed_on(tmp_path: Path) -> None:
    """Both streams end up in the log of the run folder."""
    script = "import os, sys; print('out', os.environ['X']); print('err', file=sys.stderr)"
    process = ManagedProcess("talk", _python(script), tmp_path, environment={"X": "y"}).start()
    wait_until(lambda: not process.running, timeout_seconds=10, what="end")
    assert sorted((tmp_path / "talk.log").read_text().splitlines()) == ["err", "out y"]
    process.stop()


def test_a_missing_program_is_reported_at_once(tmp_path: Path) -> None:
    """Nothing was started, so there is no id to ask for."""
    process = ManagedProcess("ghost", ["no-such-program"], tmp_path)
    with pytest.raises(TestbedError, match="ghost: cannot run no-such-program: not found"):
        process.start()
    with pytest.raises(TestbedError, match="ghost: was not started"):
        _ = process.pid
    process.stop()


def test_a_process_is_not_started_twice(tmp_path: Path) -> None:
    """The first would be lost from sight."""
    with ManagedProcess("once", SLEEP, tmp_path) as process, pytest.raises(TestbedError, match="once: runs already"):
        process.start()


def test_a_process_that_ends_early_is_not_waited_for(tmp_path: Path) -> None:
    """The error has the exit code and the end of the log, long before the deadline."""
    process = ManagedProcess("early", _python("print('no such setting'); exit(3)"), tmp_path)
    with pytest.raises(TestbedError, match=r"early ended with code 3: no such setting \(log: .*early\.log\)"):
        process.start_ready(lambda: False, timeout_seconds=30)


def test_what_never_becomes_ready_is_ended_and_named(tmp_path: Path) -> None:
    """A failed start leaves nothing behind, so that no caller has to clean up after an error."""
    process = ManagedProcess("slow", SLEEP, tmp_path)
    with pytest.raises(NotInTime, match=r"slow ready: not within 0\.2 s: .* \(log: .*slow\.log\)"):
        process.start_ready(lambda: False, timeout_seconds=0.2)
    assert not process.running


def test_stop_lets_a_process_finish_and_kills_one_that_will_not(tmp_path: Path) -> None:
    """SIGTERM first; SIGKILL once the grace is over."""
    polite = ManagedProcess(
        "polite", _python(_ON_TERM.format(action="print('bye', flush=True); sys.exit(0)")), tmp_path
    )
    deaf = ManagedProcess("deaf", _python(_ON_TERM.format(action="pass")), tmp_path, grace_seconds=0.3)
    for process in (polite, deaf):
        process.start_ready(lambda p=process: "ready" in p.log.read_text(), timeout_seconds=10)
    pids = [polite.pid, deaf.pid]
    began = time.monotonic()
    stop_all([polite, deaf], timeout_seconds=5)
    assert time.monotonic() - began < 4
    assert "bye" in polite.log.read_text()
    _wait_gone(*pids)


_ON_TERM = """
import signal, sys, time
def handle(*_):
    {action}
signal.signal(signal.SIGTERM, handle)
print('ready', flush=True)
while True:
    time.sleep(60)
"""


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    """Also a child with its own process group, as Spark's Python workers have, and one that outlives its parent."""
    script = f"""
import os, subprocess
child = subprocess.Popen(['sleep', '60'])
apart = subprocess.Popen(['sleep', '60'], process_group=0)
open({str(tmp_path / "child")!r}, 'w').write(str(child.pid))
open({str(tmp_path / "apart")!r}, 'w').write(str(apart.pid))
os.kill(os.getpid(), 9)
"""
    process = ManagedProcess("parent", _python(script), tmp_path).start()
    wait_until(lambda: not process.running, timeout_seconds=10, what="crash")
    child, apart = _wait_number(tmp_path / "child"), _wait_number(tmp_path / "apart")
    assert not _ended(child) and not _ended(apart)
    process.stop()
    _wait_gone(child, apart)


_OWNER = """
import sys, threading
from pathlib import Path
from testbed.process import ManagedProcess
folder = Path(sys.argv[1])
process = ManagedProcess('child', ['sleep', '60'], folder)
# Started from a thread that ends at once: the child must end with the process, not with that thread.
thread = threading.Thread(target=process.start)
thread.start()
thread.join()
(folder / 'pid').write_text(str(process.pid))
threading.Event().wait(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_owner_takes_its_processes_with_it(tmp_path: Path, number: signal.Signals) -> None:
    """kill -9 of the parent leaves no child; the end of the thread that started it does no harm."""
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], cwd=PROJECT)
    child = _wait_number(tmp_path / "pid")
    assert not _ended(child)
    owner.send_signal(number)
    owner.wait(timeout=10)
    _wait_gone(child)


def test_usage_counts_a_process_and_its_children(tmp_path: Path) -> None:
    """Memory and processor time grow with what it really does; a process that has ended has none, not zero."""
    child = "x = bytearray(50_000_000); [i for i in range(10**9)]"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = ManagedProcess("big", _python(script), tmp_path)
    with process:
        usage = wait_until(
            lambda: (u := process.usage()) and u.rss_bytes > 60_000_000 and u.cpu_seconds > 0.05 and u,
            timeout_seconds=10,
            what="usage seen",
        )
        assert usage
    assert process.usage() is None


def test_waiting_gives_the_answer_or_names_what_did_not_come() -> None:
    """The condition's own answer is handed on; a deadline ends the wait with a sentence."""
    answers = iter([None, 0, "", "there"])
    assert wait_until(lambda: next(answers), timeout_seconds=5, what="it", poll_seconds=0) == "there"
    with pytest.raises(NotInTime, match="Godot: not within 0 s"):
        wait_until(lambda: None, timeout_seconds=0, what="Godot")


def test_free_ports_differ_and_lie_outside_the_kernels_own_range() -> None:
    """A server stopped and started again must find its port free of outgoing connections."""
    ports = {free_port() for _ in range(50)}
    assert len(ports) == 50
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(15_000 <= port < first for port in ports)


def test_a_port_in_use_cannot_be_claimed() -> None:
    """A port in use, listening or only bound, is an error that names it; once released it can be claimed."""
    port = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        with pytest.raises(TestbedError, match=f"kafka: port {port} of 127.0.0.1 is in use"):
            claim_port("kafka", port, timeout_seconds=0)
        listener.listen()
        assert not port_is_free(port)
        with pytest.raises(TestbedError, match=f"kafka: port {port} of 127.0.0.1 is in use"):
            claim_port("kafka", port)
    claim_port("kafka", port)


def test_children_know_nothing_of_the_terminals_interrupt(tmp_path: Path) -> None:
    """Ctrl-C goes to the trial alone, which then stops the parts in order."""
    with ManagedProcess("apart", SLEEP, tmp_path) as process:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
