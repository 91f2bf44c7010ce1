"""The suite of every lease: Kafka's group and the memory lease pass the same stories."""

from collections.abc import Callable
from typing import Protocol

from weir_runtime.lease import Holder, Lease, LeaseDecision, Terms, judge

TERMS = Terms("analyzer", lease_seconds=6.0, standby_seconds=12.0)


class Contest(Protocol):
    """Where contenders meet."""

    def contender(self, name: str) -> Lease: ...

    def monotonic(self) -> float: ...

    def wait(self, condition: Callable[[], bool], seconds: float) -> float:
        """Wait until it holds; return the seconds. An assertion if it never does."""


def decide(contest: Contest, lease: Lease) -> LeaseDecision:
    """Return what a contender may do now."""
    return judge(lease.state(), contest.monotonic(), TERMS)


def works(contest: Contest, lease: Lease) -> bool:
    """Whether it may work."""
    return decide(contest, lease).kind == "works"


def holder(lease: Lease) -> Holder:
    """Return the entry of the holder."""
    own = lease.state().own
    assert own is not None
    return own


def one_works_the_other_is_refused_with_the_reason(contest: Contest) -> None:
    """The second learns the holder and its start, waits until its deadline, and is refused; the first is unaffected."""
    first, second = contest.contender("here, process 1"), contest.contender("there, process 2")
    first.open()
    contest.wait(lambda: works(contest, first), 30)
    second.open()
    stands_by = "stands by: another analyzer of this loop is at work: here, process 1"
    contest.wait(lambda: decide(contest, second).reason.startswith(stands_by), 30)
    assert second.state().other == holder(first)
    contest.wait(lambda: decide(contest, second).kind == "refused", 30)
    assert works(contest, first)
    second.close()
    first.close()


def a_holder_that_leaves_is_followed_at_once(contest: Contest) -> None:
    """Given back, the lease is the next one's long before it would have run out, and the epoch shows the new holder."""
    first, second = contest.contender("here, process 1"), contest.contender("there, process 2")
    first.open()
    contest.wait(lambda: works(contest, first), 30)
    before = holder(first)
    second.open()
    contest.wait(lambda: second.state().other is not None, 30)
    first.close()
    assert not works(contest, first)
    took = contest.wait(lambda: works(contest, second), 30)
    assert took < TERMS.lease_seconds
    assert holder(second).epoch > before.epoch
    second.close()


def opened_together_one_gets_it(contest: Contest) -> None:
    """Three that start at the same time: one works, always the same, and two wait."""
    leases = [contest.contender(f"process {n}") for n in range(3)]
    for lease in leases:
        lease.open()
    contest.wait(lambda: any(works(contest, lease) for lease in leases), 30)
    contest.wait(lambda: sum(lease.state().other is not None for lease in leases) == 2, 30)
    assert sum(works(contest, lease) for lease in leases) == 1
    for lease in leases:
        lease.close()


STORIES = (
    one_works_the_other_is_refused_with_the_reason,
    a_holder_that_leaves_is_followed_at_once,
    opened_together_one_gets_it,
)
