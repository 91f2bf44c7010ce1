"""What a story is told with: the loop of `weir replay` around a simulated application.

Time is the simulation's; nothing waits. `load` is in records/s, a number or a function of seconds, and may be changed at any time.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from weir_contracts import Analysis, Observation, Outcome, Plan, ScalingPolicy, parse_policy

from replay.loop import Loop
from runtime.envelope import decode, encode
from runtime.records import Record
from services.executor.core import PolicyReading
from services.planner.core.guards import chain
from simulator import Application, Link, OperatorSpec, Simulation, SourceSpec

SOURCE, WORK = "Source: orders", "work"
JOB_ID = "b" * 32
"""Of a job that comes again under its name."""
Message = Observation | Analysis | Plan | Outcome
Load = float | Callable[[float], float]


def policy(name: str = "orders", version: int = 1, **spec: Any) -> ScalingPolicy:
    """The stories' policy: act, 30 s of lag, a minute of stabilisation down, half a minute of cooldown."""
    document = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": name, "version": version},
        "spec": {
            "target": {"flink": {"url": f"http://{name}.test:8081", "job": "orders"}},
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


class World(Loop):
    """A story's loop. `edit` may change an observation on its way or drop it (None); `kept` are the messages of the types in
    `keep`, which do not arrive. With `as_bytes` all of them cross as they do in Kafka."""

    def __init__(self, application: Application | None = None, load: Load = 400.0, **options: Any) -> None:
        self.load = load
        self.edit: Callable[[Observation], Observation | None] = lambda observation: observation
        self.keep: tuple[type[Message], ...] = ()
        self.kept: list[Any] = []
        self.as_bytes = False
        self.lags: list[tuple[float, float]] = []
        loop = {name: options.pop(name) for name in ("noise", "faults", "seed", "fleet", "rules") if name in options}
        spec = options.pop("policy", None) or policy(**options)
        simulation = Simulation(application or job(), self._arriving)
        super().__init__(simulation, spec, carry=self._carried, **loop)

    def live(self, seconds: float) -> "World":
        """Let the loop turn for a while."""
        asyncio.run(self.run(seconds, lambda: self.lags.append((self.simulation.now, self.simulation.lag_seconds))))
        return self

    def late(self, *messages: Any) -> None:
        """Messages that were kept arrive now, in this order."""
        for message in messages:
            ways: dict[type, Any] = {Observation: self.hear, Analysis: self.decide, Plan: self.consider}
            asyncio.run(ways[type(message)](message))

    def says(self, policy: ScalingPolicy | None) -> None:
        """What the executor is told when it asks for the policy; None: it was deleted."""
        self.gate = lambda: PolicyReading(reachable=True, policy=policy)

    def _arriving(self, seconds: float) -> float:
        return self.load(seconds) if callable(self.load) else self.load

    def _carried(self, message: Message) -> Message | None:
        arriving = self.edit(message) if isinstance(message, Observation) else message
        if arriving is None:
            return None
        if self.as_bytes:
            body, headers = encode(arriving, type="test", source="test", id=arriving.id, time=self.now)
            arriving = decode(Record("test", 0, 0, arriving.application, body, headers), type(arriving)).message
        if isinstance(arriving, self.keep):
            self.kept.append(arriving)
            return None
        return arriving

    # -- what is asked of it afterwards -------------------------------------------------------------------------------

    def p(self, name: str = WORK) -> int:
        """What runs of an operator."""
        return self.simulation.observed[name]

    @property
    def lag(self) -> float:
        """The true age of the oldest unprocessed record, in seconds."""
        return self.simulation.lag_seconds

    def worst(self, since: float = 0.0) -> float:
        """The largest of those from a second on."""
        return max(lag for at, lag in self.lags if at >= since)

    @property
    def plans(self) -> list[Plan]:
        return list(self.said.plans)

    @property
    def outcomes(self) -> list[Outcome]:
        return list(self.said.outcomes)

    @property
    def codes(self) -> list[str]:
        """The outcomes' codes."""
        return [outcome.code for outcome in self.said.outcomes]

    @property
    def phases(self) -> set[str]:
        """That actions went through."""
        return {outcome.phase for outcome in self.said.outcomes}

    def moves(self, name: str = WORK) -> list[tuple[int, int]]:
        """(from, to) of an operator in each action that was requested, oldest first."""
        seen: dict[UUID, tuple[int, int]] = {}
        for outcome in self.said.outcomes:
            if outcome.action is not None and outcome.action.requested_at is not None:
                seen[outcome.action.id] = (outcome.before[name], outcome.wanted[name])
        return list(seen.values())


def settled(load: Load = 400.0, start: int = 1, **options: Any) -> World:
    """A job that has run long enough for its capacity to be known."""
    return World(job(start), load, **options).live(100)


CALMING = (
    "saturated-stays",
    "sustained-rate",
    "scale-down-gate",
    "input-collapse",
    "stabilisation",
    "cooldown",
    "reversal",
    "step-limits",
    "dead-band",
)
"""The guards against giving back too soon and moving too often. They stand in for one another: a story needs one of them, seldom a
certain one."""


@contextmanager
def without(*guards: str) -> Iterator[None]:
    """The planner's chain without these: a story that is to show what guards are good for goes wrong here."""
    assert set(guards) <= set(chain.GUARDS), guards
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chain, "GUARDS", {name: guard for name, guard in chain.GUARDS.items() if name not in guards})
        yield
