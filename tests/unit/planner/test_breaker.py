"""The circuit of one planner, on a clock that is only an argument."""

from services.planner.core.breaker import (
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
    """One good answer in between, and the count begins anew."""
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN - 1):
        breaker = breaker.failed(0.0, "away")
    assert breaker.circuit(0.0) == "closed"
    assert breaker.answered().failed(0.0, "away").circuit(0.0) == "closed"
    breaker = breaker.failed(0.0, "away")
    assert breaker.circuit(0.0) == "open"
    assert breaker.waits_seconds(0.0) == FIRST_PAUSE_SECONDS


def test_one_probe_is_let_through_and_closes_it() -> None:
    """The others wait for what comes of it."""
    breaker = opened()
    now = FIRST_PAUSE_SECONDS
    assert (breaker.circuit(now), breaker.waits_seconds(now)) == ("half-open", 0.0)
    breaker = breaker.asked(now, 2.0)
    assert breaker.waits_seconds(now + 1.0) == 1.0
    assert breaker.waits_seconds(now + 2.0) == 0.0  # a probe that nobody heard of again keeps nobody waiting
    assert breaker.answered() == Breaker()


def test_a_probe_that_fails_opens_it_for_longer() -> None:
    """Twice as long each time, up to the longest."""
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(8):
        pauses.append(breaker.waits_seconds(now))
        now += pauses[-1]
        breaker = breaker.asked(now, 2.0).failed(now, "still away")
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == MAX_PAUSE_SECONDS


def test_what_was_asked_before_it_opened_does_not_keep_it_open() -> None:
    """A hundred answers that were on their way fail together: one pause, not a hundred."""
    breaker = opened()
    for _ in range(100):
        breaker = breaker.failed(1.0, "away")
    assert breaker.waits_seconds(1.0) == FIRST_PAUSE_SECONDS - 1.0


def test_a_closed_one_lets_everybody_through() -> None:
    """Asking changes nothing."""
    assert Breaker().asked(5.0, 2.0) == Breaker()
    assert Breaker().waits_seconds(5.0) == 0.0


def test_one_policys_impatience_is_no_fault_of_the_planners() -> None:
    """All who gave it 50 ms waited in vain: who gives it 10 s asks all the same, one at a time, and an answer closes the circuit. Where
    that one failed, too, nobody with 10 s is let through either."""
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker = breaker.failed(0.0, "slow", 0.05)
    assert (breaker.waits_seconds(1.0, 0.05), breaker.waits_seconds(1.0, 10.0)) == (FIRST_PAUSE_SECONDS - 1.0, 0.0)
    asked = breaker.asked(1.0, 10.0)
    assert asked.waits_seconds(2.0, 10.0) > 0.0
    assert asked.answered().circuit(2.0) == "closed"
    tried = asked.failed(11.0, "slow", 10.0)
    assert (tried.waits_seconds(11.0, 10.0) > 0.0, tried.waits_seconds(11.0, 20.0)) == (True, 0.0)


def test_one_that_refuses_connections_is_left_alone_by_the_patient_too() -> None:
    """No time would help."""
    breaker = Breaker().failed(0.0, "away")
    for _ in range(FAILURES_TO_OPEN):
        breaker = breaker.failed(0.0, "slow", 0.05)
    assert breaker.waits_seconds(1.0, 60.0) > 0.0
