"""One analyzer at a time, on a real broker: the group itself, and processes that are refused, killed, paused and
replaced."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from testbed.kafka import KafkaBroker
from testbed.service import WeirService
from tests.integration.analyzer.conftest import SLOW_MACHINE_SECONDS, Bench
from tests.integration.analyzer.test_stream import observations
from tests.unit.runtime import lease_suite
from tests.unit.runtime.lease_suite import TERMS
from weir_runtime.clock import SystemClock
from weir_runtime.lease import LEASES, KafkaLease, Lease


class KafkaContest:
    """Contenders in this process, each a separate member."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._clock = SystemClock()
        self._opened: list[Lease] = []

    def contender(self, name: str) -> Lease:
        self._opened.append(KafkaLease(self._broker.bootstrap_servers, self._clock, TERMS, name))
        return self._opened[-1]

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wait(self, condition: Callable[[], bool], seconds: float) -> float:
        begun = self.monotonic()
        while not condition():
            assert self.monotonic() - begun < 3 * seconds, [lease.state() for lease in self._opened]
            time.sleep(0.05)
        return self.monotonic() - begun

    def close(self) -> None:
        for lease in self._opened:
            lease.close()


@pytest.fixture(scope="module")
def topic(bench: Bench) -> None:
    """Create the topics as the analyzer does before it requests the lease."""
    bench.broker.create_topic(LEASES.name, LEASES.partitions)


@pytest.fixture
def contest(bench: Bench, topic: None) -> Iterator[KafkaContest]:
    del topic
    made = KafkaContest(bench.broker)
    yield made
    made.close()


@pytest.mark.parametrize("story", lease_suite.STORIES, ids=lambda story: story.__name__)
def test_kafkas_group_keeps_what_a_lease_promises(
    contest: KafkaContest, story: Callable[[lease_suite.Contest], None]
) -> None:
    """The same stories as the twin."""
    story(contest)


_CONTENDER = """
import sys, time
import structlog
from weir_runtime.clock import SystemClock
from weir_runtime.lease import KafkaLease
from weir_runtime.lease import Terms, judge
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
clock, terms = SystemClock(), Terms("analyzer", lease_seconds=6.0)
lease = KafkaLease(sys.argv[1], clock, terms, sys.argv[2])
lease.open()
while True:
    now = clock.monotonic()
    print(now, judge(lease.state(), now, terms).kind, flush=True)
    time.sleep(0.05)
"""


class Contender:
    """A process that says twenty times a second when it thought what of itself."""

    def __init__(self, bench: Bench, name: str) -> None:
        command = [sys.executable, "-c", _CONTENDER, bench.broker.bootstrap_servers, name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def word(self) -> tuple[float, str]:
        """The next thing it says: at what monotonic time, and what it may do."""
        assert self.process.stdout is not None
        at, kind = self.process.stdout.readline().split()
        return float(at), kind

    def wait_for(self, kind: str, after: float = 0.0, seconds: float = 60.0) -> float:
        """Wait until it reports so for a time after `after`; return that time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            at, reported = self.word()
            if at > after and reported == kind:
                return at
        raise AssertionError(f"{kind} was not said")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_paused_holder_knows_at_once_that_it_is_none(bench: Bench, contest: KafkaContest) -> None:
    """Stopped by a signal for longer than its lease: another works, and awake it never again thinks that it may."""
    with Contender(bench, "sleeper") as sleeper:
        sleeper.wait_for("works")
        sleeper.process.send_signal(signal.SIGSTOP)
        second = contest.contender("second")
        second.open()
        contest.wait(lambda: lease_suite.works(contest, second), 30)
        woken = time.monotonic()
        sleeper.process.send_signal(signal.SIGCONT)
        sleeper.wait_for("waits", after=woken)
        texts = [sleeper.word() for _ in range(60)]
        assert {kind for at, kind in texts if at > woken} <= {"waits", "refused"}
        assert lease_suite.works(contest, second)


def test_a_dead_holder_is_followed_after_its_lease(bench: Bench, contest: KafkaContest) -> None:
    """Killed without a good-bye: who stands by works soon after the lease is over, and not before."""
    with Contender(bench, "victim") as victim:
        second = contest.contender("second")
        victim.wait_for("works")
        second.open()
        contest.wait(lambda: second.state().other is not None, 10)
        victim.process.kill()
    took = contest.wait(lambda: lease_suite.works(contest, second), 15)
    assert TERMS.lease_seconds - 3 < took < TERMS.lease_seconds + 6


def _log(path: Path) -> str:
    return path.read_text() if path.exists() else ""


class Succession:
    """Several processes on one checkpoint, and the observations sent to the active one."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._all = observations("shop/lease", 60)
        self._sent = 0

    def takes_over(self, service: WeirService) -> float:
        """Wait until it has the lease; how long that took. It then reads the state and goes on with the work."""
        begun = time.monotonic()
        self._bench.wait(lambda: "lease-held" in _log(service.process.log))
        return time.monotonic() - begun

    def work(self, count: int = 5) -> None:
        """Send some more, and wait until all are analysed."""
        more = self._all[self._sent : self._sent + count]
        self._sent += count
        self._bench.send(more)
        self._bench.wait(lambda: more[-1].id in {a.observation_id for a in self._bench.of("shop/lease")})
        # what one had published but not yet noted as done comes once more, and is the same
        once = list({a.id: a.observation_id for a in self._bench.of("shop/lease")}.values())
        assert once == [o.id for o in self._all[: self._sent]]

    def stands_by(self, service: WeirService) -> WeirService:
        """Started, warm, and waiting."""
        service.start()
        self._bench.wait(lambda: "waits-for-its-turn" in _log(service.process.log))
        return service


def test_one_is_refused_one_killed_one_paused(bench: Bench) -> None:
    """One process on a checkpoint works at a time. The second ends with code 2, naming the first; the first killed,
    another is at work within 30 s; that one paused, yet another, and the one that wakes up disturbs no other."""
    first, second = bench.service(), bench.service(WEIR_ANALYZER_STANDBY_SECONDS="5")
    third, fourth = (bench.service(WEIR_ANALYZER_STANDBY_SECONDS="inf") for _ in range(2))
    succession = Succession(bench)
    try:
        first.start().wait_ready(SLOW_MACHINE_SECONDS)
        succession.work()
        second.start()
        bench.wait(lambda: not second.process.running)
        reported = _log(second.process.log)
        assert second.process.exit_code == 2, reported
        assert (
            f"another analyzer of this loop is at work: {os.uname().nodename}, process {first.pid}, since 20"
            in reported
        )

        succession.stands_by(third)
        first.process.kill()
        assert succession.takes_over(third) < 30
        succession.work()

        succession.stands_by(fourth)
        third.process.signal_group(signal.SIGSTOP)
        assert succession.takes_over(fourth) < 30
        succession.work()
        third.process.signal_group(signal.SIGCONT)
        bench.wait(lambda: "lease-lost" in _log(third.process.log))
        bench.wait(lambda: _log(third.process.log).count("waits-for-its-turn") == 2)
        succession.work()
        bench.wait(fourth.ready)
        assert "stream-died" not in _log(fourth.process.log)
    finally:
        for service in (first, second, third, fourth):
            service.stop()
