"""World of a story: the loop of `weir replay` around a simulated application.

Time is simulated; nothing waits. `load` is in records/s, a number or a function of seconds, and may be changed at any
time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self
from uuid import UUID

import pytest

from weir_contracts import Analysis, Observation, Outcome, Plan, ScalingPolicy, parse_policy
from weir_executor.core import PolicyReading
from weir_knowledge.core import HistoryLimits, State, remember
from weir_planner.core import guards as chain
from weir_replay.loop import Loop, Message
from weir_replay.simulator import Application, Link, OperatorSpec, Simulation, SourceSpec

SOURCE, WORK = "Source: orders", "work"
JOB_ID = "b" * 32
"""Of a job that comes again under its name."""
Load = float | Callable[[float], float]


def policy(name: str = "orders", version: int = 1, **spec: Any) -> ScalingPolicy:
    """The stories' policy: act, 30 s of lag, a minute of stabilisation down, half a minute of cooldown."""
    document = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": name, "version": version},
        "spec": {
            "application": {"flink": {"url": f"http://{name}.test:8081", "job": "orders"}},
            "objective": {"maxLag": "30s"},
            "bounds": {"min": 1, "max": 16},
            "behavior": {"scaleDown": {"stabilization": "60s"}, "cooldown": "30s"},
            "interval": "5s",
            "mode": "act",
            **spec,
        },
    }
    return parse_policy(document)


def job(parallelism: int = 1, source: int = 1, **work: Any) -> Application:
    """Two operators: `work` does 500 records/s a subtask, a little less with each more; the source takes what there is."""
    return Application(
        operators=(
            OperatorSpec(name=SOURCE, service_seconds=20e-6, source=SourceSpec(topic="orders"), parallelism=source),
            OperatorSpec(
                name=WORK, **{"service_seconds": 2e-3, "contention": 0.02, "parallelism": parallelism, **work}
            ),
        ),
        links=(Link(source=SOURCE, target=WORK, ship="hash"),),
    )


class World:
    """A loop around one application; one that `shares` another world's loop is added to that.

    `edit` may change an observation on its way or drop it (None); `kept` are the messages of the types in `keep`, which
    do not arrive.
    """

    opened: list["World"] = []  # noqa: RUF012 - closed after each test

    def __init__(
        self,
        application: Application | None = None,
        load: Load = 400.0,
        *,
        shares: "World | None" = None,
        policy: ScalingPolicy | None = None,
        **options: Any,
    ) -> None:
        of_application = {name: options.pop(name) for name in ("noise", "faults", "seed") if name in options}
        of_loop = {name: options.pop(name) for name in ("rules",) if name in options}
        self.load = load
        self.edit: Callable[[Observation], Observation | None] = lambda observation: observation
        self.keep: tuple[type[Message], ...] = ()
        self.kept: list[Any] = []
        self.plans: list[Plan] = []
        self.outcomes: list[Outcome] = []
        self.analysis: Analysis | None = None
        self.lags: list[tuple[float, float]] = []
        self.simulation: Any = self.simulated(application)
        self.simulation.on_step = lambda _: self.lags.append((self.simulation.now, self.simulation.lag_seconds))
        spec = policy or self.default_policy(**options)
        self.remembered = State(application=spec.application)
        self._worlds: dict[str, World] = {} if shares is None else shares._worlds
        self._worlds[spec.application] = self
        self.loop = Loop(carry=self._route, **of_loop) if shares is None else shares.loop
        self.application = self.loop.add(self.simulation, spec, **of_application)
        World.opened.append(self)

    def simulated(self, application: Any) -> Any:
        """Return the simulation of an application."""
        return Simulation(application or job(), self._arriving)

    def default_policy(self, **options: Any) -> ScalingPolicy:
        """Return the policy with these options."""
        return _policy(**options)

    def live(self, seconds: float) -> Self:
        """Let time pass."""
        self.loop.run(seconds)
        return self

    def late(self, *messages: Any) -> None:
        """Let messages arrive that were kept, in this order."""
        self.loop.deliver(*messages)

    def executor_reads(self, policy: ScalingPolicy | None) -> None:
        """Change the policy that the executor reads; None: it was deleted. Observations still carry the one before."""
        policies = self.loop.knowledge.policies
        if policy is None:
            del policies[self.policy.application]
        else:
            policies[self.policy.application] = policy

    def executor_reads_each(self, readings: Iterator[ScalingPolicy | None]) -> None:
        """Let the executor read these policies, one after the other."""

        async def read(_application: str) -> PolicyReading:
            return PolicyReading(reachable=True, policy=next(readings))

        self.loop.knowledge.policy = read  # type: ignore[method-assign]

    def _arriving(self, seconds: float) -> float:
        return self.load(seconds) if callable(self.load) else self.load

    def _route(self, message: Message) -> Message | None:
        return self._worlds[message.application]._carried(message)

    def _carried(self, message: Message) -> Message | None:
        arriving = self.edit(message) if isinstance(message, Observation) else message
        if arriving is None:
            return None
        self.remembered = remember(self.remembered, arriving, HistoryLimits(cycles_count=20))
        if isinstance(arriving, Analysis):
            self.analysis = arriving
        elif isinstance(arriving, Plan):
            self.plans.append(arriving)
        elif isinstance(arriving, Outcome):
            self.outcomes.append(arriving)
        if isinstance(arriving, self.keep):
            self.kept.append(arriving)
            return None
        return arriving

    # -- results -------------------------------------------------------------------------------

    @property
    def policy(self) -> ScalingPolicy:
        return self.application.policy

    @policy.setter
    def policy(self, policy: ScalingPolicy) -> None:
        self.application.policy = policy

    def p(self, name: str = WORK) -> int:
        """Return the parallelism that runs of an operator."""
        return self.simulation.observed[name]

    @property
    def lag(self) -> float:
        """Return the true age of the oldest unprocessed record, in seconds."""
        return self.simulation.lag_seconds

    def worst(self, since: float = 0.0) -> float:
        """Return the largest lag from a second on."""
        return max(lag for at, lag in self.lags if at >= since)

    @property
    def codes(self) -> list[str]:
        """Return the outcomes' codes."""
        return [outcome.code for outcome in self.outcomes]

    @property
    def phases(self) -> set[str]:
        """Return the phases that actions went through."""
        return {outcome.phase for outcome in self.outcomes}

    def moves(self, name: str = WORK) -> list[tuple[int, int]]:
        """Return (from, to) of an operator in each action that was requested, oldest first."""
        found: dict[UUID, tuple[int, int]] = {}
        for outcome in self.outcomes:
            if outcome.action is not None and outcome.action.requested_at is not None:
                found[outcome.action.id] = (outcome.before[name], outcome.wanted[name])
        return list(found.values())


_policy = policy


def settled(load: Load = 400.0, start: int = 1, **options: Any) -> World:
    """Return a job that has run long enough for its capacity to be learned."""
    return World(job(start), load, **options).live(100)


CALMING = (
    "saturated-stays",
    "sustained-rate",
    "scale-down-gate",
    "input-outage",
    "stabilisation",
    "cooldown",
    "reversal",
    "step-limits",
    "dead-band",
)
"""The guards against giving back too soon and moving too often. They stand in for one another: a story needs one of
them, seldom a certain one."""


@contextmanager
def without(*guards: str) -> Iterator[None]:
    """The planner's chain without these: a story that is to show what guards are good for goes wrong here."""
    assert set(guards) <= set(chain.GUARDS), guards
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chain, "GUARDS", {name: guard for name, guard in chain.GUARDS.items() if name not in guards})
        yield
