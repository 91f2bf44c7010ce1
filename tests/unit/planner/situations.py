"""Applications with readings that agree with each other, for properties of decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.unit.planner.build import (
    REQUIRED_PARAMETERS,
    after,
    analysis,
    deployment,
    known,
    operator,
    point,
    policy,
    request,
)
from weir_contracts import (
    CapacityPoint,
    Edge,
    EdgeAnalysis,
    Estimate,
    Operator,
    OperatorAnalysis,
    Parallelism,
    PlanRequest,
    RestartTimes,
    Run,
    SourceAnalysis,
    Topology,
)
from weir_predictor.flow import flow_of, loads_of

MAXIMA = (8, 12, 64, 200, 500)


@dataclass(frozen=True)
class Situation:
    """A running application, as far as it is measured."""

    graph: Topology
    now: Parallelism
    capacities: Mapping[str, float]
    """Records/s that each operator does as it runs."""
    measured: Mapping[str, list[CapacityPoint]]
    selectivities: Mapping[tuple[str, str], float]
    arrivals: Mapping[str, float]
    """Records/s at each source."""
    lags: Mapping[str, float]
    """Seconds at each source."""
    restart_seconds: float | None
    objective: Mapping[str, Any]
    bounds: Mapping[str, Any]
    unknown: frozenset[str] = frozenset()
    """Readings that are missing, as `lag` or `busy`."""

    def with_more(self, *, arrivals: float = 1.0, lag_seconds: float = 0.0) -> "Situation":
        """Return the situation with more arrivals at all sources, or lag added to each."""
        return replace(
            self,
            arrivals={name: rate * arrivals for name, rate in self.arrivals.items()},
            lags={name: lag + lag_seconds for name, lag in self.lags.items()},
        )

    @property
    def loads(self) -> Mapping[str, float]:
        """Records/s that arrive at each operator."""
        return loads_of(flow_of(self.graph, self.selectivities), self.arrivals)

    def _reading(self, name: str, value: float | None) -> Estimate:
        return known(None if name in self.unknown else value)

    def request(self, planner: str = "rate") -> PlanRequest:
        """Return the planner's request."""
        spec = {"planner": {"name": planner, "parameters": REQUIRED_PARAMETERS.get(planner, {})}}
        the_policy = policy(**spec, objective=self.objective, bounds=self.bounds, interval="15s")
        sources, loads = self._sources(), self.loads
        first = max(sources, key=lambda each: each.lag_seconds.value or 0.0)
        return request(
            analysis(
                the_policy=the_policy,
                graph=self.graph,
                deployment=deployment(self.now, self.graph, slots=None),
                run=Run(running_since=after(-3600)),
                operators=[self._operator(name, loads[name]) for name in self.graph.names],
                edges=[
                    EdgeAnalysis(source=source, target=target, selectivity=self._reading("selectivity", share))
                    for (source, target), share in self.selectivities.items()
                ],
                sources=sources,
                arrival_rate=self._reading("arrivals", sum(self.arrivals.values())),
                backlog=None
                if "lag" in self.unknown
                else sum(self.lags[name] * rate for name, rate in self.arrivals.items()),
                lag_seconds=first.lag_seconds.value,
                lag_growth=first.lag_growth,
                expected_latency_seconds=first.expected_latency_seconds,
                restart_times=RestartTimes(
                    seconds=None if "restart" in self.unknown else self.restart_seconds,
                    samples=0 if self.restart_seconds is None or "restart" in self.unknown else 3,
                ),
            )
        )

    def _operator(self, name: str, load: float) -> OperatorAnalysis:
        busy = min(1.0, load / self.capacities[name])
        waits = any(lag > 0 for lag in self.lags.values())
        return operator(
            name,
            self.now[name],
            None if "capacity" in self.unknown else self.capacities[name],
            min(load, self.capacities[name]),
            utilization=self._reading("busy", 1.0 if waits and busy > 0.9 else busy),
            backpressure=self._reading("backpressure", 0.0),
            skew=self._reading("skew", 1.0),
            target_input_rate=self._reading("arrivals", load),
            capacities=[] if "capacity" in self.unknown else self.measured[name],
        )

    def _sources(self) -> list[SourceAnalysis]:
        taken = min([1.0, *(self.capacities[name] / load for name, load in self.loads.items() if load > 0)])
        return [
            SourceAnalysis(
                operator=name,
                arrival_rate=self._reading("arrivals", rate),
                arrival_rate_trend=known(0.0),
                lag_records=self._reading("lag", self.lags[name] * rate),
                lag_growth=self._reading("lag", rate * (1 - taken)),
                lag_seconds=self._reading("lag", self.lags[name]),
                expected_latency_seconds=self._reading("lag", self.lags[name]),
            )
            for name, rate in self.arrivals.items()
        ]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Return applications of one to three sources and up to five operators, whose capacity was measured at one or several
    parallelisms, under any load, lag, objective and bounds."""
    sources = draw(st.sampled_from([1, 1, 1, 2, 3]))
    names = [f"op{i}" for i in range(sources + draw(st.integers(1, 3 if sources == 1 else 2)))]
    # All sources feed the first operator behind them, and that a chain.
    edges = [(name, names[sources]) for name in names[:sources]]
    edges += [*zip(names[sources:], names[sources + 1 :], strict=False)]
    graph = Topology(
        operators=[
            Operator(
                name=name,
                id=f"v{i}",
                max_parallelism=draw(st.sampled_from([None, None, 128, 720, 1024])),
                slot_sharing_group="all",
                source_partitions=draw(st.sampled_from([None, 8, 12, 64, 200])) if i < sources else None,
            )
            for i, name in enumerate(names)
        ],
        edges=[Edge(source=a, target=b, ship_strategy=draw(st.sampled_from(["HASH", "REBALANCE"]))) for a, b in edges],
    )
    maximum = draw(st.sampled_from(MAXIMA))
    limited = draw(st.dictionaries(st.sampled_from(names), st.integers(1, maximum), max_size=2))
    own = {name: {"min": 1, "max": most} for name, most in limited.items()}
    now = {}
    for each in graph.operators:
        most = min(limited.get(each.name, maximum), each.max_parallelism or maximum)
        now[each.name] = min(most, draw(st.integers(1, 12) | st.integers(1, 40)))
    selectivities = {edge: draw(st.sampled_from([1.0, 1.0, 0.1, 0.5, 2.0])) for edge in edges}
    arrivals = {name: draw(st.floats(10, 10_000)) for name in names[:sources]}
    loads = loads_of(flow_of(graph, selectivities), arrivals)
    capacities, measured = {}, {}
    for name in names:
        busy = draw(st.floats(0.05, 1.3) | st.floats(0.8, 1.2) | st.floats(0.05, 3.0))
        contention = draw(st.sampled_from([0.0, 0.002, 0.02, 0.1]))
        rate = loads[name] / busy / now[name] * (1 + contention * (now[name] - 1))
        others = draw(st.lists(st.integers(1, maximum), max_size=2, unique=True))
        capacities[name] = rate * now[name] / (1 + contention * (now[name] - 1))
        measured[name] = [
            point(
                p,
                rate * p / (1 + contention * (p - 1)) * draw(st.floats(0.95, 1.05)),
                confidence=draw(st.floats(0.1, 1.0)),
                saturated=draw(st.booleans()),
            )
            for p in dict.fromkeys([now[name], *others])
        ]
    lag = st.sampled_from([0.0, 0.0, 0.0, 5.0, 20.0, 23.9, 30.0, 100.0, 1000.0])
    lags = {name: draw(lag) for name in arrivals}
    return Situation(
        graph,
        now,
        capacities,
        measured,
        selectivities,
        arrivals,
        lags,
        draw(st.sampled_from([None, 2.0, 4.0, 8.0, 20.0, 60.0])),
        draw(
            st.sampled_from(
                [{"maxLag": "10s"}, {"maxLag": "30s"}, {"maxLag": "2m"}, {"maxLatency": "30s"}, {"utilization": 0.7}]
            )
        ),
        {"min": 1, "max": maximum, **({"operators": own} if own else {})},
    )
