"""Processes of a testbed: started in a group of their own, logged to a file, ended with their owner, even after a crash.

Three nets, one below the other: `stop()`; the kernel's parent-death signal, for an owner that was killed; and a register
on disk, by which the next start finds what both have missed.
"""

import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil

T = TypeVar("T")

REGISTER = "processes.jsonl"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# The parent-death signal is sent when the *thread* that forked ends, so all forks happen on one that never does.
_LAUNCHER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="testbed-launcher")


class TestbedError(Exception):
    """A real part could not be started or reached; the sentence says which, why and where its log is."""

    __test__ = False


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a listener on `port` could be opened now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def accepts_connections(port: int, host: str = "127.0.0.1", timeout_seconds: float = 1.0) -> bool:
    """Whether somebody listens on `port`."""
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds):
            return True
    except OSError:
        return False


def wait_until(condition: Callable[[], T | None], *, timeout_seconds: float, what: str, poll_seconds: float = 0.1) -> T:
    """The first truthy answer of `condition`; `TestbedError` naming `what` when `timeout_seconds` pass without one.

    A condition that raises `TestbedError` ends the wait at once: what it waits for can no longer come.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise TestbedError(f"{what}: not within {timeout_seconds:g} s")
        time.sleep(poll_seconds)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True)
class Usage:
    """What a process and its children use: resident memory now, processor time so far."""

    rss_bytes: int
    cpu_seconds: float


class ManagedProcess:
    """One process of the testbed. `folder` is the run folder: log and register go there."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        grace_seconds: float = 8.0,
    ) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._environment = {**os.environ, **(environment or {})}
        self._grace_seconds = grace_seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id; `TestbedError` before it was started."""
        if self._process is None:
            raise TestbedError(f"{self.name}: was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it, log appended to its file; `TestbedError` if the program cannot be run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = _LAUNCHER.submit(self._fork).result()
        register(self.folder, self.name, self._process.pid)
        return self

    def _fork(self) -> subprocess.Popen[bytes]:
        try:
            with self.log.open("ab") as log:
                return subprocess.Popen(
                    self.arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,  # noqa: PLW1509 - only prctl runs before exec, on one thread
                )
        except OSError as error:
            raise TestbedError(f"{self.name}: cannot run {self.arguments[0]}: {error.strerror}") from None

    def check(self) -> None:
        """Raises `TestbedError` with the end of the log if the process is no longer there."""
        if not self.running:
            code = None if self._process is None else self._process.returncode
            raise TestbedError(f"{self.name}: ended with code {code}; {self.log} ends with: {self.log_tail()}")

    def log_tail(self, lines: int = 3) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - 8192))
                return " | ".join(log.read().decode(errors="replace").strip().splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def wait_ready(self, condition: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Wait until `condition` holds; `TestbedError` if the process ends or the time passes first."""

        def ready() -> bool:
            self.check()
            return condition()

        try:
            wait_until(ready, timeout_seconds=timeout_seconds, what=f"{self.name} ready")
        except TestbedError as error:
            if "not within" in str(error):
                raise TestbedError(f"{error}; {self.log} ends with: {self.log_tail()}") from None
            raise

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self.signal_group(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(timeout=10)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after the grace period; nothing of its group is left. May be called again."""
        if self._process is None:
            return
        self.signal_group(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=self._grace_seconds)
        self.kill()

    def usage(self) -> Usage | None:
        """Memory and processor time of the process and its children; None once it is gone."""
        try:
            root = psutil.Process(self.pid)
            family = [root, *root.children(recursive=True)]
        except psutil.Error:
            return None
        rss, cpu = 0, 0.0
        for member in family:
            with contextlib.suppress(psutil.Error):
                rss += member.memory_info().rss
                times = member.cpu_times()
                cpu += times.user + times.system
        return Usage(rss, cpu)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def register(folder: Path, name: str, pid: int) -> None:
    """Note a started process with its start time, and its owner's, so that a later start can tell it from a namesake."""
    try:
        record = {
            "name": name,
            "pid": pid,
            "started": psutil.Process(pid).create_time(),
            "owner": os.getpid(),
            "owner_started": psutil.Process().create_time(),
        }
    except psutil.NoSuchProcess:
        return
    with (folder / REGISTER).open("a") as out:
        out.write(json.dumps(record) + "\n")


def _same(pid: int, started: float) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        # A pid is used again; its start time tells the difference (to the clock tick, 10 ms).
        if abs(process.create_time() - started) < 0.02 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def reap_leftovers(runs_folder: Path) -> list[str]:
    """Kill what earlier runs left behind: registered processes that still live while their owner does not.

    Returns their names. A register that cannot be read is skipped: it belongs to a run that crashed while writing it.
    """
    reaped = []
    for path in sorted(runs_folder.glob(f"*/{REGISTER}")):
        for text in path.read_text(errors="replace").splitlines():
            try:
                record = json.loads(text)
                pid, started = int(record["pid"]), float(record["started"])
                owner, owner_started = int(record["owner"]), float(record["owner_started"])
            except (ValueError, KeyError, TypeError):
                continue
            process = _same(pid, started)
            if process is None or _same(owner, owner_started) is not None:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            reaped.append(str(record.get("name", pid)))
    return reaped


def stop_all(processes: Sequence[ManagedProcess], timeout_seconds: float = 12.0) -> None:
    """Stop several processes side by side, within `timeout_seconds` or by SIGKILL."""
    threads = [threading.Thread(target=p.stop, name=f"stop-{p.name}", daemon=True) for p in processes]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.running:
            process.kill()


atexit.register(_LAUNCHER.shutdown, wait=False)
