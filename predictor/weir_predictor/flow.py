"""Flow of records through a graph: each operator's input per record that a source takes in."""

import math
from collections.abc import Mapping, Sequence

from weir_contracts import Analysis, Topology, within

Flow = Mapping[str, Mapping[str, float]]
"""Operator → source → records that arrive at the operator per record of the source. Operators with an unknown input are
missing."""
Fed = list[tuple[int, float]]
"""The sources that feed an operator (by index) with their shares."""
Limit = tuple[float, Fed]
"""Capacity of an operator in records/s, and what feeds it."""


def ratios_of(analysis: Analysis) -> dict[tuple[str, str], float | None]:
    """Return the selectivity of each edge; 0 for an unknown one behind an operator at which nothing arrives."""
    silent = {o.operator for o in analysis.operators if o.target_input_rate.value == 0}
    return {
        (e.source, e.target): 0.0 if e.selectivity.value is None and e.source in silent else e.selectivity.value
        for e in analysis.edges
    }


def flow_of(topology: Topology, selectivities: Mapping[tuple[str, str], float | None]) -> dict[str, dict[str, float]]:
    """Sum over all paths the product of their edges' selectivities (DS2's traversal, once, in topological order).

    An unknown or negative selectivity, or a product beyond the bounds of messages, makes everything behind it unknown,
    which is not 0: such operators are left out.
    """
    flow: dict[str, dict[str, float]] = {}
    for name in topology.names:
        inputs = topology.inputs(name)
        if not inputs:
            flow[name] = {name: 1.0}
            continue
        arriving = _arriving(name, inputs, selectivities, flow)
        if arriving is not None:
            flow[name] = arriving
    return flow


def _arriving(
    name: str, inputs: Sequence[str], selectivities: Mapping[tuple[str, str], float | None], flow: Flow
) -> dict[str, float] | None:
    arriving: dict[str, float] = {}
    for upstream in inputs:
        ratio, shares = selectivities.get((upstream, name)), flow.get(upstream)
        if ratio is None or ratio < 0 or shares is None:
            return None
        for source, share in shares.items():
            total = within(arriving.get(source, 0.0) + share * ratio)
            if total is None:
                return None
            arriving[source] = total
    return arriving


def arrivals_at(flow: Flow, operator: str, rates: Mapping[str, float]) -> float | None:
    """Return records/s that arrive at `operator` if the sources take in `rates`; None if its flow is unknown."""
    shares = flow.get(operator)
    return None if shares is None else sum(share * rates.get(source, 0.0) for source, share in shares.items())


def loads_of(flow: Flow, rates: Mapping[str, float]) -> dict[str, float]:
    """Return `arrivals_at` of every operator with a known flow."""
    found = {}
    for name, shares in flow.items():
        total = 0.0
        for source, share in shares.items():
            total += share * rates.get(source, 0.0)
        found[name] = total
    return found


def reaching(flow: Flow, wanted: Mapping[str, float], capacities: Mapping[str, float]) -> dict[str, float]:
    """Return an upper bound of the records/s that reach each operator with a known flow if the sources want to take in
    `wanted` and the named operators do no more than `capacities`.

    A source takes in no more than what each operator would let through of it alone. And what arrives at an operator is at
    most max(share here ÷ share there) times the capacity of any that all its sources feed.
    """
    loads, rates = loads_of(flow, wanted), dict(wanted)
    limiting = {name: capacities[name] for name, load in loads.items() if load > capacities.get(name, math.inf)}
    for name, capacity in limiting.items():
        for source, share in flow[name].items():
            if share > 0:
                rates[source] = min(rates.get(source, 0.0), capacity / share)
    found = loads_of(flow, rates)
    for name in found if limiting else ():
        here = {source: share for source, share in flow[name].items() if share > 0}
        for limit, capacity in limiting.items():
            there = flow[limit]
            if here and all(there.get(source, 0.0) > 0 for source in here):
                most = max(share / there[source] for source, share in here.items())
                found[name] = min(found[name], capacity * most)
    return found


def fed_by(flow: Flow, order: Sequence[str], sources: Sequence[str]) -> dict[str, Fed]:
    """Return the operators that some source feeds, in topological order."""
    index = {source: k for k, source in enumerate(sources)}
    found: dict[str, Fed] = {}
    for name in order:
        fed = [(index[source], share) for source, share in flow.get(name, {}).items() if share > 0 and source in index]
        if fed:
            found[name] = fed
    return found


def throttle(limits: Sequence[Limit], wanted: Sequence[float]) -> list[float]:
    """Return the records/s that the sources take in if they want `wanted`: an operator that cannot follow slows all
    sources that feed it by the same factor, as backpressure does. An operator of unknown capacity limits nothing."""
    rates = list(wanted)
    for capacity, fed in limits:
        load = 0.0
        for k, share in fed:
            load += share * rates[k]
        if load > capacity:
            for k, _ in fed:
                rates[k] *= capacity / load
    return rates


def throttled(
    flow: Flow, order: Sequence[str], capacities: Mapping[str, float], wanted: Mapping[str, float]
) -> dict[str, float]:
    """Return `throttle` by name."""
    fed = fed_by(flow, order, list(wanted))
    limits = [(capacities[name], shares) for name, shares in fed.items() if name in capacities]
    return dict(zip(wanted, throttle(limits, list(wanted.values())), strict=True))
