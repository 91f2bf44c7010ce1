"""Processes of a testbed: started in separate sessions, logged to a file, ended with their owner, even after a crash.

Three nets, one below the other: `stop()`; the kernel's parent-death signal, for an owner that was killed; and the
register (`testbed.register`), by which the next start finds what both have missed.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil

from weir_contracts import bounded, one_line

from . import register

T = TypeVar("T")

# Runs between fork and exec, as a separate program: Python's preexec_fn may deadlock where there are threads. The pid
# stays the same. An owner that died before the signal was armed is noticed by the child's new parent.
_ARM_AND_RUN = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

# The parent-death signal is sent when the *thread* that forked ends, so all forks happen on one that never does.
_LAUNCHER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="testbed-launcher")

_handed_out: set[int] = set()


class TestbedError(Exception):
    """A real part could not be started or reached; the sentence says which, why and where its log is."""

    __test__ = False


class NotInTime(TestbedError):
    """A condition was not met before its deadline."""


def free_port() -> int:
    """Return a TCP port of the loopback interface without a listener, a different one at each call.

    It lies below the range from which the kernel takes ports for outgoing connections: a server that is stopped and
    started again on such a port may find it taken by its own client, which may even have connected to itself.
    """
    for _ in range(1000):
        port = random.randint(15_000, _first_outgoing_port() - 1)  # noqa: S311 - not a secret
        if port not in _handed_out and port_is_free(port):
            _handed_out.add(port)
            return port
    raise TestbedError("no free port found on 127.0.0.1")


def _first_outgoing_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
    return first if first > 16_000 else 32_768


def port_is_free(port: int) -> bool:
    """Whether a listener on `port` could be opened now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def claim_port(name: str, port: int, timeout_seconds: float = 5.0) -> None:
    """Wait until `port` is free, soon after its last owner's end; raises `TestbedError` if it stays in use.

    Without this, a server that could not open its port would be taken for ready, because another process answers there.
    """
    sentence = f"{name}: port {port} of 127.0.0.1 is in use: stop what listens there, or choose another"
    if accepts_connections(port):
        raise TestbedError(sentence)
    try:
        wait_until(lambda: port_is_free(port), timeout_seconds=timeout_seconds, what="port free")
    except NotInTime:
        raise TestbedError(sentence) from None


def accepts_connections(port: int) -> bool:
    """Return whether a process listens on `port`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
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
            raise NotInTime(f"{what}: not within {timeout_seconds:g} s")
        time.sleep(poll_seconds)


@dataclass(frozen=True)
class Usage:
    """Resident memory now and processor time so far of a process and its children."""

    rss_bytes: int
    cpu_seconds: float


class Launcher(ABC):
    """Starts a part and ends it again; as a context manager it does both."""

    @abstractmethod
    def start(self) -> Self:
        """Start it and wait until it can be used; `TestbedError` says why it cannot."""

    @abstractmethod
    def stop(self) -> None:
        """End all of it."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class ManagedProcess(Launcher):
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
    def started(self) -> bool:
        """Whether it was ever started; it need not run any more."""
        return self._process is not None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, and before it was started."""
        return None if self._process is None else self._process.poll()

    def start(self) -> Self:
        """Start it, log appended to its file; `TestbedError` if there is no such program."""
        program = shutil.which(self.arguments[0])
        if program is None:
            raise TestbedError(f"{self.name}: cannot run {self.arguments[0]}: not found")
        if self.running:
            raise TestbedError(f"{self.name}: runs already, as process {self.pid}")
        self.folder.mkdir(parents=True, exist_ok=True)
        _LAUNCHER.submit(self._fork, program).result(timeout=30)
        return self

    def start_ready(self, condition: Callable[[], bool], *, timeout_seconds: float) -> Self:
        """Start it and wait until `condition` holds; if that fails, nothing of it is left."""
        self.start()
        try:
            self.wait_ready(condition, timeout_seconds=timeout_seconds)
        except BaseException:
            self.kill()
            raise
        return self

    def _fork(self, program: str) -> None:
        # On the launcher's thread, so that an interrupt of the caller cannot fall between the fork and its being known.
        arm = [sys.executable, "-I", "-S", "-c", _ARM_AND_RUN, str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*arm, str(Path(program).absolute()), *self.arguments[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, register.MARK: register.own_mark()},
                start_new_session=True,
            )
        register.note(self.folder, self.name, self._process.pid)

    def check(self) -> None:
        """Raises `TestbedError` with the cause of the end if the process is no longer there."""
        if not self.running:
            raise TestbedError(sentence_of_end(self.name, self.exit_code, self._end_of_log(), self.log))

    def cause(self) -> str:
        """Return the line of its log that names the cause of a failure."""
        return cause_of(self._end_of_log()) or "its log is empty"

    def _end_of_log(self) -> str:
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - 65_536))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def wait_ready(self, condition: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Wait until `condition` holds; `TestbedError` if the process ends or the time passes first."""

        def ready() -> bool:
            self.check()
            return condition()

        try:
            wait_until(ready, timeout_seconds=timeout_seconds, what=f"{self.name} ready")
        except NotInTime as error:
            raise NotInTime(f"{error}: {self.cause()} (log: {self.log})") from None

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all it started."""
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to it and all it started, as a crash would."""
        if self._process is None:
            return
        self.signal_group(signal.SIGKILL)
        self._process.wait(timeout=10)
        # Some made groups of their own (Spark's Python workers do), and a group whose leader has ended cannot be
        # signalled safely: its number may belong to another process by now.
        for process in register.members(self._process.pid, register.own_mark()):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after the grace period; nothing of its group is left. May be called again."""
        if self.running and self._process is not None:
            self.signal_group(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=self._grace_seconds)
        self.kill()

    def usage(self) -> Usage | None:
        """Memory and processor time of the process and its children; None once it has ended."""
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


class Server(Launcher):
    """A part of a single process, which can be killed and started again."""

    process: ManagedProcess

    def kill(self) -> None:
        """End it as a crash would; its data stays."""
        self.process.kill()

    def restart(self) -> Self:
        """Stop it if it runs, and start it on the same data and port."""
        self.process.stop()
        return self.start()

    def stop(self) -> None:
        self.process.stop()


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


MAX_CAUSE = 100
"""Characters of a cause in a sentence."""

_PATTERNS: Sequence[re.Pattern[str]] = (
    # What the machine lacks explains every exception that follows from it.
    re.compile(
        r"[^\n]*(?:OutOfMemoryError|Cannot allocate memory|No space left on device|Address already in use|"
        r"Too many open files)[^\n]*"
    ),
    re.compile(r"^Caused by: [^\n]+", re.MULTILINE),
    re.compile(r"^(?:Exception in thread \S+ )?[\w.$]*(?:Exception|Error|Exit|Interrupt)(?::[^\n]*)?$", re.MULTILINE),
    re.compile(r"^[^\n]*\b(?:FATAL|CRITICAL|ERROR|panic:)[^\n]*", re.MULTILINE),
    re.compile(r"^weir\S*: [^\n]+|^[^\n]*\berror\b[^\n]*", re.MULTILINE | re.IGNORECASE),
)
"""Lines that name a cause, the surest kind first; of one kind the last line counts."""
_PREFIX = re.compile(
    r"^(?:Caused by: |Exception in thread \S+ )|^.*?\b(?:FATAL|CRITICAL|ERROR)\b:?\s*(?:\[[^\]]*\]\s*)?"
)


def cause_of(log: str) -> str:
    """Return the line of a log that names the cause of an end; its last line where none does, empty without lines."""
    lines = log.strip().splitlines()
    for pattern in _PATTERNS:
        found = pattern.findall(log)
        if found:
            return bounded(one_line(_PREFIX.sub("", found[-1]) or found[-1]), MAX_CAUSE)
    return bounded(one_line(lines[-1]), MAX_CAUSE) if lines else ""


def sentence_of_end(name: str, code: int | None, log: str, path: object) -> str:
    """Return why a part ended in one sentence: the part, its exit code or signal, the cause and the log's path."""
    if code is None:
        return f"{name} was not started"
    if code < 0:
        return f"{name} was ended by {signal.Signals(-code).name}, by hand or for want of memory (log: {path})"
    cause = cause_of(log)
    return f"{name} ended with code {code}: {cause or 'its log is empty'} (log: {path})"
