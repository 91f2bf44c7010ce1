"""The circuit breaker of a planner; time is an argument."""

from weir_planner.core.breaker import (
    FAILURES_TO_OPEN,
    FIRST_PAUSE_SECONDS,
    MAX_PAUSE_SECONDS,
    Breaker,
)


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker = breaker.failed(0.0, "away")
    return breaker


def test_it_opens_after_failures_in_a_row() -> None:
    """A usable reply in between resets the count."""
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN - 1):
        breaker = breaker.failed(0.0, "away")
    assert breaker.circuit(0.0) == "closed"
    assert breaker.answered().failed(0.0, "away").circuit(0.0) == "closed"
    breaker = breaker.failed(0.0, "away")
    assert breaker.circuit(0.0) == "open"
    assert breaker.waits_seconds(0.0) == FIRST_PAUSE_SECONDS


def test_a_successful_probe_closes_it() -> None:
    """Other calls wait for its result."""
    breaker = opened()
    now = FIRST_PAUSE_SECONDS
    assert (breaker.circuit(now), breaker.waits_seconds(now)) == ("half-open", 0.0)
    breaker = breaker.called(now, 2.0)
    assert breaker.waits_seconds(now + 1.0) == 1.0
    assert breaker.waits_seconds(now + 2.0) == 0.0  # a lost probe blocks no other call
    assert breaker.answered() == Breaker()


def test_a_probe_that_fails_opens_it_for_longer() -> None:
    """The pause doubles each time, up to the maximum."""
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(8):
        pauses.append(breaker.waits_seconds(now))
        now += pauses[-1]
        breaker = breaker.called(now, 2.0).failed(now, "still away")
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == MAX_PAUSE_SECONDS


def test_failures_of_calls_before_it_opened_do_not_extend_the_pause() -> None:
    """A hundred calls in flight fail together: one pause, not a hundred."""
    breaker = opened()
    for _ in range(100):
        breaker = breaker.failed(1.0, "away")
    assert breaker.waits_seconds(1.0) == FIRST_PAUSE_SECONDS - 1.0


def test_a_closed_circuit_passes_every_call() -> None:
    """A call changes nothing."""
    assert Breaker().called(5.0, 2.0) == Breaker()
    assert Breaker().waits_seconds(5.0) == 0.0


def test_a_short_timeout_does_not_block_calls_with_a_longer_one() -> None:
    """After timeouts of 50 ms a call with 10 s passes and its reply closes the circuit; once it fails too, calls with
    10 s wait as well."""
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker = breaker.failed(0.0, "slow", 0.05)
    assert (breaker.waits_seconds(1.0, 0.05), breaker.waits_seconds(1.0, 10.0)) == (FIRST_PAUSE_SECONDS - 1.0, 0.0)
    probing = breaker.called(1.0, 10.0)
    assert probing.waits_seconds(2.0, 10.0) > 0.0
    assert probing.answered().circuit(2.0) == "closed"
    failed = probing.failed(11.0, "slow", 10.0)
    assert (failed.waits_seconds(11.0, 10.0) > 0.0, failed.waits_seconds(11.0, 20.0)) == (True, 0.0)


def test_a_longer_timeout_does_not_pass_after_a_refused_connection() -> None:
    """More time would not help."""
    breaker = Breaker().failed(0.0, "away")
    for _ in range(FAILURES_TO_OPEN):
        breaker = breaker.failed(0.0, "slow", 0.05)
    assert breaker.waits_seconds(1.0, 60.0) > 0.0
