"""The generator on a clock of the test's own: what it produces, and what changes while it runs do."""

from tests.unit.workloads.memory_output import MemoryOutput
from weir_replay.trace import LoadTrace, Step
from workloads.loadgen.generator import Generator
from workloads.loadgen.load import Load, LoadChange

TRACE = LoadTrace(Step(), peak_rate=2400)


class Running:
    """A generator and the time it lives in."""

    def __init__(self, load: Load, *, room: int = 1_000_000) -> None:
        self.now = 100.0
        self.output = MemoryOutput(room)
        self.generator = Generator(load, self.output, now_seconds=self.now)

    def let_pass(self, seconds: float) -> int:
        """Tick every 10 ms for so long; the records produced meanwhile."""
        produced = 0
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            produced += self.generator.tick(self.now, 1_700_000_000_000 + round(self.now * 1000))
        return produced

    def change(self, **named: float | bool | None) -> None:
        self.generator.change(LoadChange.model_validate(named))


def test_it_follows_the_trace() -> None:
    """Ten seconds before the step and ten after it, each within 2 % of the rate."""
    running = Running(Load(TRACE))
    assert abs(running.let_pass(10) - 8000) < 160
    running.let_pass(30)
    assert abs(running.let_pass(10) - 24_000) < 480
    assert running.generator.statistics().target_rate == 2400


def test_paused_it_produces_nothing_and_the_trace_waits() -> None:
    """Told to begin after a minute, it begins at the trace's beginning."""
    running = Running(Load(TRACE, paused=True))
    assert running.let_pass(60) == 0
    assert running.generator.statistics().target_rate == 0
    running.change(paused=False)
    assert abs(running.let_pass(5) - 4000) <= 80


def test_a_rate_is_held_until_the_trace_is_asked_for_again() -> None:
    """`rate` set, multiplied by `factor`, and null: back to where the trace is by now."""
    running = Running(Load(TRACE))
    running.change(rate=100)
    assert abs(running.let_pass(10) - 1000) <= 20
    running.change(factor=2)
    assert abs(running.let_pass(10) - 2000) <= 40
    running.change(rate=None, factor=1)
    running.let_pass(20)
    assert abs(running.let_pass(1) - 2400) <= 48


def test_what_a_change_does_not_name_stays() -> None:
    """Setting the record size leaves the rate that was set before."""
    running = Running(Load(TRACE))
    running.change(rate=50)
    running.change(record_bytes=500)
    running.let_pass(1)
    assert running.generator.load.rate == 50
    assert {len(value) for _, value, _ in running.output.records} == {500}


def test_skew_changes_while_it_runs() -> None:
    """With exponent 2 the first key has more than half of the records."""
    running = Running(Load(TRACE))
    running.change(rate=1000, key_skew=2)
    running.let_pass(2)
    keys = [key for key, _, _ in running.output.records]
    assert keys.count(b"customer-000000") > len(keys) / 2


def test_records_carry_the_time_at_which_they_were_made() -> None:
    """Once in the line, once as Kafka's timestamp: the probe and Weir judge by different ones."""
    running = Running(Load(TRACE))
    running.let_pass(1)
    for key, value, produced_at in running.output.records:
        assert value.split(b";")[:2] == [b"%d" % produced_at, key]


def test_its_rate_is_what_arrived_lately() -> None:
    """Unknown at first, then over two seconds; after a stop it falls to 0."""
    running = Running(Load(TRACE))
    assert running.generator.statistics().rate is None
    running.change(rate=500)
    running.let_pass(5)
    rate = running.generator.statistics().rate
    assert rate is not None
    assert abs(rate - 500) <= 10
    running.change(paused=True)
    running.let_pass(3)
    assert running.generator.statistics().rate == 0


def test_no_room_is_not_made_up_for_by_a_burst() -> None:
    """A broker that is away for ten seconds: when it is back at most a second of records comes at once."""
    running = Running(Load(TRACE), room=0)
    running.change(rate=1000)
    assert running.let_pass(10) == 0
    running.output.room = 10**9
    assert running.let_pass(1) <= 2000
    assert running.generator.statistics().delivered == len(running.output.records)
